"""Which method is better, at equal compute, and how sure is that? Markdown tables from run folders.

    python -m scripts.compare runs/goldilocks_* runs/uniform_* > comparison.md

The first tables have the shape of the paper's Tables 1 to 3, with the paper's numbers beside ours.
An accuracy is the mean of a run's last five evaluations (Section 5.2), in percent; over seeds it is
mean ± sample standard deviation. Runs whose settings differ in nothing but the seed are one method.

Two questions are kept apart. Would another training run come out the same? Intervals and p over
seeds (t): paired where both methods have the same seeds, else Welch's. Would other validation
problems say the same of *these* models? Intervals over problems (bootstrap), and McNemar's exact
test on the verdicts of the last evaluation. A difference is a method's less its baseline's: the
uniform sampler's run with the fewest other settings changed.
"""

import sys

import numpy as np
from scipy import stats

from plumbing.errors import InputError
from scripts import report
from scripts.report import AMOUNTS, Method, between, spread, table

PAPER_1 = [  # model, base, baseline, Goldilocks; % (Table 1)
    ["Olmo2-1B (paper)", "2.5%", "11.7%", "14.9%"],
    ["Qwen2.5-1.5B (paper)", "13.48%", "30.6%", "33.4%"],
    ["Qwen3-4B (paper)", "12.4%", "58.1%", "59.7%"],
    ["Phi-4-4B-Instruct (paper)", "25.4%", "37.1%", "41.0%"],
]
PAPER_2 = [  # setting, method, accuracy of Qwen2.5-1.5B (Table 2)
    ["Standard GRPO", "Baseline (paper)", "27.6%"],
    ["Standard GRPO", "Goldilocks (paper)", "29.5%"],
    ["DAPO Loss", "Baseline (paper)", "26.7%"],
    ["DAPO Loss", "Goldilocks (paper)", "28.0%"],
    ["Entropy Reg., β=0.0003", "Baseline (paper)", "27.4%"],
    ["Entropy Reg., β=0.0003", "Goldilocks (paper)", "29.1%"],
]
PAPER_3 = {  # sampler -> iterations, % of five seeds of Qwen2.5-1.5B (Table 3)
    "uniform": (26_666, [30.6, 30.5, 30.4, 29.4, 30.2]),
    "goldilocks": (20_000, [33.4, 32.9, 32.4, 32.6, 33.7]),
}
PAPER_NAMES = {"uniform": "Baseline (GRPO)", "goldilocks": "Goldilocks"}


def setting(method: Method) -> str:
    """The method's setting, as Table 2 names it."""
    if method.config.get("loss") == "dapo":
        return "DAPO Loss"
    beta = method.config.get("entropy_coef")
    return f"Entropy Reg., β={beta}" if beta else "Standard GRPO"


def baseline(method: Method, methods: list[Method]) -> Method | None:
    """What a method is compared with: the uniform sampler's (else the first) with the fewest
    other settings changed. A uniform method is compared with the first of them; that, with none."""
    uniform = [m for m in methods if m.config["sampler"] == "uniform"] or methods[:1]
    others = uniform[:1] if method in uniform else uniform
    others = [other for other in others if other is not method]
    run = method.runs[0]
    return min(others, key=lambda m: len(report.differing(run, m.runs[0])), default=None)


def table_1(methods: list[Method]) -> str:
    """Accuracy of the standard setting by model, baseline and Goldilocks side by side."""
    rows = []
    for preset in dict.fromkeys(m.config.get("preset") for m in methods):
        mine = [m for m in methods if m.config.get("preset") == preset]
        base = [run.accuracy[0] for m in mine for run in m.runs if 0 in run.accuracy]
        row = [preset or "ours", spread(base[:1])]
        standard = [m for m in mine if setting(m) == "Standard GRPO"]
        for sampler in PAPER_NAMES:
            found = [spread(m.scores) for m in standard if m.config["sampler"] == sampler]
            row.append("; ".join(found) or "–")
        rows.append(row)
    header = ["Model", "Base Model", *PAPER_NAMES.values()]
    return table("Accuracy, as Table 1", header, rows + PAPER_1)


def table_2(methods: list[Method]) -> str:
    """Accuracy by setting and method, the paper's Qwen2.5-1.5B after ours."""
    rows = [[setting(m), m.name, spread(m.scores)] for m in methods]
    header = ["Setting", "Method", "Accuracy"]
    return table("Ablations, as Table 2", header, rows + PAPER_2)


def table_3(methods: list[Method]) -> str:
    """Scores by seed, with the interval that they give; the paper's five seeds after ours."""
    every = [(m.name, max(run.metrics.index[-1] for run in m.runs), m.scores) for m in methods]
    for sampler, found in PAPER_3.items():
        every.append((f"{PAPER_NAMES[sampler]} (paper)", *found))
    rows = []
    for name, steps, scores in every:
        several = len(scores) > 1
        interval = between(report.t_interval(scores)) if several else "one seed: no interval"
        seeds = ", ".join(f"{score:.1f}" for score in scores)
        rows.append([name, f"{steps:,}", seeds, spread(scores, ""), interval])
    header = ["Method", "Iterations", "Scores by seed, %", "Mean ± Std"]
    return table("Seeds, as Table 3", [*header, "95% interval of the mean (t)"], rows)


def seed_differences(pairs: list[tuple[Method, Method]]) -> str:
    """Each method less its baseline, over seeds."""
    every = [(f"{m.name} − {b.name}", m.scores, b.scores, m.seeds == b.seeds) for m, b in pairs]
    ours, theirs = (PAPER_3[sampler][1] for sampler in ("goldilocks", "uniform"))
    every.append(("Goldilocks − Baseline (paper, Table 3)", ours, theirs, False))
    rows = []
    for name, a, b, paired in every:
        cells = ["–", "–", "one seed: no interval can be given"]
        if min(len(a), len(b)) > 1:
            _, interval, p = report.t_difference(a, b, paired)
            cells = [between(interval), f"{p:.2g}", "paired by seed" if paired else "Welch"]
        rows.append([name, f"{np.mean(a) - np.mean(b):+.1f}", *cells])
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
    note = (
        "Evaluations are not in the time. Steps × ranks / student ranks is the paper's rule (App. "
        "D): n steps of 6 student ranks against 8n/6 of 8."
    )
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
    parts = [table_1(methods), table_2(methods), table_3(methods)]
    if pairs := [(m, base) for m in methods if (base := baseline(m, methods))]:
        parts += [seed_differences(pairs), problem_differences(pairs)]
    return "\n".join([*parts, equal_amounts(methods)])


def main(argv=None) -> None:
    """The command line of `compare`."""
    args = report.arguments(__doc__).parse_args(argv)
    with report.one_line("compare"):
        print(compare(report.load_methods(args.runs)), end="")


if __name__ == "__main__":
    main()
