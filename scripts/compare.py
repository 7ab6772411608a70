#!/usr/bin/env python
"""Which method is better, at equal compute, and how sure is that? Markdown tables from run folders.

    python scripts/compare.py runs/goldilocks_* runs/uniform_* > comparison.md

The first tables have the shape of the paper's Tables 1 to 3, with the paper's numbers beside ours. An accuracy is the
mean of a run's last five evaluations (Section 5.2), in percent; over seeds it is mean ± sample standard deviation.
Runs whose settings differ in nothing but the seed are one method; another grouping with --group_by.

Two questions are kept apart. Would another training run come out the same? Intervals and p over seeds (t): paired
where both methods have the same seeds, else Welch's. Would other validation problems say the same of *these* models?
Intervals over problems (bootstrap), and McNemar's exact test on the verdicts of the last evaluation. A difference is a
method's less its baseline's: the uniform sampler's run with the fewest other settings changed.
"""

import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from intervals import bootstrap, mcnemar, t_difference, t_interval
from plot import RunError, arguments, curve, differing, forwarded, load_groups, read_rows, x_values

AMOUNTS = {  # a name in plot.X_AXES -> heading
    "steps": "steps",
    "student_work": "steps × ranks / student ranks",
    "seconds": "wall-clock hours",
    "device_hours": "device-hours",
    "tokens": "generated tokens, M",
    "samples": "completions, k",
    "forwarded": "tokens forwarded, M",
}
STANDARD = "Standard GRPO"
PAPER_1 = {  # preset -> model, base, baseline, Goldilocks; % (Table 1)
    "olmo2-1b": ("Olmo2-1B", 2.5, 11.7, 14.9),
    "qwen2.5-1.5b": ("Qwen2.5-1.5B", 13.48, 30.6, 33.4),
    "qwen3-4b": ("Qwen3-4B", 12.4, 58.1, 59.7),
    "phi-4-mini": ("Phi-4-4B-Instruct", 25.4, 37.1, 41.0),
}
PAPER_2 = {  # setting, sampler, parameter -> % of Qwen2.5-1.5B (Table 2)
    (STANDARD, "uniform", "–"): 27.6,
    (STANDARD, "goldilocks", "–"): 29.5,
    ("DAPO Loss", "uniform", "–"): 26.7,
    ("DAPO Loss", "goldilocks", "–"): 28.0,
    ("Entropy Reg.", "uniform", "β=0.0003"): 27.4,
    ("Entropy Reg.", "goldilocks", "β=0.0003"): 29.1,
}
PAPER_3 = {  # sampler -> iterations, % of five seeds of Qwen2.5-1.5B (Table 3)
    "uniform": (26_666, [30.6, 30.5, 30.4, 29.4, 30.2]),
    "goldilocks": (20_000, [33.4, 32.9, 32.4, 32.6, 33.7]),
}
PAPER_NAMES = {"uniform": "Baseline (GRPO)", "goldilocks": "Goldilocks"}


