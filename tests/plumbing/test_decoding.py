"""plumbing/decoding/: whether a decoding step can be a CUDA graph; the choice of attention."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoTokenizer

from plumbing.decoding import cache
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

    def record(step):
        with HostReads() as reads:
            step()
        counts.append(reads.count)
        return step

    generator.record = record
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


@pytest.mark.parametrize(
    ("capability", "attention"), [((8, 0), "flash_attention_2"), ((7, 5), "shared_prompts")]
)
def test_flash_attention_is_chosen_where_it_can_run(capability, attention, monkeypatch):
    """On a T4, of compute capability 7.5, it would fail at the first update."""
    monkeypatch.setattr(cache, "is_flash_attn_2_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert cache.attention_for(torch.device("cuda")) == attention
