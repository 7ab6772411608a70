"""Read run directories, and format tables and intervals, for the scripts that report on runs.

Intervals are 95% and p-values two-sided, by scipy.stats.
"""

import argparse
import json
import sys
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from plumbing.command_line import file_path
from plumbing.errors import InputError, RunError, survive_lost_output
from plumbing.files import digest, read_lines
from sampler import utility_target

# Settings that do not change what is learned: runs that differ only in these are one method.
OWN = {"seed", "out", "checkpoint_every", "keep", "verify_workers", "timeout_minutes"}
OWN |= {"per_device_batch_size", "max_rollout_tokens", "activation_checkpointing"}
OWN |= {"device", "torch", "transformers", "saved"}
AMOUNTS = {  # column of Run.spent -> axis label
    "steps": "steps",
    "student_work": "steps × ranks / student ranks",
    "seconds": "wall-clock hours",
    "device_hours": "device-hours",
    "tokens": "generated tokens, M",
    "samples": "completions, k",
}


def recorded(config: type, facts: dict):
    """Read the settings from a run's config.json. Raises InputError where one is missing."""
    if missing := [f.name for f in fields(config) if f.name not in facts]:
        reason = f"made by another version of this code ({missing[0]} is not in its config.json)"
        raise InputError(f"{facts.get('out', 'the run')} was {reason}")
    return config(**{f.name: facts[f.name] for f in fields(config)})


def read_table(path: Path, *columns: str) -> pd.DataFrame:
    """Read a JSON-lines file, ignoring an unfinished last line. Raises InputError if a line is
    damaged, or if no line has one of `columns`."""
    rows = pd.DataFrame(read_lines(path, torn=True))
    for name in columns:
        if name not in rows:
            raise InputError(f"{path}: no such file, or none of its lines has {name}")
    return rows


