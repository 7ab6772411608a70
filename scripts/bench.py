"""Where the time of a step goes, beside the least that this machine needs for the same work.

    python -m scripts.bench step                  # the demo, one process; under torchrun: its ranks
    torchrun --nproc_per_node 8 -m scripts.bench step --shape qwen2.5-1.5b
    python -m scripts.bench trl --repeats 10      # where TRL is installed: see agree_with_trl.py
    python -m scripts.bench fits

Flags that `step` and `trl` do not know go to train.py. Models of another --shape have random
weights, the demo's tokenizer and made-up problems. Tables are Markdown; /proc makes it Linux only.

A floor is bytes over the memory bandwidth or FLOPs over the matrix rate, whichever takes longer,
both measured here by one rank alone while the others wait.

`trl` compares train_step with TRL's GRPOTrainer, which runs in a process of its own. They take
turns, one step each, never at once: same model, prompts, samples a group, temperature, limits,
learning rate and threads, float32, beta 0, scripted rewards at no cost; each samples with its own
random numbers. TRL generates a batch in one call, without gradient checkpointing, logging, saving
or shuffling; at one update a batch it makes no second forward for old log-probs either. What it
does and we do not: it forwards and backpropagates dead groups, pads every micro-batch to the
longest prompt and completion of the whole batch, computes entropies without a use for them, and
gathers metrics for its log. What we do and it does not: copy the weights into the generator.
"""

import itertools
import multiprocessing
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from contextlib import closing, contextmanager
from pathlib import Path

import torch
import transformers
from transformers import AutoTokenizer

import train
from plumbing.errors import InputError
from plumbing.flags import Parser, count, natural, share
from plumbing.problems import Problems
from plumbing.ranks import Layout, begin_process, refuse
from rollout import PromptEncoder
from scripts import measure
from scripts.floors import (
    CARDS,
    HUB,
    SHAPES,
    USABLE,
    Machine,
    Shape,
    floors,
    memory_row,
    model_config,
    rows_that_fit,
)

SPAWN = multiprocessing.get_context("spawn")
QUANTITIES = {  # of a step: name, digits
    "teacher_wait_s": ("wait for the teacher, or its work where it is in-process, s", 4),
    "rollout_s": ("rollout, s; floor: FLOPs, or weights and cache at each position", 4),
    "verify_s": ("verify, s", 4),
    "gather_s": ("gather: wait for the slowest rollout, s", 4),
    "train_s": ("train, s; floor: FLOPs of live rows; AdamW, and refreshing the generator", 4),
    "seconds": ("**whole step**, s; floor: their sum", 4),
    "tokens_a_second": ("prompt and completion tokens a second", 0),
    "completion_tokens": ("completion tokens", 0),
    "zero_variance": ("dead groups", 2),
    "forwarded_rows": ("rows with a gradient", 0),
    "position_ms": ("rollout by decoded position of the longest completion, ms", 2),
    "cpu_s": ("CPU seconds, busiest student rank", 3),
    "peak_gib": ("peak memory of the largest student rank, GiB", 2),
}


def spread(values: list[float | None], digits: int = 3) -> str:
    """median (least to most), or a dash where there is nothing."""
    if not (values := [value for value in values if value is not None]):
        return "-"
    ends = f"{min(values):.{digits}f} to {max(values):.{digits}f}"
    return f"{statistics.median(values):.{digits}f} ({ends})"


def show(title: str, columns: str, lines: list[tuple]) -> None:
    """One Markdown table; `columns` as it is to appear."""
    head = f"| {columns} |\n|{'---|' * (columns.count('|') + 1)}"
    body = "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)
    print(f"\n{title}\n\n{head}\n{body}", flush=True)


def show_steps(title: str, columns: dict[str, list[dict]]) -> None:
    """What is known of QUANTITIES: a column for each list of rows, medians over the list."""
    lines = []
    for key, (name, digits) in QUANTITIES.items():
        line = [spread([row.get(key) for row in rows], digits) for rows in columns.values()]
        if set(line) != {"-"}:
            lines.append((name, *line))
    show(title, " | ".join(["of a step", *columns]), lines)


