r"""The parts of gpu_check.py. Each runs in a process of its own and prints what it found:

    python -m scripts.gpu_parts decode --out runs/gpu_check [--dry]

A part is a function of `Sizes`. What it returns goes into its JSON, `said` of it into the summary;
one that finds something wrong raises CheckError: exit status 1. The parts here are whole runs.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import datasets
import torch
from safetensors.torch import load_file

import train
from scripts import bench
from scripts.gpu_models import CheckError, Sizes, decode, memory, step, train_rate
from scripts.report import t_difference

ROOT = Path(train.__file__).resolve().parent


def demo_runs(s: Sizes, jobs: dict[Path, list[str]], cpu=(), ranks: int = 1) -> None:
    """Runs train.py --preset demo for each folder with its flags, all at once; `cpu` see no card.

    Raises CheckError with what the first one that failed said last.
    """
    started = []
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
    for out, flags in jobs.items():
        hidden = {"CUDA_VISIBLE_DEVICES": ""} if out in cpu else {}
        command = [sys.executable, *(launcher if ranks > 1 else []), str(ROOT / "train.py")]
        command += ["--preset", "demo", *flags, "--out", str(out)]
        log = out.with_suffix(".log").open("a")
        environment = os.environ | {"OMP_NUM_THREADS": "1" if s.dry else "2"} | hidden
        run = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
        started.append((out, run, log))
    for _, run, log in started:
        run.wait()
        log.close()
    for out, run, _ in started:
        if run.returncode:
            text = out.with_suffix(".log").read_text()
            print(text[-8000:])
            last = (re.findall(r"^(?:\w*[Ee]rror.*)", text, re.MULTILINE) or [text[-300:]])[-1]
            raise CheckError(f"train.py {' '.join(jobs[out])}: status {run.returncode}: {last}")


def metrics(out: Path) -> list[dict]:
    return train.read_lines(out / "metrics.jsonl")


def tests(s: Sizes) -> dict:
    """The tests that need a card."""
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-rs", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    print(done.stdout[-20_000:])
    last = (done.stdout.strip().splitlines() or ["nothing was printed"])[-1]
    if done.returncode or (" passed" not in last and not s.dry):
        raise CheckError(f"pytest -m gpu, status {done.returncode}: {last}")
    return {"said": last.strip("= ")}


def groups(s: Sizes) -> dict:
    """A student and a teacher process on one card: NCCL in a role, gloo between them; resumed."""
    with tempfile.TemporaryDirectory() as folder:
        out, flags = Path(folder) / "run", ["--teacher_ranks", "1", *short(s, 2)]
        for steps in (2, 4):  # the second life begins at the first one's checkpoint
            demo_runs(s, {out: [*flags, "--steps", str(steps)]}, ranks=2)
        rows, facts = metrics(out), json.loads((out / "config.json").read_text())
        saved = sorted(path.name for path in (out / "checkpoints/step_4").iterdir())
    if [row["step"] for row in rows] != list(range(5)) or not {"student", "teacher"} <= set(saved):
        raise CheckError(f"steps {[row['step'] for row in rows]}, checkpoint of {saved}")
    took = sorted(row["seconds"] for row in rows[1:])
    updates = rows[-1]["teacher_updates"]
    said = (
        f"{facts['device']}: 2 + 2 steps over a checkpoint of both roles, {updates} teacher updates"
    )
    return {"said": f"{said}, {took[len(took) // 2]:.2f} s a step", "metrics": rows}


def short(s: Sizes, eval_every: int) -> list[str]:
    """Flags of a demo run of a few steps; dry: of few problems."""
    dry = ["--prompts_per_step", "12", "--group_size", "8", "--candidates", "2"]
    every = ["--eval_every", str(eval_every), "--checkpoint_every", str(eval_every)]
    return every + dry * s.dry


def curve(s: Sizes) -> dict:
    """The demo on the card and on the CPU, from the same seeds: apart by no more than seeds are.

    Not equal: bf16 rounds otherwise than float32, one token falls differently, and the runs part.
    """
    with tempfile.TemporaryDirectory() as folder:
        sides = {
            side: [Path(folder) / f"{side}{seed}" for seed in range(s.seeds)]
            for side in ("card", "cpu")
        }
        flags = ["--steps", str(s.steps), *short(s, s.steps)]
        jobs = {out: [*flags, "--seed", str(out)[-1]] for runs in sides.values() for out in runs}
        demo_runs(s, jobs, cpu=sides["cpu"])
        runs = {side: [metrics(out) for out in folders] for side, folders in sides.items()}

    def of(side: str, key: str, first: int, last: int) -> list[float]:
        """By seed, the mean over some steps."""
        return [
            sum(row[key] for row in run[first : last + 1]) / (last + 1 - first)
            for run in runs[side]
        ]

    lines, quarter = [], max(1, s.steps // 4)
    for key in ("reward_mean", "zero_variance", "grad_norm"):
        for first in range(1, s.steps + 1, quarter):
            span = (key, first, min(s.steps, first + quarter - 1))
            lines.append(
                (f"{key}, steps {span[1]} to {span[2]}", of("card", *span), of("cpu", *span))
            )
    lines.append(
        ("val_accuracy, end", *(of(side, "val_accuracy", s.steps, s.steps) for side in sides))
    )
    shown, ps = [], {}
    for name, *values in lines:
        ps[name] = t_difference(*values, paired=False)[2]
        shown.append((name, *(" ".join(f"{x:.4f}" for x in v) for v in values), f"{ps[name]:.3f}"))
    title = f"demo, {s.steps} steps, seeds 0 to {s.seeds - 1}; p of no difference (Welch)"
    bench.show(title, "quantity | card, by seed | CPU, by seed | p", shown)
    gap = max(row["logp_gap"] or 0.0 for run in runs["card"] for row in run[1:])
    watched = [name for name in ps if name.startswith(("reward_mean", "val_accuracy"))]
    # One p in 500 by chance, shared out over what is watched.
    if apart := [name for name in watched if ps[name] < 0.01 / len(watched)]:
        raise CheckError(f"card and CPU differ by more than seeds do: {', '.join(apart)}")
    ends = [sum(values) / len(values) for values in lines[-1][1:]]
    said = f"accuracy after {s.steps} steps {ends[0]:.1%} on the card, {ends[1]:.1%} on the CPU; "
    said += f"smallest p {min(ps[name] for name in watched):.2f}; largest logp_gap {gap:.1e}"
    return {"said": said, "p": ps, "values": {name: values for name, *values in lines}}


def resume(s: Sizes) -> dict:
    """4 steps at once, 4 again, and 2 continued to 4: the same metrics and weights.

    On a CPU bit for bit. On a card some sums have no fixed order: two equal runs tell how much.
    """
    with tempfile.TemporaryDirectory() as folder:
        once, again, halves = (Path(folder) / name for name in ("once", "again", "halves"))
        flags = short(s, 2)
        both = {once: [*flags, "--steps", "4"], again: [*flags, "--steps", "4"]}
        demo_runs(s, both | {halves: [*flags, "--steps", "2"]})
        demo_runs(s, {halves: [*flags, "--steps", "4"]})
        start = load_file(ROOT / "demo/model/model.safetensors")

        def weights(out: Path) -> torch.Tensor:
            lm = load_file(out / "student/model.safetensors")
            return torch.cat([lm[name].double().flatten() for name in sorted(start)])

        first, second, third = map(weights, (once, again, halves))
        began = torch.cat([start[name].double().flatten() for name in sorted(start)])
        rows = {out.name: metrics(out) for out in (once, again, halves)}
    gone = (first - began).norm()
    apart = {
        "again": ((second - first).norm() / gone).item(),
        "halves": ((third - first).norm() / gone).item(),
    }
    names = (
        "reward_mean",
        "grad_norm",
        "loss",
        "completion_tokens",
        "teacher_loss",
        "val_accuracy",
    )
    columns = [
        [(row["step"], name, row.get(name)) for row in run for name in names]
        for run in rows.values()
    ]
    lines = [
        (f"{one[1]}, step {one[0]}", *(x[2] for x in (one, *others)))
        for one, *others in zip(*columns, strict=True)
        if one[2] is not None
    ]
    bench.show(
        "Two equal runs, and one that was continued", "quantity | 4 steps | 4 again | 2 + 2", lines
    )
    same = {
        name: sum(line[1] == line[i] for line in lines) for i, name in ((2, "again"), (3, "halves"))
    }
    way = "weights apart by {:.1e} of the way they went".format
    said = (
        f"{same['halves']} of {len(lines)} metrics equal, {way(apart['halves'])}; two equal runs: "
    )
    said += f"{same['again']}, {apart['again']:.1e}"
    if not gone:
        raise CheckError("no group had a gradient in 4 steps: nothing was compared")
    if apart["halves"] > (0.0 if s.dry else max(0.01, 10 * apart["again"])):
        raise CheckError(f"the continued run is another: {said}")
    return {"said": said, "apart": apart, "metrics": rows}


PARTS = {
    "tests": tests,
    "groups": groups,
    "decode": decode,
    "train": train_rate,
    "step": step,
    "memory": memory,
    "curve": curve,
    "resume": resume,
}


def main(argv: list[str] | None = None) -> int:
    """One part. Status 0: PART.json is written; 1: CheckError; 2: bad input."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dry", action="store_true")
    args = parser.parse_args(argv)
    if not (args.dry or torch.cuda.is_available()):
        print("error: no CUDA device here: --dry runs the same code on a CPU", file=sys.stderr)
        return 2
    train.hf_logging.set_verbosity_error()
    train.hf_logging.disable_progress_bar()
    datasets.disable_progress_bars()
    try:
        found = PARTS[args.part](Sizes.of(args.dry))
    except CheckError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    train.write_whole(
        args.out / f"{args.part}.json", json.dumps(train.plain(found), indent=1) + "\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
