#!/usr/bin/env python
r"""Where the time and the memory of a step go, beside the least that this machine needs for the same work.

    python scripts/bench.py step                              # the demo, one process; under torchrun: its ranks
    torchrun --nproc_per_node 8 scripts/bench.py step --shape qwen2.5-1.5b --max_completion_tokens 2048
    python scripts/bench.py trl --trl_python trl_venv/bin/python
    python scripts/bench.py memory | fits | growth | scale | plan

Flags that `step` and `trl` do not know go to train.py, those of `scale` to `step`. Models of another --shape have
random weights, the demo's tokenizer and made-up problems. Tables are Markdown; /proc makes it Linux only.

`step` runs train.train. A floor is bytes over the memory bandwidth or FLOPs over the matrix rate, whichever takes
longer, both measured here by one rank alone while the others wait.

`trl` compares with TRL's GRPOTrainer (pip install as in agree_with_trl.py) in a process of its own. The two take turns,
one step each, never at once: same model, prompts, samples a group, temperature, limits, learning rate and threads,
float32, beta 0, scripted rewards at no cost; each samples with its own random numbers. TRL generates a batch in one
call, without gradient checkpointing, logging, saving or shuffling, with the fastest of several
`per_device_train_batch_size`; at one update a batch it makes no second forward for old log-probs either. What it does
and we do not: it forwards and backpropagates dead groups, pads every micro-batch to the longest prompt and completion
of the whole batch, computes entropies without a use for them, and gathers metrics for its log. What we do and it does
not: copy the weights into the generator.
"""

import argparse
import itertools
import json
import multiprocessing
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
import transformers
from transformers import AutoTokenizer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import grpo
import train
from rollout import PromptEncoder
from sampler import Context, Goldilocks, InputError, Problems
from scripts import measure
from scripts.floors import (
    ASSUMED,
    CARDS,
    HUB,
    SHAPES,
    TEACHERS,
    USABLE,
    Shape,
    floors,
    memory_row,
    model_config,
    plan_row,
    rows_that_fit,
)

GB, SPAWN = 2**30, multiprocessing.get_context("spawn")
QUANTITIES = {  # of a step: name, digits
    "propose": ("propose: wait for the teacher, or its scoring where it is in-process, s", 4),
    "rollout_s": (
        "rollout, s; floor: FLOPs of each prompt once and each token, or weights and cache each position",
        4,
    ),
    "verify_s": ("verify, s", 4),
    "gather_s": ("gather: wait for the slowest rollout, s", 4),
    "observe": ("observe: the teacher's learning where it is in-process, s", 4),
    "fwd_bwd_s": (
        "forward and backward, s; floor: FLOPs of live rows (2.5 x floor: 40% of the matrix rate)",
        4,
    ),
    "step": ("AdamW, s; floor: 28 bytes a parameter of the shard", 4),
    "refresh": ("refresh the generator, s; floor: float32 weights read, copy written", 4),
    "seconds": ("**whole step**, s; floor: their sum", 4),
    "tokens_a_second": ("prompt and completion tokens a second", 0),
    "completion_tokens": ("completion tokens", 0),
    "zero_variance": ("dead groups", 2),
    "live_rows": ("rows with a gradient", 0),
    "position_ms": ("rollout by decoded position of the longest completion, ms", 2),
    "padding": ("training: share of padding", 3),
    "imbalance": (
        "positions a rank trains on, most / mean - 1, where 48 rows or more have a gradient",
        3,
    ),
    "teacher_wait": ("wait for the teacher: share of the step", 3),
    "teacher_wait_alone": (
        "... if roles had processors of their own: 1 - CPU seconds of student / of teacher",
        3,
    ),
    "cpu_s": ("CPU seconds, busiest student rank", 3),
    "teacher_cpu_s": ("CPU seconds, busiest teacher rank, mean with warm-up", 3),
    "peak_gib": ("peak memory of the largest student rank, GiB", 2),
}


