"""Estimate the GPU memory that a run needs. Computed by formula, not measured on a card.

    python -m benchmarks.memory                                   # all presets, on 8 ranks and on 1
    python -m benchmarks.memory --preset one-gpu --per_device_batch_size 8 --card 24
    python -m benchmarks.memory --preset one-gpu --measure        # and measure on this machine

The formula leaves out the CUDA context and libraries (about 1 GiB) and fragmentation, so a rank
should need no more than 92% of its card. Where ranks share a card, add them up.
"""

import os
import sys
import tempfile
from bisect import bisect_left
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist

import train
from benchmarks.roofline import HUB, Shape, model_config
from benchmarks.step import command, peak_gib, save_random_model
from grpo import Completion, Group
from plumbing.command_line import Parser, count, first_line, number
from plumbing.config import PRESETS
from plumbing.distributed.layout import Layout
from plumbing.errors import InputError
from plumbing.lora import LORA_RANK
from scripts.analysis import table

GIB = 2**30
USABLE = 0.92  # share of a card that the formula may fill
CARDS = [24, 80, 141]  # GiB
PARTS = {  # keys of `Run.gib`
    "sharded": "shard of the float32 weights and AdamW's moments",
    "gathered": "all weights in bf16, and their gradients in float32",
    "copy": "the generator's bf16 weights",
    "activations": "activations",
    "recomputed": "… with --activation_checkpointing",
    "copied": "… without flash-attn, in addition: copies of keys and values",
    "cache": "key-value cache, instead of activations",
    "reference": "initial policy, for --kl_coef",
    "teacher here": "teacher, where no rank is a teacher's",
    "student": "**peak of a student rank**",
    "teacher peak": "**peak of the teacher**",
}


def activation_bytes(shape: Shape, lora_rank: int = 0) -> int:
    """Bytes that autograd keeps of one token in one layer, in bf16 with SDPA or flash-attn.

    D hidden, I the MLP's width, q and kv the widths of queries and keys, H heads. transformers'
    eager code keeps:

        two norms    16 D + 8           input in float32, normalized, scaled; 1/rms in float32
        attention    4 (q + kv) + 4 H   queries, keys, values, output; a float32 normalizer per head
        MLP          8 I                gate, silu(gate), up, their product

    With LoRA each of the seven matrices also keeps its input after dropout, the dropout mask and
    the result of A. Raises InputError for a model type without a formula.
    """
    D, q, kv, width = shape.hidden, shape.q, shape.kv, shape.mlp
    family_bytes = {
        "llama": 0,
        "qwen2": 0,
        # Norms of each head's queries and keys.
        "qwen3": 6 * (q + kv) + 4 * (shape.heads + shape.kv_heads),
        # Norms of all queries and keys, scaled in float32, after attention and MLP.
        "olmo2": 4 * D + 8 * (q + kv) + 8,
        # Values are a view of the fused projection, and the output is copied for its matrix.
        "phi3": 4 * q + 2 * kv,
    }
    if shape.family not in family_bytes:
        known = ", ".join(family_bytes)
        raise InputError(f"no memory formula for model type {shape.family!r}: known are {known}")
    layer = 16 * D + 8 + 4 * (q + kv) + 4 * shape.heads + 8 * width + family_bytes[shape.family]
    return layer + (13 * D + 3 * q + 2 * width + 14 * lora_rank if lora_rank else 0)


def copied_bytes(shape: Shape, prompt_tokens: int, attended: int) -> int:
    """Bytes that plumbing/shared_prompts.py keeps in a layer beside activation_bytes, in bf16: keys
    and values of all heads, of the prompts for themselves, and for each completion those of its
    prompt and its own. attended: tokens of the completions, each with its prompt."""
    return 4 * shape.q * (prompt_tokens + attended)


def adapter_parameters(shape: Shape, lora_rank: int) -> int:
    """Parameters of LoRA's A and B around the seven matrices of each layer."""
    rows_and_columns = 7 * shape.hidden + 2 * shape.q + 2 * shape.kv + 3 * shape.mlp
    return lora_rank * shape.layers * rows_and_columns


