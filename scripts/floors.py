"""The least that a step costs: FLOPs and bytes of a decoder's matrices, over how fast a machine does them.

bench.py prints `floors` beside what it measured; `plan_row` puts them together for GPUs that are not at hand.
"""

import itertools
import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch.utils.benchmark import Timer
from transformers import AutoConfig

# fmt: off
SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
         "head_dim", "vocab_size", "tie_word_embeddings")
SHAPES = {  # model_type; SIZES
    "qwen2.5-1.5b": ("qwen2", 1536, 8960, 28, 12, 2, 128, 151936, True),
    "olmo2-1b": ("olmo2", 2048, 8192, 16, 16, 16, 128, 100352, False),
    "qwen3-4b": ("qwen3", 2560, 9728, 36, 32, 8, 128, 151936, True),
    "phi-4-mini": ("phi3", 3072, 8192, 32, 24, 8, 128, 200064, True),
    "qwen3-1.7b": ("qwen3", 2048, 6144, 28, 16, 8, 128, 151936, True),  # the teacher of the last two presets
    "qwen3-0.6b": ("qwen3", 1024, 3072, 28, 16, 8, 128, 151936, True),
    "10m": ("qwen3", 256, 768, 12, 4, 2, 64, 96, True),  # on a CPU arithmetic takes nearly all of its step
}
HUB = {  # which of SHAPES a preset's model has
    "Qwen/Qwen2.5-1.5B": "qwen2.5-1.5b",
    "allenai/OLMo-2-0425-1B": "olmo2-1b",
    "Qwen/Qwen3-4B": "qwen3-4b",
    "microsoft/Phi-4-mini-instruct": "phi-4-mini",
    "Qwen/Qwen3-1.7B": "qwen3-1.7b",
    "Qwen/Qwen3-0.6B-Base": "qwen3-0.6b",
    "Qwen/Qwen3-0.6B": "qwen3-0.6b",
}
TEACHERS = {"qwen3-4b": "qwen3-1.7b", "phi-4-mini": "qwen3-1.7b"}  # of another shape than the student
# fmt: on


def model_config(shape: str, **changes):
    """The transformers config of one of SHAPES, or of a model's folder, with some settings changed."""
    if shape in SHAPES:
        kind, *sizes = SHAPES[shape]
        settings = {"model_type": kind, "max_position_embeddings": 32_768} | dict(
            zip(SIZES, sizes, strict=True)
        )
    else:
        settings = AutoConfig.from_pretrained(shape).to_dict()
    return AutoConfig.for_model(**(settings | changes))


class Shape:
    """What a decoder's cost depends on, from its transformers config. Norms, biases and activations are left out."""

    def __init__(self, c):
        size = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
        q, kv = size * c.num_attention_heads, size * c.num_key_value_heads
        # Weights that every token is multiplied by: queries and output, keys and values, the three of the MLP.
        self.matrices = (
            c.num_hidden_layers * c.hidden_size * (2 * q + 2 * kv + 3 * c.intermediate_size)
        )
        self.head = c.vocab_size * c.hidden_size
        self.parameters = self.matrices + self.head * (1 if c.tie_word_embeddings else 2)
        self.attention = (
            4 * c.num_hidden_layers * q
        )  # FLOPs a key: multiply and add, for its score and its value
        self.cache = 2 * c.num_hidden_layers * kv  # numbers kept a token: keys and values
        self.layers, self.hidden, self.tied = (
            c.num_hidden_layers,
            c.hidden_size,
            c.tie_word_embeddings,
        )
        self.kept = kept_bytes(c, q, kv)

    def forward_flops(self, tokens, attended, scored):
        """2·matrices a token + attention a key attended to + 2·V·D a token that is scored."""
        return 2 * self.matrices * tokens + self.attention * attended + 2 * self.head * scored


def kept_bytes(c, q: int, kv: int) -> int:
    """Bytes that one layer keeps of each token from forward to backward, in bf16 under autograd.

    D hidden, I the MLP's width, q and kv the widths of queries and keys, H heads. Each operation of
    transformers' eager code keeps what its backward needs (tests/test_gpu_check.py counts it):

        two norms    16 D + 8           input in float32, normalised, scaled; 1/rms in float32
        attention    4 (q + kv) + 4 H   queries, keys, values, result (the next matrix's input), and
                                        a normaliser a head; flash-attn and SDPA keep no scores
        MLP          8 I                gate, silu(gate), up, their product
    """
    extra = {
        # Norms of each head's queries and keys.
        "qwen3": 6 * (q + kv) + 4 * (c.num_attention_heads + c.num_key_value_heads),
        # Norms of queries and keys too, all scaled in float32, and behind attention and MLP.
        "olmo2": 4 * c.hidden_size + 8 * (q + kv) + 8,
        # Values are a view of the fused queries and keys; the result is copied for its matrix.
        "phi3": 4 * q + 2 * kv,
    }
    attention = 4 * (q + kv) + 4 * c.num_attention_heads
    plain = 16 * c.hidden_size + 8 + attention + 8 * c.intermediate_size
    return plain + extra.get(getattr(c, "model_type", None), 0)


