"""Whether a language model computes what Generator and Policy compute in its place."""

import torch
from torch.nn.functional import cross_entropy
from transformers import PreTrainedConfig, PreTrainedModel


def check_window(name: str, config: PreTrainedConfig, tokens: int) -> None:
    """Raise ValueError if the model attends to less than rows of `tokens` tokens."""
    window = getattr(config, "sliding_window", None)
    if window and tokens > window:
        raise ValueError(
            f"model {name!r} attends to the last {window} tokens only, a row may take {tokens}"
        )


def own_logps(lm: PreTrainedModel, prompt_ids: list[int], ids: list[int]) -> torch.Tensor:
    """Compute log-probs (N,) of a completion's N tokens by the model's own attention and head."""
    row_1_T = torch.tensor([prompt_ids + ids], device=lm.device)
    N = len(ids)
    logits_T_V = lm(row_1_T).logits[0]
    logits_N_V = logits_T_V[-N - 1 : -1].float()
    target_N = row_1_T[0, -N:]
    return -cross_entropy(logits_N_V, target_N, reduction="none")


def check_logps(
    name: str,
    part: str,
    logp_N: torch.Tensor,
    own_logp_N: torch.Tensor,
) -> None:
    """Raise ValueError unless the log-probs that `part` computed are the model's own."""
    gap_N = (logp_N - own_logp_N).abs()
    gap = gap_N.max().item()
    if not gap < 0.01:  # NaN, too
        raise ValueError(
            f"model {name!r}: {part}'s log-probs are off by {gap:.2g}: "
            "it may cap, scale or bias its logits, or attend in its own way"
        )