def training_bytes(
    shape: Shape, tokens: int, *, ranks=1, recompute=False, head=True, lora_rank=0
) -> dict[str, float]:
    """Bytes of a rank when the backward pass over `tokens` tokens begins, which is its peak.

    Args:
        ranks: FSDP2 ranks that share weights and optimizer state.
        recompute: only the input of each layer and one layer's activations are kept.
        head: a student, with an LM head and a float32 gradient of earlier micro-batches.
        lora_rank: with adapters only these are trained.

    Returns: "sharded", "gathered", "activations", and "working": gradients within one layer and of
        the head and the hidden states, and one chunk of logits.
    """
    adapters, kept = adapter_parameters(shape, lora_rank), activation_bytes(shape, lora_rank)
    weights = (shape.parameters if head else shape.matrices + shape.head) + adapters
    trained = adapters or weights
    layers = 2 * shape.hidden * shape.layers + kept if recompute else shape.layers * kept
    after_layers = 2 * shape.head + 2**26 + 4 * shape.hidden * tokens if head else 0
    return {
        "sharded": (4 * weights + 8 * trained) / ranks,  # AdamW's moments
        "gathered": 2 * weights + (4 * trained if head else 0),
        "activations": tokens * (layers + 10 * shape.hidden),
        "working": tokens * kept + after_layers,
    }


def teacher_bytes(teacher: Shape, c, ranks: int) -> tuple[float, float]:
    """Bytes of the teacher on one of `ranks` ranks: between its updates, and at its peak."""
    if c.teacher_mode == "frozen":  # float32, whole on every rank; reads one question at a time
        held = 4 * (teacher.matrices + teacher.head)
        return held, held + 2 * activation_bytes(teacher) * c.max_prompt_tokens
    tokens = c.teacher_batch_size * c.max_prompt_tokens
    lora_rank = LORA_RANK if c.teacher_mode == "lora" else 0
    parts = training_bytes(teacher, tokens, ranks=ranks, head=False, lora_rank=lora_rank)
    return parts["sharded"] + parts["gathered"], sum(parts.values())


@dataclass
class Run:
    """A run of train.py: its models, Config, and numbers of student and teacher ranks."""

    student: Shape
    teacher: Shape | None
    config: train.Config
    students: int
    teachers: int

    @classmethod
    def parse(cls, flags: list[str], ranks: int) -> "Run":
        """The run of train.py with these flags on `ranks` processes."""
        launched = {"WORLD_SIZE": str(ranks), "RANK": "0", "LOCAL_RANK": "0"}  # as torchrun does
        launched |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
        with patch.dict(os.environ, launched):
            c = train.parse(["--device", "auto", *flags])
            layout = Layout(c)
        shapes = (Shape(model_config(m)) if m else None for m in (c.model, c.teacher_model))
        return cls(*shapes, c, layout.n_students, layout.n_teachers)

    def gib(self) -> dict[str, float]:
        """GiB by part (PARTS)."""
        c, student = self.config, self.student
        tokens = c.per_device_batch_size * (c.max_prompt_tokens + c.max_completion_tokens)
        kept = training_bytes(student, tokens, ranks=self.students)
        recomputed = training_bytes(student, tokens, ranks=self.students, recompute=True)
        held = peak = 0.0
        if self.teacher:
            held, peak = teacher_bytes(self.teacher, c, self.teachers or self.students)
        sizes = {
            "sharded": kept["sharded"],
            "gathered": kept["gathered"],
            "copy": 2 * student.parameters,
            "activations": kept["activations"] + kept["working"],
            "recomputed": recomputed["activations"] + recomputed["working"],
            "copied": student.layers * copied_bytes(student, c.max_prompt_tokens, tokens),
            "cache": 2 * student.cache * c.max_rollout_tokens,
            "reference": 2 * student.parameters if c.kl_coef else 0.0,
            "teacher here": 0.0 if self.teachers else held,
            "teacher peak": peak,
        }
        sizes["student"] = self.student_peak(sizes)
        return {name: size / GIB for name, size in sizes.items()}

    def student_peak(self, sizes: dict[str, float]) -> float:
        """Bytes of a student rank at its peak: in training, in generation or, with no teacher rank,
        in an update of the teacher."""
        held = sizes["copy"] + sizes["reference"] + sizes["sharded"]
        is_recomputed = self.config.activation_checkpointing
        activations = sizes["recomputed" if is_recomputed else "activations"]
        training = sizes["teacher here"] + sizes["gathered"] + activations
        generating = sizes["teacher here"] + sizes["cache"]
        teacher_learning = 0.0 if self.teachers else sizes["teacher peak"]
        return held + max(training, generating, teacher_learning)

    def fits(self, card: float) -> bool:
        """Whether no rank needs more than a card of so many GiB has."""
        sizes = self.gib()
        teacher_rank = sizes["teacher peak"] if self.teachers else 0.0
        return max(sizes["student"], teacher_rank) <= USABLE * card

    def most_rows(self, card: float, **settings) -> int:
        """The largest --per_device_batch_size that fits, or 0, with other `settings` changed."""

        def too_large(rows: int) -> bool:
            config = replace(self.config, per_device_batch_size=rows, **settings)
            return not replace(self, config=config).fits(card)

        return bisect_left(range(1, 10_000), True, key=too_large)

    def measure(self) -> tuple[float, float]:
        """GiB at the peak of an update by this student alone, by formula and measured (NaN where it
        does not fit the GPU). Of two micro-batches of full rows the second finds the gradients of
        the first; in the second of two updates AdamW has its moments."""
        c = replace(self.config, max_rollout_tokens=1, sampler="uniform")
        c.teacher_model, c.teacher_ranks = "", 0
        alone = Run(self.student, None, c, students=1, teachers=0)
        formula = alone.gib()["student"]
        if torch.cuda.is_available() and not alone.fits(torch.cuda.mem_get_info()[1] / GIB):
            return formula, float("nan")
        os.environ["WORLD_SIZE"] = "1"
        layout = Layout(c)
        layout.connect(c.timeout_minutes)
        with tempfile.TemporaryDirectory() as folder:
            save_random_model(c.model, Path(folder), 0, layout.device, torch.bfloat16)
            c.model = folder
            student = train.Student(c, layout, verifier=None)
        ids = [3] * c.max_completion_tokens
        group = Group(problem=0, size=2 * c.per_device_batch_size)
        group.prompt_ids = [3] * c.max_prompt_tokens
        group.completions = [
            Completion(ids, [-1.0] * len(ids), finished=False, reward=float(b % 2))
            for b in range(group.size)
        ]
        for step in (1, 2):
            if torch.cuda.is_available():
                torch.cuda.reset_peak_memory_stats()
            student.update([group], step)
        dist.destroy_process_group()
        return formula, peak_gib()


