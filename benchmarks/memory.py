"""Estimate the GPU memory that a run needs. Computed by formula, not measured on a card.

    python -m benchmarks.memory                                   # all presets, on 8 ranks and on 1
    python -m benchmarks.memory --preset one-gpu --per_device_batch_size 8 --card 24

The formula leaves out the CUDA context and libraries (about 1 GiB) and fragmentation, so a rank
should need no more than 92% of its card. Where ranks share a card, add them up. benchmarks.step
measures the peak of a student rank on a GPU.
"""

import functools
import os
import sys
from bisect import bisect_left
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pandas as pd
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

import train
from plumbing.command_line import Parser, count, first_line, number
from plumbing.config import PRESETS
from plumbing.distributed.shutdown import begin_process
from plumbing.errors import InputError
from scripts import analysis

GIB = 2**30
USABLE = 0.92  # share of a card that the formula may fill
CARDS = [24, 80, 141]  # GiB
DEMO = Path(train.__file__).resolve().parent / "demo"
RECOMPUTED = "… with --activation_checkpointing"
STUDENT = "**peak of a student rank**"
TEACHER = "**peak of the teacher**"
SIZES = ("model_type", "hidden_size", "intermediate_size", "num_hidden_layers")
SIZES += ("num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size")
SIZES += ("tie_word_embeddings",)
SHAPES = {  # SIZES of the presets' models, so that an estimate needs no download
    "Qwen/Qwen2.5-1.5B": ("qwen2", 1536, 8960, 28, 12, 2, 128, 151936, True),
    "allenai/OLMo-2-0425-1B": ("olmo2", 2048, 8192, 16, 16, 16, 128, 100352, False),
    "Qwen/Qwen3-4B": ("qwen3", 2560, 9728, 36, 32, 8, 128, 151936, True),
    "microsoft/Phi-4-mini-instruct": ("phi3", 3072, 8192, 32, 24, 8, 128, 200064, True),
    "Qwen/Qwen3-1.7B": ("qwen3", 2048, 6144, 28, 16, 8, 128, 151936, True),
    "Qwen/Qwen3-0.6B-Base": ("qwen3", 1024, 3072, 28, 16, 8, 128, 151936, True),
    "HuggingFaceTB/SmolLM2-135M-Instruct": ("llama", 576, 1536, 30, 9, 3, 64, 49152, True),
    "10m": ("qwen3", 256, 768, 12, 4, 2, 64, 323, True),  # for CPUs: the demo's vocabulary
}


def model_config(name: str, **changes):
    """Return the transformers config of a model without loading it.

    name: a key of SHAPES, or a model that AutoConfig finds. changes: replaced settings. Raises
    InputError where there is no such model.
    """
    if name in SHAPES:
        settings = dict(zip(SIZES, SHAPES[name], strict=True))
        settings["max_position_embeddings"] = 32_768
    else:
        try:
            settings = AutoConfig.from_pretrained(name).to_dict()
        except (OSError, ValueError) as error:
            known = ", ".join(SHAPES)
            raise InputError(f"model {name}, which is none of {known}: {error}") from error
    return AutoConfig.for_model(**(settings | changes))


def save_random_model(name: str, folder: Path) -> None:
    """Write a causal LM of this model's shape with random weights, and the demo's tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(DEMO / "model")
    config = model_config(
        name,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


class Shape:
    """Sizes of a decoder, from its transformers config. Norm weights and biases are left out."""

    def __init__(self, c):
        head_dim = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
        self.family = c.model_type
        self.layers = c.num_hidden_layers
        self.hidden = c.hidden_size
        self.mlp = c.intermediate_size
        self.heads = c.num_attention_heads
        self.kv_heads = c.num_key_value_heads
        self.q = head_dim * self.heads
        self.kv = head_dim * self.kv_heads
        # Weights of the seven matrices of each layer: Q, K, V, output, and three of the MLP.
        self.matrices = self.layers * self.hidden * (2 * self.q + 2 * self.kv + 3 * self.mlp)
        self.head = c.vocab_size * self.hidden
        self.parameters = self.matrices + self.head * (1 if c.tie_word_embeddings else 2)
        self.cache = 2 * self.layers * self.kv  # numbers per token in the key-value cache


@functools.cache
def shape_of(model: str) -> Shape:
    """Return the sizes of a model. Raises InputError where there is no such model."""
    return Shape(model_config(model))


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

    Returns: "sharded", "gathered", and "activations" with the gradients within one layer and of the
        head and the hidden states, and one chunk of logits.
    """
    kept = activation_bytes(shape)
    weights = shape.parameters if head else shape.matrices + shape.head
    layers = 2 * shape.hidden * shape.layers + kept if recompute else shape.layers * kept
    activations = tokens * (layers + 10 * shape.hidden + kept)
    if head:
        activations += 2 * shape.head + 2**26 + 4 * shape.hidden * tokens
    return {
        "sharded": 12 * weights / ranks,  # float32 weights and AdamW's moments
        "gathered": (6 if head else 2) * weights,
        "activations": activations,
    }


