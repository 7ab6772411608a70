"""What only a GPU can show: bf16 compute over float32 masters, NCCL beside gloo, two roles on one card."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import save_tiny_model
from transformers import AutoTokenizer
from transformers.utils import is_flash_attn_2_available

import grpo
import train
from rollout import Generator, Policy, Rollouts, collate, micro_batches

ROOT = Path(train.__file__).parent
DEMO = ROOT / "demo/model"

pytestmark = pytest.mark.gpu


def test_chunked_logprobs_match_float64_on_the_cpu():
    torch.manual_seed(0)
    hidden, weight = torch.randn(300, 64), torch.randn(1000, 64) / 8
    targets = torch.randint(1000, (300,))
    expected, expected_entropy = grpo.token_logprobs(hidden.double(), weight.double(), targets, 0.7)
    logp, entropy = grpo.token_logprobs(
        hidden.cuda(), weight.cuda(), targets.cuda(), 0.7, chunk=128
    )
    assert (logp.cpu() - expected).abs().max() < 1e-3
    assert (entropy.cpu() - expected_entropy).abs().max() < 1e-3


def test_generation_in_bf16_agrees_with_the_float32_policy():
    device = torch.device("cuda")
    tokenizer = AutoTokenizer.from_pretrained(DEMO)
    generator, policy = Generator(str(DEMO), device, tokenizer), Policy(str(DEMO), device)
    problems = train.read_lines(ROOT / "demo/val.jsonl")[:32]
    prompts = [tokenizer(row["problem"] + "\n\nSolution:").input_ids for row in problems]
    policy.lm.set_attn_implementation(
        "sdpa"
    )  # flash-attn, where it is present, cannot compute in float32
    rollouts = generator.generate(prompts, 0.7, 64, seed=0)
    rows_N, *inputs = collate(rollouts, list(range(32)), tokenizer.pad_token_id, device)
    with torch.no_grad():
        logp, _ = policy(*inputs, 0.7)
    assert logp.mean() > -0.2  # tokens that the policy finds likely, though bf16 chose them
    assert (
        logp.cpu() - rollouts.logps_of(rows_N)
    ).abs().mean() < 0.05  # what train.py logs as logp_gap


@pytest.mark.skipif(not is_flash_attn_2_available(), reason="needs flash-attn")
def test_packed_rows_through_flash_attention_are_as_near_to_float32_as_padded_ones_through_sdpa():
    """log-probs of 848 tokens and the gradient of their sum: what bf16 alone costs is the measure."""
    device, generator = torch.device("cuda"), torch.Generator().manual_seed(0)

    def tokens(n):
        return torch.randint(2, 81, (n,), generator=generator).tolist()

    lengths = torch.randint(1, 63, (32,), generator=generator).tolist()
    rollouts = Rollouts(
        [tokens(1 + n // 2) for n in lengths], [tokens(n) for n in reversed(lengths)]
    )

    def run(dtype, attention):
        policy = Policy(str(DEMO), device)
        policy.lm.set_attn_implementation(attention)
        for p in policy.parameters():  # as FSDP does; the table of rotary angles stays in float32
            p.data = p.to(dtype)
        batches, _ = micro_batches(rollouts, list(range(32)), 0, 1, 800, 0, device, policy.packed)
        assert all(len(ids) == 1 for _, ids, *_ in batches) == (attention == "flash_attention_2")
        parts = [(rows_N, policy(*inputs, 1.0)[0]) for rows_N, *inputs in batches]
        rows_N, logp_N = (torch.cat(column) for column in zip(*parts, strict=True))
        logp_N.sum().backward()
        return logp_N[rows_N.argsort(stable=True)], torch.cat(
            [p.grad.flatten().float() for p in policy.parameters()]
        )

    exact, padded = run(torch.float32, "sdpa"), run(torch.bfloat16, "sdpa")
    packed = run(torch.bfloat16, "flash_attention_2")
    for x, y, z in zip(exact, padded, packed, strict=True):
        assert 0 < (z - x).norm() < 2 * (y - x).norm() < 0.1 * x.norm()


@pytest.mark.parametrize("temperature", [0, 0.7])
def test_cuda_graphs_draw_what_the_cpu_draws(temperature, tmp_path):
    """Float32 on both sides, over the border of a block and with rows dropped there; after new weights came in, too."""
    folder = str(save_tiny_model(tmp_path / "tiny"))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    here, there = (Generator(folder, torch.device(name), tokenizer) for name in ("cpu", "cuda"))
    there.lm.float()
    prompts = [
        tokenizer(text).input_ids for text in ("a", "What is 3 + 4?", "zz\nzz") for _ in range(8)
    ]
    for _ in range(2):
        expected = here.generate(prompts, temperature, 300, seed=0)
        actual = there.generate(prompts, temperature, 300, seed=0)
        same = [a == b for a, b in zip(actual.completion_ids, expected.completion_ids, strict=True)]
        assert sum(same) >= 20  # of 24: over 300 tokens rounding may move one across a border
        with torch.no_grad():
            for here_p, there_p in zip(here.lm.parameters(), there.lm.parameters(), strict=True):
                here_p.mul_(1.1)
                there_p.copy_(here_p)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [0, 2])
def test_demo_steps(ranks, tmp_path):
    """In one process, and with a student and a teacher process sharing the card."""
    launcher = ["-m", "torch.distributed.run", "--nproc_per_node", str(ranks)] if ranks else []
    flags = [
        "--preset",
        "demo",
        "--steps",
        "3",
        "--eval_every",
        "3",
        "--out",
        str(tmp_path / "run"),
    ]
    flags += ["--teacher_ranks", "1" if ranks else "0"]
    line = [sys.executable, *launcher, str(ROOT / "train.py"), *flags]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = train.read_lines(tmp_path / "run/metrics.jsonl")
    assert rows[-1]["grad_norm"] > 0 and rows[0]["val_accuracy"] > 0.04
