"""Supervised training of small models: what toy_task, cold_start and small_model share."""

import torch
from transformers import Olmo2Config, Olmo2ForCausalLM, PreTrainedTokenizerFast


def make_olmo2(tokenizer: PreTrainedTokenizerFast, seed: int, **sizes: int) -> Olmo2ForCausalLM:
    """Return a fresh OLMo-2 in float32, a family whose tokenizer AutoTokenizer leaves as saved.
    sizes: settings of Olmo2Config."""
    torch.manual_seed(seed)
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    ids |= {"bos_token_id": None, "tie_word_embeddings": True, "vocab_size": len(tokenizer)}
    return Olmo2ForCausalLM(Olmo2Config(**sizes, **ids))


class Descent:
    """An optimizer whose learning rate rises in a line for `warmup` of its steps, and then falls in
    a line to zero. Gradients are clipped at a norm of 1."""

    def __init__(self, optimizer: torch.optim.Optimizer, steps: int, warmup: int):
        self.optimizer = optimizer
        self.weights = [p for group in optimizer.param_groups for p in group["params"]]
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda t: min((t + 1) / warmup, (steps - t) / max(steps - warmup, 1))
        )

    def step(self, loss: torch.Tensor) -> None:
        """Take a step on the gradient of a loss."""
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.weights, 1.0)
        self.optimizer.step()
        self.schedule.step()
