"""Roofline of a training step: a decoder's FLOPs, bytes and launches, and a machine's speeds."""

from dataclasses import dataclass

import numpy as np
import torch
from torch.utils.benchmark import Timer
from transformers import AutoConfig

from plumbing.errors import InputError

SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
SIZES += ("num_key_value_heads", "head_dim", "vocab_size", "tie_word_embeddings")
SHAPES = {  # name: model_type, then SIZES
    "qwen2.5-1.5b": ("qwen2", 1536, 8960, 28, 12, 2, 128, 151936, True),
    "olmo2-1b": ("olmo2", 2048, 8192, 16, 16, 16, 128, 100352, False),
    "qwen3-4b": ("qwen3", 2560, 9728, 36, 32, 8, 128, 151936, True),
    "phi-4-mini": ("phi3", 3072, 8192, 32, 24, 8, 128, 200064, True),
    "qwen3-1.7b": ("qwen3", 2048, 6144, 28, 16, 8, 128, 151936, True),
    "qwen3-0.6b": ("qwen3", 1024, 3072, 28, 16, 8, 128, 151936, True),
    "smollm2-135m": ("llama", 576, 1536, 30, 9, 3, 64, 49152, True),
    "10m": ("qwen3", 256, 768, 12, 4, 2, 64, 96, True),  # for CPUs: a small vocabulary
}
HUB = {  # hub id of a preset's model: its shape, so that estimates need no download
    "Qwen/Qwen2.5-1.5B": "qwen2.5-1.5b",
    "allenai/OLMo-2-0425-1B": "olmo2-1b",
    "Qwen/Qwen3-4B": "qwen3-4b",
    "microsoft/Phi-4-mini-instruct": "phi-4-mini",
    "Qwen/Qwen3-1.7B": "qwen3-1.7b",
    "Qwen/Qwen3-0.6B-Base": "qwen3-0.6b",
    "HuggingFaceTB/SmolLM2-135M-Instruct": "smollm2-135m",
}


def model_config(name: str, **changes):
    """Return the transformers config of a model without loading it.

    name: a key of SHAPES or HUB, or a model that AutoConfig finds. changes: replaced settings.
    Raises InputError where there is no such model.
    """
    name = HUB.get(name, name)
    if name in SHAPES:
        model_type, *sizes = SHAPES[name]
        settings = {"model_type": model_type, "max_position_embeddings": 32_768}
        settings |= zip(SIZES, sizes, strict=True)
    else:
        try:
            settings = AutoConfig.from_pretrained(name).to_dict()
        except (OSError, ValueError) as error:
            known = ", ".join(SHAPES)
            raise InputError(f"model {name}, which is none of {known}: {error}") from error
    return AutoConfig.for_model(**(settings | changes))


class Shape:
    """Sizes of a decoder, from its transformers config. Norm weights and biases are left out."""

    def __init__(self, c):
        head_dim = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
        self.family, self.layers = c.model_type, c.num_hidden_layers
        self.hidden, self.mlp = c.hidden_size, c.intermediate_size
        self.heads, self.kv_heads = c.num_attention_heads, c.num_key_value_heads
        self.q, self.kv = head_dim * self.heads, head_dim * self.kv_heads
        # Weights of the seven matrices of each layer: Q, K, V, output, and three of the MLP.
        self.matrices = self.layers * self.hidden * (2 * self.q + 2 * self.kv + 3 * self.mlp)
        self.head = c.vocab_size * self.hidden
        self.parameters = self.matrices + self.head * (1 if c.tie_word_embeddings else 2)
        self.attention = 4 * self.layers * self.q  # FLOPs per key: 2 for its score, 2 for its value
        self.cache = 2 * self.layers * self.kv  # numbers per token in the key-value cache
        # Kernels of a forward pass: matrices, attention and two norms; embedding, norm and head.
        self.launches = self.layers * (7 + 1 + 2) + 3

    def forward_flops(self, tokens, attended, scored):
        """FLOPs of a forward pass over `tokens` tokens that attend to `attended` keys in total, of
        which `scored` tokens also pass through the LM head."""
        return 2 * self.matrices * tokens + self.attention * attended + 2 * self.head * scored


def attended_keys(tokens, before=0):
    """Keys that `tokens` consecutive tokens attend to, the first one after `before` others."""
    return tokens * before + tokens * (tokens + 1) // 2


