"""fuzz_verifier finds no fault in verify.py."""

from tests.stress import fuzz_verifier


def test_the_verifier_gives_no_bad_verdict(capsys):
    assert fuzz_verifier.main(["--answers", "400"]) == 0, capsys.readouterr().out
