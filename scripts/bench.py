#!/usr/bin/env python
r"""Where the time and the memory of a step go, beside the least that this machine needs for the same work.

    python scripts/bench.py step                              # the demo, one process; under torchrun: its ranks
    torchrun --nproc_per_node 8 scripts/bench.py step --shape qwen2.5-1.5b --max_completion_tokens 2048
    python scripts/bench.py trl --trl_python trl_venv/bin/python
    python scripts/bench.py memory | growth | scale | plan

Flags that bench.py does not know go to train.py. Models of another --shape have random weights, the demo's tokenizer
and made-up problems. Every command prints Markdown; --json FILE keeps the raw numbers. /proc makes it Linux only.

`step` runs the lines of train.train. A floor is bytes over the memory bandwidth or FLOPs over the matrix rate,
whichever takes longer, both measured here by one rank alone while the others wait.

`trl` compares with TRL's GRPOTrainer (pip install as in agree_with_trl.py). Two long-lived processes take turns, one
step each, never at once: same model, prompts, samples a group, temperature, limits, learning rate and threads, float32,
beta 0; both earn the same scripted rewards at no cost, and sample with their own random numbers. TRL generates
a batch in one call; gradient checkpointing, logging, saving and shuffling are off, and of several
`per_device_train_batch_size` with the matching accumulation its fastest is taken. At one update a batch
TRL makes no second forward for old log-probs either. What it does and we do not: it forwards and backpropagates dead
groups, pads every micro-batch to the longest prompt and completion of the whole batch, computes entropies without a
use for them, and gathers metrics for its log. What we do and it does not: copy the weights into the generator.
"""

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
import torch.distributed as dist
import transformers
from transformers import AutoTokenizer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import grpo
import train
from rollout import PromptEncoder
from sampler import SAMPLERS, InputError, Problems, RemoteSampler
from scripts.floors import ASSUMED, SHAPES, TEACHERS, Machine, Shape, plan_row
from scripts.measure import (
    Scripted,
    Session,
    configure,
    make_materials,
    peak_bytes,
    resident,
    scripted_rewards,
    session,
    write_problems,
)
from teacher import serve

GB = 2**30


# ----------------------------------------------------------------------------------------------------
# Output


def spread(values: list[float], digits: int = 3) -> str:
    """median (least to most), or a dash where there is nothing."""
    if not values:
        return "-"
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def padding_share(forwarded: int, useful: int) -> float:
    """1 - useful / forwarded token positions."""
    return 1 - useful / forwarded if forwarded else 0.0


def ratios(ours: list[float], theirs: list[float]) -> list[float]:
    """ours / theirs pair by pair: what a slow moment of the machine does to both drops out."""
    return [a / b for a, b in zip(ours, theirs, strict=True)]


def imbalance(tokens: list[int]) -> float:
    """max / mean - 1 over the ranks."""
    return max(tokens) / (sum(tokens) / len(tokens)) - 1 if sum(tokens) else 0.0


def show(title: str, columns: str, rows: list[tuple]) -> None:
    """One Markdown table; `columns` as it is to appear, cells that are floats to 3 significant digits."""
    cells = [[f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in row] for row in rows]
    head = f"| {columns} |\n|{'---|' * (columns.count('|') + 1)}"
    print(f"\n{title}\n\n{head}\n" + "\n".join(f"| {' | '.join(row)} |" for row in cells), flush=True)


