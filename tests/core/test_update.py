"""train.py: Student.update by hand, on a policy with one weight; options of a student's model."""

import math
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

import grpo
import train
from grpo import Group
from tests.helpers.groups import completion, group
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


def make_student(p=1 / 2, reference_p=None, **settings) -> train.Student:
    """Make a student whose policy is a coin, which it trains by gradient descent at rate 1."""
    student = object.__new__(train.Student)
    student.config = replace(parse("--preset", "demo", "--learning_rate", 1), **settings)
    student.layout = one_rank()
    student.tokenizer = SimpleNamespace(pad_token_id=0)
    student.generator = Mock()
    student.policy = Coin(p)
    student.reference = Coin(reference_p) if reference_p else None
    rate = student.config.learning_rate
    student.optimizer = torch.optim.SGD(student.policy.parameters(), lr=rate)
    return student


def right_and_wrong() -> Group:
    """Make a group of token 1, which is right, and token 0. Their advantages are 1 and -1, their
    weights 1/2, so that the loss has the derivative -1/2 for log_odds."""
    completions = [completion(reward=1, ids=[1]), completion(reward=0, ids=[0])]
    return Group(7, size=2, prompt_ids=[0], completions=completions)


# One update


def test_an_update_moves_the_weights_by_rate_times_gradient():
    student = make_student()
    student.update([right_and_wrong()], step=1)
    assert student.policy.log_odds.item() == pytest.approx(1 / 2)


def test_an_update_uses_the_learning_rate_of_its_step():
    """The third of four steps has half of the rate."""
    student = make_student(lr_schedule="linear", steps=4)
    student.update([right_and_wrong()], step=3)
    assert student.policy.log_odds.item() == pytest.approx(1 / 4)


def test_a_gradient_is_clipped_to_its_largest_norm():
    student = make_student(max_grad_norm=1 / 8)
    student.update([right_and_wrong()], step=1)
    assert student.policy.log_odds.item() == pytest.approx(1 / 8, rel=1e-4)


def test_the_logged_gradient_norm_is_that_before_clipping():
    metrics = make_student(max_grad_norm=1 / 8).update([right_and_wrong()], step=1)
    assert metrics["grad_norm"] == pytest.approx(1 / 2)


def test_the_logged_entropy_is_the_mean_of_the_tokens():
    metrics = make_student().update([right_and_wrong()], step=1)
    assert metrics["entropy"] == pytest.approx(math.log(2))


def test_the_kl_estimate_compares_the_policy_with_the_reference():
    """π_ref/π is 1/2 for token 1 and 3/2 for token 0: k3 is ln 2 - 1/2 and 1/2 - ln 3/2."""
    student = make_student(p=1 / 2, reference_p=1 / 4, kl_coef=1.0)
    metrics = student.update([right_and_wrong()], step=1)
    assert metrics["kl"] == pytest.approx((math.log(2) - math.log(3 / 2)) / 2)


def test_a_token_that_the_policy_finds_twice_as_likely_as_the_generator_counts_twice():
    """The right one; c is 1 for the wrong one."""
    one = right_and_wrong()
    one.completions[0].logps = [math.log(1 / 4)]
    one.completions[1].logps = [math.log(1 / 2)]
    metrics = make_student(mismatch="truncate", mismatch_cap=3).update([one], step=1)
    assert metrics["loss"] == pytest.approx(-(2 - 1) / 2)


# Two updates


def update_twice(**settings) -> dict:
    """Take a step of two updates. The first moves the probability of the right token from 1/4 to
    1/2, so that in the second ρ is 2 for the right token and 2/3 for the wrong one."""
    rate = 2 * math.log(3)
    student = make_student(p=1 / 4, learning_rate=rate, update_iterations=2, **settings)
    return student.update([right_and_wrong()], step=1)


UNCLIPPED = {"clip_low": 1.0, "clip_high": 9.0}


def test_the_second_update_compares_with_the_policy_before_the_first():
    """Its two tokens are clipped, those of the first update are not."""
    assert update_twice()["clip_fraction"] == 2 / 4


def test_ratios_are_clipped_at_1_minus_clip_low_and_1_plus_clip_high():
    """To 1.5 and 0.8 in the second update; the loss of the first is 0."""
    metrics = update_twice(clip_low=0.2, clip_high=0.5)
    assert metrics["loss"] == pytest.approx((0 - (1.5 - 0.8) / 2) / 2)


def test_the_logged_loss_is_the_mean_of_the_updates():
    metrics = update_twice(**UNCLIPPED)
    assert metrics["loss"] == pytest.approx((0 - (2 - 2 / 3) / 2) / 2)


def test_the_logged_gradient_norm_is_the_mean_of_the_updates():
    """A token's gradient is that of log π times ρ: in the second update (2 · 1/2 + 2/3 · 1/2)/2."""
    metrics = update_twice(**UNCLIPPED)
    assert metrics["grad_norm"] == pytest.approx((1 / 2 + 2 / 3) / 2)


# A student's model


@pytest.fixture
def load_student(tiny_model):
    """A function from flags to a student with a tiny model."""
    layout = one_rank()
    layout.shard = lambda model: None  # it would need a process group
    demo = ("--preset", "demo", "--model", tiny_model)
    return lambda *flags: train.Student(parse(*demo, *flags), layout, verifier=None)


def is_changed_by_update(model, student, rewards) -> bool:
    """Whether an update of the student on a group with these rewards changes a model's weights."""
    before = [weight.clone() for weight in model.parameters()]
    student.update([group(7, rewards)], step=1)
    return not all(map(torch.equal, before, model.parameters()))


def test_weights_do_not_decay(load_student):
    """A step of dead groups has no gradient, and here no momentum."""
    student = load_student("--learning_rate", 1)
    assert not is_changed_by_update(student.policy, student, rewards=[0, 0])


def test_the_reference_is_not_trained(load_student):
    student = load_student("--learning_rate", 1, "--kl_coef", 1)
    assert not is_changed_by_update(student.reference, student, rewards=[0, 1])


def test_the_policy_is_trained(load_student):
    """So that the two tests before can fail."""
    student = load_student("--learning_rate", 1)
    assert is_changed_by_update(student.policy, student, rewards=[0, 1])


@pytest.mark.parametrize(("flags", "times"), [([], 1), (["--activation_checkpointing"], 2)])
def test_activation_checkpointing_computes_a_layer_twice(flags, times, load_student):
    student = load_student(*flags)
    calls = []
    mlp = student.policy.lm.model.layers[0].mlp
    mlp.register_forward_pre_hook(lambda *_: calls.append("mlp"))
    student.update([group(7, rewards=[0, 1])], step=1)
    assert len(calls) == times
