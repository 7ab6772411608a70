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

STANDARD = "Standard GRPO"
PAPER_1 = [  # model, base, baseline, Goldilocks; % (Table 1)
    ["Olmo2-1B (paper)", "2.5%", "11.7%", "14.9%"],
    ["Qwen2.5-1.5B (paper)", "13.48%", "30.6%", "33.4%"],
    ["Qwen3-4B (paper)", "12.4%", "58.1%", "59.7%"],
    ["Phi-4-4B-Instruct (paper)", "25.4%", "37.1%", "41.0%"],
]
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


def place(method: Method) -> tuple[str, str, str]:
    """The method's row in Table 2: setting, sampler, parameter."""
    beta = method.config.get("entropy_coef")
    setting = "Entropy Reg." if beta else STANDARD
    if method.config.get("loss") == "dapo":
        setting = "DAPO Loss"
    return setting, method.config["sampler"], f"β={beta}" if beta else "–"


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
        for sampler in PAPER_NAMES:
            found = [spread(m.scores) for m in mine if place(m)[:2] == (STANDARD, sampler)]
            row.append("; ".join(found) or "–")
        rows.append(row)
    header = ["Model", "Base Model", *PAPER_NAMES.values()]
    return table("Accuracy, as Table 1", header, rows + PAPER_1)


def table_2(methods: list[Method]) -> str:
    """Accuracy by setting and method, the paper's Qwen2.5-1.5B beside."""
    rows, left = [], dict(PAPER_2)
    for m in methods:
        setting, _, parameter = place(m)
        paper = left.pop(place(m), None)
        rows.append([setting, m.name, parameter, spread(m.scores), f"{paper}%" if paper else "–"])
    for (setting, sampler, parameter), paper in left.items():
        rows.append([setting, PAPER_NAMES[sampler], parameter, "–", f"{paper}%"])
    header = ["Setting", "Method", "Param.", "Acc., ours", "Acc., paper (Qwen2.5-1.5B)"]
    return table("Ablations, as Table 2", header, rows)


def table_3(methods: list[Method]) -> str:
    """Scores by seed, with the interval that they give; the paper's five seeds beside."""
    every = []
    for m in methods:
        steps = sorted({run.metrics.index[-1] for run in m.runs})
        every.append((m.name, steps, m.scores))
    for sampler, (steps, scores) in PAPER_3.items():
        every.append((f"{PAPER_NAMES[sampler]} (paper)", [steps], scores))
    rows = []
    for name, steps, scores in every:
        interval = "one seed: no interval"
        if len(scores) > 1:
            interval = between(report.t_interval(scores))
        seeds = ", ".join(f"{score:.1f}" for score in scores)
        steps = " / ".join(f"{step:,}" for step in steps)
        rows.append([name, steps, seeds, spread(scores, ""), interval])
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
        deltas = []
        for a in m.runs:
            b = next((run for run in base.runs if run.config["seed"] == a.config["seed"]), None)
            if b is None:
                continue
            last = np.sign(a.verdicts[-1] - b.verdicts[-1])
            only_a, only_b = int((last > 0).sum()), int((last < 0).sum())
            deltas.append(a.verdicts.mean(axis=0) - b.verdicts.mean(axis=0))
            name, p = f"{m.name} − {base.name}, seed {a.config['seed']}", mcnemar(only_a, only_b)
            cells = [f"{deltas[-1].mean():+.1f}", between(report.bootstrap(deltas[-1]))]
            rows.append([name, *cells, only_a, only_b, f"{p:.2g}"])
        if len(deltas) > 1:
            mean = np.mean(deltas, axis=0)
            name = f"{m.name} − {base.name}, mean of {len(deltas)} seeds"
            interval = between(report.bootstrap(mean))
            rows.append([name, f"{mean.mean():+.1f}", interval, "–", "–", "–"])
        if not deltas:
            what = "have no common seed: no test on their verdicts"
            print(f"note: {m.name} and {base.name} {what}", file=sys.stderr)
    header = ["Last five evaluations", "points", "95% interval over problems"]
    header += ["last evaluation: only the first is right", "only the second", "McNemar's p"]
    return table("Would other problems say the same of these models?", header, rows) if rows else ""


def brief(amount: float) -> str:
    return f"{amount:.3g}" if amount < 100 else f"{amount:,.0f}"


def equal_amounts(methods: list[Method]) -> str:
    """Accuracy once the same was spent, interpolated: half and all of what every run reached."""
    runs, rows = [run for m in methods for run in m.runs], []
    for amount, heading in AMOUNTS.items():
        reached = min(run.spent[amount][run.accuracy.index[-1]] for run in runs)
        for spent in (reached / 2, reached):
            cells = [spread([run.accuracy_at(amount, spent) for run in m.runs]) for m in methods]
            rows.append([heading, brief(spent), *cells])
    note = (
        "Evaluations are not in the time. Steps × ranks / student ranks is the paper's rule (App. "
        "D): n steps of 6 student ranks against 8n/6 of 8. Where ranks share processors, as on a "
        "laptop, neither time is what devices of their own would take: there look at the tokens "
        "forwarded."
    )
    return table("At equal amounts", ["amount", "at", *(m.name for m in methods)], rows, note)


def spent(methods: list[Method]) -> str:
    """What a run of each method used in all."""
    rows = []
    for m in methods:
        total = sum(run.spent.iloc[-1] for run in m.runs) / len(m.runs)
        parts = " + ".join(f"{part:.3g}" for part in total[["generate", "train", "teach"]])
        rows.append([m.name, *map(brief, total[list(AMOUNTS)]), parts])
    note = (
        "Device-hours are ranks × time. Tokens forwarded: to generate (a group's prompt is read "
        "once), to train (rows with a gradient; the backward pass, about two forwards, is not "
        "counted), by the teacher (questions scored and learned from, taken as long as prompts: an "
        "upper bound). The paper: about 1,000 GPU-hours a run (App. K)."
    )
    header = ["mean of the runs", *AMOUNTS.values(), "generate + train + teacher"]
    return table("Spent by a run", header, rows, note)


def compare(methods: list[Method]) -> str:
    """All tables as Markdown. Raises InputError where the runs cannot be compared."""
    runs = [run for m in methods for run in m.runs]
    sizes = [run.verdicts.shape[1] for run in runs]
    files = [run.config.get("val_data_crc32") for run in runs]
    for run, size, file in zip(runs, sizes, files, strict=True):
        if size != sizes[0] or (None not in (file, files[0]) and file != files[0]):
            what = f"different validation sets ({sizes[0]} and {size} problems): not comparable"
            raise InputError(f"{runs[0].folder} and {run.folder} have {what}")
        step, count = run.metrics.index[-1], len(run.reported)
        if step < run.config["steps"]:
            print(f"note: {run.folder} is at step {step} of {run.config['steps']}", file=sys.stderr)
        if count < 5:
            what = f"evaluation{'s' * (count > 1)} to average, not five"
            print(f"note: {run.folder} has {count} {what}", file=sys.stderr)
    parts = [table_1(methods), table_2(methods), table_3(methods)]
    pairs = [(m, base) for m in methods if (base := baseline(m, methods))]
    if pairs:
        parts += [seed_differences(pairs), problem_differences(pairs)]
    parts += [equal_amounts(methods), spent(methods)]
    return "\n".join(filter(None, parts))


def main(argv=None) -> None:
    """The command line of `compare`."""
    args = report.arguments(__doc__).parse_args(argv)
    with report.one_line("compare"):
        print(compare(report.load_methods(args.runs)), end="")


if __name__ == "__main__":
    main()