@dataclass
class Run:
    """One run folder; raises RunError, in one line, where it lacks what a table needs."""

    folder: Path
    config: dict
    rows: list[dict]

    @cached_property
    def accuracy(self) -> dict[int, float]:
        """Percent right at each evaluated step."""
        found = {
            row["step"]: 100 * row["val_accuracy"]
            for row in self.rows
            if row.get("val_accuracy") is not None
        }
        if not found:
            raise RunError(f"{self.folder}: never evaluated, so there is nothing to compare")
        return found

    @property
    def reported(self) -> list[int]:
        """The steps of the last five evaluations; of a run with none after step 0, that one."""
        return [step for step in self.accuracy if step][-5:] or [0]

    @property
    def score(self) -> float:
        """The accuracy that the paper would report, in percent."""
        return float(np.mean([self.accuracy[step] for step in self.reported]))

    @cached_property
    def verdicts(self) -> np.ndarray:
        """Percent right of each validation problem (0 or 100) at the reported evaluations, (evaluations, problems)."""
        found = []
        for step in self.reported:
            try:
                lines = read_rows(self.folder / "evals" / f"step_{step}.jsonl", "problem")
                found.append([100 * line["reward"] for line in lines])
            except OSError as error:
                raise RunError(
                    f"{error.filename}: {error.strerror}; the tests over problems need it"
                ) from error
            except (KeyError, TypeError) as error:
                raise RunError(
                    f"{self.folder}/evals/step_{step}.jsonl: a line has no reward"
                ) from error
            if [line["problem"] for line in lines] != list(range(len(found[0]))):
                raise RunError(
                    f"{self.folder}/evals/step_{step}.jsonl: a problem is missing, or there twice"
                )
        return np.array(found)

    @cached_property
    def totals(self) -> dict[str, np.ndarray]:
        """The running total of each of AMOUNTS at each row of the metrics."""
        try:
            return {x: x_values(self.config, self.rows, x) for x in AMOUNTS}
        except RunError as error:
            raise RunError(f"{self.folder}: {error}") from error

    def accuracy_at(self, x: str, amount: float) -> float:
        """Percent right once `amount` of x was spent, interpolated between evaluations."""
        return 100 * float(np.interp(amount, *curve(self.rows, self.totals[x], "val_accuracy")))


class Method:
    """The runs of one configuration, in the order of their seeds, and what the paper calls it."""

    def __init__(self, name: str, runs: list[tuple]):
        self.name, self.runs = (
            name,
            sorted((Run(*run) for run in runs), key=lambda run: run.config.get("seed", 0)),
        )
        self.config = config = self.runs[0].config
        self.seeds = [run.config.get("seed", 0) for run in self.runs]
        if len(set(self.seeds)) < len(self.seeds):
            raise RunError(
                f"two runs of {name!r} have the same seed: {', '.join(map(str, self.seeds))}"
            )
        self.sampler, self.preset, beta = (
            config.get(key, "") for key in ("sampler", "preset", "entropy_coef")
        )
        self.setting = (
            "DAPO Loss" if config.get("loss") == "dapo" else "Entropy Reg." if beta else STANDARD
        )
        self.parameter = f"β={beta}" if beta else "–"
        self.scores = [run.score for run in self.runs]

    def baseline(self, methods: list["Method"]) -> "Method | None":
        """What this method is compared with; None for the first baseline."""
        references = [method for method in methods if method.sampler == "uniform"] or methods[:1]
        others = (
            references[:1] if self in references else references
        )  # an ablation of the baseline: with the first
        others = [method for method in others if method is not self]
        return min(
            others, key=lambda other: len(differing(self.config, other.config)), default=None
        )


