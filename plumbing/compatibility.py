"""Whether a language model computes what Generator and Policy compute in its place."""

import torch
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
    row = prompt_ids + ids
    ids_1_T = torch.tensor([row], device=lm.device)
    out = lm(ids_1_T)
    logits_T_V = out.logits[0].float()
    logp_T_V = logits_T_V.log_softmax(-1)
    n = len(prompt_ids)
    logp_N_V = logp_T_V[n - 1 : -1]
    target_N = ids_1_T[0, n:]
    target_N_1 = target_N[:, None]
    logp_N_1 = logp_N_V.gather(1, target_N_1)
    return logp_N_1[:, 0]


def check_logps(name: str, part: str, logp_N: torch.Tensor, own_logp_N: torch.Tensor) -> None:
    """Raise ValueError unless the log-probs that `part` computed are the model's own."""
    gap_N = (logp_N - own_logp_N).abs()
    gap = gap_N.max().item()
    is_small = gap < 0.01
    if not is_small:  # NaN, too
        raise ValueError(
            f"model {name!r}: {part}'s log-probs are off by {gap:.2g}: "
            "it may cap, scale or bias its logits, or attend in its own way"
        )
