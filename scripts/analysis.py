"""What the reporting scripts share: runs as pandas tables, what they spent, Markdown, intervals.

Intervals are 95% and p-values two-sided, by scipy.stats.
"""

import argparse
import json
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from plumbing.errors import InputError
from plumbing.files import digest, read_lines

# Settings that do not change what is learned: runs that differ in these alone are one method.
OWN = {"seed", "out", "checkpoint_every", "keep", "verify_workers", "timeout_minutes"}
OWN |= {"per_device_batch_size", "max_rollout_tokens", "activation_checkpointing"}
OWN |= {"device", "torch", "transformers", "noise_every"}
AMOUNTS = {  # column of Run.spent -> what it is
    "steps": "steps",
    "student_work": "steps × ranks / student ranks",
    "seconds": "wall-clock hours",
    "device_hours": "device-hours",
    "tokens": "generated tokens, M",
    "samples": "completions, k",
}


def read_table(path: Path, *columns: str) -> pd.DataFrame:
    """A JSON-lines file as a table, without a last line that is still being written. Raises
    InputError where a line is damaged, or no line has one of `columns`."""
    rows = pd.DataFrame(read_lines(path, torn=True))
    for name in columns:
        if name not in rows:
            raise InputError(f"{path}: there is none, or no line of it has {name}")
    return rows


def read_config(folder: Path) -> dict:
    """A run's settings. Raises InputError where the folder is no run's, or of another version."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{folder}: not a run folder ({error})") from error
    if "student_ranks" not in config:
        raise InputError(f"{folder}: config.json is of another version of train.py")
    return config


def check_unchanged(path, crc32: int | None) -> None:
    """Raises InputError where a file of data or code is not the one that a run had, OSError where
    it is gone."""
    if digest(Path(path))[1] != crc32:
        raise InputError(f"{path} has changed since the run")


@dataclass(eq=False)
class Run:
    """A run's folder, settings and metrics (a row for each step)."""

    folder: Path
    config: dict
    metrics: pd.DataFrame

    @classmethod
    def load(cls, folder) -> "Run":
        """Reads a run, finished or not. Raises InputError where something is missing."""
        folder = Path(folder)
        config = read_config(folder)
        rows = read_table(folder / "metrics.jsonl", "step").set_index("step")
        return cls(folder, config, rows.astype(float))

    @cached_property
    def selections(self) -> pd.DataFrame:
        """A row for each selection: step, chosen, explored, successes, y, predicted (utility of
        the chosen) and pool_mean (of the known utilities of its pool); NaN where nothing is."""
        rows = read_table(self.folder / "selections.jsonl", "step", "explored", "y", "utilities")
        each = zip(rows.utilities, rows.pool, rows.chosen, strict=True)
        predicted = [known[pool.index(chosen)] for known, pool, chosen in each]
        predicted = pd.Series(predicted, dtype=float)
        pool_mean = rows.utilities.explode().astype(float).groupby(level=0).mean()
        kept = rows[["step", "chosen", "explored", "successes", "y"]]
        return kept.assign(predicted=predicted, pool_mean=pool_mean)

    @property
    def live(self) -> pd.Series:
        """The share of an update's P groups that are live, by step. With DAPO's extra rounds there
        are more groups than that; the live ones come first."""
        m, P = self.metrics, self.config["prompts_per_step"]
        m = m.reindex(columns=["groups", "zero_variance"])
        return (m.groups * (1 - m.zero_variance)).round().clip(upper=P) / P

    @cached_property
    def spent(self) -> pd.DataFrame:
        """Running totals by step, a column for each of AMOUNTS."""
        m = self.metrics.reindex(columns=["groups", "completion_tokens", "seconds"])
        m[m.index == 0] = 0.0  # step 0 only evaluates, and spends nothing that counts
        total, devices = m.cumsum(), self.config["world_size"]
        each = {
            "steps": m.index,
            "student_work": m.index * devices / self.config["student_ranks"],
            "seconds": total.seconds / 3600,
            "device_hours": total.seconds / 3600 * devices,
            "tokens": total.completion_tokens / 1e6,
            "samples": total.groups * self.config["group_size"] / 1e3,
        }
        return pd.DataFrame(each, index=m.index)

    def curve(self, key: str, amount: str = "steps") -> pd.Series:
        """A metric by what was spent, where it was measured."""
        values = self.metrics.get(key, pd.Series(np.nan, self.metrics.index))
        return values.set_axis(self.spent[amount]).dropna()

    @cached_property
    def accuracy(self) -> pd.Series:
        """Percent right by evaluated step; InputError where there is none."""
        found = 100 * self.curve("val_accuracy")
        if found.empty:
            raise InputError(f"{self.folder}: never evaluated, so there is nothing to compare")
        return found

    @property
    def reported(self) -> list[int]:
        """The steps of the last five evaluations; where there is none after step 0, that one."""
        return [step for step in self.accuracy.index if step][-5:] or [0]

    @property
    def score(self) -> float:
        """What the paper reports: mean percent right of the last five evaluations (Section 5.2)."""
        return float(self.accuracy[self.reported].mean())

    @cached_property
    def verdicts(self) -> np.ndarray:
        """Percent of the reported evaluations that are right, for each validation problem."""
        files = [self.folder / "evals" / f"step_{step}.jsonl" for step in self.reported]
        return 100 * np.mean([read_table(file, "reward").reward for file in files], axis=0)


