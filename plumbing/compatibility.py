"""Whether a language model computes what Generator and Policy compute in its place."""

import torch
from torch.nn.functional import cross_entropy
from transformers import PreTrainedConfig, PreTrainedModel

import grpo

LARGE = 1000.0  # a logit that no model needs, but that training may come near


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


def check_head(name: str, lm: PreTrainedModel, ids: list[int]) -> None:
    """Raise ValueError unless the model's logits are the product of its last hidden states and its
    head, however large. A cap such as c tanh(logit / c) hardly changes the small logits of a few
    tokens, and then those of other rows: here the hidden states are scaled up."""
    row_1_T = torch.tensor([ids], device=lm.device)
    hidden_T_D = lm.base_model(row_1_T).last_hidden_state[0]
    logits_T_V = grpo.logits(hidden_T_D, lm.get_output_embeddings().weight)
    factor = LARGE / logits_T_V.abs().max().item()

    def enlarge(module, inputs, output):
        output.last_hidden_state = output.last_hidden_state * factor
        return output

    hook = lm.base_model.register_forward_hook(enlarge)
    try:
        own_logits_T_V = lm(row_1_T).logits[0]
    finally:
        hook.remove()
    gap = (own_logits_T_V - factor * logits_T_V).abs().max().item()
    if not gap < 1e-3 * LARGE:  # NaN, too
        raise ValueError(
            f"model {name!r}: it caps, scales or biases its logits: one of {LARGE:g} is off by "
            f"{gap:.2g}"
        )
