"""plumbing/decoding/: whether a decoding step can be a CUDA graph; the choice of attention."""

import sys
from collections import Counter
from contextlib import suppress
from copy import deepcopy

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, AutoTokenizer

from plumbing.decoding import cache, fused
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


def attend_by_definition(query, key, value, scaling, query_start, start, used, S):
    """One sequence of slots after the other, with the arguments of varlen_attn."""
    D = query.shape[-1]
    outs = []
    assert all(x.is_contiguous() for x in (query_start, start, used))
    for i, (first, n) in enumerate(zip(start.tolist(), used.tolist(), strict=False)):
        assert query_start[i] == i
        assert first >= i * S
        assert n > 0
        assert first + n <= (i + 1) * S
        keys, values = (x.reshape(-1, D)[first : first + n] for x in (key, value))
        scores = query.reshape(-1, *query.shape[2:])[i] @ keys.T * scaling
        outs.append(scores.softmax(-1) @ values)
    return torch.stack(outs).view_as(query)


@pytest.mark.parametrize("family", FAMILIES)
def test_attention_to_slots_in_use_draws_the_same_tokens(family, tiny_family, monkeypatch):
    calls = Counter()

    def attend(*arguments):
        calls["attend"] += 1
        return attend_by_definition(*arguments)

    monkeypatch.setattr(cache, "attend_to_slots", attend)
    folder = str(tiny_family(family))
    generator = Generator.load(folder, torch.device("cpu"), AutoTokenizer.from_pretrained(folder))
    generator.stop_ids = [1, *range(30, 90, 7)]
    prompts = [[5, 6, 7] * 9] * 32 + [[8]] * 32
    masked = generator.generate(prompts, 0.7, 40, seed=0)
    assert calls["attend"] == 0
    generator.varlen = True
    unmasked = generator.generate(prompts, 0.7, 40, seed=0)
    assert calls["attend"] > 0
    for a, b in zip(unmasked, masked, strict=True):
        assert a.ids == b.ids
        assert a.logps == pytest.approx(b.logps, abs=2e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_rotary_angles_of_each_preset_have_a_fused_replacement(family, tiny_family):
    lm = AutoModelForCausalLM.from_pretrained(tiny_family(family)).double()
    modeling = sys.modules[type(lm).__module__]
    with fused.FusedRotary(lm):
        assert modeling.apply_rotary_pos_emb is fused.rotate
    own = modeling.apply_rotary_pos_emb
    assert own is not fused.rotate
    width = 6 if family == "phi3" else 8  # Phi-4 rotates 3/4 of the dimensions
    q, k, cos, sin = (torch.randn(3, n, 5, 8).double() for n in (4, 2, 1, 1))
    arguments = q, k, cos[:, 0, :, :width], sin[:, 0, :, :width]
    for a, b in zip(fused.rotate(*arguments), own(*arguments), strict=True):
        torch.testing.assert_close(a, b)


def test_the_layers_have_their_own_function_again_after_an_error(tiny_model):
    lm = AutoModelForCausalLM.from_pretrained(tiny_model)
    modeling = sys.modules[type(lm).__module__]
    own = modeling.apply_rotary_pos_emb
    with suppress(KeyError), fused.FusedRotary(lm):
        raise KeyError
    assert modeling.apply_rotary_pos_emb is own


def rms_norms(model) -> dict[str, torch.nn.Module]:
    return {name: m for name, m in model.named_modules() if type(m).__name__.endswith("RMSNorm")}


@pytest.mark.parametrize("family", FAMILIES)
def test_fused_norms_of_each_preset_compute_the_same_forward_and_backward(family, tiny_family):
    own = AutoModelForCausalLM.from_pretrained(tiny_family(family))
    for norm in rms_norms(own).values():
        norm.weight.data.uniform_(0.5, 2)
    model = deepcopy(own)
    fused.fuse_norms(model)
    assert all("forward" in vars(norm) for norm in rms_norms(model).values())
    logits = [each(torch.tensor([[5, 6, 7]])).logits for each in (own, model)]
    torch.testing.assert_close(*logits, rtol=1e-4, atol=1e-4)
    for out in logits:
        out.square().sum().backward()
    for a, b in zip(own.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-3)


def test_norms_of_another_formula_are_left_alone(tmp_path):
    """Gemma's norms multiply by 1 + weight."""
    folder = save_tiny_model(tmp_path / "gemma", "gemma")
    gemma = AutoModelForCausalLM.from_pretrained(folder)
    fused.fuse_norms(gemma)
    norms = rms_norms(gemma).values()
    assert len(norms) > 2
    assert not any("forward" in vars(norm) for norm in norms)


def test_rotary_angles_of_another_formula_are_left_alone(tmp_path):
    """Cohere rotates neighbouring dimensions."""
    folder = save_tiny_model(tmp_path / "cohere", "cohere")
    cohere = AutoModelForCausalLM.from_pretrained(folder)
    with fused.FusedRotary(cohere):
        assert sys.modules[type(cohere).__module__].apply_rotary_pos_emb is not fused.rotate


@pytest.mark.parametrize(
    ("capability", "attention"), [((8, 0), "flash_attention_2"), ((7, 5), "shared_prompts")]
)
def test_flash_attention_is_chosen_where_it_can_run(capability, attention, monkeypatch):
    """On a T4, of compute capability 7.5, it would fail at the first update."""
    monkeypatch.setattr(cache, "is_flash_attn_2_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert cache.attention_for(torch.device("cuda")) == attention
