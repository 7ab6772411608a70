"""plumbing/distributed/shutdown.py: the report of an error, and its exit status."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from plumbing.distributed import shutdown
from plumbing.errors import InputError, NonFiniteError


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
LOST = "error: a rank failed or exceeded --timeout_minutes"
ERRORS = {  # the error: its exit status, the printed text
    InputError("only 3 fit"): (2, "error: only 3 fit\n"),
    NonFiniteError("norm nan"): (3, "error: norm nan\n"),
    OSError(28, "No space left"): (4, "error: [Errno 28] No space left\n"),
    RuntimeError("[pair.cc:553] Connection closed by peer [127.0.0.1]:56510"): (4, LOST),
    SLOW: (4, LOST),
    dist.DistNetworkError("the store is gone"): (4, LOST),
    CUDA: (1, "error on rank 1 (student):\nRuntimeError: CUBLAS"),
    NCCL: (1, "error on rank 1 (student):\ntorch.distributed.DistBackendError: NCCL error"),
    MEMORY: (1, "error on rank 1 (student):\ntorch.OutOfMemoryError: CUDA out of memory"),
}


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_the_first_rank_to_report_prints_its_error(error, layout, capsys):
    status, text = ERRORS[error]
    assert shutdown.report(layout, error) == status
    assert capsys.readouterr().err.startswith(text) and layout.store.check(["reported"])
    shutdown.report(layout, InputError("a later one"))
    assert capsys.readouterr().err == ""


def test_an_ambiguous_error_after_a_peers_end_is_that_of_a_lost_peer(layout, capsys):
    layout.stopping = True
    assert shutdown.report(layout, NCCL) == 4 and capsys.readouterr().err.startswith(LOST)
    assert shutdown.report(layout, MEMORY) == 1  # whatever the others do
    layout.world = 1  # without peers, as after Ctrl-C
    assert shutdown.report(layout, CUDA) == 1
    assert capsys.readouterr().err.count("Error: CU") == 2