def finish(args, raw: dict) -> None:
    """Which machine, versions, commit and seed the numbers above belong to; and the raw numbers."""
    named = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    cpu = named[0].split(":")[1].strip() if named else platform.machine()
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    git = ["git", "-C", train.DEMO, "describe", "--always", "--dirty", "--exclude=*"]
    commit = subprocess.run(git, capture_output=True, text=True).stdout.strip() or "unknown"
    raw["machine"] = f"{os.cpu_count()} cores {cpu}{gpu}, {torch.get_num_threads()} threads a process"
    raw["versions"] = f"torch {torch.__version__}, transformers {transformers.__version__}"
    raw |= {"commit": commit, "command": " ".join(sys.argv[1:])}
    raw["flags"] = {name: value for name, value in vars(args).items() if name != "function"}
    print(
        f"\n`bench.py {raw['command']}`: {raw['machine']}; {raw['versions']}; commit {commit}; medians (least to most)."
    )
    if args.json:
        Path(args.json).write_text(json.dumps(raw, indent=1) + "\n")


# ----------------------------------------------------------------------------------------------------
# Commands

PARTS = {  # of a step, in order: what it is and what its floor counts
    "propose_s": ("propose", "wait for the teacher's answer, its scoring where it is in-process"),
    "encode_s": ("encode", "prompts to tokens"),
    "rollout_s": ("rollout", "prefill FLOPs of each prompt once + the larger of decode FLOPs and bytes"),
    "verify_s": ("verify", ""),
    "gather_s": ("gather", "wait for the slowest rollout included"),
    "observe_s": ("observe", "the teacher's learning where it is in-process"),
    "fwd_bwd_s": ("forward, backward", "3 x forward FLOPs of the live rows, no padding"),
    "optimizer_s": ("AdamW", "28 bytes a parameter of the shard"),
    "refresh_s": ("refresh the generator", "float32 weights read, copy written"),
    "seconds": ("whole step", "sum of the floors"),
}


def step(args, rest: list[str]) -> None:
    """one step by part, beside its floors; also under torchrun"""
    with session(args, rest) as s:
        cpu, every = time.process_time(), [None] * s.layout.world
        if s.layout.is_teacher:
            serve(s.sampler, train.wire_of(s.config, s.layout), s.layout.group, lambda step: None)
        else:
            machine = Machine.measure(s.layout.device) if s.layout.rank == 0 else None
            rows = [s.step() for _ in range(args.warmup + args.repeats)][args.warmup :]
            if isinstance(s.sampler, RemoteSampler):
                s.sampler.stop(finished=False)
                s.sampler = None
        # A waiting rank uses no processor: this is what a role would need with processors of its own.
        teacher_cpu = s.layout.is_teacher and (time.process_time() - cpu) / (args.warmup + args.repeats)
        dist.all_gather_object(every, teacher_cpu)
        if s.layout.rank == 0:
            finish(args, step_tables(s, rows, machine, float(max(every))))


ALSO = {  # further quantities of a step: name, digits
    "tokens_a_second": ("prompt and completion tokens a second", 0),
    "completion_tokens": ("completion tokens a step", 0),
    "dead": ("dead groups", 2),
    "live_rows": ("rows with a gradient", 0),
    "decode_ms": ("rollout by decoded position of the longest completion, ms", 2),
    "decode_floor_ms": ("... its floor, ms", 3),
    "generation_waste": ("generation: share of padding, finished rows, repeated prompts", 3),
    "training_padding": ("training: share of padding", 3),
    "matrix_share": ("forward and backward: share of the matrix rate", 3),
    "imbalance": ("positions a rank trains on, most / mean - 1, where 48 rows or more have a gradient", 3),
    "teacher_wait": ("wait for the teacher: share of the step", 3),
    "teacher_learn_s": ("teacher: seconds a step of learning", 3),
    "teacher_predict_s": ("teacher: seconds a step of scoring", 3),
    "student_cpu_s": ("CPU seconds a step, busiest student rank", 3),
    "teacher_cpu_s": ("CPU seconds a step, busiest teacher rank, warm-up included", 3),
    "peak_gib": ("peak memory of the largest student rank, GiB", 2),
}


