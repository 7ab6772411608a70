"""The table of variants in docs/paper_map.md, executed on the policy of test_theory.py.

Each variant is an objective per token that replaces ρ Â. With one update on a batch, and a
generator that agrees with the policy, the ratio ρ is 1: the objectives of a clipped family then
have one gradient. The objectives are written from the papers, with the defaults of their authors.
Beside the table's rows: verl's dual clip and prime-rl's default.
"""

import pytest
import torch

import grpo
from tests.core.test_theory import (
    COMPLETIONS,
    MIRROR,
    PREFIXES,
    VERIFIERS,
    TablePolicy,
    rewards,
)
from tests.helpers.checks import FLOAT64, close

RIGHT = VERIFIERS[5 / 16]  # "a$" and "bb"; "$", of one token, is wrong
LENGTH_B = torch.tensor([len(o) for o in COMPLETIONS])[MIRROR[0]]
ROW_N = torch.arange(len(LENGTH_B)).repeat_interleave(LENGTH_B)
# Next-token probabilities after "", "a" and "b", of unlike entropies.
POLICY = TablePolicy([[0.34, 0.33, 0.33], [1 / 4, 1 / 4, 1 / 2], [0.9, 0.05, 0.05]])


def by_token(of_token_13: torch.Tensor) -> torch.Tensor:
    """Repeat what each of the completions' 13 tokens has for the tokens of the group: (N,)."""
    tokens = dict(zip(COMPLETIONS, of_token_13.split([len(o) for o in COMPLETIONS]), strict=True))
    return torch.cat([tokens[COMPLETIONS[k]] for k in MIRROR[0].tolist()])


def sequence_ratio(ratio_N: torch.Tensor) -> torch.Tensor:
    """Compute the geometric mean of the ratios of a row, for each of its tokens."""
    sum_B = torch.zeros(len(LENGTH_B), **FLOAT64).index_add_(0, ROW_N, ratio_N.log())
    return (sum_B / LENGTH_B).exp()[ROW_N]


def clip(ratio_N, A_N):
    """GRPO, DAPO: the clipped surrogate."""
    return torch.minimum(ratio_N * A_N, ratio_N.clamp(0.8, 1.28) * A_N)


def dual_clip(ratio_N, A_N):
    """verl's default: a bound on the loss of negative advantages too."""
    return torch.where(A_N < 0, torch.maximum(clip(ratio_N, A_N), 3 * A_N), clip(ratio_N, A_N))


def cispo(ratio_N, A_N):
    """CISPO: REINFORCE, with the clipped ratio as a constant factor."""
    return ratio_N.clamp(max=1.28).detach() * A_N * ratio_N.log()


def gspo(ratio_N, A_N):
    """GSPO: the clipped surrogate of a sequence's ratio, within 3e-4 and 4e-4."""
    ratio_N = sequence_ratio(ratio_N)
    return torch.minimum(ratio_N * A_N, ratio_N.clamp(1 - 3e-4, 1 + 4e-4) * A_N)


def sapo(ratio_N, A_N):
    """SAPO: the gate 4/τ · σ(τ (ρ - 1)), τ 1 for positive advantages and else 1.05."""
    tau_N = 1 + 0.05 * (A_N <= 0).double()
    return 4 / tau_N * torch.sigmoid(tau_N * (ratio_N - 1)) * A_N


def dppo(ratio_N, A_N):
    """DPPO: tokens whose probability moved by more than 0.2 in the advantage's direction leave."""
    probability_N = by_token(POLICY.token_logps().detach()).exp()
    moved_N = probability_N - probability_N / ratio_N.detach()
    return ratio_N * A_N * (moved_N * A_N.sign() <= 0.2)


def prime_rl(ratio_N, A_N):
    """prime-rl's default: DPPO's mask, and a penalty on the squared log-ratio."""
    return dppo(ratio_N, A_N) - 1e-3 * ratio_N.log() ** 2


def icepop(ratio_N, A_N):
    """IcePop: ρ of trainer and generator as a constant factor, 0 outside of [0.5, 5]."""
    c_N = torch.where((ratio_N < 0.5) | (ratio_N > 5), 0.0, ratio_N).detach()
    return c_N * A_N * ratio_N.log()


FAMILY = [clip, dual_clip, cispo, gspo, sapo, dppo, prime_rl, icepop]
every_variant = pytest.mark.parametrize("objective", FAMILY)
every_loss = pytest.mark.parametrize("loss", grpo.LOSSES)


def columns(loss: str, std: str = "population") -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return log π, advantage and weight of the group's tokens."""
    advantage_B = grpo.group_advantages(rewards(RIGHT), std)[0]
    weight_B = grpo.row_weights(LENGTH_B, 1, loss, int(LENGTH_B.sum()), 2)
    return by_token(POLICY.token_logps()), advantage_B[ROW_N], weight_B[ROW_N]


