"""Estimate the GPU memory that a run needs. Computed by formula, not measured on a card.

    python -m scripts.memory                                   # all presets, on 8 ranks and on 1
    python -m scripts.memory --preset one-gpu --per_device_batch_size 8 --card 24

The formula leaves out the CUDA context and libraries (about 1 GiB) and fragmentation, so a rank
should need no more than 92% of its card. Where ranks share a card, add them up. Without flash-attn
a rank also needs padded copies of queries, keys and values, and masks: in the paper's run up to
12 GiB. benchmarks.step measures the peak of a process on a GPU.
"""

import functools
from bisect import bisect_left
from dataclasses import replace

import pandas as pd
import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, PretrainedConfig

import train
from plumbing.command_line import Parser, count
from plumbing.config import PRESETS
from plumbing.distributed.launch import as_rank_0_of
from plumbing.distributed.shutdown import begin_process
from plumbing.errors import InputError
from plumbing.model_checks import reject_on_error
from scripts.command import exit_on_error

GIB = 2**30
USABLE = 0.92  # share of a card that the formula may fill
CARDS = [24, 80, 141]  # GiB
STUDENT = "peak of a student rank"
TEACHER = "peak of the teacher"
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

    name: a key of SHAPES, or a model that AutoConfig finds. changes: replaced settings.
    """
    if name not in SHAPES:
        with reject_on_error(name, "cannot be used"):
            return AutoConfig.from_pretrained(name, **changes)
    sizes = dict(zip(SIZES, SHAPES[name], strict=True))
    return AutoConfig.for_model(**sizes, max_position_embeddings=32_768, **changes)


# Sizes of a model: numbers, not bytes


@functools.cache
def weight_count(name: str, kind=AutoModelForCausalLM) -> int:
    """Count the weights of a model. kind: AutoModel for one without LM head."""
    with torch.device("meta"):
        return kind.from_config(model_config(name)).num_parameters()


def attention_widths(model: PretrainedConfig) -> tuple[int, int]:
    """Width of all queries of a token, and of its keys, which is that of its values: H·d, H_kv·d
    with heads of d numbers."""
    heads = model.num_attention_heads
    head_dim = getattr(model, "head_dim", None) or model.hidden_size // heads
    kv_heads = getattr(model, "num_key_value_heads", heads)  # GPT-2's are not grouped
    return head_dim * heads, head_dim * kv_heads


# Bytes by part of the memory


def activation_bytes(model: PretrainedConfig) -> int:
    """Bytes that autograd keeps of one token in one layer, in bf16 with SDPA or flash-attn.

    D hidden, I the MLP's width, q and kv the widths of queries and keys, H and H_kv their heads.
    transformers' eager code keeps:

        two norms    16 D + 8           input in float32, normalized, scaled; 1/rms in float32
        attention    4 (q + kv) + 4 H   queries, keys, values, output; a float32 normalizer per head
        MLP          8 I                gate, silu(gate), up, their product

    Raises InputError for a model type without a formula.
    """
    D = model.hidden_size
    H = model.num_attention_heads
    q, kv = attention_widths(model)
    H_kv = H * kv // q
    family_bytes = {
        "llama": 0,
        "qwen2": 0,
        # Norms of each head's queries and keys.
        "qwen3": 6 * (q + kv) + 4 * (H + H_kv),
        # Norms of all queries and keys, scaled in float32, after attention and MLP.
        "olmo2": 4 * D + 8 * (q + kv) + 8,
        # Values are a view of the fused projection, and the output is copied for its matrix.
        "phi3": 4 * q + 2 * kv,
    }
    family = model.model_type
    if family not in family_bytes:
        known = ", ".join(family_bytes)
        raise InputError(f"no memory formula for model type {family!r}: known are {known}")
    norms = 16 * D + 8
    attention = 4 * (q + kv) + 4 * H
    mlp = 8 * model.intermediate_size
    return norms + attention + mlp + family_bytes[family]


def backbone_bytes(model: PretrainedConfig, tokens: int, recompute: bool = False) -> int:
    """Activations of all layers when the backward pass over `tokens` tokens begins, which is its
    peak, the gradients within one layer (a layer's activations again), and the last norm's input
    and output (10·D). recompute: only the input of each layer (2·D) and one layer are kept."""
    D = model.hidden_size
    L = model.num_hidden_layers
    layer = activation_bytes(model)
    layers = L * layer
    if recompute:
        layers = L * 2 * D + layer
    return tokens * (layers + layer + 10 * D)


def head_bytes(model: PretrainedConfig, tokens: int) -> int:
    """Gradients of the LM head in bf16 (2·V·D) and of its input (4·D a token), and one chunk of
    logits (64 MiB)."""
    D = model.hidden_size
    return 2 * model.vocab_size * D + 4 * D * tokens + 2**26


def cache_bytes(model: PretrainedConfig, tokens: int) -> int:
    """The generator's key-value cache in bf16: 2·2·L·kv a token."""
    _, kv = attention_widths(model)
    return 4 * model.num_hidden_layers * kv * tokens


def teacher_bytes(c: train.Config, ranks: int) -> tuple[float, float]:
    """The teacher, a model without LM head, on one of `ranks` ranks: between its updates (shard of
    float32 weights and moments, all weights in bf16), and at its peak (with the activations of a
    batch of questions). With --teacher_mode frozen or lora it needs less."""
    if not c.teacher_model:
        return 0.0, 0.0
    weights = weight_count(c.teacher_model, AutoModel)
    held = 12 * weights / ranks + 2 * weights
    tokens = c.teacher_batch_size * c.max_prompt_tokens
    return held, held + backbone_bytes(model_config(c.teacher_model), tokens)


def rank_gib(c: train.Config, world: int) -> dict[str, float]:
    """GiB by part of a run on `world` ranks. A student rank's peak is in training, in generation
    or, with no teacher rank, in an update of the teacher."""
    students = world - c.teacher_ranks
    model = model_config(c.model)
    weights = weight_count(c.model)
    tokens = c.per_device_batch_size * (c.max_prompt_tokens + c.max_completion_tokens)
    held, teacher_peak = teacher_bytes(c, c.teacher_ranks or students)
    always = {
        "shard of the float32 weights and AdamW's moments": 12 * weights / students,
        "the generator's bf16 weights": 2 * weights,
        "initial policy, for --kl_coef": 2 * weights if c.kl_coef else 0.0,
        "teacher, where no rank is a teacher's": 0.0 if c.teacher_ranks else held,
    }
    training = {
        "all weights in bf16, and their gradients in float32": 6 * weights,
        "activations": backbone_bytes(model, tokens, c.activation_checkpointing),
        "gradients of the LM head, and a chunk of logits": head_bytes(model, tokens),
    }
    cache = cache_bytes(model, c.max_rollout_tokens)
    teaching = 0.0 if c.teacher_ranks else teacher_peak - held
    peaks = {
        "key-value cache, instead of training's": cache,
        STUDENT: sum(always.values()) + max(sum(training.values()), cache, teaching),
        TEACHER: teacher_peak,
    }
    return {name: size / GIB for name, size in (always | training | peaks).items()}


# Tables


def most_rows(c: train.Config, world: int, card: float) -> int:
    """The largest --per_device_batch_size with which no rank needs more than a card of so many GiB
    has, or 0."""

    def too_large(rows: int) -> bool:
        sizes = rank_gib(replace(c, per_device_batch_size=rows), world)
        return max(sizes[STUDENT], sizes[TEACHER]) > USABLE * card

    return bisect_left(range(1, 10_000), True, key=too_large)


def memory_table(runs: list[list[str]], world: int, cards: list[float]) -> str:
    """Table of the parts and of the most rows that fit each card, a column for the flags of each
    run, as on a job of `world` processes."""
    with as_rank_0_of(world):
        configs = [train.parse(["--device", "auto", *flags]) for flags in runs]
    columns = {}
    for c in configs:
        cells = {
            "student + teacher ranks": f"{world - c.teacher_ranks} + {c.teacher_ranks}",
            "rows (--per_device_batch_size)": c.per_device_batch_size,
        }
        cells |= rank_gib(c, world)
        cells |= {f"most rows on {card:g} GiB": most_rows(c, world, card) for card in cards}
        columns[c.preset] = cells
    return pd.DataFrame(columns).to_string(float_format="{:.1f}".format)


def main(argv=None) -> None:
    """Print a table of the run with these flags, or tables of the presets in SHAPES."""
    parser = Parser(__doc__, epilog="Other flags are train.py's.")
    add = parser.add_argument
    add("--ranks", type=count, nargs="+", help="of the job [1; of presets 8 1]")
    add("--card", type=float, nargs="+", default=CARDS, help="GiB of a GPU")
    begin_process()
    with exit_on_error("memory"):
        args, flags = parser.parse_known_args(argv)
        runs = [flags]
        worlds = [1]
        if not flags:
            worlds = [8, 1]
            presets = [["--preset", name] for name in PRESETS]
            runs = [x for x in presets if train.parse(x).model in SHAPES]
        for world in args.ranks or worlds:
            table = memory_table(runs, world, args.card)
            print(f"COMPUTED, NOT MEASURED: GiB of a rank, with flash-attn\n{table}\n")


if __name__ == "__main__":
    main()
