"""Estimate the GPU memory that a run needs. Computed by formula, not measured on a card.

    python -m benchmarks.memory                                   # all presets, on 8 ranks and on 1
    python -m benchmarks.memory --preset one-gpu --per_device_batch_size 8 --card 24
    python -m benchmarks.memory --preset one-gpu --measure        # and measure on this machine

The formula leaves out the CUDA context and libraries (about 1 GiB) and fragmentation, so a rank
should need no more than 92% of its card. Where ranks share a card, add them up.
"""

import os
import resource
import sys
import tempfile
from bisect import bisect_left
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

import train
from grpo import Completion, Group
from plumbing.command_line import Parser, count, first_line, number
from plumbing.config import PRESETS
from plumbing.distributed.shutdown import begin_process
from plumbing.errors import InputError
from scripts import analysis

GIB = 2**30
USABLE = 0.92  # share of a card that the formula may fill
CARDS = [24, 80, 141]  # GiB
DEMO_MODEL = str(Path(train.__file__).resolve().parent / "demo/model")
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


def save_random_model(shape: str, folder: Path, device="cpu", dtype=torch.float32) -> None:
    """Write a causal LM of `shape` with random weights and the demo's tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(DEMO_MODEL)
    tokens = {name: getattr(tokenizer, name) for name in ("eos_token_id", "pad_token_id")}
    torch.manual_seed(0)
    with torch.device(device):
        config = model_config(shape, bos_token_id=None, **tokens)
        lm = AutoModelForCausalLM.from_config(config, dtype=dtype)
    lm.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def peak_gib() -> float:
    """Peak memory: on a GPU allocated since torch's peak was reset, on a CPU resident so far."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / GIB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


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
        self.cache = 2 * self.layers * self.kv  # numbers per token in the key-value cache


def activation_bytes(shape: Shape) -> int:
    """Bytes that autograd keeps of one token in one layer, in bf16 with SDPA or flash-attn.

    D hidden, I the MLP's width, q and kv the widths of queries and keys, H heads. transformers'
    eager code keeps:

        two norms    16 D + 8           input in float32, normalized, scaled; 1/rms in float32
        attention    4 (q + kv) + 4 H   queries, keys, values, output; a float32 normalizer per head
        MLP          8 I                gate, silu(gate), up, their product

    Raises InputError for a model type without a formula.
    """
    D, q, kv = shape.hidden, shape.q, shape.kv
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
    return 16 * D + 8 + 4 * (q + kv) + 4 * shape.heads + 8 * shape.mlp + family_bytes[shape.family]


def copied_bytes(shape: Shape, prompt_tokens: int, attended: int) -> int:
    """Bytes that plumbing/shared_prompts.py keeps in a layer beside activation_bytes, in bf16: keys
    and values of all heads, of the prompts for themselves, and for each completion those of its
    prompt and its own. attended: tokens of the completions, each with its prompt."""
    return 4 * shape.q * (prompt_tokens + attended)


def training_bytes(shape: Shape, tokens: int, *, ranks=1, recompute=False, head=True) -> dict:
    """Bytes of a rank when the backward pass over `tokens` tokens begins, which is its peak.

    Args:
        ranks: FSDP2 ranks that share weights and optimizer state.
        recompute: only the input of each layer and one layer's activations are kept.
        head: a student, with an LM head and a float32 gradient of earlier micro-batches.

    Returns: "sharded", "gathered", "activations", and "working": gradients within one layer and of
        the head and the hidden states, and one chunk of logits.
    """
    kept = activation_bytes(shape)
    weights = shape.parameters if head else shape.matrices + shape.head
    layers = 2 * shape.hidden * shape.layers + kept if recompute else shape.layers * kept
    after_layers = 2 * shape.head + 2**26 + 4 * shape.hidden * tokens if head else 0
    return {
        "sharded": 12 * weights / ranks,  # float32 weights and AdamW's moments
        "gathered": (6 if head else 2) * weights,
        "activations": tokens * (layers + 10 * shape.hidden),
        "working": tokens * kept + after_layers,
    }


def teacher_bytes(teacher: Shape, c: train.Config, ranks: int) -> tuple[float, float]:
    """Bytes of the teacher on one of `ranks` ranks: between its updates, and at its peak."""
    if c.teacher_mode == "lora":
        raise InputError("--teacher_mode lora: no memory formula; it needs less than full")
    if c.teacher_mode == "frozen":  # float32, whole on every rank; reads one question at a time
        held = 4 * (teacher.matrices + teacher.head)
        return held, held + 2 * activation_bytes(teacher) * c.max_prompt_tokens
    parts = training_bytes(
        teacher, c.teacher_batch_size * c.max_prompt_tokens, ranks=ranks, head=False
    )
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
        shapes = (Shape(model_config(m)) if m else None for m in (c.model, c.teacher_model))
        return cls(*shapes, c, ranks - c.teacher_ranks, c.teacher_ranks)

    def gib(self) -> dict[str, float]:
        """GiB by part (PARTS). A student rank's peak is in training, in generation or, with no
        teacher rank, in an update of the teacher."""
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
        activations = sizes["recomputed" if c.activation_checkpointing else "activations"]
        training = sizes["teacher here"] + sizes["gathered"] + activations
        generating = sizes["teacher here"] + sizes["cache"]
        most = max(training, generating, 0.0 if self.teachers else peak)
        sizes["student"] = sizes["copy"] + sizes["reference"] + sizes["sharded"] + most
        return {name: size / GIB for name, size in sizes.items()}

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
        c = replace(self.config, max_rollout_tokens=1, sampler="uniform", teacher_ranks=0)
        alone = Run(self.student, None, c, students=1, teachers=0)
        formula = alone.gib()["student"]
        if torch.cuda.is_available() and not alone.fits(torch.cuda.mem_get_info()[1] / GIB):
            return formula, float("nan")
        os.environ["WORLD_SIZE"] = "1"
        layout = train.build_layout(c)
        layout.connect(c.timeout_minutes)
        with tempfile.TemporaryDirectory() as folder:
            save_random_model(c.model, Path(folder), layout.device, torch.bfloat16)
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
    return analysis.table("COMPUTED, NOT MEASURED: GiB of a rank", header, lines, note)


def known_presets() -> list[str]:
    """Return the presets whose models have a shape in HUB."""
    return [name for name in PRESETS if train.parse(["--preset", name]).model in HUB]


def main(argv: list[str] | None = None) -> None:
    """Print the tables."""
    parser = Parser(description=first_line(__doc__), epilog="Other flags are train.py's.")
    gib, add = number(float, 1, 1e4), parser.add_argument
    add("--ranks", type=count, default=None, help="processes of the job [1; of presets 8, 1]")
    add("--card", type=gib, default=None, help="memory of one GPU, GiB")
    add("--measure", action="store_true", default=False, help="also measure an update")
    begin_process()
    with analysis.one_line("memory", ValueError):
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
