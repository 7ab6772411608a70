"""plumbing/distributed/shutdown.py: the report of an error, its exit status, and what is left."""

import os
import signal
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

import train
from plumbing.distributed import shutdown
from plumbing.errors import InputError, NonFiniteError, print_line
from scripts.command import exit_on_error
from tests.helpers.ranks import Grades, command


@pytest.fixture
def layout(monkeypatch):
    """Rank 1 of 2, whose signals are those of pytest."""
    monkeypatch.setattr(shutdown, "stop_at_signals", lambda layout: None)
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    return SimpleNamespace(
        world=2, rank=1, first=False, role="student", store=dist.HashStore(), stopping=False
    )


PEER = "error: a rank failed or exceeded --timeout_minutes"
ERRORS = {  # the error: its exit status, the printed text
    InputError("only 3 fit"): (2, "error: only 3 fit\n"),
    NonFiniteError("norm nan"): (3, "error: norm nan\n"),
    OSError(28, "No space left"): (4, "error: [Errno 28] No space left\n"),
    dist.DistNetworkError("the store is gone"): (4, PEER),
    dist.DistBackendError("NCCL error"): (4, PEER),
    RuntimeError("CUBLAS failed"): (1, "error on rank 1:\nRuntimeError: CUBLAS failed"),
    torch.OutOfMemoryError("no room"): (1, "error on rank 1:\ntorch.OutOfMemoryError: no room"),
}


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_the_first_rank_to_report_prints_its_error(error, layout, capsys):
    status, text = ERRORS[error]
    assert shutdown.report(layout, error) == status
    assert capsys.readouterr().err.startswith(text)
    assert layout.store.check(["reported"])
    shutdown.report(layout, InputError("a later one"))
    assert capsys.readouterr().err == ""


LOST_PEER = f"{PEER} (Connection closed); the same command"
FRAMES = {  # ranks, and the file that raises: exit status, the printed text
    (2, str(Path(dist.__file__).with_name("c10d.py"))): (4, LOST_PEER),
    (1, str(Path(dist.__file__).with_name("c10d.py"))): (1, "error on rank 1:"),
    (2, "/home/me/distributed/sampler.py"): (1, "error on rank 1:"),
}


@pytest.mark.parametrize("case", FRAMES, ids=["peers", "no peers", "other code"])
def test_a_runtime_error_inside_torch_distributed_is_that_of_a_lost_peer(case, layout, capsys):
    """gloo raises no class of its own."""
    layout.world, file = case
    status, text = FRAMES[case]
    code = compile("raise RuntimeError('Connection closed')", file, "exec")
    with pytest.raises(RuntimeError) as raised:
        exec(code)
    assert shutdown.report(layout, raised.value) == status
    assert capsys.readouterr().err.startswith(text)


def test_output_that_nobody_reads_ends_no_run(capsys):
    """Of `| head`: what follows is dropped, also what Python writes when it closes the stream."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w", buffering=1) as stream:
        print_line("the first fails", stream)
        print_line("the second is dropped", stream)
    with exit_on_error("script"):
        raise BrokenPipeError
    assert capsys.readouterr() == ("", "")


@pytest.fixture
def signals():
    """Restore the handlers of signals at the end."""
    before = {number: signal.getsignal(number) for number in shutdown.STOP_SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", shutdown.STOP_SIGNALS)
def test_a_signal_stops_the_run_after_the_step(number, signals):
    layout = SimpleNamespace(stopping=False)
    shutdown.stop_at_signals(layout)
    signal.raise_signal(number)
    assert layout.stopping


def test_under_nohup_a_closing_terminal_does_not_stop_the_run(signals):
    layout = SimpleNamespace(stopping=False)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    shutdown.stop_at_signals(layout)
    signal.raise_signal(signal.SIGHUP)
    assert not layout.stopping


def test_a_plug_in_that_exits_is_an_error(layout, capsys):
    """The run has not finished, so that its status must not be 0."""
    layout.connect = lambda timeout_minutes: None
    layout.world = 1
    assert shutdown.run_ranks(layout, 1, body=sys.exit) == 1
    assert "SystemExit" in capsys.readouterr().err


def test_ranks_that_do_not_meet_are_told_where(layout, capsys, monkeypatch):
    """There is no store yet, over which they could agree on who prints; each error is one line."""

    def connect(timeout_minutes):
        raise dist.DistBackendError("Unable to find interface for: eth9\nin gloo")

    monkeypatch.setenv("MASTER_ADDR", "node7")
    monkeypatch.setenv("MASTER_PORT", "29500")
    monkeypatch.setattr(dist, "is_initialized", lambda: False)
    layout.connect, layout.store, layout.first = connect, None, True
    assert shutdown.run_ranks(layout, 1, body=lambda: 0) == 4
    error = capsys.readouterr().err
    assert error.startswith(
        "error: the ranks did not meet at node7:29500 (Unable to find interface"
    )
    assert error.count("\n") == 1


# What main changes in its process, it gives back


def state() -> tuple:
    handlers = [signal.getsignal(number) for number in shutdown.STOP_SIGNALS]
    return handlers, dict(os.environ), dist.is_initialized()


def test_main_leaves_its_process_as_it_was_and_can_be_called_again(halfway, tmp_path, monkeypatch):
    """After Ctrl-C in a step, and after a run: as the cell of a notebook, which keeps the
    traceback."""

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(train, "Verifier", lambda **settings: nullcontext(Grades()))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    argv = command(tmp_path / "run", "--sampler", "uniform", "--steps", 1, data=halfway)
    before = state()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt) as kept:
        patch.setattr(train, "train_step", interrupt)
        train.main(argv)
    assert kept.traceback
    assert state() == before
    assert train.main(argv) == 0
    assert state() == before
