"""The table of variants in docs/paper_map.md: at ratio 1 a variant's gradient is ours.

With one update on a batch, and a generator that agrees with the policy, the ratio ρ is 1.
"""

import pytest
import torch

import grpo
from tests.helpers.checks import close

# What replaces ρ Â, from the papers; the clips of GSPO, 3e-4 and 4e-4, and DPPO's mask do not
# bite at ρ = 1.
VARIANTS = {
    "CISPO": lambda rho, A: rho.clamp(max=1.28).detach() * A * rho.log(),
    "GSPO": lambda rho, A: rho.log().mean().exp() * A,
    "SAPO": lambda rho, A: 4 / 1.05 * torch.sigmoid(1.05 * (rho - 1)) * A,
    "IcePop": lambda rho, A: torch.where(abs(rho - 2.75) > 2.25, 0, rho).detach() * A * rho.log(),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_at_ratio_one_a_variant_has_our_gradient(variant):
    """In the log-probs of a completion's tokens."""
    logp_3 = torch.tensor([-3.0, -3.0, -0.1], requires_grad=True)
    A_3 = torch.full((3,), 1.5)
    ours, _ = grpo.policy_loss(logp_3, logp_3.detach(), A_3, torch.ones(3))
    theirs = -VARIANTS[variant]((logp_3 - logp_3.detach()).exp(), A_3).sum()
    [difference] = torch.autograd.grad(ours - theirs, logp_3)
    close(difference, [0, 0, 0], 1e-6)
