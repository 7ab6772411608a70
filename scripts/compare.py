"""Which method is better, at equal compute, and how sure is that? Markdown tables from run folders.

    python -m scripts.compare runs/goldilocks_* runs/uniform_* > comparison.md

An accuracy is the mean of a run's last five evaluations (Section 5.2), in percent; over seeds it is
mean ± sample standard deviation. Runs whose settings differ in nothing but the seed are one method.
"At" an amount that all runs reached, and at half of it, accuracy is interpolated between
evaluations, whose own time does not count. The paper's own numbers stand after ours.

Two questions are kept apart. Would another training run come out the same? Interval and p over
seeds (t): paired where both methods have the same seeds, else Welch's. Would other validation
problems say the same of *these* models? Interval over problems (bootstrap), seeds averaged.
"""

import sys

import numpy as np

from plumbing.errors import InputError
from scripts import report
from scripts.report import AMOUNTS, Method, Run

PAPER = """## The paper's accuracies

| Tables 1 and 3 | base model | baseline (GRPO) | Goldilocks |
| --- | --- | --- | --- |
| Olmo2-1B | 2.5% | 11.7% | 14.9% |
| Qwen2.5-1.5B | 13.48% | 30.6% | 33.4% |
| … five seeds, 26,666 and 20,000 steps | | 30.2 ± 0.48% | 33.0 ± 0.54% |
| Qwen3-4B | 12.4% | 58.1% | 59.7% |
| Phi-4-4B-Instruct | 25.4% | 37.1% | 41.0% |

| Table 2, Qwen2.5-1.5B | baseline | Goldilocks |
| --- | --- | --- |
| standard GRPO | 27.6% | 29.5% |
| `--loss dapo` | 26.7% | 28.0% |
| `--entropy_coef 0.0003` | 27.4% | 29.1% |
"""


def baseline(method: Method, methods: list[Method]) -> Method | None:
    """What a method is compared with: the uniform sampler's (else the first) with the fewest
    other settings changed. A uniform method is compared with the first of them; that, with none."""
    uniform = [m for m in methods if m.runs[0].config["sampler"] == "uniform"] or methods[:1]
    others = uniform[:1] if method in uniform else uniform
    others = [other for other in others if other is not method]
    run = method.runs[0]
    return min(others, key=lambda m: len(report.differing(run, m.runs[0])), default=None)


def accuracies(run: Run, reached: dict[str, float]) -> dict[str, float]:
    """Percent right before training, as the paper reports it, and at equal amounts; `reached`: how
    much every run has spent by its last evaluation."""
    found = {"base model": run.accuracy.get(0), "last five evaluations": run.score}
    for amount, most in reached.items():
        known = 100 * run.curve("val_accuracy", amount)
        for spent in (most / 2, most):
            number = f"{spent:,.0f}" if spent >= 100 else f"{spent:.3g}"
            found[f"at {number} {AMOUNTS[amount]}"] = np.interp(spent, known.index, known)
    return found


def difference(method: Method, base: Method) -> list[str]:
    """A row: method less base, over seeds and over problems."""
    a, b, paired = method.scores, base.scores, method.seeds == base.seeds
    over_seeds = ["one seed: none", "–", "–"]
    if min(len(a), len(b)) > 1:
        _, (low, high), p = report.t_difference(a, b, paired)
        over_seeds = [f"{low:.1f} to {high:.1f}", f"{p:.2g}", "paired" if paired else "Welch"]
    verdicts = [np.mean([run.verdicts for run in m.runs], axis=0) for m in (method, base)]
    low, high = report.bootstrap(verdicts[0] - verdicts[1])
    points = f"{np.mean(a) - np.mean(b):+.1f}"
    name = f"{method.name} − {base.name}"
    return [name, points, *over_seeds, f"{low:.1f} to {high:.1f}"]


def compare(methods: list[Method]) -> str:
    """All tables as Markdown. Raises InputError where the runs cannot be compared."""
    runs = [run for m in methods for run in m.runs]
    for run in runs:
        if run.config.get("val_data_crc32") != runs[0].config.get("val_data_crc32"):
            what = "have different validation sets: not comparable"
            raise InputError(f"{runs[0].folder} and {run.folder} {what}")
        step, steps, count = run.metrics.index[-1], run.config["steps"], len(run.reported)
        if step < steps or count < 5:
            what = f"at step {step} of {steps}; evaluations to average, of five: {count}"
            print(f"note: {run.folder} is {what}", file=sys.stderr)
    reached = {a: min(run.spent[a][run.accuracy.index[-1]] for run in runs) for a in AMOUNTS}
    seeds = [f"{m.name}: " + ", ".join(f"{score:.1f}" for score in m.scores) for m in methods]
    note = f"Last five evaluations by seed: {'; '.join(seeds)}. Steps × ranks / student ranks: "
    note += "n steps of 6 student ranks against 8n/6 of 8 (App. D)."
    parts = [report.by_method("Accuracy", methods, lambda r: accuracies(r, reached), note=note)]
    pairs = [(m, base) for m in methods if (base := baseline(m, methods))]
    header = ["", "points", "interval over seeds", "p", "test", "interval over problems"]
    if pairs:
        rows = [difference(*pair) for pair in pairs]
        parts.append(report.table("Differences, with 95% intervals", header, rows))
    return "\n".join([*parts, PAPER])


def main(argv=None) -> None:
    """The command line of `compare`."""
    args = report.arguments(__doc__).parse_args(argv)
    with report.one_line("compare"):
        print(compare(report.load_methods(args.runs)), end="")


if __name__ == "__main__":
    main()