def teacher_bytes(c: train.Config, ranks: int) -> tuple[float, float]:
    """Bytes of the teacher on one of `ranks` ranks: between its updates, and at its peak."""
    if not c.teacher_model:
        return 0.0, 0.0
    teacher = shape_of(c.teacher_model)
    if c.teacher_mode == "lora":
        raise InputError("--teacher_mode lora: no memory formula; it needs less than full")
    if c.teacher_mode == "frozen":  # float32, whole on every rank; reads one question at a time
        held = 4 * (teacher.matrices + teacher.head)
        return held, held + 2 * activation_bytes(teacher) * c.max_prompt_tokens
    tokens = c.teacher_batch_size * c.max_prompt_tokens
    parts = training_bytes(teacher, tokens, ranks=ranks, head=False)
    return parts["sharded"] + parts["gathered"], sum(parts.values())


def rank_gib(c: train.Config, world: int) -> dict[str, float]:
    """GiB by part of a run on `world` ranks. A student rank's peak is in training, in generation
    or, with no teacher rank, in an update of the teacher."""
    students = world - c.teacher_ranks
    student = shape_of(c.model)
    tokens = c.per_device_batch_size * (c.max_prompt_tokens + c.max_completion_tokens)
    kept = training_bytes(student, tokens, ranks=students)
    recomputed = training_bytes(student, tokens, ranks=students, recompute=True)
    held, teacher_peak = teacher_bytes(c, c.teacher_ranks or students)
    always = {
        "shard of the float32 weights and AdamW's moments": kept["sharded"],
        "the generator's bf16 weights": 2 * student.parameters,
        "initial policy, for --kl_coef": 2 * student.parameters if c.kl_coef else 0.0,
        "teacher, where no rank is a teacher's": 0.0 if c.teacher_ranks else held,
    }
    cache = 2 * student.cache * c.max_rollout_tokens
    activations = (recomputed if c.activation_checkpointing else kept)["activations"]
    most = max(kept["gathered"] + activations, cache)
    if not c.teacher_ranks:
        most = max(most, teacher_peak - held)
    sizes = always | {
        "all weights in bf16, and their gradients in float32": kept["gathered"],
        "activations": kept["activations"],
        RECOMPUTED: recomputed["activations"],
        "… without flash-attn, in addition: copies of keys and values": student.layers
        * copied_bytes(student, c.max_prompt_tokens, tokens),
        "key-value cache, instead of activations": cache,
        STUDENT: sum(always.values()) + most,
        TEACHER: teacher_peak,
    }
    return {name: size / GIB for name, size in sizes.items()}


def fits(c: train.Config, world: int, card: float) -> bool:
    """Whether no rank needs more than a card of so many GiB has."""
    sizes = rank_gib(c, world)
    teacher_rank = sizes[TEACHER] if c.teacher_ranks else 0.0
    return max(sizes[STUDENT], teacher_rank) <= USABLE * card


def most_rows(c: train.Config, world: int, card: float, recompute: bool) -> int:
    """The largest --per_device_batch_size that fits, or 0."""

    def too_large(rows: int) -> bool:
        tried = replace(c, per_device_batch_size=rows, activation_checkpointing=recompute)
        return not fits(tried, world, card)

    return bisect_left(range(1, 10_000), True, key=too_large)


def parse(flags: list[str], world: int) -> train.Config:
    """Parse train.py's flags as on a job of `world` processes."""
    with patch.dict(os.environ, WORLD_SIZE=str(world), RANK="0", LOCAL_RANK="0"):
        return train.parse(["--device", "auto", *flags])


def memory_table(configs: list[train.Config], world: int, cards: list[float]) -> str:
    """Markdown table of the parts and of what fits the cards, a column per run."""
    header = [""]
    for c in configs:
        ranks = f"{world - c.teacher_ranks} + {c.teacher_ranks} ranks"
        header.append(f"{c.preset}, {ranks}, {c.per_device_batch_size} rows")
    gib = pd.DataFrame([rank_gib(c, world) for c in configs])
    lines = [[name, *gib[name].map("{:.1f}".format)] for name in gib if gib[name].any()]

    def add_row(name: str, cell) -> None:
        lines.append([name, *(" / ".join(str(cell(c, card)) for card in cards) for c in configs)])

    sizes = " / ".join(f"{card:g}" for card in cards)
    add_row(f"fits {sizes} GiB", lambda c, card: "yes" if fits(c, world, card) else "no")
    add_row("most rows", lambda c, card: most_rows(c, world, card, recompute=False))
    add_row(RECOMPUTED, lambda c, card: most_rows(c, world, card, recompute=True))
    note = f"rows: --per_device_batch_size. A rank may need at most {USABLE:.0%} of its card."
    return analysis.table("COMPUTED, NOT MEASURED: GiB of a rank", header, lines, note)


def known_presets() -> list[str]:
    """Return the presets whose models have a shape in SHAPES."""
    return [name for name in PRESETS if train.parse(["--preset", name]).model in SHAPES]


def main(argv: list[str] | None = None) -> None:
    """Print the tables."""
    parser = Parser(description=first_line(__doc__), epilog="Other flags are train.py's.")
    add = parser.add_argument
    add("--ranks", type=count, default=None, help="processes of the job [1; of presets 8, 1]")
    add("--card", type=number(float, 1, 1e4), default=None, help="memory of one GPU, GiB")
    begin_process()
    with analysis.one_line("memory", ValueError):
        args, flags = parser.parse_known_args(argv)
        jobs = [flags] if flags else [["--preset", name] for name in known_presets()]
        worlds = [1] if flags else [8, 1]
        for world in [args.ranks] if args.ranks else worlds:
            configs = [parse(job, world) for job in jobs]
            print(memory_table(configs, world, [args.card] if args.card else CARDS))


if __name__ == "__main__":
    sys.exit(main())
