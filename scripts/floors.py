"""The least that a step costs: FLOPs and bytes from the sizes of a decoder, and how fast a machine does them.

Each formula stands in its method's docstring. bench.py prints them beside what it measured; `plan_row` puts them
together for GPUs that are not at hand. Matrices only: norms, biases and activations are left out.
"""

import math
import time
from dataclasses import dataclass

import torch

# fmt: off
SHAPES = {  # model_type; hidden, MLP, layers, heads, key-value heads, head size, vocabulary, one matrix in and out
    "qwen2.5-1.5b": ("qwen2", 1536, 8960, 28, 12, 2, 128, 151936, True),
    "olmo2-1b": ("olmo2", 2048, 8192, 16, 16, 16, 128, 100352, False),
    "qwen3-4b": ("qwen3", 2560, 9728, 36, 32, 8, 128, 151936, True),
    "phi-4-mini": ("phi3", 3072, 8192, 32, 24, 8, 128, 200064, True),
    "qwen3-1.7b": ("qwen3", 2048, 6144, 28, 16, 8, 128, 151936, True),  # the teacher of the last two presets
}
TEACHERS = {"qwen3-4b": "qwen3-1.7b", "phi-4-mini": "qwen3-1.7b"}  # of another shape than the student
# fmt: on


@dataclass
class Shape:
    """The sizes of a decoder that its cost depends on, in the order of SHAPES."""

    hidden: int
    mlp: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    tied: bool

    @classmethod
    def of(cls, c) -> "Shape":
        """From a transformers config."""
        size = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
        heads = c.num_attention_heads, c.num_key_value_heads, size
        return cls(c.hidden_size, c.intermediate_size, c.num_hidden_layers, *heads, c.vocab_size, c.tie_word_embeddings)

    @property
    def matrices(self) -> int:
        """layers · (2·D·size·(heads + kv_heads) + 3·D·MLP): weights that every token is multiplied by."""
        attention = 2 * self.hidden * self.head_size * (self.heads + self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.mlp)

    @property
    def head(self) -> int:
        """V·D."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """matrices + V·D for the embedding, and again for the head where it has its own."""
        return self.matrices + self.head * (1 if self.tied else 2)

    def forward_flops(self, tokens: int, attended: int, scored: int) -> int:
        """2·matrices a token + 4·layers·heads·size a key attended to + 2·V·D a token that is scored."""
        attention = 4 * self.layers * self.heads * self.head_size * attended
        return 2 * self.matrices * tokens + attention + 2 * self.head * scored

    def train_flops(self, tokens: int, attended: int, scored: int) -> int:
        """3 · forward, since backward costs two; what is computed twice to save memory does not have to be done."""
        return 3 * self.forward_flops(tokens, attended, scored)

    def decode_bytes(self, positions: int, attended: int, size: int) -> int:
        """size · (matrices + V·D a position of the batch + 2·layers·kv_heads·head_size a key attended to)."""
        cache = 2 * self.layers * self.kv_heads * self.head_size
        return size * ((self.matrices + self.head) * positions + cache * attended)

    def adamw_bytes(self) -> int:
        """28 a parameter, float32: weight, gradient and two moments read, all but the gradient written."""
        return 28 * self.parameters

    def refresh_bytes(self, size: int) -> int:
        """4 + size a parameter: float32 master read, generating copy written."""
        return (4 + size) * self.parameters


def causal(tokens: int, before: int = 0) -> int:
    """Keys attended to by `tokens` tokens that follow `before`: tokens·before + tokens·(tokens + 1)/2."""
    return tokens * before + tokens * (tokens + 1) // 2


@dataclass
class Machine:
    """bandwidth in bytes/s (copy of a large tensor, read + write), rate in FLOP/s (product of square matrices)."""

    bandwidth: float
    rate: float

    @classmethod
    def measure(cls, device: torch.device) -> "Machine":
        """Best of 5, by this process with its threads, in the dtype that generates: float32 on a CPU, bf16 on a GPU."""
        cuda = device.type == "cuda"
        a = torch.ones(2**28 if cuda else 2**26, device=device)
        b, n = torch.empty_like(a), 8192 if cuda else 2048
        m = torch.randn(n, n, device=device, dtype=torch.bfloat16 if cuda else torch.float32)
        copying, multiplying = (best_time(work, device) for work in (lambda: b.copy_(a), lambda: m @ m))
        return cls(2 * a.nbytes / copying, 2 * n**3 / multiplying)

    def floor(self, flops: float = 0.0, moved: float = 0.0) -> float:
        """max(FLOPs / rate, bytes / bandwidth), seconds."""
        return max(flops / self.rate, moved / self.bandwidth)


def best_time(work, device) -> float:
    """Seconds, best of 5."""
    times = []
    for _ in range(5):
        sync(device)
        start = time.perf_counter()
        work()
        sync(device)
        times.append(time.perf_counter() - start)
    return min(times)


def sync(device) -> None:
    """Waits for a GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


