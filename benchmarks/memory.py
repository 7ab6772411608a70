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
from unittest.mock import patch

import pandas as pd
from transformers import AutoConfig, PretrainedConfig

import train
from plumbing.command_line import Parser, count, first_line, number
from plumbing.config import PRESETS
from plumbing.distributed.shutdown import begin_process
from plumbing.errors import InputError
from plumbing.models import trial
from scripts import analysis

GIB = 2**30
USABLE = 0.92  # share of a card that the formula may fill
CARDS = [24, 80, 141]  # GiB
STUDENT = "**peak of a student rank**"
TEACHER = "**peak of the teacher**"
SIZES = (
    "model_type",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "tie_word_embeddings",
)
SHAPES = {  # SIZES of the presets' models, so that an estimate needs no download
    "Qwen/Qwen2.5-1.5B": ("qwen2", 1536, 8960, 28, 12, 2, 128, 151936, True),
    "allenai/OLMo-2-0425-1B": ("olmo2", 2048, 8192, 16, 16, 16, 128, 100352, False),
    "Qwen/Qwen3-4B": ("qwen3", 2560, 9728, 36, 32, 8, 128, 151936, True),
    "microsoft/Phi-4-mini-instruct": ("phi3", 3072, 8192, 32, 24, 8, 128, 200064, True),
    "Qwen/Qwen3-1.7B": ("qwen3", 2048, 6144, 28, 16, 8, 128, 151936, True),
    "Qwen/Qwen3-0.6B-Base": ("qwen3", 1024, 3072, 28, 16, 8, 128, 151936, True),
    "HuggingFaceTB/SmolLM2-135M-Instruct": ("llama", 576, 1536, 30, 9, 3, 64, 49152, True),
}


@functools.cache
def model_config(name: str, **changes) -> PretrainedConfig:
    """Return the transformers config of a model without loading it.

    name: a key of SHAPES, or a model that AutoConfig finds. changes: replaced settings. Raises
    ValueError where there is no such model.
    """
    if name in SHAPES:
        settings = dict(zip(SIZES, SHAPES[name], strict=True))
        settings["max_position_embeddings"] = 32_768
    else:
        with trial(name, "cannot be used"):
            settings = AutoConfig.from_pretrained(name).to_dict()
    return AutoConfig.for_model(**(settings | changes))


# Sizes of a model: numbers, not bytes


def attention_widths(model: PretrainedConfig) -> tuple[int, int]:
    """Width of all queries of a token, and of its keys, which is that of its values: H·d, H_kv·d
    with heads of d numbers."""
    heads = model.num_attention_heads
    head_dim = getattr(model, "head_dim", None) or model.hidden_size // heads
    return head_dim * heads, head_dim * model.num_key_value_heads


def weight_count(model: PretrainedConfig, lm_head: bool = True) -> int:
    """L·D·(2q + 2kv + 3I) in the layers' seven matrices, V·D in the embedding, and in an LM head
    with weights of its own. Norm weights and biases are left out, which are below 0.1%."""
    q, kv = attention_widths(model)
    layer = model.hidden_size * (2 * q + 2 * kv + 3 * model.intermediate_size)
    vocabulary = model.vocab_size * model.hidden_size
    has_head = lm_head and not model.tie_word_embeddings
    return model.num_hidden_layers * layer + vocabulary * (2 if has_head else 1)


# Bytes by part of the memory


def state_bytes(weights: int, ranks: int) -> float:
    """Float32 weights and AdamW's two moments, sharded by FSDP2: 12·N / ranks."""
    return 12 * weights / ranks


def gathered_bytes(weights: int, accumulates: bool = True) -> int:
    """All weights in bf16, which a rank gathers for its passes: 2·N. A student accumulates their
    float32 gradients over micro-batches: 4·N."""
    return (6 if accumulates else 2) * weights