def our_gradient(loss: str, std: str = "population") -> torch.Tensor:
    """Compute the gradient of the loss of a training step's first update, by grpo.py."""
    logp_N, advantage_N, weight_N = columns(loss, std)
    return POLICY.gradient(grpo.policy_loss(logp_N, logp_N.detach(), advantage_N, weight_N)[0])


def variant_gradient(objective, loss: str, gap_N=0.0) -> torch.Tensor:
    """Compute the gradient of a variant's loss. gap_N: log ρ."""
    logp_N, advantage_N, weight_N = columns(loss)
    ratio_N = (logp_N - logp_N.detach() + gap_N).exp()
    return POLICY.gradient(-(weight_N * objective(ratio_N, advantage_N)).sum())


def distance(gradient: torch.Tensor, other: torch.Tensor) -> float:
    """Compute ‖gradient - other‖ / ‖other‖."""
    return ((gradient - other).norm() / other.norm()).item()


def gaps(scale: float) -> torch.Tensor:
    """Draw a log-ratio of each token that is off by up to `scale`."""
    generator = torch.Generator().manual_seed(0)
    return by_token(scale * (2 * torch.rand(13, generator=generator, **FLOAT64) - 1))


@every_loss
@every_variant
def test_at_ratio_one_the_variants_have_our_gradient(objective, loss):
    close(variant_gradient(objective, loss), our_gradient(loss), 1e-10)


@every_variant
def test_with_a_gap_of_1e_7_the_gradients_differ_by_no_more(objective):
    assert distance(variant_gradient(objective, "grpo", gaps(1e-7)), our_gradient("grpo")) < 3e-7


@pytest.mark.parametrize("objective", FAMILY)
def test_with_another_ratio_the_gradients_differ(objective):
    """So the agreement at ratio 1 is not built into this file."""
    assert distance(variant_gradient(objective, "grpo", gaps(0.8)), our_gradient("grpo")) > 0.05


@pytest.mark.parametrize("mismatch", ["truncate", "mask"])
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_at_ratio_one_mismatch_corrections_change_nothing(mismatch, level):
    logp_N, advantage_N, weight_N = columns("grpo")
    old_N = logp_N.detach()
    gap_N = torch.zeros_like(old_N)
    corrected_N, _ = grpo.correct_mismatch(advantage_N, gap_N, ROW_N, mismatch, level, cap=3)
    loss, _ = grpo.policy_loss(logp_N, old_N, corrected_N, weight_N)
    close(POLICY.gradient(loss), our_gradient("grpo"), 1e-10)


def leave_one_out(rewards_G: torch.Tensor) -> torch.Tensor:
    """Compute r_i minus the mean of the other rewards."""
    return rewards_G - (rewards_G.sum() - rewards_G) / (len(rewards_G) - 1)


def test_leave_one_out_is_ours_without_the_std_times_G_over_G_minus_1():
    logp_N, _, weight_N = columns("grpo")
    advantage_N = leave_one_out(rewards(RIGHT)[0])[ROW_N]
    loss, _ = grpo.policy_loss(logp_N, logp_N.detach(), advantage_N, weight_N)
    close(POLICY.gradient(loss), 16 / 15 * our_gradient("grpo", std="none"), 1e-10)


def test_leave_one_out_does_not_coincide_with_our_default():
    logp_N, _, weight_N = columns("grpo")
    advantage_N = leave_one_out(rewards(RIGHT)[0])[ROW_N]
    loss, _ = grpo.policy_loss(logp_N, logp_N.detach(), advantage_N, weight_N)
    assert distance(POLICY.gradient(loss), our_gradient("grpo")) > 0.1


def test_top_entropy_tokens_do_not_coincide():
    """The 16 first tokens have the highest entropy of the 28; the others leave the loss."""
    log_p = torch.log_softmax(POLICY.hidden_3_D @ POLICY.weight_V_D.T, dim=-1).detach()
    entropy_3 = -(log_p.exp() * log_p).sum(dim=-1)
    after = [PREFIXES.index(o[:t]) for o in COMPLETIONS for t in range(len(o))]
    entropy_N = by_token(entropy_3[after])
    kept_N = entropy_N >= entropy_N.quantile(0.8)
    assert kept_N.sum() == 16
    logp_N, advantage_N, weight_N = columns("grpo")
    loss, _ = grpo.policy_loss(logp_N, logp_N.detach(), advantage_N, weight_N * kept_N)
    assert distance(POLICY.gradient(loss), our_gradient("grpo")) > 0.1