def step(args, rest: list[str]) -> list[dict]:
    """one step by part, beside its floors; also under torchrun"""
    # Random weights earn nothing.
    dead = 0.6 if args.dead is None and args.shape != "demo" else args.dead
    with measure.ready(args, rest) as (config, layout, verifier):
        cuda, n = layout.device.type == "cuda", layout.n_students
        machine = Machine.measure(cuda) if layout.rank == 0 else None
        layout.gather(None)  # the others wait
        with closing(measure.rows(config, layout, verifier, [dead])) as taken:
            rows = list(itertools.islice(taken, args.warmup, args.warmup + args.repeats))
        shape = Shape(model_config(config.model))
    if layout.rank:
        return rows
    least, over, G = [], [], config.group_size
    for row in rows:
        floor = floors(shape, machine, *row["rows"], G, n, size=2 if cuda else 4)
        least.append(floor | {"seconds": sum(floor.values())})
        over.append({key: row[key] / value for key, value in least[-1].items() if value})
    title = f"{shape.parameters / 1e6:,.2f} M parameters, {config.prompts_per_step} x {G} "
    title += f"completions, ranks: {n} student + {layout.n_teachers} teacher; memory bandwidth "
    title += f"{machine.bandwidth / 1e9:.1f} GB/s, matrix rate {machine.rate / 1e9:,.0f} GFLOP/s"
    show_steps(title, {"measured": rows, "floor": least, "x floor": over})
    return rows


def trl_side(pipe, args, rest: list[str]) -> None:
    """GRPOTrainer.train() in a process of its own: sends the row of a step, and waits for word."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    begin_process()
    warnings.filterwarnings("ignore")  # of settings that transformers has renamed
    torch.set_num_threads(args.threads)
    config, shares, row = measure.configure(args.shape, rest), itertools.cycle(args.dead_shares), {}
    P, G = config.prompts_per_step, config.group_size

    def reward(completion_ids, **_) -> list[float]:
        row["completion_tokens"] = sum(map(len, completion_ids))
        return measure.scripted_rewards(P, G, next(shares))

    class Turns(transformers.TrainerCallback):
        began = None

        def on_step_begin(self, *_, **__):
            """Between two of these lies one whole step, and fetching the prompts of the next."""
            if self.began:
                row["seconds"] = time.perf_counter() - self.began[0]
                row["cpu_s"] = time.process_time() - self.began[1]
                pipe.send(row)
                pipe.recv()
            self.began = time.perf_counter(), time.process_time()

    with tempfile.TemporaryDirectory() as folder:
        measure.make_materials(config, args, Path(folder))
        problems, tokenizer = (
            Problems(config.train_data),
            AutoTokenizer.from_pretrained(config.model),
        )
        encode = PromptEncoder.of(config, tokenizer)
        # Our prompts, in our order.
        order = train.build_sampler(config, Layout(config), problems)
        chosen = [i for _ in range(min(1000, len(problems) // P)) for i in order.propose(P).index_N]
        rows = Dataset.from_list([{"prompt": encode.text(problems.question(i))} for i in chosen])
        settings = {name: getattr(config, name) for name in ("seed", "temperature")}
        settings |= {"learning_rate": config.learning_rate, "lr_scheduler_type": "constant"}
        settings |= {"num_generations": G, "max_completion_length": config.max_completion_tokens}
        settings |= {"per_device_train_batch_size": args.trl_batch, "num_train_epochs": 1000}
        settings |= {"gradient_accumulation_steps": P * G // args.trl_batch, "beta": 0.0}
        settings |= {"model_init_kwargs": {"dtype": "float32"}, "bf16": False, "loss_type": "grpo"}
        settings |= {"gradient_checkpointing": False, "use_cpu": not torch.cuda.is_available()}
        settings |= {"logging_strategy": "no", "save_strategy": "no", "report_to": "none"}
        settings |= {"shuffle_dataset": False, "disable_tqdm": True}
        how = {"processing_class": tokenizer, "callbacks": [Turns()]}
        GRPOTrainer(config.model, reward, GRPOConfig(folder, **settings), rows, **how).train()


@contextmanager
def trl_rows(args, rest: list[str]):
    """TRL's side as an iterator: next() has it take one step, and returns the row of it."""
    mine, other = SPAWN.Pipe()
    process = SPAWN.Process(target=trl_side, args=(other, args, rest))
    process.start()
    other.close()

    def rows():
        while True:
            try:
                yield mine.recv()
            except EOFError as error:
                raise InputError("TRL's side ended: it says above why") from error
            mine.send("go on")

    try:
        yield rows()
    finally:
        process.kill()
        process.join()


