"""Models of other families: right, or refused in a line before the run. What decoding asks."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from plumbing import decoding
from plumbing.batches import Batch
from plumbing.decoding import HostReads
from rollout import Generator, Policy, check_model
from teacher import check_teacher
from tests.helpers.models import FAMILIES, save_tiny_model

CPU = torch.device("cpu")
HEAD = {"head_dim": 8}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
QWEN3_NEXT = HEAD | EXPERTS | {"num_experts": 4, "shared_expert_intermediate_size": 16}
QWEN3_NEXT |= {"linear_key_head_dim": 8, "linear_value_head_dim": 8, "num_hidden_layers": 4}
QWEN3_NEXT |= {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
FALCON_H1 = {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8}
FALCON_H1 |= {"mamba_n_groups": 1}
OPT = {"ffn_dim": 64, "word_embed_proj_dim": 32}
LONGROPE = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
LONGROPE |= {"original_max_position_embeddings": 64, "rope_theta": 10_000.0}

# What a student is refused for (any of these texts), None where it is right; then a teacher.
SDPA, CANNOT = "scaled_dot_product_attention", "cannot generate here"
ZOO = {
    "gpt2": ({}, None, None),
    "opt": (OPT, None, None),
    "ernie4_5": ({}, None, None),
    "qwen3_moe": (HEAD | EXPERTS | {"num_experts": 4}, None, None),
    "gpt_oss": (HEAD | {"num_local_experts": 4}, [SDPA], [SDPA]),
    # Without SDPA, or with one that leaves out its cap: it depends on the version of transformers.
    "gemma2": (HEAD | {"final_logit_softcapping": 2.0}, [SDPA, "are off by"], [SDPA, None]),
    "qwen3_next": (QWEN3_NEXT, [CANNOT], None),
    "lfm2": ({"layer_types": ["conv", "full_attention"]}, [CANNOT], None),
    "falcon_h1": (FALCON_H1, [CANNOT], None),
    "bloom": ({}, [CANNOT], [SDPA]),  # attention classes of its own
    "granite": ({"logits_scaling": 8.0}, ["Policy's log-probs are off by"], None),
    "phi": ({}, ["Policy's log-probs are off by"], None),  # its head has a bias
}


def refusal(check, folder, tokens=40) -> str | None:
    """The line with which a check refuses a folder, which it names; None where it does not."""
    try:
        check(str(folder), tokens)
    except ValueError as error:
        assert str(folder) in str(error) and "\n" not in str(error)
        return str(error)


@pytest.mark.parametrize("family", ZOO)
def test_other_families_are_right_or_refused_in_a_line(family, tmp_path):
    changes, student, teacher = ZOO[family]
    folder = save_tiny_model(tmp_path, family, **changes)
    for check, says in ((check_model, student), (check_teacher, teacher)):
        said, expected = refusal(check, folder), says or [None]
        assert said in expected if said is None else any(t and t in said for t in expected), said


@pytest.mark.parametrize("family", FAMILIES)
def test_the_families_of_the_presets_are_accepted_up_to_their_last_position(tiny_family, family):
    assert refusal(check_model, tiny_family(family), 4096) is None
    assert "4097 tokens" in refusal(check_model, tiny_family(family), 4097)


@pytest.mark.parametrize("check", [check_model, check_teacher])
def test_rows_that_longrope_reads_with_two_sets_of_angles_are_refused(check, tmp_path):
    own = {"original_max_position_embeddings": 64, "rope_parameters": LONGROPE}
    folder = save_tiny_model(tmp_path, "phi3", **own)
    assert refusal(check, folder, 64) is None
    said = refusal(check, folder, 65)
    assert "may take 65 tokens" in said and "the rotary angles" in said and "beyond 64" in said


DROPOUT = {"opt": OPT | {"dropout": 0.5}, "qwen2": {}, "phi3": {"resid_pdrop": 0.5}}


@pytest.mark.parametrize("family", DROPOUT)
def test_train_mode_has_no_dropout(family, tmp_path):
    """Activation checkpointing asks for train mode. OPT drops by a function, Phi-3 by modules too;
    two forwards that differ would part the ratio from 1 before the first update."""
    folder = save_tiny_model(tmp_path, family, attention_dropout=0.5, **DROPOUT[family])
    ids = torch.tensor([[5, 6, 7]])
    noisy = AutoModelForCausalLM.from_pretrained(folder).train()
    assert not torch.equal(noisy(ids).logits, noisy(ids).logits)  # the test can tell
    policy, none = Policy(str(folder), CPU), torch.empty(0)
    batch = Batch(ids, ids > 5, torch.arange(3)[None], none, none)
    assert torch.equal(policy.train()(batch, 1.0)[0], policy.eval()(batch, 1.0)[0])


# ---- decoding


def host_reads(folder) -> list[int]:
    """For each block of a generation: how many numbers the host waits for in a decoding step."""
    generator, reads = Generator(str(folder), CPU, AutoTokenizer.from_pretrained(folder)), []

    def record(step):
        with HostReads() as found:
            step()
        reads.append(found.count)
        return step

    generator.record = record
    generator.generate([[5, 6, 7], [8]], 1.0, 12, seed=0)
    return reads


@pytest.mark.parametrize("family", FAMILIES)
def test_a_decoding_step_of_each_preset_can_be_a_cuda_graph(family, tiny_family):
    assert host_reads(tiny_family(family)) == [0, 0]


def test_a_decoding_step_in_which_the_host_has_a_part_is_found(tmp_path):
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


def test_cudnn_attention_is_off(tiny_model):
    """On Hopper it is SDPA's first choice, and makes a plan for every new shape."""
    torch.backends.cuda.enable_cudnn_sdp(True)
    Policy(str(tiny_model), CPU)
    assert not torch.backends.cuda.cudnn_sdp_enabled()


@pytest.mark.parametrize(
    ("kind", "installed", "card", "found"),
    [
        ("cuda", True, (9, 0), "flash_attention_2"),
        ("cuda", True, (8, 0), "flash_attention_2"),
        ("cuda", True, (7, 5), "sdpa"),  # a T4: flash-attn would fail at the first update
        ("cuda", False, (9, 0), "sdpa"),
        ("cpu", True, (9, 0), "sdpa"),
    ],
)
def test_flash_attention_is_for_cards_that_can_run_it(kind, installed, card, found, monkeypatch):
    monkeypatch.setattr(decoding, "is_flash_attn_2_available", lambda: installed)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: card)
    assert decoding.attention_for(torch.device(kind)) == found