def activation_bytes(model: PretrainedConfig) -> int:
    """Bytes that autograd keeps of one token in one layer, in bf16 with SDPA or flash-attn.

    D hidden, I the MLP's width, q and kv the widths of queries and keys, H heads. transformers'
    eager code keeps:

        two norms    16 D + 8           input in float32, normalized, scaled; 1/rms in float32
        attention    4 (q + kv) + 4 H   queries, keys, values, output; a float32 normalizer per head
        MLP          8 I                gate, silu(gate), up, their product

    Raises InputError for a model type without a formula.
    """
    D = model.hidden_size
    H = model.num_attention_heads
    q, kv = attention_widths(model)
    family_bytes = {
        "llama": 0,
        "qwen2": 0,
        # Norms of each head's queries and keys.
        "qwen3": 6 * (q + kv) + 4 * (H + model.num_key_value_heads),
        # Norms of all queries and keys, scaled in float32, after attention and MLP.
        "olmo2": 4 * D + 8 * (q + kv) + 8,
        # Values are a view of the fused projection, and the output is copied for its matrix.
        "phi3": 4 * q + 2 * kv,
    }
    family = model.model_type
    if family not in family_bytes:
        known = ", ".join(family_bytes)
        raise InputError(f"no memory formula for model type {family!r}: known are {known}")
    return 16 * D + 8 + 4 * (q + kv) + 4 * H + 8 * model.intermediate_size + family_bytes[family]


def backbone_bytes(model: PretrainedConfig, tokens: int, recompute: bool = False) -> int:
    """Activations of all layers when the backward pass over `tokens` tokens begins, which is its
    peak, the gradients within one layer (a layer's activations again), and the last norm's input
    and output (10·D). recompute: only the input of each layer (2·D) and one layer are kept."""
    D = model.hidden_size
    L = model.num_hidden_layers
    layer = activation_bytes(model)
    layers = L * 2 * D + layer if recompute else L * layer
    return tokens * (layers + layer + 10 * D)


def head_bytes(model: PretrainedConfig, tokens: int) -> int:
    """Gradients of the LM head in bf16 (2·V·D) and of its input (4·D a token), and one chunk of
    logits (64 MiB)."""
    D = model.hidden_size
    return 2 * model.vocab_size * D + 4 * D * tokens + 2**26


def copied_bytes(model: PretrainedConfig, prompt_tokens: int, attended: int, longest: int) -> int:
    """What plumbing/shared_prompts.py keeps beside the activations, in bf16: in each layer keys and
    values of all heads, of the prompts for themselves, and for each completion those of its prompt
    and its own (4·q a token), and the mask (2 bytes a pair of tokens). attended: tokens of the
    completions, each with its prompt. longest: tokens of the longest completion."""
    q, _ = attention_widths(model)
    layer = 4 * q * (prompt_tokens + attended) + 2 * attended * longest
    return model.num_hidden_layers * layer


def cache_bytes(model: PretrainedConfig, tokens: int) -> int:
    """The generator's key-value cache in bf16: 2·2·L·kv a token."""
    _, kv = attention_widths(model)
    return 4 * model.num_hidden_layers * kv * tokens


def teacher_bytes(c: train.Config, ranks: int) -> tuple[float, float]:
    """The teacher, a model without LM head, on one of `ranks` ranks: between its updates (state and
    gathered weights), and at its peak (with the activations of a batch of questions)."""
    if not c.teacher_model:
        return 0.0, 0.0
    model = model_config(c.teacher_model)
    weights = weight_count(model, lm_head=False)
    if c.teacher_mode == "lora":
        raise InputError("--teacher_mode lora: no memory formula; it needs less than full")
    if c.teacher_mode == "frozen":  # float32, whole on every rank; reads one question at a time
        return 4 * weights, 4 * weights + 2 * activation_bytes(model) * c.max_prompt_tokens
    held = state_bytes(weights, ranks) + gathered_bytes(weights, accumulates=False)
    return held, held + backbone_bytes(model, c.teacher_batch_size * c.max_prompt_tokens)


