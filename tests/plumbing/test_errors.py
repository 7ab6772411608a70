"""plumbing/errors.py: exit statuses, and one line for each error."""

import pytest

from plumbing import errors

STATUSES = {errors.InputError: 2, errors.NonFiniteError: 3, errors.Fault: 4}


@pytest.mark.parametrize("kind", STATUSES)
def test_each_kind_of_error_has_an_exit_status(kind):
    assert kind("message").status == STATUSES[kind]


def test_an_error_is_printed_as_one_line(capsys):
    errors.print_error(errors.InputError("a\nb"))
    assert capsys.readouterr() == ("", "error: a b\n")
    assert (
        errors.first_lines("an introduction:\nthe error\na trace") == "an introduction: the error"
    )
    assert errors.first_lines(KeyboardInterrupt()) == "KeyboardInterrupt"


def test_a_lost_peer_names_the_limit_and_the_remedy():
    message = str(errors.PeerLostError(RuntimeError("connection closed\nby peer\nGLHF")))
    assert "--timeout_minutes (connection closed by peer); run the same command again" in message