def step_tables(s: Session, rows: list[dict], machine: Machine, teacher_cpu: float) -> dict:
    """Prints the tables of `step`; returns the raw numbers, each a list over the repeats."""
    raw = {"parts": {part: [row.get(part, 0.0) for row in rows] for part in PARTS}, "floors": [], "trained": []}
    raw |= {"machine_floor": vars(machine), "seconds": [row["seconds"] for row in rows]} | {name: [] for name in ALSO}
    raw["teacher_cpu_s"] = [teacher_cpu] if teacher_cpu else []
    for row in rows:
        floor, tokens, trained = s.floors(row, machine), row["rollouts"].total_tokens(), []
        raw["floors"].append(floor | {"seconds": sum(floor.values())})
        raw["trained"].append(trained := [rank["trained"] for rank in row["ranks"]])
        new = row["rollouts"].lengths().tolist()
        # Of use: each prompt once, and every completion but for its last token, which nothing follows.
        useful = sum(map(len, row["rollouts"].prompt_ids[:: s.config.group_size])) + sum(new) - len(new)
        values = {
            "tokens_a_second": row["total_tokens"] / row["seconds"],
            "dead": row["zero_variance"],
            "live_rows": len(row["live_rows"]),
            "decode_ms": 1000 * row["rollout_s"] / max(new),
            "decode_floor_ms": 1000 * floor["rollout_s"] / max(new),
            "generation_waste": padding_share(sum(rank["generated"] for rank in row["ranks"]), useful),
            "training_padding": padding_share(sum(trained), sum(tokens[b] for b in row["live_rows"])),
            "matrix_share": floor["fwd_bwd_s"] / row["fwd_bwd_s"],
            "teacher_wait": row["teacher_wait_s"] / row["seconds"],
            "student_cpu_s": max(rank["cpu_s"] for rank in row["ranks"]),
            "peak_gib": max(rank["peak"] for rank in row["ranks"]) / GB,
        }
        values |= {name: row[name] for name in ("completion_tokens", "teacher_learn_s", "teacher_predict_s")}
        if len(row["live_rows"]) >= 48:
            values["imbalance"] = imbalance(trained)
        for name, value in values.items():
            raw[name].append(value)
    lines = []
    for part, (name, note) in PARTS.items():
        least = statistics.median(floor.get(part, 0.0) for floor in raw["floors"])
        seconds = raw["parts"][part]
        shown = (f"{least:.2g}", f"{statistics.median(seconds) / least:.1f}") if least else ("", "")
        lines.append((name, spread(seconds, 4), *shown, note))
    ranks = f"{s.layout.n_students} student" + (f" + {s.layout.n_teachers} teacher" if s.layout.n_teachers else "")
    batch = f"{s.config.prompts_per_step} x {s.config.group_size} completions"
    title = f"{s.shape.parameters / 1e6:,.2f} M parameters, ranks: {ranks}, {batch}"
    show(title, "part | seconds | floor | x floor | what the floor counts", lines)
    speeds = f"{machine.bandwidth / 1e9:.1f} GB/s, {machine.rate / 1e9:,.0f} GFLOP/s"
    table = [(name, spread(raw[key], digits)) for key, (name, digits) in ALSO.items()]
    show("Also:", "quantity | value", [("memory bandwidth, matrix rate", speeds), *table])
    return raw


def turn(args, rest: list[str]) -> None:
    """One side of `trl`: each line on stdin, a share of dead groups, is answered by one timed step."""
    torch.set_num_threads(args.threads)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print must not mix with the answers
    if args.side == "trl":
        return trl_turns(args, rest, answers)
    with session(args, rest, grades=False) as s:
        s.student.verifier = Scripted()
        print("ready", file=answers)
        for line in sys.stdin:
            row = s.step(dead=float(line))
            print(json.dumps({key: row[key] for key in (*PARTS, "cpu_s", "completion_tokens")}), file=answers)


