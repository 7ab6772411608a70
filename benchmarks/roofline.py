"""The least that a step costs: FLOPs and bytes of a decoder's matrices, over how fast a machine
does them. bench.py prints `floors` beside what it measured."""

import itertools
import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch.utils.benchmark import Timer
from transformers import AutoConfig

from benchmarks.memory import USABLE, Shape, memory_row

SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
SIZES += ("num_key_value_heads", "head_dim", "vocab_size", "tie_word_embeddings")
SHAPES = {  # model_type; SIZES
    "qwen2.5-1.5b": ("qwen2", 1536, 8960, 28, 12, 2, 128, 151936, True),
    "olmo2-1b": ("olmo2", 2048, 8192, 16, 16, 16, 128, 100352, False),
    "qwen3-4b": ("qwen3", 2560, 9728, 36, 32, 8, 128, 151936, True),
    "phi-4-mini": ("phi3", 3072, 8192, 32, 24, 8, 128, 200064, True),
    "qwen3-1.7b": ("qwen3", 2048, 6144, 28, 16, 8, 128, 151936, True),
    "qwen3-0.6b": ("qwen3", 1024, 3072, 28, 16, 8, 128, 151936, True),
    "10m": ("qwen3", 256, 768, 12, 4, 2, 64, 96, True),  # for a CPU: little but arithmetic
}
HUB = {  # which of SHAPES a preset's model has
    "Qwen/Qwen2.5-1.5B": "qwen2.5-1.5b",
    "allenai/OLMo-2-0425-1B": "olmo2-1b",
    "Qwen/Qwen3-4B": "qwen3-4b",
    "microsoft/Phi-4-mini-instruct": "phi-4-mini",
    "Qwen/Qwen3-1.7B": "qwen3-1.7b",
    "Qwen/Qwen3-0.6B-Base": "qwen3-0.6b",
}
CARDS = (24, 80, 141)  # GiB


def model_config(shape: str, **changes):
    """The transformers config of one of SHAPES, or of a model's folder, with some settings
    changed."""
    if shape in SHAPES:
        kind, *sizes = SHAPES[shape]
        settings = {"model_type": kind, "max_position_embeddings": 32_768}
        settings |= zip(SIZES, sizes, strict=True)
    else:
        settings = AutoConfig.from_pretrained(shape).to_dict()
    return AutoConfig.for_model(**(settings | changes))


def causal(tokens, before=0):
    """Keys that `tokens` tokens attend to which follow `before`."""
    return tokens * before + tokens * (tokens + 1) // 2


@dataclass
class Machine:
    """bandwidth in bytes/s (copy of a large tensor, read + write), rate in FLOP/s (product of
    square matrices)."""

    bandwidth: float
    rate: float

    @classmethod
    def measure(cls, cuda: bool) -> "Machine":
        """Best of 5, by this process with its threads, in the dtype that generates: float32 on a
        CPU, bf16 on a GPU."""
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
    """The least seconds that one of `ranks` student ranks needs for its share of a step, by part.

    prompt_B and new_B: tokens of each row, prompt-major; live: the rows that are trained on; size:
    bytes of a number in the generator. Each prompt is read once, nothing is padded or recomputed,
    backward costs twice forward. Then AdamW reads weight, gradient and two moments, and writes all
    but one, and the generator gets a copy.
    """
    prompt_B, new_B, live = np.asarray(prompt_B), np.asarray(new_B), np.asarray(live, dtype=int)
    prompt_P, decoded_B = prompt_B[::G], new_B - 1  # a row's first token comes with its prompt
    seen = causal(decoded_B, prompt_B).sum()
    tokens, scored = prompt_P.sum() + decoded_B.sum(), len(prompt_P) + decoded_B.sum()
    generate = shape.forward_flops(tokens, causal(prompt_P).sum() + seen, scored)
    moved = size * ((shape.matrices + shape.head) * decoded_B.max() + shape.cache * seen / ranks)
    whole = (prompt_B + new_B)[live]
    train = 3 * shape.forward_flops(whole.sum(), causal(whole).sum(), new_B[live].sum())
    adamw, refresh = 7 * 4 * shape.parameters / ranks, (4 + size) * shape.parameters
    return {
        "rollout_s": machine.floor(generate / ranks, moved),
        "train_s": machine.floor(train / ranks) + machine.floor(moved=adamw + refresh),
    }