def rank_gib(c: train.Config, world: int) -> dict[str, float]:
    """GiB by part of a run on `world` ranks. A student rank's peak is in training, in generation
    or, with no teacher rank, in an update of the teacher."""
    students = world - c.teacher_ranks
    model = model_config(c.model)
    weights = weight_count(model)
    tokens = c.per_device_batch_size * (c.max_prompt_tokens + c.max_completion_tokens)
    held, teacher_peak = teacher_bytes(c, c.teacher_ranks or students)
    always = {
        "shard of the float32 weights and AdamW's moments": state_bytes(weights, students),
        "the generator's bf16 weights": 2 * weights,
        "initial policy, for --kl_coef": 2 * weights if c.kl_coef else 0.0,
        "teacher, where no rank is a teacher's": 0.0 if c.teacher_ranks else held,
    }
    training = {
        "all weights in bf16, and their gradients in float32": gathered_bytes(weights),
        "activations": backbone_bytes(model, tokens, c.activation_checkpointing),
        "gradients of the LM head, and a chunk of logits": head_bytes(model, tokens),
    }
    cache = cache_bytes(model, c.max_rollout_tokens)
    teaching = 0.0 if c.teacher_ranks else teacher_peak - held
    most = max(sum(training.values()), cache, teaching)
    copied = copied_bytes(model, c.max_prompt_tokens, tokens, c.max_completion_tokens)
    sizes = (
        always
        | training
        | {
            "without flash-attn, in addition: copies of keys and values, masks": copied,
            "key-value cache, instead of training's": cache,
            STUDENT: sum(always.values()) + most,
            TEACHER: teacher_peak,
        }
    )
    return {name: size / GIB for name, size in sizes.items()}


# Tables


def most_rows(c: train.Config, world: int, card: float, recompute: bool) -> int:
    """The largest --per_device_batch_size with which no rank needs more than a card of so many GiB
    has, or 0."""

    def too_large(rows: int) -> bool:
        tried = replace(c, per_device_batch_size=rows, activation_checkpointing=recompute)
        sizes = rank_gib(tried, world)
        return max(sizes[STUDENT], sizes[TEACHER] if c.teacher_ranks else 0.0) > USABLE * card

    return bisect_left(range(1, 10_000), True, key=too_large)


def memory_table(runs: list[list[str]], world: int, cards: list[float]) -> str:
    """Markdown table of the parts and of the most rows that fit each card, a column for the flags
    of each run, as on a job of `world` processes."""
    with patch.dict(os.environ, WORLD_SIZE=str(world), RANK="0", LOCAL_RANK="0"):
        configs = [train.parse(["--device", "auto", *flags]) for flags in runs]
    header = [""]
    for c in configs:
        ranks = f"{world - c.teacher_ranks} + {c.teacher_ranks} ranks"
        header.append(f"{c.preset}, {ranks}, {c.per_device_batch_size} rows")
    gib = pd.DataFrame([rank_gib(c, world) for c in configs])
    lines = [[name, *gib[name].map("{:.1f}".format)] for name in gib if gib[name].any()]
    sizes = " / ".join(f"{card:g}" for card in cards)
    for recompute in (False, True):
        name = f"most rows on {sizes} GiB" + ", with --activation_checkpointing" * recompute
        rows = [[str(most_rows(c, world, card, recompute)) for card in cards] for c in configs]
        lines.append([name, *map(" / ".join, rows)])
    note = f"rows: --per_device_batch_size. A rank may need at most {USABLE:.0%} of its card."
    return analysis.table("COMPUTED, NOT MEASURED: GiB of a rank", header, lines, note)


def main(argv: list[str] | None = None) -> None:
    """Print a table of the run with these flags, or tables of the presets in SHAPES."""
    parser = Parser(description=first_line(__doc__), epilog="Other flags are train.py's.")
    add = parser.add_argument
    add("--ranks", type=count, nargs="+", default=None, help="of the job [1; of presets 8 1]")
    add("--card", type=number(float, 1, 1e4), nargs="+", default=CARDS, help="GiB of a GPU")
    begin_process()
    with analysis.one_line("memory", ValueError):
        args, flags = parser.parse_known_args(argv)
        presets = [["--preset", name] for name in PRESETS]
        runs = [flags] if flags else [x for x in presets if train.parse(x).model in SHAPES]
        for world in args.ranks or ([1] if flags else [8, 1]):
            print(memory_table(runs, world, args.card))


if __name__ == "__main__":
    sys.exit(main())