def spread(values, unit: str = "%") -> str:
    """Mean ± sample standard deviation, of a single value the value."""
    return (
        f"{np.mean(values):.1f}"
        + (f" ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else "")
        + unit
    )


def between(interval) -> str:
    return "{:.1f} to {:.1f}".format(*interval)


def table(title: str, header: list[str], rows: list[list], note: str = "") -> str:
    """A Markdown table under a heading, with a sentence beneath."""
    lines = [header, ["---"] * len(header), *rows]
    body = "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)
    return f"## {title}\n\n{body}\n" + (f"\n{note}\n" if note else "")


def table_1(methods: list[Method]) -> str:
    """Accuracy of the standard setting by model, baseline and Goldilocks side by side."""
    rows = []
    for preset in dict.fromkeys(method.preset for method in methods):
        mine = [method for method in methods if method.preset == preset]
        base = [run.accuracy[0] for method in mine for run in method.runs if 0 in run.accuracy]
        cells = [spread(base[:1]) if base else "–"]
        for sampler in PAPER_NAMES:
            found = [m.scores for m in mine if (m.sampler, m.setting) == (sampler, STANDARD)]
            cells.append("; ".join(map(spread, found)) or "–")
        rows.append([preset or "ours", *cells])
    rows += [
        [f"{name} (paper)", *(f"{x}%" for x in numbers)] for name, *numbers in PAPER_1.values()
    ]
    return table("Accuracy, as Table 1", ["Model", "Base Model", *PAPER_NAMES.values()], rows)


def table_2(methods: list[Method]) -> str:
    """Accuracy by setting and method, the paper's Qwen2.5-1.5B beside."""
    rows, left = [], dict(PAPER_2)
    for m in methods:
        paper = left.pop((m.setting, m.sampler, m.parameter), None)
        rows.append(
            [m.setting, m.name, m.parameter, spread(m.scores), f"{paper}%" if paper else "–"]
        )
    rows += [
        [setting, PAPER_NAMES[sampler], beta, "–", f"{x}%"]
        for (setting, sampler, beta), x in left.items()
    ]
    header = ["Setting", "Method", "Param.", "Acc., ours", "Acc., paper (Qwen2.5-1.5B)"]
    return table("Ablations, as Table 2", header, rows)


def table_3(methods: list[Method]) -> str:
    """Scores by seed, with the interval that they give; the paper's five seeds beside."""
    every = [
        (m.name, " / ".join(sorted({f"{run.rows[-1]['step']:,}" for run in m.runs})), m.scores)
        for m in methods
    ]
    every += [
        (f"{PAPER_NAMES[key]} (paper)", f"{steps:,}", scores)
        for key, (steps, scores) in PAPER_3.items()
    ]
    rows = []
    for name, steps, scores in every:
        interval = between(t_interval(scores)) if len(scores) > 1 else "one seed: no interval"
        rows.append(
            [name, steps, ", ".join(f"{x:.1f}" for x in scores), spread(scores, ""), interval]
        )
    header = [
        "Method",
        "Iterations",
        "Scores by seed, %",
        "Mean ± Std",
        "95% interval of the mean (t)",
    ]
    return table("Seeds, as Table 3", header, rows)


def seed_differences(pairs: list[tuple[Method, Method]]) -> str:
    """Each method less its baseline, over seeds."""
    rows = []
    for m, base in pairs:
        paired = m.seeds == base.seeds
        test, cells = ("paired by seed" if paired else "Welch"), ["–", "–"]
        if min(len(m.seeds), len(base.seeds)) > 1:
            _, interval, p = t_difference(m.scores, base.scores, paired)
            cells = [between(interval), f"{p:.2g}"]
        else:
            test = "one seed: no interval can be given"
        rows.append(
            [
                f"{m.name} − {base.name}",
                f"{np.mean(m.scores) - np.mean(base.scores):+.1f}",
                *cells,
                test,
            ]
        )
    difference, interval, p = t_difference(
        PAPER_3["goldilocks"][1], PAPER_3["uniform"][1], paired=False
    )
    rows.append(
        [
            "Goldilocks − Baseline (paper, Table 3)",
            f"{difference:+.1f}",
            between(interval),
            f"{p:.2g}",
            "Welch",
        ]
    )
    header = ["Difference of the means", "points", "95% interval over seeds", "p", "test"]
    return table("Would another training run say the same?", header, rows)


def problem_differences(pairs: list[tuple[Method, Method]]) -> str:
    """Each method less its baseline on the same validation problems, seed by seed."""
    rows = []
    for m, base in pairs:
        together = [seed for seed in m.seeds if seed in base.seeds]
        if not together:
            print(
                f"note: {m.name} and {base.name} have no common seed: no test on their verdicts",
                file=sys.stderr,
            )
        deltas = []
        for seed in together:
            a, b = (x.runs[x.seeds.index(seed)].verdicts for x in (m, base))
            deltas.append(a.mean(axis=0) - b.mean(axis=0))
            only_a, only_b = int((a[-1] > b[-1]).sum()), int((a[-1] < b[-1]).sum())
            cells = [f"{deltas[-1].mean():+.1f}", between(bootstrap(deltas[-1])), only_a, only_b]
            rows.append(
                [f"{m.name} − {base.name}, seed {seed}", *cells, f"{mcnemar(only_a, only_b):.2g}"]
            )
        if len(together) > 1:
            delta = np.mean(deltas, axis=0)
            name = f"{m.name} − {base.name}, mean of {len(together)} seeds"
            rows.append([name, f"{delta.mean():+.1f}", between(bootstrap(delta)), "–", "–", "–"])
    header = ["Last five evaluations", "points", "95% interval over problems"]
    header += ["last evaluation: only the first is right", "only the second", "McNemar's p"]
    return table("Would other problems say the same of these models?", header, rows) if rows else ""


def equal_amounts(methods: list[Method]) -> str:
    """Accuracy once the same was spent, interpolated: at half and at all of what every run has reached."""
    rows = []
    for x, heading in AMOUNTS.items():
        reached = min(
            curve(run.rows, run.totals[x], "val_accuracy")[0][-1] for m in methods for run in m.runs
        )
        for amount in (reached / 2, reached):
            cells = [spread([run.accuracy_at(x, amount) for run in m.runs]) for m in methods]
            rows.append([heading, f"{amount:.3g}" if amount < 100 else f"{amount:,.0f}", *cells])
    note = (
        "Evaluations are not in the time. Steps × ranks / student ranks is the paper's rule (App. D): n steps of 6 "
        "student ranks against 8n/6 of 8. Where ranks share processors, as on a laptop, neither time is what devices "
        "of their own would take: there look at the tokens forwarded."
    )
    return table("At equal amounts", ["amount", "at", *(m.name for m in methods)], rows, note)


def spent(methods: list[Method]) -> str:
    """What a run of each method used in all."""
    rows = []
    for m in methods:
        means = [np.mean([run.totals[x][-1] for run in m.runs]) for x in AMOUNTS]
        parts = np.mean([forwarded(run.config, run.rows)[:, -1] for run in m.runs], axis=0) / 1e6
        cells = [f"{mean:.3g}" if mean < 100 else f"{mean:,.0f}" for mean in means]
        rows.append([m.name, *cells, " + ".join(f"{part:.3g}" for part in parts)])
    note = (
        "Device-hours are ranks × time. Tokens forwarded: to generate (a group's prompt is read once), to train (rows "
        "with a gradient; the backward pass, about two forwards, is not counted), by the teacher (questions scored and "
        "learned from, taken as long as prompts: an upper bound). The paper: about 1,000 GPU-hours a run (App. K)."
    )
    return table(
        "Spent by a run",
        ["mean of the runs", *AMOUNTS.values(), "generate + train + teacher"],
        rows,
        note,
    )


def compare(folders, group_by: tuple[str, ...] = ()) -> str:
    """All tables as Markdown. Raises RunError where the runs cannot be compared."""
    methods = [Method(name, runs) for name, runs in load_groups(folders, group_by).items()]
    runs = [run for m in methods for run in m.runs]
    pairs = [(m, base) for m in methods if (base := m.baseline(methods))]
    for run in runs:
        sizes = [other.verdicts.shape[1] for other in (runs[0], run)]
        files = [other.config.get("val_data_crc32") for other in (runs[0], run)]
        if sizes[0] != sizes[1] or (None not in files and files[0] != files[1]):
            what = f"different validation sets ({sizes[0]} and {sizes[1]} problems): not comparable"
            raise RunError(f"{runs[0].folder} and {run.folder} have {what}")
        if run.rows[-1]["step"] < run.config.get("steps", 0):
            print(
                f"note: {run.folder} is at step {run.rows[-1]['step']} of {run.config['steps']}",
                file=sys.stderr,
            )
        if len(run.reported) < 5:
            few = f"has {len(run.reported)} evaluation{'s' * (len(run.reported) > 1)} to average, not five"
            print(f"note: {run.folder} {few}", file=sys.stderr)
    tables = [table_1(methods), table_2(methods), table_3(methods)]
    if pairs:
        tables += [seed_differences(pairs), problem_differences(pairs)]
    return "\n".join(filter(None, [*tables, equal_amounts(methods), spent(methods)]))


def main(argv=None) -> None:
    """The command line of `compare`."""
    parser = arguments(__doc__, out=False)
    args = parser.parse_args(argv)
    try:
        print(compare(args.runs, tuple(args.group_by)), end="")
    except (RunError, OSError) as error:
        parser.exit(2, f"compare: {error}\n")


if __name__ == "__main__":
    main()