def read_config(run_dir: Path) -> dict:
    """Read config.json. Raises InputError if this is no run directory, or of another version."""
    try:
        config = json.loads((run_dir / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{run_dir}: not a run directory ({error})") from error
    if "student_ranks" not in config:
        raise InputError(f"{run_dir}: config.json is of another version of train.py")
    return config


def check_unchanged(path, crc32: int | None, remedy: str = "") -> None:
    """Raise InputError if a file is not the one that the run used, OSError if it is gone."""
    if digest(Path(path))[1] != crc32:
        raise InputError(f"{path} has changed since the run{remedy}")


@dataclass(eq=False)
class Run:
    """One run: its directory, its settings, and its metrics by step."""

    folder: Path
    config: dict
    metrics: pd.DataFrame

    @classmethod
    def load(cls, folder) -> "Run":
        """Read a run, finished or not. Raises InputError if a file is missing or damaged."""
        config = read_config(folder := Path(folder))
        rows = read_table(folder / "metrics.jsonl", "step").set_index("step")
        return cls(folder, config, rows.astype(float))

    @cached_property
    def selections(self) -> pd.DataFrame:
        """A row for each problem of a step, whose groups are joined: step, chosen, explored,
        completions, successes, y, predicted (its utility, NaN without a prediction). Raises
        InputError."""
        names = ("step", "chosen", "pool", "utilities", "explored", "completions", "successes")
        rows = read_table(self.folder / "selections.jsonl", *names)
        each = zip(rows.utilities, rows.pool, rows.chosen, strict=True)
        predicted = [utilities[pool.index(chosen)] for utilities, pool, chosen in each]
        rows = rows.assign(predicted=pd.Series(predicted, dtype=float))
        how = {"explored": "first", "predicted": "first", "completions": "sum", "successes": "sum"}
        groups = rows.groupby(["step", "chosen"], sort=False, as_index=False).agg(how)
        return groups.assign(y=utility_target(groups.successes / groups.completions))

    @cached_property
    def spent(self) -> pd.DataFrame:
        """Running totals by step, a column for each of AMOUNTS."""
        m = self.metrics.reindex(columns=["completions", "completion_tokens", "seconds"])
        m[m.index == 0] = 0.0  # step 0 only evaluates
        total, devices = m.cumsum(), self.config["world_size"]
        each = {
            "steps": m.index,
            "student_work": m.index * devices / self.config["student_ranks"],
            "seconds": total.seconds / 3600,
            "device_hours": total.seconds / 3600 * devices,
            "tokens": total.completion_tokens / 1e6,
            "samples": total.completions / 1e3,
        }
        return pd.DataFrame(each, index=m.index)

    def curve(self, key: str, amount: str = "steps") -> pd.Series:
        """A metric against one of AMOUNTS, without the steps where it was not measured."""
        values = self.metrics.get(key, pd.Series(np.nan, self.metrics.index))
        return values.set_axis(self.spent[amount]).dropna()

    @cached_property
    def problems(self) -> int:
        """The number of validation problems; 0 if it is not known."""
        files = [*self.folder.glob("evals/step_*.jsonl")]
        return len(read_lines(files[0], torn=True)) if files else 0

    @cached_property
    def accuracy(self) -> pd.Series:
        """Validation accuracy in percent by evaluated step. Raises InputError if there is none."""
        accuracy = 100 * self.curve("val_accuracy")
        if accuracy.empty:
            raise InputError(f"{self.folder}: never evaluated, so there is nothing to compare")
        return accuracy


def check_comparable(runs: list[Run]) -> None:
    """Raise InputError if two runs have different validation sets."""
    first = runs[0]
    for run in runs:
        if run.config.get("val_data_crc32") != first.config.get("val_data_crc32"):
            raise InputError(f"{first.folder} and {run.folder} have different validation sets")


def method_name(sampler: str) -> str:
    """Return what a report calls a sampler: the class of FILE.py:CLASS, or the name of one."""
    return sampler.rpartition(":")[2]


def load_methods(folders) -> dict[str, list[Run]]:
    """Group runs that differ only in OWN into methods, sorted by seed. A method's name is its
    sampler and the settings in which runs of one sampler and preset differ; the preset comes first
    if there are several. Raises InputError if two runs of a method have the same seed."""
    runs, methods = [Run.load(folder) for folder in folders], {}
    configs = pd.DataFrame([run.config for run in runs]).drop(columns=OWN, errors="ignore")
    configs = configs.astype(str)
    for run, config in zip(runs, configs.to_dict("records"), strict=True):
        alike = configs.query("preset == @config['preset'] and sampler == @config['sampler']")
        parts = [f"{key} {config[key]}" for key in sorted(alike) if alike[key].nunique() > 1]
        preset = [config["preset"]] if configs.preset.nunique() > 1 else []
        methods.setdefault(", ".join([*preset, method_name(config["sampler"]), *parts]), []).append(
            run
        )
    for name, members in methods.items():
        members.sort(key=lambda run: run.config["seed"])
        if len(members) > len({run.config["seed"] for run in members}):
            raise InputError(f"two runs of {name!r} have the same seed")
    return methods


def bootstrap(values) -> tuple[float, float]:
    """Percentile interval of the mean over problems drawn with replacement."""
    values = np.asarray(values)
    if len(values) == 1:
        return float(values[0]), float(values[0])
    result = stats.bootstrap((values,), np.mean, method="percentile", batch=100, rng=0)
    return tuple(map(float, result.confidence_interval))


def spread(values, unit: str = "%", digits: int = 1) -> str:
    """Format mean ± sample standard deviation; the value alone if single; – if there is none."""
    if len(values) == 0:
        return "–"
    deviation = f" ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else ""
    return f"{np.mean(values):.{digits}f}{deviation}{unit}"


def number(value: float) -> str:
    """Format with two decimals; – if NaN."""
    return "–" if np.isnan(value) else f"{value:.2f}"


def markdown(header: list, rows: list[list]) -> str:
    """Format a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def table(title: str, header: list, rows: list[list], note: str = "") -> str:
    """Format a Markdown table with a heading above it and a note below."""
    return f"## {title}\n\n{markdown(header, rows)}\n" + (f"\n{note}\n" if note else "")


def parser(doc: str | None, runs: bool = False) -> argparse.ArgumentParser:
    """A command line whose --help is the docstring; with `runs`, it takes run directories."""
    survive_lost_output(BrokenPipeError)  # also that of --help
    raw = argparse.RawDescriptionHelpFormatter
    command_line = argparse.ArgumentParser(description=doc, formatter_class=raw)
    if runs:
        command_line.add_argument(
            "runs", nargs="+", metavar="RUN", type=file_path, help="run directories"
        )
    return command_line


@contextmanager
def one_line(command: str, *also: type[Exception]):
    """Turn errors of ours, of files, and those named into one line on stderr and an exit status: 2,
    or as training's, such as 3 for logits that are not finite."""
    try:
        yield
    except (RunError, OSError, *also) as error:
        print(f"{command}:", " ".join(str(error).splitlines()), file=sys.stderr)
        sys.exit(getattr(error, "status", InputError.status))
