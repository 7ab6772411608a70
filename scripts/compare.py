"""Compare methods at equal compute, with uncertainty: Markdown tables from run directories.

    python -m scripts.compare runs/demo-* > comparison.md

An accuracy is the mean of a run's last five evaluations (Section 5.2). "At" an amount that all runs
reached, and at half of it, accuracy is interpolated between evaluations. The baseline is the first
method with uniform sampling, else the first method.

Would another training run give the same result? Interval and p over seeds (t): paired if both
methods have the same seeds, else Welch's. Would other validation problems give the same result for
*these* models? Interval over problems (bootstrap), averaged over seeds.
"""

import sys
from functools import partial

import numpy as np

from plumbing.errors import InputError
from scripts import analysis
from scripts.analysis import AMOUNTS, Run


def accuracies(run: Run, reached: dict[str, float]) -> dict[str, float]:
    """Percent right before training, as the paper reports it, and at equal amounts. reached: for
    each of AMOUNTS, what every run has spent by its last evaluation."""
    row = {"base model": run.accuracy.get(0), "last five evaluations": run.score}
    for amount, most in reached.items():
        accuracy = 100 * run.curve("val_accuracy", amount)
        for spent in (most / 2, most):
            number = f"{spent:,.0f}" if spent >= 100 else f"{spent:.3g}"
            row[f"at {number} {AMOUNTS[amount]}"] = np.interp(spent, accuracy.index, accuracy)
    return row


def difference(name: str, runs: list[Run], base: list[Run]) -> list[str]:
    """A table row: a method less the baseline, over seeds and over problems."""
    a, b = [run.score for run in runs], [run.score for run in base]
    paired = [run.config["seed"] for run in runs] == [run.config["seed"] for run in base]
    over_seeds = ["one seed: none", "–", "–"]
    if min(len(a), len(b)) > 1:
        _, (low, high), p = analysis.t_difference(a, b, paired)
        over_seeds = [f"{low:.1f} to {high:.1f}", f"{p:.2g}", "paired" if paired else "Welch"]
    verdicts = [np.mean([run.verdicts for run in each], axis=0) for each in (runs, base)]
    low, high = analysis.bootstrap(verdicts[0] - verdicts[1])
    points = f"{np.mean(a) - np.mean(b):+.1f}"
    return [name, points, *over_seeds, f"{low:.1f} to {high:.1f}"]


def check_runs(runs: list[Run]) -> None:
    """Print a note on each run that has not ended or has fewer than five evaluations to average.
    Raises InputError if the runs have different validation sets, or one was never evaluated."""
    first = runs[0]
    for run in runs:
        if run.config.get("val_data_crc32") != first.config.get("val_data_crc32"):
            raise InputError(
                f"{first.folder} and {run.folder} have different validation sets: not comparable"
            )
        step = run.metrics.index[-1]
        steps = run.config["steps"]
        count = len(run.reported)
        if step < steps or count < 5:
            state = f"at step {step} of {steps}; evaluations to average, of five: {count}"
            print(f"note: {run.folder} is {state}", file=sys.stderr)


def accuracy_table(methods: dict[str, list[Run]], reached: dict[str, float]) -> str:
    """Format the accuracies of each method, in percent, over its seeds. reached: as `accuracies`
    takes it."""
    seeds = [f"{name}: {[round(run.score, 1) for run in runs]}" for name, runs in methods.items()]
    note = f"Last five evaluations by seed: {'; '.join(seeds)}. Steps × ranks / student ranks: "
    note += "n steps of 6 student ranks against 8n/6 of 8 (App. D)."
    accuracy = partial(accuracies, reached=reached)
    return analysis.by_method("Accuracy", methods, accuracy, note=note)


def difference_table(methods: dict[str, list[Run]]) -> str:
    """Format each method less the baseline, in percentage points. With one method there is no table
    but a line that asks for another."""
    base, *others = sorted(methods, key=lambda m: methods[m][0].config["sampler"] != "uniform")
    if not others:
        return f"All runs are of {base}: add runs of another method to see differences.\n"
    rows = [difference(m, methods[m], methods[base]) for m in others]
    header = ["method", "points", "interval over seeds", "p", "test", "interval over problems"]
    return analysis.table(f"Less {base}, with 95% intervals", header, rows)


def compare(methods: dict[str, list[Run]]) -> str:
    """Format both tables. Raises InputError if the runs cannot be compared."""
    every = [run for runs in methods.values() for run in runs]
    check_runs(every)
    reached = {a: min(run.spent[a][run.accuracy.index[-1]] for run in every) for a in AMOUNTS}
    return "\n".join([accuracy_table(methods, reached), difference_table(methods)])


def main(argv=None) -> None:
    args = analysis.parser(__doc__, runs=True).parse_args(argv)
    with analysis.one_line("compare"):
        print(compare(analysis.load_methods(args.runs)), end="")


if __name__ == "__main__":
    main()
