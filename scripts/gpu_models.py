r"""Parts of gpu_check.py that measure a model on the card: decode, train, step, memory."""

import gc
import itertools
import json
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
from transformers import AutoTokenizer
from transformers.utils import is_flash_attn_2_available

import rollout
import train
from scripts import bench, measure
from scripts.floors import CARDS, HUB, USABLE, Machine, Shape, floors, model_config, training_bytes

GIB = 2**30


class CheckError(RuntimeError):
    """Something that should hold on a card does not; one line says what."""


@dataclass
class Sizes:
    """How large the parts are: a paper rank's share of a step; dry: seconds on a CPU."""

    dry: bool = False
    shape: str = "qwen2.5-1.5b"
    prompt: int = 270  # tokens of each prompt of `decode` and `train`
    new: int = 2048
    groups: int = 3  # x 16 rows
    layers: tuple[int, int] = (8, 12)  # of the models that `memory` measures
    steps: int = 40  # of `curve`
    seeds: int = 3

    @classmethod
    def of(cls, dry: bool) -> "Sizes":
        small = (measure.TOKENIZER, 6, 24, 1, (1, 2), 2, 2)
        return cls(True, *small) if dry else cls()

    @property
    def device(self) -> torch.device:
        return torch.device("cpu" if self.dry else "cuda")

    @property
    def bytes_of_a_number(self) -> int:
        """In the generating copy: bf16 on a card, float32 on a CPU."""
        return 4 if self.dry else 2


# --------------------------------------------------------------------------------------------------
# A model on the card


@contextmanager
def random_model(shape: str, s: Sizes, layers: int | None = None):
    """The folder of a model with random weights, for as long as it is needed."""
    with tempfile.TemporaryDirectory() as folder:
        measure.save_random_model(shape, layers, 0, Path(folder), s.device, torch.bfloat16)
        yield folder


@contextmanager
def one_rank(s: Sizes, folder: str, *flags: str):
    """(config, layout) of one student rank alone, whose model is in `folder`, connected."""
    args = SimpleNamespace(shape=folder, seed=0)
    config = measure.configure(args, ["--sampler", "uniform", *flags])
    config.model = folder
    layout = train.Layout(config)
    layout.connect(config)
    try:
        yield config, layout
    finally:  # also where the card's memory was not enough
        dist.destroy_process_group()


def made_up(lengths: list[tuple[int, int]], vocabulary: int = 80) -> rollout.Rollouts:
    """Rows of so many prompt and completion tokens; every prompt is another."""
    generator = torch.Generator().manual_seed(0)
    rows = [
        torch.randint(3, vocabulary, (p + n,), generator=generator).tolist() for p, n in lengths
    ]
    parts = [(row[:p], row[p:]) for row, (p, _) in zip(rows, lengths, strict=True)]
    prompts, completions = map(list, zip(*parts, strict=True))
    logps = [[-1.0] * len(ids) for ids in completions]
    return rollout.Rollouts(prompts, completions, [False] * len(rows), logps)


def seconds(s: Sizes, work) -> float:
    """How long `work` takes, to the end of what it started on the card."""
    wait = int if s.dry else torch.cuda.synchronize
    wait()
    start = time.perf_counter()
    work()
    wait()
    return time.perf_counter() - start


def decode(s: Sizes) -> dict:
    """48 rows x 2,048 tokens, in ms a token, beside what reading weights and cache takes."""
    with random_model(s.shape, s) as folder:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        generator = rollout.Generator(folder, s.device, tokenizer)
    shape, machine = Shape(generator.lm.config), Machine.measure(not s.dry)
    generator.stop_ids = [generator.lm.config.vocab_size]  # no such token: every row is full
    rows, G = s.groups * 16, 16
    prompts = [p for p in made_up([(s.prompt, 1)] * s.groups).prompt_ids for _ in range(G)]
    lengths = [s.prompt] * rows, [s.new] * rows
    least = floors(shape, machine, *lengths, [], G, 1, s.bytes_of_a_number)["rollout_s"]
    recorded = getattr(generator, "graph", not s.dry)
    found, lines = {"floor_ms": 1000 * least / s.new}, []
    for graph in [True, False] if recorded else [False]:
        if graph != recorded and not hasattr(generator, "graph"):
            continue  # a Generator that cannot do without
        generator.graph = graph
        generator.generate(
            prompts, 0.7, min(4, s.new), seed=0
        )  # libraries load, kernels are chosen
        held = measure.reset_peak()
        took = seconds(s, lambda: generator.generate(prompts, 0.7, s.new, seed=0))
        name = "with CUDA graph" if graph else "without"
        found[name] = 1000 * took / s.new
        peak = (measure.peak_bytes() - held) / GIB
        lines.append((name, f"{found[name]:.3f}", f"{took / least:.1f}", f"{peak:.2f}"))
    columns = "decoding | ms a token | x floor | peak above the weights, GiB"
    bench.show(f"{rows} rows x {s.new} tokens; floor {found['floor_ms']:.3f} ms", columns, lines)
    times = ", ".join(f"{ms} ms a token {name}, {x} x floor" for name, ms, x, _ in lines)
    return found | {"said": times, "bandwidth": machine.bandwidth}