def memory_table(runs: list[Run], cards: list[float]) -> str:
    """Markdown table of the parts and of what fits the cards, a column per run."""
    sizes, lines, header = [run.gib() for run in runs], [], [""]
    for run in runs:
        c, ranks = run.config, f"{run.students} + {run.teachers} ranks"
        header.append(f"{c.preset}, {ranks}, {c.per_device_batch_size} rows")
    for name, meaning in PARTS.items():
        if any(size[name] for size in sizes):
            lines.append([meaning, *(f"{size[name]:.1f}" for size in sizes)])

    def add_row(name: str, cell) -> None:
        lines.append([name, *(" / ".join(str(cell(run, card)) for card in cards) for run in runs)])

    gib, recompute = " / ".join(f"{card:g}" for card in cards), "activation_checkpointing"
    add_row(f"fits {gib} GiB", lambda run, card: "yes" if run.fits(card) else "no")
    add_row("most rows", lambda run, card: run.most_rows(card, **{recompute: False}))
    add_row(PARTS["recomputed"], lambda run, card: run.most_rows(card, **{recompute: True}))
    note = f"rows: --per_device_batch_size. A rank may need at most {USABLE:.0%} of its card."
    return table("COMPUTED, NOT MEASURED: GiB of a rank", header, lines, note)


def known_presets() -> list[str]:
    """Return the presets whose models have a shape in HUB."""
    return [name for name in PRESETS if train.parse(["--preset", name]).model in HUB]


@command
def main(argv: list[str] | None = None) -> None:
    """Print the tables."""
    parser = Parser(description=first_line(__doc__), epilog="Other flags are train.py's.")
    gib, add = number(float, 1, 1e4), parser.add_argument
    add("--ranks", type=count, default=None, help="processes of the job [1; of presets 8, 1]")
    add("--card", type=gib, default=None, help="memory of one GPU, GiB")
    add("--measure", action="store_true", default=False, help="also measure an update")
    args, flags = parser.parse_known_args(argv)
    flags_of_runs = [flags] if flags else [["--preset", name] for name in known_presets()]
    for ranks in [args.ranks] if args.ranks else [1] if flags else [8, 1]:
        runs = [Run.parse(run_flags, ranks) for run_flags in flags_of_runs]
        print(memory_table(runs, [args.card] if args.card else CARDS))
    if args.measure:
        formula, measured = Run.parse(flags, 1).measure()
        print(f"update of one student rank: {formula:.2f} by formula, {measured:.2f} measured")


if __name__ == "__main__":
    sys.exit(main())