def trl(args, rest: list[str]) -> None:
    """our step against that of TRL's GRPOTrainer, in turns"""
    # Scripted rewards teach nothing: the model should stay what it is.
    rest = ["--learning_rate", "1e-6", *rest, "--sampler", "uniform"]
    shares, pairs = args.dead_shares, []
    with trl_rows(args, rest) as theirs, measure.ready(args, rest, reads=False) as setting:
        for _ in shares:  # it takes its first step unasked: nothing else is done meanwhile
            next(theirs)
        torch.set_num_threads(args.threads)
        with closing(measure.rows(*setting, shares)) as ours:
            for i, _ in itertools.product(range(args.warmup + args.repeats), shares):
                if i % 2:  # who comes first changes from round to round
                    their, our = next(theirs), next(ours)
                else:
                    our, their = next(ours), next(theirs)
                # Pair by pair: what a slow moment of the machine does to both drops out.
                pairs.append((our, their, {k: our[k] / their[k] for k in their}))
    columns = {}
    for i, dead in enumerate(shares):
        sides = zip(*pairs[args.warmup * len(shares) + i :: len(shares)], strict=True)
        for side, rows in zip(("ours", "TRL", "ours / TRL, pairs"), sides, strict=True):
            columns[f"{side}, {dead:.0%} dead"] = rows
    B = setting[0].prompts_per_step * setting[0].group_size
    show_steps(f"{args.shape}, {B} completions, TRL's micro-batch {args.trl_batch}", columns)


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
                line.append(" / ".join(map(str, rows_that_fit(*setting, recompute).values())))
            lines.append(line)
    columns = "preset | ranks | rows | masters, moments | gathered weights, sum of gradients "
    columns += "| generating copy | activations | ... recomputed | key-value cache "
    columns += "| teacher here | **student rank** | **teacher rank** "
    columns += f"| most rows on {' / '.join(map(str, CARDS))} GiB | ... recomputed"
    show("BY FORMULA (floors.memory_row), NOT MEASURED: GiB of a rank", columns, lines)
    print(
        "\nrows: per_device_batch_size, of max_prompt_tokens + max_completion_tokens tokens each. "
        "Recomputed: with\n--activation_checkpointing. 1 + 0: the teacher lives in the student's "
        f"rank. A rank may use {USABLE:.0%} of its card.\n"
        "0 rows may be the cache's doing: a smaller --max_rollout_tokens has a smaller one."
    )


def arguments(argv: list[str]) -> tuple:
    """The command with its flags, and those that it passes on."""
    parser = Parser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in (step, trl, fits):
        p = commands.add_parser(command.__name__, help=command.__doc__)
        p.set_defaults(command=command)

        def flag(name, default, help, type=count, p=p, **more):
            p.add_argument(name, default=default, help=f"{help} [{default}]", type=type, **more)

        if command is not fits:
            shapes = f"demo, {', '.join(SHAPES)}, or a model's folder"
            flag("--shape", "demo", shapes, str)
            flag("--question_tokens", 100, "mean length of made-up problems")
            flag("--repeats", 10, "steps measured")
            flag("--warmup", 2, "steps before those measured", natural)
        if command is step:
            flag("--dead", None, "share of dead groups by script; the demo is graded", share)
        if command is trl:
            flag("--threads", 2, "of each side")
            flag("--trl_batch", 96, "TRL's per_device_train_batch_size")
            flag("--dead_shares", [0.6, 0.0], "shares of dead groups", share, nargs="+")
    args, rest = parser.parse_known_args(argv)
    if rest and args.command is fits:
        raise InputError(f"unrecognized arguments: {' '.join(rest)}")
    return args, rest


def origin(argv: list[str]) -> str:
    """Which command, machine, versions and commit the numbers above belong to."""
    cpu = re.findall(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text()) or ["CPU"]
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    git, commit = ["git", "-C", measure.TOKENIZER, "describe", "--always", "--dirty"], ""
    if shutil.which("git"):  # a machine with a card may be bare
        commit = subprocess.run(git, capture_output=True, text=True).stdout.strip()
    machine = f"{os.cpu_count()} cores {cpu[0]}{gpu}, {torch.get_num_threads()} threads a process"
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    versions += f"; commit {commit or 'unknown'}"
    return f"\n`bench {' '.join(argv)}`: {machine}; {versions}; medians (least to most)."


def main(argv: list[str] | None = None) -> int:
    """Returns the exit status: 0 done, 2 bad input (with one line on stderr)."""
    begin_process()
    argv = sys.argv[1:] if argv is None else argv
    try:
        args, rest = arguments(argv)
        args.command(args, rest)
    except (ValueError, OSError) as error:
        return refuse(error)
    if os.environ.get("RANK", "0") == "0":
        print(origin(argv))
    return 0


if __name__ == "__main__":
    sys.exit(main())
