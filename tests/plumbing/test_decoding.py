"""plumbing/decoding.py: whether a decoding step can be a CUDA graph; the choice of attention.

The tokens that it draws are in tests/core/test_rollout.py.
"""

import pytest
import torch
from transformers import AutoTokenizer

from plumbing import decoding
from plumbing.decoding import HostReads
from rollout import Generator
from tests.helpers.models import FAMILIES, save_tiny_model


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
    three, mask = torch.ones(3), torch.tensor([True, False, True])
    with HostReads() as reads:
        three.nonzero()
        float(three[0])
        three[mask]
        three[mask] = 2.0
        three[torch.tensor([1, 2])].sum()  # no read
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