ASSUMED = {  # of `plan_row`: value, meaning
    "tflops": (989.0, "peak bf16 TFLOP/s of a GPU (H100 SXM)"),
    "matrix_share": (0.4, "share of it that is reached"),
    "bandwidth": (3.35, "memory bandwidth of a GPU, TB/s"),
    "bandwidth_share": (0.6, "share of it that is reached"),
    "nvlink": (300.0, "GB/s a GPU reaches where a role has at most 8"),
    "network": (40.0, "GB/s a GPU reaches beyond"),
    "eager_ms": (25.0, "ms of one decoded position without CUDA graphs"),
    "dead": (0.5, "share of dead groups"),
    "prompts": (18, "prompts a step"),
    "group": (16, "completions a prompt"),
    "prompt_tokens": (300, "of a prompt"),
    "mean_tokens": (1000, "of a completion, mean"),
    "max_tokens": (2048, "of the longest completion, on every rank"),
    "question_tokens": (100, "of what the teacher reads"),
}


def plan_row(student: Shape, teacher: Shape, gpus: int, a) -> dict[str, float]:
    """Seconds by part of one step on `gpus` GPUs, a quarter of them the teacher's. a: the names in ASSUMED.

    The rows of a student rank are its equal share, rounded up. The teacher (Table 5b) makes prompts/4 updates of 4
    epochs over 64 outcomes in batches of 8 a rank: 72 small steps on 2 ranks. Both roles run at once: the student
    waits ("wait") where the teacher's learning and scoring take longer than its own work.
    """
    teachers = gpus // 4
    students = gpus - teachers
    machine = Machine(a.bandwidth * 1e12 * a.bandwidth_share, a.tflops * 1e12 * a.matrix_share)
    rows = math.ceil(a.prompts * a.group / students)
    live = math.ceil(a.prompts * a.group * (1 - a.dead) / students)
    whole = a.prompt_tokens + a.mean_tokens
    seen = rows * causal(a.mean_tokens, a.prompt_tokens)

    def exchange(moved: float, ranks: int) -> float:
        return moved * (ranks - 1) / ranks / (1e9 * (a.nvlink if ranks <= 8 else a.network))

    prefill = student.forward_flops(a.prompt_tokens, causal(a.prompt_tokens), 1) * math.ceil(rows / a.group)
    flops = student.forward_flops(rows * a.mean_tokens, seen, rows * a.mean_tokens)
    rollout = machine.floor(prefill) + machine.floor(flops, student.decode_bytes(a.max_tokens, seen, 2))
    eager = max(rollout, a.max_tokens * a.eager_ms / 1e3)
    train = machine.floor(live * student.train_flops(whole, causal(whole), a.mean_tokens))
    # Gradients are reduced in float32; bf16 weights are gathered for training, and for the generating copy.
    weights = exchange((4 + 2 + 2) * student.parameters, students)
    weights += machine.floor(moved=student.adamw_bytes() / students + student.refresh_bytes(2))
    learn = machine.floor(teacher.train_flops(8 * a.question_tokens, 8 * causal(a.question_tokens), 0))
    learn += machine.floor(moved=teacher.adamw_bytes() / teachers) + exchange((4 + 2) * teacher.parameters, teachers)
    scored = math.ceil(8 * a.prompts / teachers)
    score = machine.floor(scored * teacher.forward_flops(a.question_tokens, causal(a.question_tokens), 0))
    teach = a.prompts / 4 * 4 * math.ceil(64 / (8 * teachers)) * learn + score
    rest = train + weights
    steps = {"step": max(rollout + rest, teach), "step, eager": max(eager + rest, teach)}
    steps["wait"] = max(0.0, teach - rollout - rest)
    return {"rollout": rollout, "eager": eager, "train": train, "weights": weights, "teacher": teach, **steps}
