"""What a rank holds of its card's memory, by formula, and what to change where that is too much."""

import os
from bisect import bisect_right
from dataclasses import replace

import torch
from transformers import AutoConfig

USABLE = 0.92  # of a card; the rest is for CUDA's context, libraries and fragments
# Types of model that `kept_bytes` is right for.
KNOWN = ("llama", "olmo2", "phi3", "qwen2", "qwen3")


class Shape:
    """What a decoder's cost depends on, from its transformers config. Norms, biases and activations
    are left out. lora_rank: of the adapters around each matrix, where it has them."""

    def __init__(self, c, lora_rank: int = 0):
        size = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
        q, kv = size * c.num_attention_heads, size * c.num_key_value_heads
        # Weights of queries and output, keys and values, the three of the MLP.
        layer = c.hidden_size * (2 * q + 2 * kv + 3 * c.intermediate_size)
        self.matrices = c.num_hidden_layers * layer  # that every token is multiplied by
        self.head = c.vocab_size * c.hidden_size
        self.parameters = self.matrices + self.head * (1 if c.tie_word_embeddings else 2)
        # FLOPs a key: multiply and add, for its score and its value.
        self.attention = 4 * c.num_hidden_layers * q
        self.cache = 2 * c.num_hidden_layers * kv  # numbers kept a token: keys and values
        self.layers, self.hidden = c.num_hidden_layers, c.hidden_size
        self.kept = kept_bytes(c, q, kv)
        D, width = c.hidden_size, c.intermediate_size
        # Rows and columns of a layer's seven matrices. phi3's, which are fused, have fewer.
        self.adapters = lora_rank * self.layers * (7 * D + 2 * q + 2 * kv + 3 * width)
        if lora_rank:  # of each its dropped-out input, the mask of that, and A's result
            self.kept += 13 * D + 3 * q + 2 * width + 14 * lora_rank

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


def training_bytes(
    shape: Shape,
    tokens: int,
    recompute=False,
    accumulated=True,
    scored=True,
    ranks=1,
    moments=8,
    metered=False,
) -> dict[str, float]:
    """What a GPU rank holds when it is at its fullest: as the backward of `tokens` tokens begins.

    sharded: float32 weights and AdamW's two moments (SGD: `moments` is 0), shared out among FSDP2's
        `ranks`. Sharded gradients come into being while the activations go, so not at this moment,
        unless the step is `metered`: then its first half's are there. (A rank alone adds up in
        them: its sum is under "gathered".) With adapters only those have moments and gradients.
    gathered: all weights in bf16 (reshard_after_forward=False) and, where earlier micro-batches
        have `accumulated` gradients, their sum, whole and in float32.
    activations: `Shape.kept` a layer, or where layers `recompute` theirs the input of each and one
        layer's; and what follows the last layer.
    working: gradients within one layer and, where tokens are `scored`, as a teacher's are not, of
        the head in bf16 and of the hidden states in float32; logits by the piece.

    Left out: CUDA's context and libraries (about 1 GiB), and what the allocator cannot use.
    """
    weights = (shape.parameters if scored else shape.matrices + shape.head) + shape.adapters
    trained = shape.adapters or weights
    kept = 2 * shape.hidden * shape.layers + shape.kept if recompute else shape.layers * shape.kept
    head = 2 * shape.head + 2**26 + 4 * shape.hidden * tokens if scored else 0
    early = 4 if metered and ranks > 1 else 0
    return {
        "sharded": (4 * weights + (moments + early) * trained) / ranks,
        "gathered": 2 * weights + 4 * accumulated * trained,
        "activations": tokens * (kept + 10 * shape.hidden),
        "working": tokens * shape.kept + head,
    }


def teacher_bytes(teacher: Shape, c, ranks: int) -> tuple[float, float]:
    """What one of `ranks` ranks holds of the teacher between its turns, and at its fullest, reading
    teacher_batch_size questions of max_prompt_tokens."""
    if c.teacher_mode == "frozen":  # in float32, whole on every rank; questions are read one by one
        held = 4 * (teacher.matrices + teacher.head)
        return held, held + 2 * teacher.kept * c.max_prompt_tokens
    reads = c.teacher_batch_size * c.max_prompt_tokens
    learns = training_bytes(teacher, reads, False, False, False, ranks)
    return learns["sharded"] + learns["gathered"], sum(learns.values())