def load_methods(folders) -> dict[str, list[Run]]:
    """Runs that differ in the seed alone, by name, in the order of their seeds. The name is the
    sampler and the settings in which runs with the same sampler and preset differ; the preset
    stands before it where there are several."""
    runs, methods = [Run.load(folder) for folder in folders], {}
    configs = pd.DataFrame([run.config for run in runs]).drop(columns=OWN, errors="ignore")
    configs = configs.astype(str)
    for run, config in zip(runs, configs.to_dict("records"), strict=True):
        alike = configs.query("preset == @config['preset'] and sampler == @config['sampler']")
        parts = [f"{key} {config[key]}" for key in sorted(alike) if alike[key].nunique() > 1]
        preset = [config["preset"]] if configs.preset.nunique() > 1 else []
        methods.setdefault(", ".join([*preset, config["sampler"], *parts]), []).append(run)
    for name, members in methods.items():
        members.sort(key=lambda run: run.config["seed"])
        if len(members) > len({run.config["seed"] for run in members}):
            raise InputError(f"two runs of {name!r} have the same seed")
    return methods


def t_difference(a, b, paired: bool) -> tuple[float, tuple[float, float], float]:
    """mean(a) - mean(b), its interval and p: of the differences a_i - b_i, or Welch's."""
    test = stats.ttest_rel(a, b) if paired else stats.ttest_ind(a, b, equal_var=False)
    return float(np.mean(a) - np.mean(b)), tuple(test.confidence_interval()), float(test.pvalue)


def predicted_speed(r: float, x: float) -> float:
    """S: how many times fewer steps AdamW at a fixed rate needs where a step has r times as many
    live groups. Its updates have one length, so only their direction gets better. x: signal² over
    noise² in the gradient of the baseline's whole step. S = √(r (1 + x) / (1 + r x)): √r where all
    is noise, 1 where all is signal."""
    return (r * (1 + x) / (1 + r * x)) ** 0.5


def signal(live: pd.Series, cosine: pd.Series) -> float:
    """x: signal² over noise² in the gradient of a whole step, 2c / (1 - c) with c the mean cosine
    of its halves; NaN where none is known. Cosines are known only at steps with two live groups or
    more. x grows with their number, so it is scaled to the average step."""
    known = cosine.dropna()
    c = max(0.0, known.mean()) if len(known) else np.nan
    return float(2 * c / (1 - c) * live.mean() / live[known.index].mean())


def ratio_interval(ratio, parts: list) -> tuple[float, float, float]:
    """ratio(parts), and its 95% interval: the jackknife's of its logarithm over the parts, with
    Student's t. NaN where the ratio of some n - 1 of them is none."""
    n = len(parts)
    with np.errstate(invalid="ignore", divide="ignore"):
        whole = np.log(ratio(parts))
        without = np.log([ratio(parts[:i] + parts[i + 1 :]) for i in range(n)])
        half = stats.t.ppf(0.975, n - 1) * stats.sem(n * whole - (n - 1) * without)
    return tuple(map(float, np.exp([whole, whole - half, whole + half])))


def bootstrap(values) -> tuple[float, float]:
    """Percentile interval of the mean over problems drawn with replacement; of one, its value."""
    if len(values) == 1:
        return float(values[0]), float(values[0])
    found = stats.bootstrap((values,), np.mean, method="percentile", batch=100, rng=0)
    return tuple(map(float, found.confidence_interval))


def spread(values, unit: str = "%", digits: int = 1) -> str:
    """Mean ± sample standard deviation, of a single value the value; – where there is none."""
    if len(values) == 0:
        return "–"
    more = f" ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else ""
    return f"{np.mean(values):.{digits}f}{more}{unit}"


def number(value: float) -> str:
    """Two decimals; – where it is not known."""
    return "–" if np.isnan(value) else f"{value:.2f}"


def interval(value: float, low: float, high: float) -> str:
    """A number with its interval; – where they are not known."""
    return "–" if np.isnan([value, low, high]).any() else f"{value:.2f} ({low:.2f} to {high:.2f})"


def markdown(header: list, rows: list[list]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def table(title: str, header: list, rows: list[list], note: str = "") -> str:
    """A Markdown table under a heading, with a sentence beneath."""
    return f"## {title}\n\n{markdown(header, rows)}\n" + (f"\n{note}\n" if note else "")


def by_method(title: str, methods: dict, measure, *how, note: str = "") -> str:
    """A table of the numbers by name that measure(run) gives: a column for each method, with their
    `spread` over its runs (`how`: its unit and digits). A row that has no number is left out."""
    columns = [pd.DataFrame([measure(run) for run in runs]) for runs in methods.values()]
    rows = [[name, *(spread(c[name].dropna(), *how) for c in columns)] for name in columns[0]]
    return table(title, ["", *methods], [row for row in rows if set(row[1:]) != {"–"}], note)


def parser(doc: str, runs: bool = False) -> argparse.ArgumentParser:
    """A command line whose help is the docstring as it stands; `runs`: it takes run folders."""
    raw = argparse.RawDescriptionHelpFormatter
    found = argparse.ArgumentParser(description=doc, formatter_class=raw)
    if runs:
        found.add_argument("runs", nargs="+", metavar="RUN", help="folders that train.py made")
    return found


@contextmanager
def one_line(command: str, *also: type[Exception]):
    """Bad input, and what else is named, ends the command with one line and exit status 2."""
    try:
        yield
    except (InputError, OSError, *also) as error:
        print(f"{command}: {error}", file=sys.stderr)
        sys.exit(2)
