"""plumbing/distributed/shutdown.py: the report of an error, and its exit status."""

import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from plumbing.distributed import shutdown
from plumbing.errors import InputError, NonFiniteError
from tests.helpers.models import ROOT


@pytest.fixture
def layout(monkeypatch):
    """Rank 1 of 2, whose signals are those of pytest."""
    monkeypatch.setattr(shutdown, "stop_at_signals", lambda layout: None)
    monkeypatch.setattr(shutdown.time, "sleep", lambda seconds: None)
    layout = SimpleNamespace(world=2, rank=1, first=False, role="student", store=dist.HashStore())
    layout.stopping = False
    return layout


SLOW = RuntimeError("[gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 3600000ms")
CUDA, NCCL = RuntimeError("CUBLAS_STATUS_EXECUTION_FAILED"), dist.DistBackendError("NCCL error")
MEMORY = torch.OutOfMemoryError("CUDA out of memory")
PEER = "error: a rank failed or exceeded --timeout_minutes"
ERRORS = {  # the error: its exit status, the printed text
    InputError("only 3 fit"): (2, "error: only 3 fit\n"),
    NonFiniteError("norm nan"): (3, "error: norm nan\n"),
    OSError(28, "No space left"): (4, "error: [Errno 28] No space left\n"),
    RuntimeError("[pair.cc:553] Connection closed by peer [127.0.0.1]:56510"): (4, PEER),
    SLOW: (4, PEER),
    dist.DistNetworkError("the store is gone"): (4, PEER),
    CUDA: (1, "error on rank 1 (student):\nRuntimeError: CUBLAS"),
    NCCL: (1, "error on rank 1 (student):\ntorch.distributed.DistBackendError: NCCL error"),
    MEMORY: (1, "error on rank 1 (student):\ntorch.OutOfMemoryError: CUDA out of memory"),
}


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_the_first_rank_to_report_prints_its_error(error, layout, capsys):
    status, text = ERRORS[error]
    assert shutdown.report(layout, error) == status
    assert capsys.readouterr().err.startswith(text)
    assert layout.store.check(["reported"])
    shutdown.report(layout, InputError("a later one"))
    assert capsys.readouterr().err == ""


@pytest.fixture
def signals():
    """Restore the handlers of signals at the end."""
    before = {number: signal.getsignal(number) for number in shutdown.STOP_SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1"])
def test_a_signal_stops_the_run_after_the_step(name, signals):
    layout = SimpleNamespace(stopping=False)
    shutdown.stop_at_signals(layout)
    signal.raise_signal(getattr(signal, name))
    assert layout.stopping


def test_under_nohup_a_closing_terminal_does_not_stop_the_run(signals):
    layout = SimpleNamespace(stopping=False)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    shutdown.stop_at_signals(layout)
    signal.raise_signal(signal.SIGHUP)
    assert not layout.stopping


def test_an_error_of_one_rank_is_printed_by_that_rank(monkeypatch, capsys):
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, "1")
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "2")
    assert shutdown.reject(OSError("a worker did not start")) == 2
    assert capsys.readouterr().err == "error: a worker did not start\n"


LOST = {  # how the output is lost, as a shell writes it
    "a closed pipe": "| true",
    "a closed descriptor": ">&- 2>&-",
    "a full disk": "> /dev/full 2> /dev/full",
}


@pytest.mark.parametrize("case", LOST)
def test_output_that_nobody_takes_is_dropped(case, tmp_path):
    code = (
        "import sys, time; from plumbing.errors import survive_lost_output as survive; survive();"
    )
    code += " time.sleep(0.2); print('x' * 99999); print('y', file=sys.stderr); sys.exit(7)"
    script = f'{sys.executable} -c "{code}" {LOST[case]}; echo ${{PIPESTATUS[0]}}'
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "7\n"
    assert "Error" not in done.stderr


def test_an_ambiguous_error_after_a_peers_end_is_that_of_a_lost_peer(layout, capsys):
    layout.stopping = True
    assert shutdown.report(layout, NCCL) == 4
    assert capsys.readouterr().err.startswith(PEER)
    assert shutdown.report(layout, MEMORY) == 1  # whatever the others do
    layout.world = 1  # without peers, as after Ctrl-C
    assert shutdown.report(layout, CUDA) == 1
    assert capsys.readouterr().err.count("Error: CU") == 2


def test_a_plug_in_that_exits_is_an_error(layout, capsys):
    """The run has not finished, so that its status must not be 0."""
    layout.connect = lambda timeout_minutes: None
    layout.world = 1
    assert shutdown.run_ranks(layout, 1, body=sys.exit) == 1
    assert "SystemExit" in capsys.readouterr().err


def test_a_rank_that_meets_no_other_gets_one_line(layout, capsys):
    """Its peer ended before they connected, so there is no store yet."""

    def connect(timeout_minutes):
        raise dist.DistStoreError("wait timeout after 60000ms")

    layout.connect, layout.store, layout.first = connect, None, True
    assert shutdown.run_ranks(layout, 1, body=lambda: 0) == 4
    error = capsys.readouterr().err
    assert error.startswith(PEER)
    assert error.count("\n") == 1
