"""plumbing/decoding/: whether a decoding step can be a CUDA graph; the choice of attention."""

from unittest.mock import MagicMock

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoTokenizer

from plumbing.decoding import cache, graphs
from rollout import Generator
from tests.helpers.models import FAMILIES, save_tiny_model


class HostReads(TorchDispatchMode):
    """Counter of operations that exchange numbers between host and device, which a CUDA graph
    cannot hold: by PyTorch's operator tags."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        aten = torch.ops.aten
        tags = torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape
        if func.overloadpacket in (aten.index, aten.index_put, aten.index_put_):
            self.count += any(i is not None and i.dtype == torch.bool for i in args[1])
        else:  # torch.tensor(...) dispatches lift_fresh only
            fresh = func.overloadpacket is aten.lift_fresh
            self.count += fresh or any(tag in func.tags for tag in tags)
        return func(*args, **(kwargs or {}))


def host_reads(folder) -> list[int]:
    """Count, for each block of a generation, the numbers that the host reads in a decoding step."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    generator = Generator.load(str(folder), torch.device("cpu"), tokenizer)
    counts = []

    def capture(step):
        with HostReads() as reads:
            step()
        counts.append(reads.count)
        return step

    generator.capture = capture
    # Not in inference mode, where the host's reads are not dispatched.
    generator.generate.__wrapped__(generator, [[5, 6, 7], [8]], 1.0, 12, seed=0)
    return counts


@pytest.mark.parametrize("family", FAMILIES)
def test_a_decoding_step_of_each_preset_can_be_a_cuda_graph(family, tiny_family):
    assert host_reads(tiny_family(family)) == [0, 0]


def test_a_decoding_step_with_host_computation_is_detected(tmp_path):
    dynamic = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}
    folder = save_tiny_model(tmp_path / "dynamic", rope_parameters=dynamic)
    assert min(host_reads(folder)) > 0


class FakeGraph:
    """A CUDA graph whose replay counts."""

    replays = 0

    def capture_begin(self, **settings): ...
    def capture_end(self): ...

    def replay(self):
        FakeGraph.replays += 1


@pytest.fixture
def recorder(monkeypatch) -> graphs.GraphCapture:
    """A recorder on a card that is not there: what it calls of torch.cuda does nothing."""
    cuda = MagicMock(CUDAGraph=FakeGraph)
    cuda.mem_get_info.return_value = (2**40, 2**40)
    monkeypatch.setattr(torch, "cuda", cuda)
    monkeypatch.setattr(FakeGraph, "replays", 0)
    return graphs.GraphCapture()


def record(recorder, error: Exception | None) -> str:
    """Record a step in whose capture, its second call, the error is raised. Return what came of it:
    a graph, the step, or the step that was not even tried."""
    outcomes = iter([None, error])
    calls = []

    def step():
        calls.append(1)
        if error := next(outcomes):
            raise error

    recorded = recorder(step)
    if recorded is not step:
        recorded()
        return "graph"
    return "step" if calls else "off"


MEMORY = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 MiB.\nGPU 0")
OF_GRAPH = RuntimeError("CUDA error: out of memory\nCompile with `TORCH_USE_CUDA_DSA`")
ALONE = RuntimeError("operation not permitted when stream is capturing")
CAPTURES = [  # the error in each capture, what came of it, and how often a note was printed
    ([MEMORY, None, None], ["step", "graph", "graph"], 1),
    ([MEMORY, MEMORY, None, MEMORY, MEMORY, None], ["step", "step", "graph"] * 2, 4),
    ([MEMORY, MEMORY, MEMORY, None], ["step", "step", "step", "off"], 3),
    ([OF_GRAPH, None], ["step", "graph"], 1),
    ([ALONE, None], ["step", "off"], 1),
]


@pytest.mark.parametrize(("errors", "expected", "notes"), CAPTURES)
def test_a_capture_that_runs_out_of_memory_is_tried_again_at_the_next_block(
    errors, expected, notes, recorder, capsys
):
    """Three in a row, or another error, switch graphs off; the last note says so and the cost."""
    assert [record(recorder, error) for error in errors] == expected
    assert FakeGraph.replays == expected.count("graph")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == notes
    assert all("20-30 ms for 28 layers" in line for line in lines)
    off = ["slower from now on" in line for line in lines]
    assert off == [False] * (notes - 1) + [expected[-1] == "off"]


@pytest.mark.parametrize(
    ("capability", "attention"), [((8, 0), "flash_attention_2"), ((7, 5), "shared_prompts")]
)
def test_flash_attention_is_chosen_where_it_can_run(capability, attention, monkeypatch):
    """On a T4, of compute capability 7.5, it would fail at the first update."""
    monkeypatch.setattr(cache, "is_flash_attn_2_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert cache.attention_for(torch.device("cuda")) == attention