def causal(tokens, before=0):
    """Keys attended to by `tokens` tokens that follow `before`: tokens·before + tokens·(tokens + 1)/2."""
    return tokens * before + tokens * (tokens + 1) // 2


@dataclass
class Machine:
    """bandwidth in bytes/s (copy of a large tensor, read + write), rate in FLOP/s (product of square matrices)."""

    bandwidth: float
    rate: float

    @classmethod
    def measure(cls, cuda: bool) -> "Machine":
        """Best of 5, by this process with its threads, in the dtype that generates: float32 on a CPU, bf16 on a GPU."""
        n, dtype = (8192, torch.bfloat16) if cuda else (2048, torch.float32)
        with torch.device("cuda" if cuda else "cpu"):
            a, m = torch.ones(2**28 if cuda else 2**26), torch.randn(n, n, dtype=dtype)
        names, seconds = {"a": a, "b": torch.empty_like(a), "m": m}, []
        for line in ("b.copy_(a)", "m @ m"):
            timer = Timer(line, globals=names, num_threads=torch.get_num_threads())
            seconds.append(min(timer.timeit(1).mean for _ in range(5)))
        return cls(2 * a.nbytes / seconds[0], 2 * n**3 / seconds[1])

    def floor(self, flops: float = 0.0, moved: float = 0.0) -> float:
        """max(FLOPs / rate, bytes / bandwidth), seconds."""
        return max(flops / self.rate, moved / self.bandwidth)


def floors(
    shape: Shape, machine: Machine, prompt_B, new_B, live, G: int, ranks: int, size: int
) -> dict[str, float]:
    """Seconds of one of `ranks` student ranks for an equal share of a step, by part; the other parts have no floor.

    prompt_B and new_B: tokens of each row, prompt-major; live: the rows that are trained on; size: bytes of a number in
    the generator. Each prompt is read once, nothing is padded, backward costs twice forward, and what is computed twice
    to save memory does not have to be done. AdamW reads weight, gradient and two moments, and writes all but one.
    """
    prompt_B, new_B, live = np.asarray(prompt_B), np.asarray(new_B), np.asarray(live, dtype=int)
    prompt_P, decoded_B = prompt_B[::G], new_B - 1  # the first token of a row comes with its prompt
    seen = causal(decoded_B, prompt_B).sum()
    tokens, scored = prompt_P.sum() + decoded_B.sum(), len(prompt_P) + decoded_B.sum()
    generate = shape.forward_flops(tokens, causal(prompt_P).sum() + seen, scored)
    moved = size * ((shape.matrices + shape.head) * decoded_B.max() + shape.cache * seen / ranks)
    whole = (prompt_B + new_B)[live]
    train = 3 * shape.forward_flops(whole.sum(), causal(whole).sum(), new_B[live].sum())
    return {
        "rollout_s": machine.floor(generate / ranks, moved),
        "fwd_bwd_s": machine.floor(train / ranks),
        "step": machine.floor(moved=7 * 4 * shape.parameters / ranks),
        "refresh": machine.floor(moved=(4 + size) * shape.parameters),
    }


def training_bytes(
    shape: Shape, tokens: int, recompute=False, accumulated=True, scored=True, ranks: int = 1
) -> dict[str, float]:
    """What a GPU rank holds when it is at its fullest: as the backward of `tokens` tokens begins.

    sharded: float32 weights and AdamW's two moments, shared out among FSDP2's `ranks`. So are the
        gradients, but they come into being while the activations go: not at this moment.
    gathered: all weights in bf16, kept from forward to backward (reshard_after_forward=False) and,
        where this is not the step's only micro-batch (`accumulated`), the sum of the earlier ones'
        gradients, whole and in float32.
    activations: `Shape.kept` a layer; with `recompute` (activation checkpointing) each layer's
        input alone, as one layer at a time is computed again. Also what follows the last layer.
    working: gradients within one layer, as much as it kept, and, where tokens are `scored`, the
        pass through the head (grpo.token_logprobs): its gradient in bf16, that of the hidden states
        in float32, logits by the piece. A teacher scores none and has no head of its own.

    Left out: CUDA's context and libraries (about 1 GiB), and what the allocator cannot use.
    """
    weights = shape.parameters if scored else shape.matrices + shape.head
    kept = 2 * shape.hidden * shape.layers + shape.kept if recompute else shape.layers * shape.kept
    head = 2 * shape.head + 2**26 + 4 * shape.hidden * tokens if scored else 0
    return {
        "sharded": 12 * weights / ranks,
        "gathered": (2 + 4 * accumulated) * weights,
        "activations": tokens * (kept + 10 * shape.hidden),
        "working": tokens * shape.kept + head,
    }