# Of an H100 SXM: 40% of 989e12 dense bf16 FLOP/s, 60% of 3.35e12 bytes/s; bytes/s that a card sends
# within a machine of 8 (NVLink) and between machines (a 400 Gbit/s port a card).
H100, WITHIN, BETWEEN = Machine(bandwidth=0.6 * 3.35e12, rate=0.4 * 989e12), 300e9, 40e9
PROMPT, QUESTION = 300, 100  # tokens that the student reads of a problem, and the teacher


def on_cards(student: Shape, teacher: Shape, c, cards: int, dead: float) -> dict[str, float]:
    """Seconds of a step on many H100, by part, from train.Config c; a share `dead` of the groups is
    not trained on, completions have 1 to max_completion_tokens tokens, evenly spread.

    rollout, train: `floors`. exchange: each parameter's gradient is reduced in float32, and its
    weight gathered in bf16 twice, to train and to generate. teacher, beside the students: it scores
    the candidates; then of each of its updates (Alg. 2) a rank reads its rows, forward and
    backward, no faster than its bf16 weights, AdamW does its share, gradients and weights are
    exchanged. Collectives send (n - 1)/n of their bytes; waiting, launches, verification: 0 s.
    """
    teachers = cards // 4
    students, P, G = cards - teachers, c.prompts_per_step, c.group_size
    new_B = np.linspace(1, c.max_completion_tokens, P * G).round().astype(int)
    new_B = new_B.reshape(G, P).T.flatten()  # groups are alike
    live = range(round((1 - dead) * P) * G)
    parts = floors(student, H100, [PROMPT] * (P * G), new_B, live, G, students, size=2)

    def exchange(moved: float, ranks: int) -> float:
        return moved * (ranks - 1) / ranks / (WITHIN if ranks <= 8 else BETWEEN)

    def reads(questions: int) -> float:
        tokens = questions * QUESTION
        flops = teacher.forward_flops(tokens, questions * causal(QUESTION), 0)
        return H100.floor(flops, 2 * teacher.matrices)

    batch = c.teacher_batch_size
    batches = math.ceil(c.replay_capacity / (batch * teachers))
    updates = P / c.teacher_update_every * c.teacher_epochs * batches
    rows = math.ceil(c.replay_capacity / batches / teachers)
    adamw = H100.floor(moved=7 * 4 * teacher.parameters / teachers)
    update = 3 * reads(rows) + adamw + exchange((4 + 2) * teacher.parameters, teachers)
    scores = reads(math.ceil(P * c.candidates / teachers))
    row = {"rollout": parts["rollout_s"], "train": parts["train_s"]}
    row |= {"exchange": exchange((4 + 2 + 2) * student.parameters, students)}
    row |= {"teacher": updates * update + scores}
    student_s = row["rollout"] + row["train"] + row["exchange"]
    return row | {"step": max(student_s, row["teacher"])}


def rows_that_fit(student, teacher, c, students: int, teachers: int, recompute: bool) -> dict:
    """The largest per_device_batch_size for each of CARDS; 0 where not even one row fits."""

    def fits(rows: int, card: int) -> bool:
        settings = replace(c, per_device_batch_size=rows, activation_checkpointing=recompute)
        return memory_row(student, teacher, settings, students, teachers)["student"] < USABLE * card

    return {card: next(n for n in itertools.count() if not fits(n + 1, card)) for card in CARDS}