def spread(values: list[float | None], digits: int = 3) -> str:
    """median (least to most), or a dash where there is nothing."""
    if not (values := [value for value in values if value is not None]):
        return "-"
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def show(title: str, columns: str, lines: list[tuple]) -> None:
    """One Markdown table; `columns` as it is to appear."""
    head = f"| {columns} |\n|{'---|' * (columns.count('|') + 1)}"
    print(
        f"\n{title}\n\n{head}\n" + "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines),
        flush=True,
    )


def show_steps(title: str, columns: dict[str, list[dict]]) -> None:
    """What is known of QUANTITIES: a column for each list of rows, medians (least to most) over the list."""
    lines = []
    for key, (name, digits) in QUANTITIES.items():
        line = [spread([row.get(key) for row in rows], digits) for rows in columns.values()]
        lines += [(name, *line)] * (set(line) != {"-"})
    show(title, " | ".join(["of a step", *columns]), lines)


def step(args, rest: list[str]) -> None:
    """one step by part, beside its floors; also under torchrun"""
    n = args.warmup + args.repeats
    # Random weights earn nothing.
    dead = args.dead if args.dead is not None or args.shape == "demo" else 0.6
    probe = measure.run(args, rest, n, [dead])
    if probe.layout.rank:
        return
    config, layout, machine, teacher_cpu = (
        probe.config,
        probe.layout,
        probe.machine,
        probe.teacher_cpu / n,
    )
    least, over, size = [], [], 2 if layout.device.type == "cuda" else 4
    for row in (rows := probe.rows[args.warmup :]):
        if teacher_cpu:
            row |= {
                "teacher_cpu_s": teacher_cpu,
                "teacher_wait_alone": max(0.0, 1 - row["cpu_s"] / teacher_cpu),
            }
        floor = floors(
            probe.shape, machine, *row["rows"], config.group_size, layout.n_students, size
        )
        least.append(floor | {"seconds": sum(floor.values())})
        over.append({key: row[key] / value for key, value in least[-1].items() if value})
    if args.json:
        Path(args.json).write_text(json.dumps(rows) + "\n")
    title = f"{probe.shape.parameters / 1e6:,.2f} M parameters, {config.prompts_per_step} x {config.group_size} "
    title += f"completions, ranks: {layout.n_students} student + {layout.n_teachers} teacher; "
    title += f"memory bandwidth {machine.bandwidth / 1e9:.1f} GB/s, matrix rate {machine.rate / 1e9:,.0f} GFLOP/s"
    show_steps(title, {"measured": rows, "floor": least, "x floor": over})


