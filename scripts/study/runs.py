"""Read run directories, for the commands that report on runs."""

import json
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path

import pandas as pd

from plumbing.config import Config
from plumbing.data.problems import Problems
from plumbing.errors import InputError
from plumbing.files import read_lines
from plumbing.run import code, facts

AMOUNTS = {  # column of Run.spent -> axis label
    "steps": "steps",
    "seconds": "wall-clock hours",
    "device_hours": "device-hours",
    "tokens": "generated tokens, M",
    "samples": "completions, k",
}


def config_of(settings: dict) -> Config:
    """Read the flags of train.py from a run's config.json. Raises InputError if one is missing."""
    try:
        return Config(**{f.name: settings[f.name] for f in fields(Config)})
    except KeyError as error:
        reason = f"made by another version of this code ({error.args[0]} is not in its config.json)"
        raise InputError(f"{settings.get('out', 'the run')} was {reason}") from error


def read_table(path: Path, column: str) -> pd.DataFrame:
    """Read a JSON-lines file, ignoring an unfinished last line. Raises InputError if a line is
    damaged, or if no line has the column."""
    rows = pd.DataFrame(read_lines(path, torn=True))
    if column not in rows:
        raise InputError(f"{path}: no such file, or none of its lines has {column}")
    return rows


def read_config(run_dir: Path) -> dict:
    """Read config.json. Raises InputError if this is no run directory."""
    try:
        return json.loads((run_dir / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{run_dir}: not a run directory ({error})") from error


def read_problems(path: str, crc32: int, column: str) -> Problems:
    """Read a data file of a run, whose logs have numbers of its rows. crc32: of config.json. Raises
    InputError if the file has changed since."""
    problems = Problems(path, column)
    if problems.crc32 != crc32:
        raise InputError(f"{path} has changed since the run: restore it")
    return problems


@dataclass(eq=False)
class Run:
    """One run: its directory, its settings, and its metrics by step."""

    folder: Path
    config: dict
    metrics: pd.DataFrame

    @classmethod
    def load(cls, folder) -> "Run":
        """Read a run, finished or not. Raises InputError if a file is missing or damaged."""
        folder = Path(folder)
        config = read_config(folder)
        rows = read_table(folder / "metrics.jsonl", "step").set_index("step")
        return cls(folder, config, rows.astype(float))

    @cached_property
    def spent(self) -> pd.DataFrame:
        """Running totals by step, a column for each of AMOUNTS."""
        counts = ["completions", "completion_tokens", "seconds"]
        total = self.metrics.reindex(columns=counts).fillna(0).cumsum()  # step 0 only evaluates
        hours = total.seconds / 3600
        return pd.DataFrame(
            {
                "steps": total.index,
                "seconds": hours,
                "device_hours": hours * self.config["world_size"],
                "tokens": total.completion_tokens / 1e6,
                "samples": total.completions / 1e3,
            }
        )

    def curve(self, key: str, amount: str = "steps") -> pd.Series:
        """A metric against one of AMOUNTS, without the steps where it was not measured."""
        metrics = self.metrics.reindex(columns=[key])
        return metrics.set_index(self.spent[amount])[key].dropna()

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

    def scores(self, cores: float, checksums, by_clock: bool = False, **key) -> pd.DataFrame:
        """Compute the run's rows of a table of scores (scores.py). key: its task, arm and seed.
        cores: how many its processes used: a step's CPU seconds are its seconds times these. With
        `by_clock`, they are 1. checksums: of config.json, that become columns."""
        m = self.metrics.reindex(columns=["completions", "seconds", "groups", "zero_variance"])
        steps = m[["completions"]].assign(
            cpu_seconds=m.seconds * cores,
            live=(1 - m.zero_variance) * m.groups,
        )
        # Step 0 only evaluates. Its seconds are NaN, too, if `cores` is not known.
        steps.loc[0] = [0.0, 0.0 * cores, 0.0]
        rows = steps.cumsum(skipna=False)
        rows["accuracy"] = self.accuracy
        evaluations_to_come = rows.accuracy.notna()[::-1].cumsum()
        since_evaluation = m.zero_variance.groupby(evaluations_to_come)
        rows["dead"] = since_evaluation.transform("mean")
        files = self.config.get("model_files", {}).items()
        weights = [str(crc32) for name, crc32 in files if name.endswith(("safetensors", "commit"))]
        known = rows.dropna(subset="accuracy")
        columns = {name: self.config.get(name) for name in checksums}
        columns |= {"model_crc32": "+".join(weights) or None, "problems": self.problems}
        columns["by_clock"] = by_clock
        columns["code_crc32"] = code.checksum(self.config, shared=True)
        columns["own_code_crc32"] = code.checksum(self.config, shared=False)
        return known.reset_index(names="step").assign(**columns, **key)


def load_methods(folders) -> dict[str, list[Run]]:
    """Group runs that differ only in their seed, or in what a resumed run may differ in, into
    methods, sorted by seed. A method's name is its sampler, of FILE.py:CLASS the class, and what
    its runs differ in from the first of this sampler. Raises InputError if two runs of a method
    have the same seed."""
    first = {}
    methods = {}
    for run in sorted(map(Run.load, folders), key=lambda run: run.config["seed"]):
        config = run.config | {"seed": 0}
        reference = first.setdefault(config["sampler"], config)
        changes = facts.differences(reference, config)
        for file in code.changes(reference, config):
            if file.startswith(code.OWN):  # changes of other files are reported in a sentence
                changes.append(f"{file} changed")
        _, _, sampler = config["sampler"].rpartition(":")
        name = ", ".join([sampler, *changes])
        members = methods.setdefault(name, [])
        if members and members[-1].config["seed"] == run.config["seed"]:
            raise InputError(f"two runs of {name!r} have the same seed")
        members.append(run)
    return methods