def trl_turns(args, rest: list[str], answers) -> None:
    """GRPOTrainer.train(), stopped at the beginning of every step until it is asked for one."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    warnings.filterwarnings("ignore")
    config = configure(args, rest)
    P, G = config.prompts_per_step, config.group_size
    state = SimpleNamespace(began=None, cpu=0.0, dead=0.0, tokens=0)

    def reward(completion_ids, **_) -> list[float]:
        state.tokens = sum(map(len, completion_ids))
        return scripted_rewards(P, G, state.dead)

    class Turns(transformers.TrainerCallback):
        def on_step_begin(self, *_, **__):
            """Between two of these lies one whole step, and fetching the prompts of the next."""
            if state.began is not None:
                row = {"seconds": time.perf_counter() - state.began, "cpu_s": time.process_time() - state.cpu}
                print(json.dumps(row | {"completion_tokens": state.tokens}), file=answers)
            else:
                print("ready", file=answers)
            line = sys.stdin.readline()
            if not line:
                sys.exit()
            state.dead, state.began, state.cpu = float(line), time.perf_counter(), time.process_time()

    with tempfile.TemporaryDirectory() as folder:
        make_materials(config, args, Path(folder))
        tokenizer, problems = AutoTokenizer.from_pretrained(config.model), Problems(config.train_data)
        encode = PromptEncoder.of(config, tokenizer)

        def fits(index: int) -> bool:
            return len(encode(problems.question(index))) <= config.max_prompt_tokens

        order = SAMPLERS["uniform"](problems, config, fits)  # the prompts of our side, in its order
        chosen = [i for _ in range(min(1000, len(problems) // P)) for i in order.propose(P).index_N]
        settings = GRPOConfig(
            str(Path(folder) / "out"),
            per_device_train_batch_size=args.trl_batch,
            gradient_accumulation_steps=P * G // args.trl_batch,
            num_generations=G,
            max_completion_length=config.max_completion_tokens,
            temperature=config.temperature,
            learning_rate=config.learning_rate,
            lr_scheduler_type="constant",
            loss_type="grpo",
            beta=0.0,
            num_train_epochs=1000,
            seed=config.seed,
            model_init_kwargs={"dtype": "float32"},
            bf16=False,
            use_cpu=not torch.cuda.is_available(),
            gradient_checkpointing=False,
            shuffle_dataset=False,
            report_to="none",
            logging_strategy="no",
            save_strategy="no",
            disable_tqdm=True,
        )
        rows = Dataset.from_list([{"prompt": encode.text(problems.question(i))} for i in chosen])
        callbacks = [Turns()]
        GRPOTrainer(config.model, reward, settings, rows, processing_class=tokenizer, callbacks=callbacks).train()


class Worker:
    """A long-lived `bench.py turn` that does one step when asked."""

    def __init__(self, args, rest: list[str], side: str, trl_batch: int = 1):
        python = args.trl_python if side == "trl" else sys.executable
        env = os.environ | {"OMP_NUM_THREADS": str(args.threads), "HF_HUB_OFFLINE": "1"}
        own = {name: value for name, value in vars(args).items() if name != "function"}
        own |= {"side": side, "trl_batch": trl_batch, "dead": None}
        command = [python, __file__, "turn", json.dumps(own), *rest]
        self.side, self.log = side, tempfile.TemporaryFile("w+")  # noqa: SIM115
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self.log, "text": True}
        try:
            self.process = subprocess.Popen(command, env=env, **pipes)
        except OSError as error:
            raise InputError(f"--trl_python {python}: {error.strerror}") from error
        self._answer()

    def step(self, dead: float) -> dict:
        self.process.stdin.write(f"{dead}\n")
        self.process.stdin.flush()
        return json.loads(self._answer())

    def _answer(self) -> str:
        if line := self.process.stdout.readline():
            return line
        self.log.seek(0)
        last = (self.log.read().strip().splitlines() or ["nothing on stderr"])[-1]
        raise InputError(f"the {self.side} side ended with status {self.process.wait()}: {last}")

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_) -> None:
        self.process.stdin.close()
        self.process.wait()


def trl(args, rest: list[str]) -> None:
    """our step against that of TRL's GRPOTrainer, in turns"""
    rest = [*rest, "--sampler", "uniform"]
    if "--learning_rate" not in rest:
        rest += ["--learning_rate", "1e-6"]  # scripted rewards teach nothing: the model should stay what it is
    config = configure(args, rest)
    B, fastest = config.prompts_per_step * config.group_size, {}
    for size in [args.trl_batch] if args.trl_batch else sorted({B // n for n in (1, 3, 8, 24) if B % n == 0}):
        with Worker(args, rest, "trl", size) as theirs:
            theirs.step(0.0)
            fastest[size] = min(theirs.step(0.0)["seconds"] for _ in range(3))
    trl_batch = min(fastest, key=fastest.get)
    print("TRL, seconds by per_device_train_batch_size: " + ", ".join(f"{k}: {v:.2f}" for k, v in fastest.items()))
    raw, lines = {"trl_batch": fastest}, []
    with Worker(args, rest, "ours") as ours, Worker(args, rest, "trl", trl_batch) as theirs:
        pairs: dict[float, tuple[list, list]] = {dead: ([], []) for dead in args.dead_shares}
        for i in range(-args.warmup, args.repeats):
            for dead, sides in pairs.items():
                turns = list(zip((ours, theirs), sides, strict=True))
                for worker, done in turns if i % 2 else turns[::-1]:
                    row = worker.step(dead)
                    if i >= 0:
                        done.append(row)
    for dead, (a, b) in pairs.items():
        seconds, cpu, tokens = (
            [[row[k] for row in x] for x in (a, b)] for k in ("seconds", "cpu_s", "completion_tokens")
        )
        raw[f"dead {dead}"] = {"ours": a, "trl": b, "ratio": (ratio := ratios(*seconds))}
        target = "at most 0.5" if dead >= 0.6 else "at most 0.8" if dead == 0 else ""
        columns = spread(ratio), target, spread(ratios(*cpu))
        lines.append((f"{dead:.0%}", *map(spread, seconds), *columns, *(spread(t, 0) for t in tokens)))
    columns = "dead groups | ours, s | TRL, s | ours / TRL, paired | target | the same in CPU seconds"
    columns += " | tokens, ours | tokens, TRL"
    show(f"{args.shape}, {B} completions, TRL's micro-batch {trl_batch}", columns, lines)
    parts = [
        (PARTS[part][0], *(spread([row.get(part, 0.0) for row in a], 4) for a, _ in pairs.values())) for part in PARTS
    ]
    show("Our seconds by part:", "part | " + " | ".join(f"{dead:.0%} dead" for dead in pairs), parts)
    finish(args, raw)


def logprob_memory(tokens: int, hidden: int, vocabulary: int) -> list[int]:
    """Bytes above weight, weight.grad and hidden states: of a first micro-batch, and of one that adds to .grad.

    Counted are the logits, the gradient of the hidden states and, in the second, the weight's gradient on its own.
    """
    device, dtype = ("cuda", torch.bfloat16) if torch.cuda.is_available() else ("cpu", torch.float32)
    weight = torch.randn(vocabulary, hidden, device=device, dtype=dtype).requires_grad_()
    peaks = []
    for _ in range(2):
        h = torch.randn(tokens, hidden, device=device, dtype=dtype).requires_grad_()
        targets = torch.randint(vocabulary, (tokens,), device=device)
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            held = torch.cuda.memory_allocated()
        else:
            Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts again
            held = resident("VmRSS")
        if weight.grad is None:
            held += weight.nbytes
        grpo.token_logprobs(h, weight, targets, 0.7)[0].sum().backward()
        peaks.append(peak_bytes() - held)
    return peaks


def memory(args, rest: list[str]) -> None:
    """peak memory of the log-prob pass, and that it does not grow with the tokens (minutes on a CPU)"""
    cases = [args.tokens // 4, args.tokens]
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, max_tasks_per_child=1) as pool:
        peaks = [pool.submit(logprob_memory, n, args.hidden, args.vocabulary).result() for n in cases]
    lines = [(f"{n:,}", *(f"{peak / GB:.3f}" for peak in pair)) for n, pair in zip(cases, peaks, strict=True)]
    title = f"Log-prob pass, {args.vocabulary:,} words, hidden {args.hidden:,} (target at {args.tokens:,}: 1 GiB)"
    show(title, "tokens | first micro-batch, GiB | one that adds to a gradient, GiB", lines)
    finish(args, {"tokens": cases, "bytes": peaks})


class NoTeacher:
    """A teacher that thinks nothing, at no cost."""

    def predict(self, questions: list[str]) -> np.ndarray:
        return np.full(len(questions), 0.25)


def load_problems(path: Path, repeats: int, barrier) -> tuple[float, ...]:
    """One rank's start: seconds to Problems, to the first selection, of a later one; Pss and Pss_Anon in bytes."""
    train.datasets.disable_progress_bars()
    config = train.parse(["--preset", "demo", "--max_prompt_tokens", "4096"])
    encode = PromptEncoder.of(config, AutoTokenizer.from_pretrained(config.model))
    encode("Start")
    barrier.wait(600)
    times = [time.perf_counter()]
    problems = Problems(path)
    times.append(time.perf_counter())

    def fits(index: int) -> bool:
        return len(encode(problems.question(index))) <= config.max_prompt_tokens

    sampler = SAMPLERS["goldilocks"](problems, config, fits, NoTeacher())
    for _ in range(1 + repeats):
        sampler.propose(config.prompts_per_step)
        times.append(time.perf_counter())
    barrier.wait(600)
    memory = [resident(name, "/proc/self/smaps_rollup") for name in ("Pss", "Pss_Anon")]
    barrier.wait(600)
    return times[1] - times[0], times[2] - times[0], statistics.median(np.diff(times[2:])), *memory


def on_processes(n: int, path: Path, repeats: int) -> list[tuple]:
    """load_problems on n processes at once."""
    spawn = multiprocessing.get_context("spawn")
    with spawn.Manager() as manager, ProcessPoolExecutor(n, mp_context=spawn) as pool:
        barrier = manager.Barrier(n)
        return [f.result() for f in [pool.submit(load_problems, path, repeats, barrier) for _ in range(n)]]


def growth(args, rest: list[str]) -> None:
    """start, memory and cost of a proposal with millions of problems"""
    raw, lines = {}, []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HF_DATASETS_CACHE"] = f"{folder}/cache"  # so that cold is cold, and nothing stays behind
        for n in (1_000, args.problems):
            path = Path(folder) / f"{n}.jsonl"
            write_problems(path, n, args.question_tokens, args.seed)
            cold, warm = on_processes(1, path, args.repeats)[0], on_processes(args.ranks, path, args.repeats)
            raw[n] = {"bytes": path.stat().st_size, "cold": cold, "warm": warm}
    for title, value in [
        ("first start, one rank: Problems (converts the file), s", lambda r: r["cold"][0]),
        (f"later starts, {args.ranks} ranks at once, slowest: Problems, s", lambda r: max(w[0] for w in r["warm"])),
        ("... to the first selection, s", lambda r: max(w[1] for w in r["warm"])),
        ("first start to first selection, as in train.py: both in turn, s (target: 20)", lambda r: r["total"]),
        ("a later proposal, slowest rank, s", lambda r: max(w[2] for w in r["warm"])),
        ("memory of all ranks, mapped file included, GiB (target: +1)", lambda r: sum(w[3] for w in r["warm"]) / GB),
        ("... without it, GiB (target: +1)", lambda r: sum(w[4] for w in r["warm"]) / GB),
    ]:
        for r in raw.values():
            r["total"] = r["cold"][0] + max(w[1] for w in r["warm"])
        small, large = (value(r) for r in raw.values())
        lines.append((title, f"{small:.4f}", f"{large:.4f}", f"{large - small:+.4f}"))
    size = raw[args.problems]["bytes"] / GB
    title = f"{args.problems:,} problems, {size:.2f} GiB of JSONL; seconds after the imports, stub teacher"
    show(title, f"quantity | 1,000 | {args.problems:,} | difference", lines)
    finish(args, raw)


def scale(args, rest: list[str]) -> None:
    """`step` on 1 to 8 ranks of this machine, uniform and with the teacher"""
    raw, lines = {}, []
    with tempfile.TemporaryDirectory() as folder:
        for n in args.ranks_list:
            for sampler in ("uniform", "goldilocks"):
                out = Path(folder) / "raw.json"
                command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={n}"]
                command += [__file__, "step", "--json", str(out), "--sampler", sampler, *rest]
                for name in ("shape", "layers", "question_tokens", "warmup", "dead", "repeats"):
                    value = getattr(args, name)
                    command += [] if value is None else [f"--{name}", str(value)]
                done = subprocess.run(command, capture_output=True, text=True)
                if done.returncode:
                    said = [line for line in done.stderr.splitlines() if line.startswith("error:")]
                    raise InputError(f"{n} ranks, {sampler}: {said[0] if said else done.stderr.strip()[-300:]}")
                r = raw[f"{n} {sampler}"] = json.loads(out.read_text())
                tokens = [statistics.median(step) for step in zip(*r["trained"], strict=True)]
                student = statistics.median(r["student_cpu_s"])
                teacher = max(r["teacher_cpu_s"], default=0.0)
                alone = f"{max(0.0, 1 - student / teacher):.1%}" if teacher else "-"
                busy = f"{student:.3f}", f"{teacher:.3f}", alone
                least_most = f"{min(tokens):,.0f} to {max(tokens):,.0f}"
                wait = f"{statistics.median(r['teacher_wait']):.1%}"
                lines.append((n, sampler, spread(r["seconds"]), least_most, spread(r["imbalance"]), wait, *busy))
    columns = "ranks | sampler | step, s | positions a student rank trains on | longest / mean - 1 | teacher wait"
    columns += " | CPU s, student rank | CPU s, teacher rank | wait with processors of their own"
    show(f"{args.shape}: ranks share this machine's processors", columns, lines)
    finish(args, raw)


def plan(args, rest: list[str]) -> None:
    """a step on 8 to 64 GPUs, computed from assumptions and not measured"""
    raw, lines, stops = {}, [], []
    for name in [name for name in train.PRESETS if name in SHAPES]:
        student, teacher = (Shape(*SHAPES[n][1:]) for n in (name, TEACHERS.get(name, name)))
        for gpus in args.gpus:
            r = raw[f"{name} {gpus}"] = plan_row(student, teacher, gpus, args)
            first = raw[f"{name} {args.gpus[0]}"]["step"] * args.gpus[0]
            seconds = [f"{value:.2f}" for name, value in r.items() if name != "wait"]
            efficiency = first / (r["step"] * gpus)
            lines.append((name, gpus, *seconds, f"{r['wait'] / r['step']:.1%}", f"{efficiency:.0%}"))
            longest = max(("rollout", "teacher"), key=r.get)
            stops += [f"{name} at {gpus} ({longest})"] * (efficiency < 0.5)
    columns = "model | GPUs | rollout | eager | train | weights | teacher | step | step, eager"
    columns += " | wait for the teacher | efficiency"
    show("COMPUTED FROM ASSUMPTIONS, NOT MEASURED: seconds", columns, lines)
    print(f"\nAssumed: {', '.join(f'{name} {vars(args)[name]:g}' for name in ASSUMED)}.")
    print(f"Less than half as efficient as {args.gpus[0]} GPUs (longest part): {', '.join(stops) or 'none'}.")
    finish(args, raw)


def arguments() -> argparse.ArgumentParser:
    class Parser(argparse.ArgumentParser):
        def error(self, message):
            raise InputError(f"{message} (see --help)")

    parser = Parser(description=__doc__.splitlines()[0], allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)

    def command(function, repeats: int = 0, shape: bool = False):
        text = function.__doc__
        p = commands.add_parser(function.__name__, help=text, description=text, allow_abbrev=False)
        p.set_defaults(function=function)
        flag = p.add_argument
        flag("--json", help="file for the raw numbers")
        if repeats:
            flag("--seed", type=int, default=0, help="of models, problems and samples [%(default)s]")
            flag("--repeats", type=positive, default=repeats, help="measured repeats [%(default)s]")
        if shape:
            flag("--shape", default="demo", help=f"demo, {', '.join(SHAPES)}, or a model's folder [%(default)s]")
            flag("--layers", type=positive, help="so many layers only")
            flag("--question_tokens", type=positive, default=100, help="mean length of made-up problems [%(default)s]")
            flag("--warmup", type=int, default=2, help="steps before those measured [%(default)s]")
        return flag

    dead = {"type": share, "help": "share of dead groups, by scripted rewards [demo: graded; others 0.6]"}
    command(step, 10, shape=True)("--dead", **dead)
    flag = command(trl, 10, shape=True)
    flag("--threads", type=positive, default=2, help="of each side [%(default)s]")
    flag("--trl_batch", type=positive, help="TRL's per_device_train_batch_size [the fastest of a few]")
    flag("--trl_python", default=sys.executable, help="a Python interpreter that has TRL [this one]")
    flag("--dead_shares", type=share, nargs="+", default=[0.6, 0.0], help="shares of dead groups [0.6 0.0]")
    flag = command(memory)
    flag("--tokens", type=positive, default=4 * 3072, help="response tokens [%(default)s: 4 rows of 3,072]")
    flag("--hidden", type=positive, default=1536, help="[%(default)s]")
    flag("--vocabulary", type=positive, default=151_936, help="[%(default)s]")
    flag = command(growth, 10)
    flag("--problems", type=positive, default=3_200_000, help="[%(default)s]")
    flag("--question_tokens", type=positive, default=50, help="mean words of a problem, 5 letters each [%(default)s]")
    flag("--ranks", type=positive, default=8, help="[%(default)s]")
    flag = command(scale, 5, shape=True)
    flag("--dead", **dead)
    flag("--ranks_list", type=positive, nargs="+", default=[1, 2, 4, 8], help="[1 2 4 8]")
    flag = command(plan)
    for name, (value, meaning) in ASSUMED.items():
        flag(f"--{name}", type=type(value), default=value, help=f"{meaning} [{value:g}]")
    flag("--gpus", type=positive, nargs="+", default=[8, 16, 32, 64], help="[8 16 32 64]")
    return parser


def positive(text: str) -> int:
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value


def share(text: str) -> float:
    if not 0 <= (value := float(text)) <= 1:
        raise argparse.ArgumentTypeError(f"{value} is not in [0, 1]")
    return value


def main(argv: list[str] | None = None) -> int:
    """Returns the exit status: 0 done, 2 bad input (with one line on stderr)."""
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    train.datasets.disable_progress_bars()
    try:
        argv = sys.argv[1:] if argv is None else argv
        if argv[:1] == ["turn"]:  # of `trl`: its own arguments, then train.py's
            turn(SimpleNamespace(**json.loads(argv[1])), argv[2:])
            return 0
        args, rest = arguments().parse_known_args(argv)
        if hasattr(args, "shape"):
            rest = [*rest, "--seed", str(args.seed)]
        elif rest:
            raise InputError(f"unrecognized arguments: {' '.join(rest)}")
        args.function(args, rest)
    except (ValueError, OSError) as error:
        if int(os.environ.get("RANK", 0)) == 0:
            print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