def train_rate(s: Sizes) -> dict:
    """Forward and backward of 20 rows of many lengths: share of the card's matrix rate."""
    found, lines = {}, []
    lengths = [(s.prompt, s.new * (i + 1) // 20 or 1) for i in range(20)]
    rollouts, rows = made_up(lengths), list(range(20))
    with random_model(s.shape, s) as folder, one_rank(s, folder) as (config, layout):
        shape, machine = Shape(model_config(folder)), Machine.measure(not s.dry)
        policy = rollout.Policy(folder, layout.device)
        layout.shard(policy)
        whole = [p + n for p, n in lengths]
        flops = 3 * sum(
            shape.forward_flops(T, T * (T + 1) // 2, n)
            for T, (_, n) in zip(whole, lengths, strict=True)
        )
        packable = not s.dry and is_flash_attn_2_available()
        for attention in ["sdpa"] + ["flash_attention_2"] * packable:
            policy.lm.set_attn_implementation(attention)
            budget = config.per_device_batch_size * (s.prompt + s.new)
            batches, _ = rollout.micro_batches(
                rollouts, rows, 0, 1, budget, 0, layout.device, policy.packed
            )

            def work(batches=batches):
                for _, *inputs in batches:
                    policy(*inputs, 0.7)[0].mean().backward()
                policy.zero_grad()

            took = min(seconds(s, work) for _ in range(4))  # the first one chooses kernels
            positions = sum(ids.numel() for _, ids, *_ in batches)
            found[attention] = flops / took / machine.rate
            line = (attention, len(batches), f"{1 - sum(whole) / positions:.0%}", f"{took:.3f}")
            lines.append((*line, f"{flops / took / 1e12:.3f}", f"{found[attention]:.1%}"))
    title = f"20 rows, {sum(whole):,} tokens; matrix rate {machine.rate / 1e12:.3f} TFLOP/s"
    columns = "attention | micro-batches | padding | forward and backward, s | TFLOP/s | share"
    bench.show(title, columns, lines)
    said = ", ".join(f"{name} {share:.0%} of the matrix rate" for name, share in found.items())
    lacks = "" if "flash_attention_2" in found else "; flash-attn is not installed"
    return found | {"said": said + lacks, "rate": machine.rate}


def step(s: Sizes) -> dict:
    """A student rank's share of a paper step by part: 48 rows, about 60% of them dead."""
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.json"
        # 12 x 4 has 20 live rows, a sixth of a paper step's 115; 3 x 16 could only have 16 or 32.
        flags = ["--sampler", "uniform", "--prompts_per_step", "12", "--group_size", "4"]
        flags += ["--dead", "0.6", "--warmup", "1", "--repeats", "1" if s.dry else "3"]
        flags += ["--max_completion_tokens", str(s.new), "--verify_workers", "2"]
        flags += ["--question_tokens", "4"] if s.dry else []
        if bench.main(["step", "--shape", s.shape, *flags, "--json", str(rows)]):
            raise CheckError("bench.py step failed")
        found = json.loads(rows.read_text())
    parts = ("rollout_s", "verify_s", "fwd_bwd_s", "step", "refresh", "seconds", "peak_gib")
    middle = {part: sorted(row[part] for row in found)[len(found) // 2] for part in parts}
    said = f"{middle['seconds']:.1f} s: rollout {middle['rollout_s']:.1f}, forward and backward "
    said += (
        f"{middle['fwd_bwd_s']:.1f}, AdamW {middle['step']:.2f}, refresh {middle['refresh']:.2f}"
    )
    return middle | {"said": f"{said}; peak {middle['peak_gib']:.1f} GiB"}


# --------------------------------------------------------------------------------------------------
# Memory


def update_peaks(s: Sizes, config: train.Config, shape: str, layers, rows, recompute=False):
    """GiB at the fullest moment of an update, for each per_device_batch_size in `rows`.

    The update is train.Student's, of two micro-batches of full-length rows, the second one of the
    run: AdamW has its moments, and the first micro-batch's gradients lie there during the second.
    """
    gc.collect()
    if not s.dry:
        torch.cuda.empty_cache()
    held, peaks = measure.reset_peak(), []
    prompt, new = config.max_prompt_tokens, config.max_completion_tokens
    flags = ["--max_prompt_tokens", str(prompt), "--max_completion_tokens", str(new)]
    flags += ["--activation_checkpointing"] * recompute
    with random_model(shape, s, layers) as folder, one_rank(s, folder, *flags) as (c, layout):
        student = train.Student(c, layout, measure.UNREAD)
        for B in rows:
            c.per_device_batch_size = B
            rollouts = made_up([(prompt, new)] * 2 * B)
            for _ in range(2):
                measure.reset_peak()
                student.update(rollouts, torch.tensor([[0.0, 1.0] * B]), learning_rate=1e-6)
            peaks.append((measure.peak_bytes() - held) / GIB)
    return peaks


def most_rows(peak, shared: float) -> str:
    """Rows that fit each of CARDS; peak: rows -> GiB, of which `shared` are on other cards."""
    numbers = []
    for card in CARDS:
        fits = (peak(n) - shared < USABLE * card for n in range(1, 1000))
        numbers.append(sum(itertools.takewhile(bool, fits)))
    return " / ".join(map(str, numbers))


def preset_memory(s: Sizes, name: str, config: train.Config, shape: str, room: float) -> dict:
    """A line of the table of `memory`; room: GiB of this card."""
    low, high = s.layers
    whole, cut = (
        Shape(model_config(shape, **changes))
        for changes in ({}, {"num_hidden_layers": high, "layer_types": None})
    )
    at = {layers: update_peaks(s, config, shape, layers, (1, 2)) for layers in s.layers}
    again = update_peaks(s, config, shape, high, (1,), recompute=True)[0]
    B, tokens = (
        config.per_device_batch_size,
        config.max_prompt_tokens + config.max_completion_tokens,
    )

    def formula(of: Shape, rows: int, recompute: bool = False) -> float:
        parts = training_bytes(of, rows * tokens, recompute)
        return (sum(parts.values()) + 2 * of.parameters) / GIB

    def measured(rows: int) -> float:
        """At full depth, from the two depths and the two numbers of rows."""
        shallow, deep = (one + (rows - 1) * (two - one) for one, two in (at[low], at[high]))
        return shallow + (whole.layers - low) / (high - low) * (deep - shallow)

    def recomputed(rows: int) -> float:
        """The formula, and what was measured beyond it at one depth for one row."""
        return formula(whole, rows, True) + again - formula(cut, 1, True)

    checked = None
    if formula(whole, B) < USABLE * room:
        try:
            checked = update_peaks(s, config, shape, None, (B,))[0]
        except torch.OutOfMemoryError:  # a finding, and no reason to lose the others
            print(f"{name}: out of memory with {B} rows, formula {formula(whole, B):.1f} GiB")
    shared = 12 * whole.parameters * 5 / 6 / GIB
    return {
        "rows": B,
        "from two depths": measured(B),
        "at full depth": checked,
        "formula": formula(whole, B),
        "one of 6": (checked or measured(B)) - shared,
        "most rows alone": most_rows(measured, 0.0),
        "most rows, one of 6": most_rows(measured, shared),
        "recomputed, one of 6": most_rows(recomputed, shared),
        "peaks": at,
        "peak recomputed": again,
    }


def memory(s: Sizes) -> dict:
    """Peak memory of a student rank of each preset, and the most rows that fit, beside the formula.

    Measured: one rank that holds everything (float32 weights, gradients and moments are not shared
    out), without a teacher, at two depths and for 1 and 2 full rows; peaks are linear in both. A
    whole model is measured as well where the formula says that it fits this card. For one of 6
    student ranks, 5/6 of the float32 weights and moments are taken off by formula.
    """
    room = 1e9 if s.dry else torch.cuda.mem_get_info()[1] / GIB
    jobs = {name: train.parse(["--preset", name]) for name in train.PRESETS}
    jobs = {name: (c, HUB[c.model]) for name, c in jobs.items() if c.model in HUB}
    if s.dry:
        c = train.parse(["--preset", "demo", "--per_device_batch_size", "2"])
        c.max_prompt_tokens, c.max_completion_tokens = 8, 16
        jobs = {"demo": (c, s.shape)}
    found, lines = {}, []
    for name, job in jobs.items():
        found[name] = preset_memory(s, name, *job, room)
        print(json.dumps({name: found[name]}), flush=True)  # there, should the time run out
        values = list(found[name].values())[:-2]
        cells = [f"{x:.1f}" if isinstance(x, float) else str(x or "-") for x in values]
        lines.append((name, *cells))
    cards = " / ".join(map(str, CARDS))
    columns = f"preset | rows | alone, from {s.layers[0]} and {s.layers[1]} layers "
    columns += "| alone, at full depth | alone, formula | one of 6 (5/6 of the shards off) "
    columns += f"| most rows on {cards} GiB, alone | ... one of 6 | ... and recomputed"
    bench.show("Peak of a student rank's update, GiB", columns, lines)
    said = "; ".join(f"{line[0]} {line[2]} (formula {line[4]})" for line in lines)
    return found | {"said": f"GiB alone at the preset's rows: {said}"}
