"""train.py: Student.update by hand, on a policy with one weight; options of a student's model."""

import math
from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch

import grpo
import train
from tests.helpers.groups import group
from tests.helpers.ranks import one_rank, parse


class Coin(torch.nn.Module):
    """A policy of two tokens: whatever the prompt, token 1 has probability σ(log_odds)."""

    packed = False

    def __init__(self, p: float):
        super().__init__()
        self.log_odds = torch.nn.Parameter(torch.tensor(p).logit())

    def forward(self, batch, temperature):
        hidden_N_1 = torch.ones(len(batch.target_N), 1)
        weight_2_1 = torch.stack([torch.zeros(()), self.log_odds])[:, None]
        return grpo.token_logprobs(hidden_N_1, weight_2_1, batch.target_N)


def update(p=1 / 2, reference_p=None, step=1, logps=(0.0, 0.0), **settings) -> tuple[float, dict]:
    """Let a student whose policy is a coin take gradient descent at rate 1 on two completions:
    token 1, which is right, and token 0. Their advantages are 1 and -1, their weights 1/2, so that
    the loss has the derivative -1/2 for log_odds if p is 1/2. Returns the new log_odds and the
    metrics. logps: the generator's."""
    config = replace(parse("--preset", "demo", "--learning_rate", 1), **settings)
    generator = Mock(tokenizer=Mock(pad_token_id=0))
    policy = Coin(p)
    optimizer = torch.optim.SGD(policy.parameters(), lr=config.learning_rate)
    reference = Coin(reference_p) if reference_p else None
    student = train.Student(config, one_rank(), None, None, generator, policy, optimizer, reference)
    one = group(7, rewards=[1, 0])
    for each, token, logp in zip(one.completions, (1, 0), logps, strict=True):
        each.ids, each.logps = [token], [logp]
    metrics = student.update([one], step)
    return policy.log_odds.item(), metrics


MOVED = {  # settings -> the new log_odds: rate times gradient
    "rate 1": ({}, 1 / 2),
    "the rate of step 3 of 4, a half": ({"lr_schedule": "linear", "steps": 4, "step": 3}, 1 / 4),
    "the gradient is clipped": ({"max_grad_norm": 1 / 8}, 1 / 8),
}


@pytest.mark.parametrize("case", MOVED)
def test_an_update_moves_the_weights_by_rate_times_clipped_gradient(case):
    settings, expected = MOVED[case]
    log_odds, metrics = update(**settings)
    assert log_odds == pytest.approx(expected, rel=1e-4)
    assert metrics["grad_norm"] == pytest.approx(1 / 2)  # before clipping
    assert metrics["entropy"] == pytest.approx(math.log(2))  # the mean of the tokens


def test_the_kl_estimate_compares_the_policy_with_the_reference():
    """π_ref/π is 1/2 for token 1 and 3/2 for token 0: k3 is ln 2 - 1/2 and 1/2 - ln 3/2."""
    _, metrics = update(p=1 / 2, reference_p=1 / 4, kl_coef=1.0)
    assert metrics["kl"] == pytest.approx((math.log(2) - math.log(3 / 2)) / 2)


def test_a_token_that_the_policy_finds_twice_as_likely_as_the_generator_counts_twice():
    """The right one; c is 1 for the wrong one."""
    logps = math.log(1 / 4), math.log(1 / 2)
    _, metrics = update(mismatch="truncate", mismatch_cap=3, logps=logps)
    assert metrics["loss"] == pytest.approx(-(2 - 1) / 2)


def update_twice(**settings) -> dict:
    """Take a step of two updates. The first, whose loss is 0, moves the probability of the right
    token from 1/4 to 1/2, so that in the second ρ is 2 for it and 2/3 for the wrong one."""
    rate = 2 * math.log(3)
    return update(p=1 / 4, learning_rate=rate, update_iterations=2, **settings)[1]


def test_two_updates_compare_with_the_policy_before_the_first():
    """Metrics are means over both. A token's gradient is that of log π times ρ: 1/2 in the first
    update, (2 · 1/2 + 2/3 · 1/2)/2 in the second."""
    metrics = update_twice(clip_low=1.0, clip_high=9.0)
    assert metrics["loss"] == pytest.approx((0 - (2 - 2 / 3) / 2) / 2)
    assert metrics["grad_norm"] == pytest.approx((1 / 2 + 2 / 3) / 2)
    assert metrics["clip_fraction"] == 0


def test_ratios_are_clipped_at_1_minus_clip_low_and_1_plus_clip_high():
    """To 1.5 and 0.8, both tokens of the second update."""
    metrics = update_twice(clip_low=0.2, clip_high=0.5)
    assert metrics["loss"] == pytest.approx((0 - (1.5 - 0.8) / 2) / 2)
    assert metrics["clip_fraction"] == 2 / 4


# A student's model


@pytest.fixture
def load_student(tiny_model):
    """A function from flags to a student with a tiny model."""
    layout = one_rank()
    layout.shard = lambda model: None  # it would need a process group
    demo = ("--preset", "demo", "--model", tiny_model, "--learning_rate", 1)
    return lambda *flags: train.Student.load(parse(*demo, *flags), layout, verifier=None)


CHANGED = {  # the model, flags, rewards -> whether an update changes its weights
    ("policy", "--kl_coef=0", (0, 1)): True,
    ("policy", "--kl_coef=0", (0, 0)): False,  # no gradient, no momentum, and no weight decay
    ("reference", "--kl_coef=1", (0, 1)): False,
}


@pytest.mark.parametrize("case", CHANGED)
def test_an_update_trains_the_policy_alone_without_weight_decay(case, load_student):
    model, flag, rewards = case
    student = load_student(flag)
    weights = [*getattr(student, model).parameters()]
    before = [weight.clone() for weight in weights]
    student.update([group(7, rewards)], step=1)
    assert all(map(torch.equal, before, weights)) != CHANGED[case]


def test_activation_checkpointing_computes_a_layer_twice(load_student):
    student = load_student("--activation_checkpointing")
    calls = []
    mlp = student.policy.lm.model.layers[0].mlp
    mlp.register_forward_pre_hook(lambda *_: calls.append("mlp"))
    student.update([group(7, rewards=[0, 1])], step=1)
    assert len(calls) == 2