def memory_row(student: Shape, teacher: Shape | None, c, students: int, teachers: int) -> dict:
    """GiB of each student rank and each teacher rank, by part, from train.Config c.

    A student also holds the generator's bf16 copy and, while that generates, a key-value cache
    instead of activations; with kl_coef, "reference", the initial policy. With no teacher rank the
    teacher lives in the student ranks: "teacher here" is its weights, moments, and the bf16 weights
    that its last prediction gathered. "student" and "teacher rank" are the fullest moments.
    """
    tokens = c.per_device_batch_size * (c.max_prompt_tokens + c.max_completion_tokens)
    how = {"ranks": students, "moments": 8 if c.optimizer == "adamw" else 0}
    how["metered"] = c.noise_every > 0
    ways = [training_bytes(student, tokens, again, **how) for again in (False, True)]
    parts = ways[c.activation_checkpointing]
    kept, recomputed = (way["activations"] + way["working"] for way in ways)
    copy, cache = 2 * student.parameters, 2 * student.cache * c.max_rollout_tokens
    here = learning = within = 0.0
    if teacher:
        held, learning = teacher_bytes(teacher, c, teachers or students)
        if not teachers:
            here, within = held, learning
    generating = parts["sharded"] + max(here + cache, within)
    row = {"sharded": parts["sharded"], "gathered": parts["gathered"], "copy": copy}
    row |= {"activations": kept, "recomputed": recomputed, "cache": cache, "teacher here": here}
    row["student"] = copy + max(here + sum(parts.values()), generating)
    if c.kl_coef:  # no backward frees what its forward gathers
        row["reference"] = (4 / students + 2) * student.parameters
        row["student"] += row["reference"]
    row["teacher rank"] = learning
    return {name: value / 2**30 for name, value in row.items()}


def shortage(
    c, student, teacher, students: int, teachers: int, room: float, lora_rank=0, shared=False
) -> str | None:
    """A line where `room` bytes of a card are too few by formula, or no formula is known; or None.

    student, teacher: transformers configs, the second None where there is none. shared: a student
    and a teacher rank have the card between them.
    """
    if odd := [m.model_type for m in (student, teacher) if m and m.model_type not in KNOWN]:
        return f"note: whether this fits the card is not known: no formula for {odd[0]!r} models"

    def row(c) -> dict[str, float]:
        adapters = lora_rank if c.teacher_mode == "lora" else 0
        shapes = Shape(student), Shape(teacher, adapters) if teacher else None
        return memory_row(*shapes, c, students, teachers)

    def need(c) -> float:
        found = row(c)
        roles = found["student"], found["teacher rank"] if teachers else 0.0
        return sum(roles) if shared else max(roles)

    free, usable, found = room / 2**30, USABLE * room / 2**30, row(c)
    if need(c) <= usable:
        return None
    parts = {
        "weights and moments": found["sharded"],
        "gathered weights and gradients": found["gathered"],
        "the generating copy": found["copy"],
        "activations": found["recomputed" if c.activation_checkpointing else "activations"],
        "key-value cache": found["cache"],
        "the initial policy": found.get("reference", 0.0),
        "the teacher": found["teacher rank" if teachers else "teacher here"],
    }
    largest = max(parts, key=parts.get)
    said = f"note: by formula this needs about {need(c):.1f} GiB of a card, and {USABLE:.0%} of "
    said += f"the {free:.1f} free here can be used (largest: {largest}, {parts[largest]:.1f})"
    if flags := lower(c, need, usable):
        return f"{said}; it should fit with {' '.join(flags)}"
    frozen = ", or maybe --teacher_mode frozen" if teacher else ""
    return f"{said}; it takes more ranks or a smaller model{frozen}"


def lower(c, need, usable: float) -> list[str]:
    """Flags with which need(c) is at most `usable`, or none. All settings go to their least; then
    each goes back as far as there is room, the dearest first."""
    longest = min(c.max_prompt_tokens + c.max_completion_tokens, c.max_rollout_tokens)
    ways = {  # from what needs the least to what is asked for
        "teacher_mode": ["frozen" if c.teacher_mode == "frozen" else "lora", c.teacher_mode],
        "teacher_batch_size": range(1, c.teacher_batch_size + 1),
        "activation_checkpointing": [True, c.activation_checkpointing],
        "max_rollout_tokens": range(longest, c.max_rollout_tokens + 1),
        "per_device_batch_size": range(1, c.per_device_batch_size + 1),
    }
    chosen = {name: values[0] for name, values in ways.items()}
    if need(replace(c, **chosen)) > usable:
        return []
    for name, values in ways.items():

        def needed(value, name=name) -> float:
            return need(replace(c, **chosen | {name: value}))

        chosen[name] = values[bisect_right(values, usable, key=needed) - 1]
    changed = [name for name, value in chosen.items() if value != getattr(c, name)]
    return [f"--{name} {chosen[name]}".removesuffix(" True") for name in changed]


def look(config, layout, lora_rank: int) -> None:
    """Prints, on a GPU, the line of `shortage` for the card of this rank, if there is one."""
    if layout.device.type != "cuda":
        return
    names = config.model, config.teacher_model
    models = [AutoConfig.from_pretrained(name) if name else None for name in names]
    here = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    shared = layout.n_teachers > 0 and here > torch.cuda.device_count()
    room = torch.cuda.mem_get_info(layout.device)[0]
    ranks = layout.n_students, layout.n_teachers
    if said := shortage(config, *models, *ranks, room, lora_rank, shared):
        print(said, flush=True)
