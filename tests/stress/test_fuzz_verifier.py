"""fuzz_verifier finds no fault in verify.py."""

from tests.helpers.ranks import script
from tests.stress import fuzz_verifier


def test_the_verifier_gives_no_bad_verdict(tmp_path):
    """In a fork: fuzz_verifier measures its largest child, and pytest has had larger ones."""
    done = script(fuzz_verifier.main, tmp_path, "--answers", 400)
    assert done.statuses == [0], done.out + done.err
    assert "bad verdicts: 0" in done.out
