"""The table of variants in docs/paper_map.md: at ratio 1 a variant's gradient is ours.

With one update on a batch, and a generator that agrees with the policy, the ratio ρ is 1. A variant
is an objective that replaces ρ Â, written from its paper with the defaults of its authors.
"""

import pytest
import torch

import grpo
from tests.helpers.checks import close

OLD_3 = torch.tensor([-3.0, -3.0, -0.1])  # log-probs of a completion's tokens before the update


def cispo(ratio, A):
    """REINFORCE, with the clipped ratio as a constant factor."""
    return ratio.clamp(max=1.28).detach() * A * ratio.log()


def gspo(ratio, A):
    """The clipped surrogate of the sequence's ratio, within 3e-4 and 4e-4."""
    ratio = ratio.log().mean().exp().expand(3)
    return torch.minimum(ratio * A, ratio.clamp(1 - 3e-4, 1 + 4e-4) * A)


def sapo(ratio, A):
    """The gate 4/τ · σ(τ (ρ - 1)), τ 1 for positive advantages and else 1.05."""
    tau = 1 + 0.05 * (A <= 0)
    return 4 / tau * torch.sigmoid(tau * (ratio - 1)) * A


def dppo(ratio, A):
    """Tokens whose probability moved by more than 0.2 in the advantage's direction leave."""
    moved = OLD_3.exp() * (ratio.detach() - 1)
    return ratio * A * (moved * A.sign() <= 0.2)


def icepop(ratio, A):
    """ρ as a constant factor, 0 outside of [0.5, 5]."""
    c = torch.where((ratio < 0.5) | (ratio > 5), 0, ratio).detach()
    return c * A * ratio.log()


@pytest.mark.parametrize("variant", [cispo, gspo, sapo, dppo, icepop])
@pytest.mark.parametrize("advantage", [1.5, -0.5])
def test_at_ratio_one_a_variant_has_our_gradient(variant, advantage):
    """In the log-probs of a completion. At other ratios it differs, so that this can fail."""

    def gradients(log_ratio_3):
        logp_3 = (OLD_3 + torch.tensor(log_ratio_3)).requires_grad_()
        A_3 = torch.full((3,), advantage)
        ours, _ = grpo.policy_loss(logp_3, OLD_3, A_3, torch.ones(3))
        theirs = -variant((logp_3 - OLD_3).exp(), A_3).sum()
        return torch.autograd.grad(ours, logp_3)[0], torch.autograd.grad(theirs, logp_3)[0]

    ours, theirs = gradients([0.0, 0.0, 0.0])
    close(ours, theirs, 1e-6)
    ours, theirs = gradients([0.9, -0.5, 1.0])
    assert (ours - theirs).abs().max() > 0.05


def test_leave_one_out_is_ours_without_the_std_times_G_over_G_minus_1():
    """Its baseline is the mean of the other rewards."""
    r = torch.tensor([[1.0, 0, 0, 1, 0]])
    others_mean = (r.sum() - r) / 4
    close(r - others_mean, 5 / 4 * grpo.group_advantages(r, "none"), 1e-6)