def memory_row(student: Shape, teacher: Shape | None, c, students: int, teachers: int) -> dict:
    """GiB that each student rank and each teacher rank needs, by part, from train.Config c.

    A student holds a bf16 copy that generates all the time, and while that generates a key-value
    cache instead of activations. With no teacher rank the teacher, if there is one, lives in the
    student ranks, and "teacher here" is what it holds between its updates: weights, moments, and
    the bf16 weights that its last prediction gathered. "student" is the fullest of these moments,
    "teacher rank" that of a teacher which reads teacher_batch_size questions of max_prompt_tokens.
    """
    tokens = c.per_device_batch_size * (c.max_prompt_tokens + c.max_completion_tokens)
    kept, recomputed = (
        training_bytes(student, tokens, recompute, ranks=students) for recompute in (False, True)
    )
    parts = recomputed if c.activation_checkpointing else kept
    copy, cache = 2 * student.parameters, 2 * student.cache * c.max_rollout_tokens
    here = learning = within = 0.0
    if teacher:
        reads = c.teacher_batch_size * c.max_prompt_tokens
        learns = training_bytes(teacher, reads, False, False, False, teachers or students)
        learning = sum(learns.values())
        if not teachers:
            here, within = learns["sharded"] + learns["gathered"], learning
    row = {
        "sharded": parts["sharded"],
        "gathered": parts["gathered"],
        "copy": copy,
        "activations": kept["activations"] + kept["working"],
        "recomputed": recomputed["activations"] + recomputed["working"],
        "cache": cache,
        "teacher here": here,
        "student": copy
        + max(here + sum(parts.values()), parts["sharded"] + max(here + cache, within)),
        "teacher rank": learning,
    }
    return {name: value / 2**30 for name, value in row.items()}


CARDS, USABLE = (24, 80, 141), 0.92  # GiB; the rest is for CUDA's context, libraries and fragments


def rows_that_fit(
    student: Shape, teacher: Shape | None, c, students: int, teachers: int, recompute: bool
) -> dict:
    """The largest per_device_batch_size for each of CARDS; 0 where not even one row fits."""

    def fits(rows: int, card: int) -> bool:
        settings = replace(c, per_device_batch_size=rows, activation_checkpointing=recompute)
        return memory_row(student, teacher, settings, students, teachers)["student"] < USABLE * card

    return {card: next(n for n in itertools.count() if not fits(n + 1, card)) for card in CARDS}


ASSUMED = {  # of `plan_row`: value, meaning
    "tflops": (395.6, "bf16 TFLOP/s that a GPU reaches (0.4 of an H100's peak)"),
    "bandwidth": (2.01, "TB/s that it reads and writes (0.6 of an H100's)"),
    "nvlink": (300.0, "GB/s a GPU reaches where a role has at most 8"),
    "network": (40.0, "GB/s a GPU reaches beyond"),
    "dead": (0.5, "share of dead groups"),
    "prompt_tokens": (300, "of a prompt"),
    "mean_tokens": (1000, "of a completion, mean"),
    "max_tokens": (2048, "of the longest completion, on every rank"),
    "question_tokens": (100, "of what the teacher reads"),
}


def plan_row(student: Shape, teacher: Shape, gpus: int, a) -> dict[str, float]:
    """Seconds by part of one step on `gpus` GPUs, a quarter of them the teacher's. a: the names in ASSUMED.

    The teacher (Table 5b) makes 18/4 updates of 4 epochs over 64 outcomes in batches of 8 a rank: 72 small steps
    on 2 ranks. Both roles run at once: the student waits ("wait") where the teacher's learning and scoring take longer
    than its own work.
    """
    teachers = gpus // 4
    students, P, G = gpus - teachers, 18, 16
    machine = Machine(a.bandwidth * 1e12, a.tflops * 1e12)
    new_B, live = [a.mean_tokens] * (P * G - 1) + [a.max_tokens], range(round(P * G * (1 - a.dead)))
    least = floors(student, machine, [a.prompt_tokens] * P * G, new_B, live, G, students, size=2)

    def exchange(moved: float, ranks: int) -> float:
        return moved * (ranks - 1) / ranks / (1e9 * (a.nvlink if ranks <= 8 else a.network))

    # Gradients are reduced in float32; bf16 weights are gathered for training, and for the generating copy.
    weights = (
        exchange((4 + 2 + 2) * student.parameters, students) + least["step"] + least["refresh"]
    )
    question = teacher.forward_flops(a.question_tokens, causal(a.question_tokens), 0)
    learn = machine.floor(3 * 8 * question) + machine.floor(
        moved=7 * 4 * teacher.parameters / teachers
    )
    learn += exchange((4 + 2) * teacher.parameters, teachers)
    updates, batches = P / 4, math.ceil(64 / (8 * teachers))
    teach = updates * 4 * batches * learn + machine.floor(8 * P * question / teachers)
    busy = least["rollout_s"] + least["fwd_bwd_s"] + weights
    parts = {
        "rollout": least["rollout_s"],
        "train": least["fwd_bwd_s"],
        "weights": weights,
        "teacher": teach,
    }
    return parts | {"step": max(busy, teach), "wait": max(0.0, teach - busy)}