@dataclass
class Machine:
    """Speeds of a device: bandwidth in bytes/s, matrix rate in FLOP/s, seconds per launch."""

    bandwidth: float
    rate: float
    launch: float = 0.0

    @classmethod
    def measure(cls, cuda: bool) -> "Machine":
        """Time a large copy (bytes read + written) and a square matrix product, best of 5 each, in
        the dtype that generates: bfloat16 on a GPU, float32 on a CPU; and 1,000 small operations,
        on a GPU in a CUDA graph."""
        n, dtype = (8192, torch.bfloat16) if cuda else (2048, torch.float32)
        with torch.device("cuda" if cuda else "cpu"):
            a, m = torch.ones(2**28 if cuda else 2**26), torch.randn(n, n, dtype=dtype)
        one = torch.ones(1, device=a.device)

        def launch() -> None:
            for _ in range(1_000):
                one.zero_()

        if cuda:
            with torch.cuda.graph(graph := torch.cuda.CUDAGraph()):
                launch()
            launch = graph.replay
        variables = {"a": a, "b": torch.empty_like(a), "m": m, "launch": launch}
        seconds = []
        for statement in ("b.copy_(a)", "m @ m", "launch()"):
            timer = Timer(statement, globals=variables, num_threads=torch.get_num_threads())
            seconds.append(min(timer.timeit(1).mean for _ in range(5)))
        return cls(2 * a.nbytes / seconds[0], 2 * n**3 / seconds[1], seconds[2] / 1_000)

    def floor(self, flops: float = 0.0, moved: float = 0.0, launches: float = 0.0) -> float:
        """Least seconds: max(FLOPs / rate, bytes / bandwidth, launches · seconds per launch)."""
        return max(flops / self.rate, moved / self.bandwidth, launches * self.launch)


def floors(
    shape: Shape, machine: Machine, prompt_B, new_B, live, *, G: int, ranks: int, size: int
) -> dict[str, float]:
    """Least seconds that one of `ranks` student ranks needs for its share of a step.

    Prompts are read in one pass, and each once, in generation and in training; rows are trained on
    in one pass; nothing is padded or recomputed.

    Args:
        prompt_B, new_B: prompt and completion tokens of each row, in prompt-major order.
        live: the rows that are trained on.
        size: bytes per number in the generator.

    Returns: {"rollout_s", "train_s"}.
    """
    prompt_B, new_B, live = np.asarray(prompt_B), np.asarray(new_B), np.asarray(live, dtype=int)
    first_rows = np.unique(live // G) * G  # of each live group
    updating = machine.floor(moved=update_bytes(shape, ranks, size))
    return {
        "rollout_s": rollout_floor(shape, machine, prompt_B[::G], prompt_B, new_B, ranks, size),
        "train_s": updating
        + backward_floor(shape, machine, prompt_B[first_rows], prompt_B[live], new_B[live], ranks),
    }


def rollout_floor(
    shape: Shape, machine: Machine, prompt_P, prompt_B, new_B, ranks: int, size: int
) -> float:
    """Least seconds of generation: a pass for the prompts, which makes the first token of each row,
    then one for each token of the longest row. Each reads all weights."""
    decoded_B = new_B - 1
    cached = attended_keys(decoded_B, prompt_B).sum()
    tokens = prompt_P.sum() + decoded_B.sum()
    attended = attended_keys(prompt_P).sum() + cached
    scored = len(prompt_P) + decoded_B.sum()
    flops = shape.forward_flops(tokens, attended, scored)
    weights = (shape.matrices + shape.head) * decoded_B.max()
    moved = size * (weights + shape.cache * cached / ranks)
    return machine.floor(flops / ranks, moved, shape.launches * new_B.max())


def backward_floor(shape: Shape, machine: Machine, prompt_P, prompt_B, new_B, ranks: int) -> float:
    """Least seconds of forward and backward of live groups with these prompts (prompt_P) and rows.
    Backward costs twice forward, in FLOPs and in launches."""
    tokens = prompt_P.sum() + new_B.sum()
    attended = attended_keys(prompt_P).sum() + attended_keys(new_B, prompt_B).sum()
    flops = 3 * shape.forward_flops(tokens, attended, new_B.sum())
    launches = 3 * shape.launches if len(new_B) else 0
    return machine.floor(flops / ranks, launches=launches)


def update_bytes(shape: Shape, ranks: int, size: int) -> float:
    """Bytes that AdamW moves, which reads weight, gradient and two moments in float32 and writes
    all but the gradient, and those of the copy of the weights for the generator."""
    adamw = 7 * 4 * shape.parameters / ranks
    copy = (4 + size) * shape.parameters
    return adamw + copy
