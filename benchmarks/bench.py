"""Where the time of a step goes, beside the least that this machine needs for the same work.

    python -m benchmarks.bench step                  # the demo, one process; under torchrun: its ranks
    torchrun --nproc_per_node 8 -m benchmarks.bench step --shape qwen2.5-1.5b
    python -m benchmarks.bench trl --repeats 10      # where TRL is installed: see agree_with_trl.py
    python -m benchmarks.bench fits
    python -m benchmarks.bench nodes

Flags that `step` and `trl` do not know go to train.py. Models of another --shape have random
weights, the demo's tokenizer and made-up problems. Quantities are those of metrics.jsonl, and CPU
seconds and memory of the student rank that takes most. /proc makes it Linux only.

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
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import torch
import transformers
from transformers import AutoTokenizer

import train
from benchmarks import measure, roofline
from benchmarks.memory import USABLE, Shape, memory_row
from plumbing.command_line import Parser, count, natural, share
from plumbing.distributed.layout import Layout, begin_process, reject
from plumbing.errors import InputError
from plumbing.problems import Problems
from rollout import PromptEncoder
from scripts.analysis import table

SPAWN = multiprocessing.get_context("spawn")
DEAD = (0.6, 0.0)  # shares of dead groups that `trl` compares at
QUANTITIES = ("teacher_wait_s", "rollout_s", "verify_s", "gather_s", "train_s", "seconds")
QUANTITIES += ("tokens_a_second", "completion_tokens", "zero_variance", "forwarded_rows")
QUANTITIES += ("cpu_s", "peak_gib")


def spread(values: list[float]) -> str:
    """median (least to most), or a dash where there is nothing."""
    ends = "{:.4g} ({:.4g} to {:.4g})"
    return ends.format(statistics.median(values), min(values), max(values)) if values else "-"


def show_steps(title: str, columns: dict[str, list[dict]]) -> None:
    """What is known of QUANTITIES: a column for each list of rows, medians over the list."""
    rows = []
    for name in QUANTITIES:
        cells = [spread([row[name] for row in of if name in row]) for of in columns.values()]
        if set(cells) != {"-"}:
            rows.append([name, *cells])
    print(table(title, ["of a step", *columns], rows), flush=True)


def step(args, rest: list[str]) -> list[dict]:
    """one step by part, beside its floors; also under torchrun"""
    # Random weights earn nothing.
    dead = 0.6 if args.dead is None and args.shape != "demo" else args.dead
    with measure.ready(args, rest) as (config, layout, verifier):
        cuda, n = layout.device.type == "cuda", layout.n_students
        machine = roofline.Machine.measure(cuda) if layout.rank == 0 else None
        layout.gather(None)  # the others wait
        with closing(measure.rows(config, layout, verifier, [dead])) as taken:
            rows = list(itertools.islice(taken, args.warmup, args.warmup + args.repeats))
        shape = Shape(roofline.model_config(config.model))
    if layout.rank:
        return rows
    least, over, G = [], [], config.group_size
    for row in rows:
        floor = roofline.floors(shape, machine, *row["rows"], G, n, size=2 if cuda else 4)
        least.append(floor | {"seconds": sum(floor.values())})
        over.append({key: row[key] / value for key, value in least[-1].items() if value})
    title = f"{shape.parameters / 1e6:,.2f} M parameters, {config.prompts_per_step} x {G} "
    title += f"completions, ranks: {n} student + {layout.n_teachers} teacher; "
    title += f"{machine.bandwidth / 1e9:.1f} GB/s, {machine.rate / 1e9:,.0f} GFLOP/s"
    show_steps(title, {"measured": rows, "floor": least, "x floor": over})
    return rows


def trl_side(pipe, args, rest: list[str]) -> None:
    """GRPOTrainer.train() in a process of its own: sends the row of a step, and waits for word."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    begin_process()
    warnings.filterwarnings("ignore")  # of settings that transformers has renamed
    config, shares, row = measure.configure(args.shape, rest), itertools.cycle(DEAD), {}
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
        problems = Problems(config.train_data)
        tokenizer = AutoTokenizer.from_pretrained(config.model)
        encode = PromptEncoder.of(config, tokenizer)
        # Our prompts, in our order.
        order = train.build_sampler(config, Layout(config), problems)
        chosen = [i for _ in range(min(1000, len(problems) // P)) for i in order.propose(P).index_N]
        rows = Dataset.from_list([{"prompt": encode.text(problems.question(i))} for i in chosen])
        same = ("seed", "temperature", "learning_rate")
        settings = {name: getattr(config, name) for name in same} | {"beta": 0.0, "bf16": False}
        settings |= {"num_generations": G, "max_completion_length": config.max_completion_tokens}
        settings |= {"per_device_train_batch_size": args.trl_batch, "num_train_epochs": 1000}
        settings |= {"gradient_accumulation_steps": P * G // args.trl_batch, "loss_type": "grpo"}
        settings |= {"model_init_kwargs": {"dtype": "float32"}, "lr_scheduler_type": "constant"}
        settings |= {"gradient_checkpointing": False, "use_cpu": not torch.cuda.is_available()}
        settings |= {"logging_strategy": "no", "save_strategy": "no", "report_to": "none"}
        settings |= {"shuffle_dataset": False, "disable_tqdm": True}
        how = {"processing_class": tokenizer, "callbacks": [Turns()]}
        GRPOTrainer(config.model, reward, GRPOConfig(folder, **settings), rows, **how).train()


def trl_rows(args, rest: list[str]):
    """TRL's side as an iterator: next() has it take one step, and returns the row of it."""
    mine, other = SPAWN.Pipe()
    process = SPAWN.Process(target=trl_side, args=(other, args, rest))
    process.start()
    other.close()
    try:
        while True:
            yield mine.recv()
            mine.send("go on")
    except EOFError as error:
        raise InputError("TRL's side ended: it says above why") from error
    finally:
        process.kill()
        process.join()


def trl(args, rest: list[str]) -> None:
    """our step against that of TRL's GRPOTrainer, in turns"""
    # Scripted rewards teach nothing: the model should stay what it is.
    rest, pairs = ["--learning_rate", "1e-6", *rest, "--sampler", "uniform"], []
    ready = measure.ready(args, rest, reads=False)
    with closing(trl_rows(args, rest)) as theirs, ready as setting:
        for _ in DEAD:  # it takes its first step unasked: nothing else is done meanwhile
            next(theirs)
        with closing(measure.rows(*setting, DEAD)) as ours:
            for i, _ in itertools.product(range(args.warmup + args.repeats), DEAD):
                if i % 2:  # who comes first changes from round to round
                    their, our = next(theirs), next(ours)
                else:
                    our, their = next(ours), next(theirs)
                # Pair by pair: what a slow moment of the machine does to both drops out.
                pairs.append((our, their, {k: our[k] / their[k] for k in their}))
    columns = {}
    for i, dead in enumerate(DEAD):
        sides = zip(*pairs[args.warmup * len(DEAD) + i :: len(DEAD)], strict=True)
        for side, rows in zip(("ours", "TRL", "ours / TRL, pairs"), sides, strict=True):
            columns[f"{side}, {dead:.0%} dead"] = rows
    B = setting[0].prompts_per_step * setting[0].group_size
    show_steps(f"{args.shape}, {B} completions, TRL's micro-batch {args.trl_batch}", columns)


def fits(args, rest: list[str]) -> None:
    """what each preset needs on a card, computed by formula and not measured"""
    lines, row = [], {}
    for name in train.PRESETS:
        c = train.parse(["--preset", name])
        if c.model not in roofline.HUB:
            continue
        student, teacher = (
            Shape(roofline.model_config(roofline.HUB[m])) for m in (c.model, c.teacher_model)
        )
        for students, teachers in ((6, 2), (1, 0)):
            setting = (student, teacher, c, students, teachers)
            row = memory_row(*setting)
            most = [
                roofline.rows_that_fit(*setting, recompute).values() for recompute in (False, True)
            ]
            line = [name, f"{students} + {teachers}", c.per_device_batch_size]
            line += [f"{gib:.1f}" for gib in row.values()]
            lines.append(line + [" / ".join(map(str, rows)) for rows in most])
    header = ["preset", "ranks", "rows", *row]
    cards = " / ".join(map(str, roofline.CARDS))
    header += [f"most rows on {cards} GiB", "… recomputed"]
    note = f"""rows: per_device_batch_size, of max_prompt_tokens + max_completion_tokens tokens.
A rank may use {USABLE:.0%} of its card. Recomputed: with --activation_checkpointing.
1 + 0: the teacher lives in the student's rank. 0 rows may be the cache's doing: see
--max_rollout_tokens. The parts are those of benchmarks.memory.memory_row."""
    print(table("BY FORMULA, NOT MEASURED: GiB of a rank", header, lines, note))


def nodes(args, rest: list[str]) -> None:
    """a step of the paper's run on 8 to 64 H100, computed by formula and not measured"""
    c, lines, row = train.parse(["--preset", "qwen2.5-1.5b"]), [], {}
    shape = Shape(roofline.model_config(roofline.HUB[c.model]))
    for times in (1, 8):  # prompts; the teacher makes as many updates a step
        more = {
            name: times * getattr(c, name) for name in ("prompts_per_step", "teacher_update_every")
        }
        config, first = replace(c, **more), None
        for cards in (8, 16, 32, 64):
            row = roofline.on_cards(shape, shape, config, cards, args.dead)
            first = first or row["step"]
            line = [config.prompts_per_step, f"{cards - cards // 4} + {cards // 4}"]
            line += [f"{value:.2f}" for value in row.values()]
            lines.append([*line, f"{first / row['step']:.2f}"])
    header = ["prompts", "ranks", *row, "times faster"]
    note = f"{args.dead:.0%} dead groups; what else is assumed: benchmarks/roofline.py, on_cards."
    print(table("COMPUTED FROM ASSUMPTIONS, NOT MEASURED: seconds of a step", header, lines, note))


def arguments(argv: list[str]) -> tuple:
    """The command with its flags, and those that it passes on."""
    parser = Parser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in (step, trl, fits, nodes):
        p = commands.add_parser(command.__name__, help=command.__doc__)
        p.set_defaults(command=command)

        def flag(name, default, help, type=count, p=p):
            p.add_argument(name, default=default, help=f"{help} [{default}]", type=type)

        if command in (step, trl):
            shapes = f"demo, {', '.join(roofline.SHAPES)}, or a model's folder"
            flag("--shape", "demo", shapes, str)
            flag("--question_tokens", 100, "mean length of made-up problems")
            flag("--repeats", 10, "steps measured")
            flag("--warmup", 2, "steps before those measured", natural)
        if command is step:
            flag("--dead", None, "share of dead groups by script; the demo is graded", share)
        if command is nodes:
            flag("--dead", 0.5, "share of dead groups", share)
        if command is trl:
            flag("--trl_batch", 96, "TRL's per_device_train_batch_size")
    args, rest = parser.parse_known_args(argv)
    if rest and args.command in (fits, nodes):
        raise InputError(f"unrecognized arguments: {' '.join(rest)}")
    return args, rest


def origin(argv: list[str]) -> str:
    """Which command, machine, versions and commit the numbers above belong to."""
    cpu = re.findall(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text()) or ["CPU"]
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    git = f"git -C {Path(__file__).parent} describe --always --dirty"
    failed, commit = subprocess.getstatusoutput(git)
    machine = f"{os.cpu_count()} cores {cpu[0]}{gpu}, {torch.get_num_threads()} threads a process"
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    versions += f"; commit {'unknown' if failed else commit}"
    return f"`bench {' '.join(argv)}`: {machine}; {versions}; medians (least to most)."


def main(argv: list[str] | None = None) -> int:
    """Returns the exit status: 0 done, 2 bad input (with one line on stderr)."""
    begin_process()
    argv = sys.argv[1:] if argv is None else argv
    try:
        args, rest = arguments(argv)
        args.command(args, rest)
    except (ValueError, OSError) as error:
        return reject(error)
    if os.environ.get("RANK", "0") == "0":
        print(origin(argv))
    return 0


if __name__ == "__main__":
    sys.exit(main())
