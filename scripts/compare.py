"""Which method is better, at equal compute, and how sure is that? Markdown tables from run folders.

    python -m scripts.compare runs/goldilocks_* runs/uniform_* > comparison.md

An accuracy is the mean of a run's last five evaluations (Section 5.2), in percent; over seeds it is
mean ± sample standard deviation. Runs whose settings differ in nothing but the seed are one method.
The paper's own numbers stand after ours.

Two questions are kept apart. Would another training run come out the same? Intervals and p over
seeds (t): paired where both methods have the same seeds, else Welch's. Would other validation
problems say the same of *these* models? Intervals over problems (bootstrap), and McNemar's exact
test on the verdicts of the last evaluation. Evaluations are not in the time of a run.
"""

import sys

import numpy as np
from scipy import stats

from plumbing.errors import InputError
from scripts import report
from scripts.report import AMOUNTS, Method, between, spread, table

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
    uniform = [m for m in methods if m.config["sampler"] == "uniform"] or methods[:1]
    others = uniform[:1] if method in uniform else uniform
    others = [other for other in others if other is not method]
    run = method.runs[0]
    return min(others, key=lambda m: len(report.differing(run, m.runs[0])), default=None)


def accuracies(methods: list[Method]) -> str:
    """Scores before training and by seed, with the interval that they give."""
    rows = []
    for m in methods:
        steps = max(run.metrics.index[-1] for run in m.runs)
        before = [run.accuracy[0] for run in m.runs if 0 in run.accuracy]
        seeds = ", ".join(f"{score:.1f}" for score in m.scores)
        several = len(m.runs) > 1
        interval = between(report.t_interval(m.scores)) if several else "one seed: no interval"
        rows.append([m.name, f"{steps:,}", spread(before[:1]), seeds, spread(m.scores), interval])
    header = ["Method", "steps", "base model", "by seed, %", "mean ± std"]
    return table("Accuracy", [*header, "95% interval of the mean (t)"], rows)


def seed_differences(pairs: list[tuple[Method, Method]]) -> str:
    """Each method less its baseline, over seeds."""
    rows = []
    for m, base in pairs:
        a, b, paired = m.scores, base.scores, m.seeds == base.seeds
        cells = ["–", "–", "one seed: no interval can be given"]
        if min(len(a), len(b)) > 1:
            _, interval, p = report.t_difference(a, b, paired)
            cells = [between(interval), f"{p:.2g}", "paired by seed" if paired else "Welch"]
        rows.append([f"{m.name} − {base.name}", f"{np.mean(a) - np.mean(b):+.1f}", *cells])
    header = ["Difference of the means", "points", "95% interval over seeds", "p", "test"]
    return table("Would another training run say the same?", header, rows)


def mcnemar(b: int, c: int) -> float:
    """Exact p of b problems that only one run solved, c that only the other did: a fair coin's."""
    return stats.binomtest(b, b + c).pvalue if b + c else 1.0


def problem_differences(pairs: list[tuple[Method, Method]]) -> str:
    """Each method less its baseline on the same validation problems, seed by seed."""
    rows = []
    for m, base in pairs:
        deltas, others = [], dict(zip(base.seeds, base.runs, strict=True))
        for seed, run in zip(m.seeds, m.runs, strict=True):
            name = f"{m.name} − {base.name}, seed {seed}"
            if seed not in others:
                rows.append([name, "the baseline has no such seed", *["–"] * 4])
                continue
            a, b = run.verdicts, others[seed].verdicts
            delta = a.mean(axis=0) - b.mean(axis=0)
            only_a, only_b = int((a[-1] > b[-1]).sum()), int((a[-1] < b[-1]).sum())
            cells = [f"{delta.mean():+.1f}", between(report.bootstrap(delta)), only_a, only_b]
            rows.append([name, *cells, f"{mcnemar(only_a, only_b):.2g}"])
            deltas.append(delta)
        if len(deltas) > 1:
            mean = np.mean(deltas, axis=0)
            name = f"{m.name} − {base.name}, mean of {len(deltas)} seeds"
            interval = between(report.bootstrap(mean))
            rows.append([name, f"{mean.mean():+.1f}", interval, "–", "–", "–"])
    header = ["Last five evaluations", "points", "95% interval over problems"]
    header += ["last evaluation: only the first is right", "only the second", "McNemar's p"]
    return table("Would other problems say the same of these models?", header, rows)


def equal_amounts(methods: list[Method]) -> str:
    """Accuracy once the same was spent, interpolated: half and all of what every run reached."""
    runs, rows = [run for m in methods for run in m.runs], []
    for amount, heading in AMOUNTS.items():
        reached = min(run.spent[amount][run.accuracy.index[-1]] for run in runs)
        for spent in (reached / 2, reached):
            cells = [spread([run.accuracy_at(amount, spent) for run in m.runs]) for m in methods]
            rows.append([heading, f"{spent:,.0f}" if spent >= 100 else f"{spent:.3g}", *cells])
    note = "Steps × ranks / student ranks: n steps of 6 student ranks against 8n/6 of 8 (App. D)."
    return table("At equal amounts", ["amount", "at", *(m.name for m in methods)], rows, note)


def compare(methods: list[Method]) -> str:
    """All tables as Markdown. Raises InputError where the runs cannot be compared."""
    runs = [run for m in methods for run in m.runs]
    sizes = [run.verdicts.shape[1] for run in runs]
    files = [run.config.get("val_data_crc32") for run in runs]
    for run, size, file in zip(runs, sizes, files, strict=True):
        if size != sizes[0] or (None not in (file, files[0]) and file != files[0]):
            what = f"different validation sets ({sizes[0]} and {size} problems): not comparable"
            raise InputError(f"{runs[0].folder} and {run.folder} have {what}")
        step, steps, count = run.metrics.index[-1], run.config["steps"], len(run.reported)
        if step < steps or count < 5:
            what = f"at step {step} of {steps}; evaluations to average, of five: {count}"
            print(f"note: {run.folder} is {what}", file=sys.stderr)
    parts = [accuracies(methods)]
    if pairs := [(m, base) for m in methods if (base := baseline(m, methods))]:
        parts += [seed_differences(pairs), problem_differences(pairs)]
    return "\n".join([*parts, equal_amounts(methods), PAPER])


def main(argv=None) -> None:
    """The command line of `compare`."""
    args = report.arguments(__doc__).parse_args(argv)
    with report.one_line("compare"):
        print(compare(report.load_methods(args.runs)), end="")


if __name__ == "__main__":
    main()
