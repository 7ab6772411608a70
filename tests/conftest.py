"""Fixtures of all tests: tiny random checkpoints that load like the real ones, and tiny data.

Nothing is downloaded. Fixtures are made once a session and must not be changed: a test that needs
another setting copies the directory first. GPUs are hidden, except from `pytest -m gpu`, which runs
nothing else: forked ranks would all take the first one, and its numbers are not those of a CPU.

pytest's process may train, and so may ranks forked from it. At its first backward, autograd starts
one thread for each device, and a process with such threads cannot fork children that train. With
the GPUs hidden there is no device, but FakeTensorMode, which FSDP enters, reports 8 of them in a
CUDA build of PyTorch. A backward before anything else settles the number at none.
"""

import functools
import os
import signal
import sys
from pathlib import Path

# Before torch and transformers are imported: no test waits for the network, and processes inherit
# hidden GPUs. The processes of xdist, which run the tests, do not see `-m gpu`.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
if "PYTEST_XDIST_WORKER" not in os.environ and "-m gpu" not in " ".join(sys.argv):
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

import hypothesis
import pytest
import torch

from plumbing.files import read_lines, write_lines
from tests.helpers.models import ROOT, save_tiny_model

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # also under nohup, which ignores it
torch.set_num_threads(1)
hypothesis.settings.register_profile("patient", deadline=None)  # 200 ms pass on a loaded machine
hypothesis.settings.load_profile("patient")
torch.ones((), requires_grad=True).backward()  # see above


@pytest.fixture(scope="session")
def tiny_family(tmp_path_factory):
    """A function from a family, a key of FAMILIES, to the directory of its tiny model."""
    root = tmp_path_factory.mktemp("models")
    return functools.cache(lambda family: save_tiny_model(root / family, family))


@pytest.fixture(scope="session")
def tiny_model(tiny_family) -> Path:
    """The directory of a tiny Qwen3."""
    return tiny_family("qwen3")


@pytest.fixture(scope="session")
def halfway(tmp_path_factory) -> Path:
    """A directory with train.jsonl (400 problems) and val.jsonl (20): those of the demo that its
    base model solves half of the time, so that groups are live."""
    folder = tmp_path_factory.mktemp("halfway")
    for name, n in (("train.jsonl", 400), ("val.jsonl", 20)):
        rows = read_lines(ROOT / "demo" / name)
        rows.sort(key=lambda row: abs(row["difficulty"] - 1))  # in bits
        write_lines(folder / name, rows[:n])
    return folder
