"""plumbing/decoding.py: whether a decoding step can be a CUDA graph; the choice of attention.

The tokens that it draws are in tests/core/test_rollout.py.
"""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoTokenizer

from plumbing import decoding
from rollout import Generator
from tests.helpers.models import FAMILIES, save_tiny_model


class HostReads(TorchDispatchMode):
    """Counter of operations that exchange numbers between host and device, which a CUDA graph
    cannot hold: by PyTorch's operator tags."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        aten, tags = (
            torch.ops.aten,
            (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape),
        )
        if func.overloadpacket in (aten.index, aten.index_put, aten.index_put_):
            self.count += any(i is not None and i.dtype == torch.bool for i in args[1])
        else:  # torch.tensor(...) dispatches lift_fresh only
            fresh = func.overloadpacket is aten.lift_fresh
            self.count += fresh or any(tag in func.tags for tag in tags)
        return func(*args, **(kwargs or {}))


def host_reads(folder) -> list[int]:
    """Count, for each block of a generation, the numbers that the host reads in a decoding step."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    generator, counts = Generator.load(str(folder), torch.device("cpu"), tokenizer), []

    def record(step):
        with HostReads() as reads:
            step()
        counts.append(reads.count)
        return step

    generator.record = record
    generator.generate([[5, 6, 7], [8]], 1.0, 12, seed=0)
    return counts


@pytest.mark.parametrize("family", FAMILIES)
def test_a_decoding_step_of_each_preset_can_be_a_cuda_graph(family, tiny_family):
    assert host_reads(tiny_family(family)) == [0, 0]


def test_a_decoding_step_with_host_computation_is_detected(tmp_path):
    dynamic = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}
    folder = save_tiny_model(tmp_path / "dynamic", rope_parameters=dynamic)
    assert min(host_reads(folder)) > 0
    three, mask, indices = torch.ones(3), torch.tensor([True, False, True]), torch.tensor([1, 2])
    with HostReads() as reads:
        three.nonzero()
        float(three[0])
        three[mask]
        three[indices].sum()  # no read
        torch.tensor([1.0])
    assert reads.count == 4


ATTENTION = {  # device, whether flash-attn is installed, compute capability -> attention
    ("cuda", True, (9, 0)): "flash_attention_2",
    ("cuda", True, (8, 0)): "flash_attention_2",
    ("cuda", True, (7, 5)): "sdpa",  # a T4: flash-attn would fail at the first update
    ("cuda", False, (9, 0)): "sdpa",
    ("cpu", True, (9, 0)): "sdpa",
}


@pytest.mark.parametrize("case", ATTENTION)
def test_flash_attention_is_chosen_where_it_can_run(case, monkeypatch):
    kind, installed, capability = case
    monkeypatch.setattr(decoding, "is_flash_attn_2_available", lambda: installed)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert decoding.attention_for(torch.device(kind)) == ATTENTION[case]