def turns(args, rest: list[str]) -> None:
    """TRL's side of `trl`: GRPOTrainer.train(), which gives the row of a step and waits for a line on stdin."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(args.threads)
    answers, sys.stdout = (
        sys.stdout,
        sys.stderr,
    )  # what libraries print must not mix with the answers
    config, shares, row = measure.configure(args, rest), itertools.cycle(args.dead_shares), {}
    P, G = config.prompts_per_step, config.group_size

    def reward(completion_ids, **_) -> list[float]:
        row["completion_tokens"] = sum(map(len, completion_ids))
        return measure.scripted_rewards(P, G, next(shares))

    class Turns(transformers.TrainerCallback):
        began = None

        def on_step_begin(self, *_, **__):
            """Between two of these lies one whole step, and fetching the prompts of the next."""
            if self.began:
                row["seconds"], row["cpu_s"] = np.subtract(
                    (time.perf_counter(), time.process_time()), self.began
                )
                print(json.dumps(row), file=answers, flush=True)
                if not sys.stdin.readline():
                    sys.exit()
            self.began = time.perf_counter(), time.process_time()

    with tempfile.TemporaryDirectory() as folder:
        measure.make_materials(config, args, Path(folder))
        tokenizer, problems = (
            AutoTokenizer.from_pretrained(config.model),
            Problems(config.train_data),
        )
        encode = PromptEncoder.of(config, tokenizer)
        order = train.build_sampler(
            config, train.Layout(config), problems, encode
        )  # our prompts, in our order
        chosen = [i for _ in range(min(1000, len(problems) // P)) for i in order.propose(P).index_N]
        # fmt: off
        settings = GRPOConfig(
            str(Path(folder) / "out"), seed=config.seed, num_train_epochs=1000, shuffle_dataset=False,
            per_device_train_batch_size=args.trl_batch, gradient_accumulation_steps=P * G // args.trl_batch,
            num_generations=G, max_completion_length=config.max_completion_tokens, temperature=config.temperature,
            learning_rate=config.learning_rate, lr_scheduler_type="constant", loss_type="grpo", beta=0.0,
            model_init_kwargs={"dtype": "float32"}, bf16=False, use_cpu=not torch.cuda.is_available(),
            gradient_checkpointing=False, report_to="none", logging_strategy="no", save_strategy="no",
            disable_tqdm=True,
        )
        # fmt: on
        rows = Dataset.from_list([{"prompt": encode.text(problems.question(i))} for i in chosen])
        callbacks = [Turns()]
        GRPOTrainer(
            config.model, reward, settings, rows, processing_class=tokenizer, callbacks=callbacks
        ).train()


@contextmanager
def trl_worker(args, batch: int):
    """A long-lived process of `turns`, as an iterator: next() has it take one step, and returns the row of it."""
    env = os.environ | {"OMP_NUM_THREADS": str(args.threads), "HF_HUB_OFFLINE": "1", "TURNS": "1"}
    command, pipe = (
        [args.trl_python, __file__, *args.argv, "--trl_batch", str(batch)],
        subprocess.PIPE,
    )
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(
            command, env=env, stdin=pipe, stdout=pipe, stderr=log, text=True
        ) as process,
    ):

        def rows():
            while line := process.stdout.readline():
                yield json.loads(line)
                print(file=process.stdin, flush=True)
            log.seek(0)
            last = (log.read().strip().splitlines() or ["nothing on stderr"])[-1]
            raise InputError(f"TRL's side ended with status {process.wait()}: {last}")

        taken = rows()
        for (
            _
        ) in args.dead_shares:  # it takes its first step unasked: nothing else is done meanwhile
            next(taken)
        yield taken


def trl(args, rest: list[str]) -> None:
    """our step against that of TRL's GRPOTrainer, in turns"""
    # Scripted rewards teach nothing: the model should stay what it is.
    rest = ["--learning_rate", "1e-6", *rest, "--sampler", "uniform"]
    if "TURNS" in os.environ:
        return turns(args, rest)
    config, n = measure.configure(args, rest), len(args.dead_shares)
    B, fastest, theirs = config.prompts_per_step * config.group_size, {}, []
    for size in (
        [args.trl_batch]
        if args.trl_batch
        else sorted({B // n for n in (1, 3, 8, 24) if B % n == 0})
    ):
        with trl_worker(args, size) as taken:
            fastest[size] = min(next(taken)["seconds"] for _ in range(3))
    batch = min(fastest, key=fastest.get)
    print(
        "TRL, seconds by per_device_train_batch_size: "
        + ", ".join(f"{k}: {v:.2f}" for k, v in fastest.items())
    )

    steps = (args.warmup + args.repeats) * n

    def answer(ours: list[dict]) -> None:
        while len(theirs) < min(
            steps, len(ours) + len(ours) // n % 2
        ):  # who comes first changes from round to round
            theirs.append(next(taken))

    with trl_worker(args, batch) as taken:
        torch.set_num_threads(args.threads)
        ours = measure.run(args, rest, steps, args.dead_shares, answer, reads=False).rows
    columns = {}
    for i, dead in enumerate(args.dead_shares):
        measured = slice(args.warmup * n + i, len(ours), n)
        # Pair by pair: what a slow moment of the machine does to both drops out.
        ratios = [
            {k: a[k] / b[k] for k in b}
            for a, b in zip(ours[measured], theirs[measured], strict=True)
        ]
        of = f", {dead:.0%} dead"
        columns |= {
            f"ours{of}": ours[measured],
            f"TRL{of}": theirs[measured],
            f"ours / TRL, pairs{of}": ratios,
        }
    show_steps(f"{args.shape}, {B} completions, TRL's micro-batch {batch}", columns)


def logprob_memory(tokens: int) -> list[float]:
    """GiB above weight, weight.grad and hidden states: of a first micro-batch, and of one that adds to weight.grad.

    Counted are the logits, the gradient of the hidden states and, in the second, its own gradient of the weight.
    """
    device, dtype = (
        ("cuda", torch.bfloat16) if torch.cuda.is_available() else ("cpu", torch.float32)
    )
    weight, peaks = torch.randn(151_936, 1536, device=device, dtype=dtype).requires_grad_(), []
    for grad in (weight.nbytes, 0):  # the first one makes weight.grad
        h = torch.randn(tokens, 1536, device=device, dtype=dtype).requires_grad_()
        targets = torch.randint(151_936, (tokens,), device=device)
        held = measure.reset_peak()
        grpo.token_logprobs(h, weight, targets, 0.7)[0].sum().backward()
        peaks.append((measure.peak_bytes() - held - grad) / GB)
    return peaks


def memory(args, rest: list[str]) -> None:
    """peak memory of the log-prob pass, and that it does not grow with the tokens (minutes on a CPU)"""
    lines = []
    for tokens in (args.tokens // 4, args.tokens):
        with ProcessPoolExecutor(
            1, mp_context=SPAWN
        ) as pool:  # what a process has freed, it may still hold
            peaks = pool.submit(logprob_memory, tokens).result()
        lines.append((f"{tokens:,}", *(f"{peak:.3f}" for peak in peaks)))
    columns = "tokens | first micro-batch, GiB | one that adds to the head's gradient, GiB"
    show("Log-prob pass, 151,936 words, hidden 1,536", columns, lines)


def fits(args, rest: list[str]) -> None:
    """what each preset needs on a card, computed by formula and not measured"""
    lines = []
    for name in train.PRESETS:
        c = train.parse(["--preset", name])
        if c.model not in HUB:
            continue
        student, teacher = (Shape(model_config(HUB[m])) for m in (c.model, c.teacher_model))
        for students, teachers in ((6, 2), (1, 0)):
            setting = (student, teacher, c, students, teachers)
            line = [name, f"{students} + {teachers}", c.per_device_batch_size]
            line += [f"{x:.1f}" for x in memory_row(*setting).values()]
            for recompute in (False, True):
                most = rows_that_fit(*setting, recompute).values()
                line.append(" / ".join(map(str, most)))
            lines.append(line)
    columns = "preset | ranks | rows | masters, moments | gathered weights, sum of gradients "
    columns += "| generating copy | activations | ... recomputed | key-value cache "
    columns += "| teacher here | **student rank** | **teacher rank** "
    columns += f"| most rows on {' / '.join(map(str, CARDS))} GiB | ... recomputed"
    show("BY FORMULA (floors.memory_row), NOT MEASURED: GiB of a rank", columns, lines)
    print(
        "\nrows: per_device_batch_size, of max_prompt_tokens + max_completion_tokens tokens each. "
        "Recomputed: with\n--activation_checkpointing. 1 + 0: the teacher lives in the student's rank. "
        f"A rank may use {USABLE:.0%} of its card.\n"
        "0 rows may be the cache's doing: a smaller --max_rollout_tokens has a smaller one."
    )


def load_problems(path: Path, barrier) -> tuple[float, ...]:
    """One rank: seconds to Problems, to the first selection, of a later one; Pss and Pss_Anon in GiB.

    The memory is on top of what the process takes when it has done the same with the demo's few problems.
    """
    train.datasets.disable_progress_bars()
    config = train.parse(["--preset", "demo", "--max_prompt_tokens", "4096"])
    encode = PromptEncoder.of(config, AutoTokenizer.from_pretrained(config.model))
    teacher = SimpleNamespace(
        predict=lambda questions: np.full(len(questions), 0.25)
    )  # thinks nothing, at no cost

    def load(path: str | Path) -> tuple[np.ndarray, np.ndarray]:
        barrier.wait(600)
        times = [time.perf_counter()]
        problems = Problems(path)
        times.append(time.perf_counter())

        def fits(index: int) -> bool:
            return len(encode(problems.question(index))) <= 4096

        sampler = Goldilocks(Context(problems, config, fits, teacher))
        for _ in range(11):
            sampler.propose(config.prompts_per_step)
            times.append(time.perf_counter())
        barrier.wait(600)  # a page that several ranks map counts for each by its share
        held = [
            measure.resident(name, "/proc/self/smaps_rollup") / GB for name in ("Pss", "Pss_Anon")
        ]
        barrier.wait(600)
        return np.subtract(times, times[0]), np.array(held)

    (_, few), (times, many) = load(config.train_data), load(path)
    return times[1], times[2], np.median(np.diff(times[2:])), *(many - few)


def growth(args, rest: list[str]) -> None:
    """start, memory and cost of a proposal with millions of problems"""
    starts = []
    with tempfile.TemporaryDirectory() as folder, SPAWN.Manager() as manager:
        os.environ["HF_DATASETS_CACHE"] = (
            f"{folder}/cache"  # so that cold is cold, and nothing stays behind
        )
        path = Path(folder) / "problems.jsonl"
        measure.write_problems(path, args.problems, 50, seed=0)
        for ranks in (
            1,
            args.ranks,
        ):  # as in train.py: the first rank converts the file, then all of them load it
            barrier = manager.Barrier(ranks)
            with ProcessPoolExecutor(ranks, mp_context=SPAWN) as pool:
                runs = [pool.submit(load_problems, path, barrier) for _ in range(ranks)]
                starts.append(np.array([run.result() for run in runs]))
    (converting, *_), slowest, total = starts[0][0], starts[1].max(axis=0), starts[1].sum(axis=0)
    lines = {
        "first start, one rank: Problems (converts the file), s": converting,
        f"later starts, {args.ranks} ranks at once, slowest: to the first selection, s": slowest[1],
        "first start to first selection: both in turn, s": converting + slowest[1],
        "a later proposal, slowest rank, s": slowest[2],
        "memory of all ranks on top, mapped file included, GiB": total[3],
        "... without it, GiB": total[4],
    }
    title = f"{args.problems:,} problems of 25 to 75 words; seconds after the imports, stub teacher"
    show(title, "quantity | value", [(name, f"{value:.4f}") for name, value in lines.items()])


def scale(args, rest: list[str]) -> None:
    """`step` on 1 to 8 ranks of this machine, uniform and with the teacher"""
    columns = {}
    with tempfile.TemporaryDirectory() as folder:
        for n, sampler in itertools.product(args.ranks_list, ("uniform", "goldilocks")):
            command = [
                sys.executable,
                "-m",
                "torch.distributed.run",
                "--standalone",
                f"--nproc_per_node={n}",
                __file__,
            ]
            command += [
                "step",
                "--repeats",
                "5",
                *rest,
                "--sampler",
                sampler,
                "--json",
                f"{folder}/rows",
            ]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                said = re.findall(r"^error: (.*)", done.stderr, re.MULTILINE) or [
                    done.stderr.strip()[-300:]
                ]
                raise InputError(f"{n} ranks, {sampler}: {said[0]}")
            columns[f"{n} ranks, {sampler}"] = json.loads(Path(f"{folder}/rows").read_text())
    show_steps("Ranks share this machine's processors:", columns)


def plan(args, rest: list[str]) -> None:
    """a step on 8 to 64 GPUs, computed from assumptions and not measured"""
    lines, stops = [], []
    for name in [name for name in train.PRESETS if name in SHAPES]:
        student, teacher = (Shape(model_config(n)) for n in (name, TEACHERS.get(name, name)))
        rows = {gpus: plan_row(student, teacher, gpus, args) for gpus in (8, 16, 32, 64)}
        for gpus, row in rows.items():
            efficiency, wait = (
                rows[8]["step"] * 8 / (row["step"] * gpus),
                row.pop("wait") / row["step"],
            )
            lines.append(
                (
                    name,
                    gpus,
                    *(f"{value:.2f}" for value in row.values()),
                    f"{wait:.1%}",
                    f"{efficiency:.0%}",
                )
            )
            if efficiency < 0.5:
                stops.append(f"{name} at {gpus} ({max(('rollout', 'teacher'), key=row.get)})")
    columns = "model | GPUs | rollout | train | weights | teacher | step | wait for the teacher | efficiency"
    show("COMPUTED FROM ASSUMPTIONS, NOT MEASURED: seconds", columns, lines)
    print(f"\nAssumed: {', '.join(f'{name} {vars(args)[name]:g}' for name in ASSUMED)}.")
    print(f"Less than half as efficient as 8 GPUs (longest part): {', '.join(stops) or 'none'}.")


def count(text: str) -> int:
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value


def share(text: str) -> float:
    if not 0 <= (value := float(text)) <= 1:
        raise argparse.ArgumentTypeError(f"{value} is not in [0, 1]")
    return value


# fmt: off
STEPS = {  # flags: type, default, meaning
    "seed": (int, 0, "of models, problems and samples"),
    "repeats": (count, 10, "steps measured"),
    "shape": (str, "demo", f"demo, {', '.join(SHAPES)}, or a model's folder"),
    "layers": (count, None, "so many layers only"),
    "question_tokens": (count, 100, "mean length of made-up problems"),
    "warmup": (int, 2, "steps before those measured"),
}
COMMANDS = {
    step: STEPS | {
        "dead": (share, None, "share of dead groups by scripted rewards; None: the demo is graded, others 0.6"),
        "json": (str, None, "file for the raw numbers"),
    },
    trl: STEPS | {
        "threads": (count, 2, "of each side"),
        "trl_batch": (count, None, "TRL's per_device_train_batch_size; None: the fastest of a few"),
        "trl_python": (str, sys.executable, "a Python interpreter that has TRL"),
        "dead_shares": (share, [0.6, 0.0], "shares of dead groups"),
    },
    memory: {"tokens": (count, 4 * 3072, "response tokens: 4 rows of 3,072")},
    fits: {},
    growth: {"problems": (count, 3_200_000, "made up"), "ranks": (count, 8, "that start at once")},
    scale: {"ranks_list": (count, [1, 2, 4, 8], "numbers of ranks")},
    plan: {name: (type(value), value, meaning) for name, (value, meaning) in ASSUMED.items()},
}
# fmt: on


def arguments(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """The command with its flags, and those that it passes on."""

    class Parser(argparse.ArgumentParser):
        def error(self, message):
            raise InputError(f"{message} (see --help)")

    parser = Parser(description=__doc__.splitlines()[0], allow_abbrev=False)
    commands = parser.add_subparsers(required=True)
    for function, flags in COMMANDS.items():
        p = commands.add_parser(function.__name__, help=function.__doc__, allow_abbrev=False)
        p.set_defaults(function=function, argv=argv)
        for name, (kind, default, meaning) in flags.items():
            nargs = "+" if isinstance(default, list) else None
            p.add_argument(
                f"--{name}", type=kind, default=default, nargs=nargs, help=f"{meaning} [{default}]"
            )
    args, rest = parser.parse_known_args(argv)
    if rest and args.function not in (step, trl, scale):
        raise InputError(f"unrecognized arguments: {' '.join(rest)}")
    return args, rest


def origin(argv: list[str]) -> str:
    """Which command, machine, versions and commit the numbers above belong to."""
    cpu = re.findall(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text()) or ["CPU"]
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    git, commit = ["git", "-C", train.DEMO, "describe", "--always", "--dirty", "--exclude=*"], ""
    if shutil.which("git"):  # a machine with a card may be bare
        commit = subprocess.run(git, capture_output=True, text=True).stdout.strip()
    machine = f"{os.cpu_count()} cores {cpu[0]}{gpu}, {torch.get_num_threads()} threads a process"
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    versions += f"; commit {commit or 'unknown'}"
    return f"\n`bench.py {' '.join(argv)}`: {machine}; {versions}; medians (least to most)."


def main(argv: list[str] | None = None) -> int:
    """Returns the exit status: 0 done, 2 bad input (with one line on stderr)."""
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    train.datasets.disable_progress_bars()
    argv, speaks = sys.argv[1:] if argv is None else argv, os.environ.get("RANK", "0") == "0"
    try:
        args, rest = arguments(argv)
        args.function(args, rest)
        if speaks:
            print(origin(argv))
    except (ValueError, OSError) as error:
        if speaks:
            print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
