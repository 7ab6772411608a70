"""plumbing/errors.py: one line for each error."""

from plumbing import errors


def test_an_error_is_printed_as_one_line(capsys):
    errors.print_error(errors.InputError("a\nb"))
    assert capsys.readouterr() == ("", "error: a b\n")
    assert errors.first_lines("an introduction:\nthe error\na trace").endswith("n: the error")
    assert errors.first_lines(KeyboardInterrupt()) == "KeyboardInterrupt"
    message = str(errors.PeerLostError(RuntimeError("connection closed\nby peer\nGLHF")))
    assert "--timeout_minutes (connection closed by peer); run the same command again" in message
