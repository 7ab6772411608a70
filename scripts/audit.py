"""What training curves cannot separate: Markdown tables from run folders.

    python -m scripts.audit runs/goldilocks_* runs/uniform_* > audit.md

Values are mean ± sample standard deviation over runs. Predictions are those that a problem was
selected with, outcomes y = √(p̂(1-p̂)) of its G completions.

Exploring picks uniformly (the uniform sampler always does): it judges the teacher without bias, and
its mean outcome is the pool's. Greedy takes the largest of K predictions, so on average it
overrates; at the *same* prediction both expect the same outcome, and their rows of the calibration
table should agree. Lift: how far greedy lies above its pool, predicted (utility less the pool's
mean) and in outcomes (greedy less exploring). Noise floor: a perfect teacher's error, from G only.

Gradient norm: a dead group adds nothing to the sum but counts in the denominator, so fewer of them
raise the norm with no group's gradient changed. ÷ live share undoes it, as `--dead_rows out` does.
"""

import math

import pandas as pd

from scripts import report
from scripts.report import Method, Run, spread, table

LOGGED = {  # column of by_step -> row of the table
    "zero_variance": "dead groups",
    "norm_in": "gradient norm, dead rows in the denominators",
    "norm_out": "gradient norm, dead rows out: ÷ live share",
    "teacher_mae": "teacher MAE",
    "teacher_mae_explore": "teacher MAE, exploring",
    "teacher_noise_floor": "noise floor of G",
    "excess": "teacher MAE − noise floor",
}


def by_step(run: Run) -> pd.DataFrame:
    """LOGGED by step: metrics, the norm by treatment of dead rows, the error above the floor."""
    m = run.metrics.reindex(columns=["grad_norm", "groups", *LOGGED])
    P = run.config["prompts_per_step"]
    # Resampling (DAPO) rolls out more groups than the P that the loss takes, the live ones first.
    live = (m.groups * (1 - m.zero_variance)).round().clip(1, P) / P
    norm = m.grad_norm * (live if run.config["dead_rows"] == "out" else 1)
    excess = m.teacher_mae - m.teacher_noise_floor
    return m.assign(norm_in=norm, norm_out=norm / live, excess=excess)[list(LOGGED)]


def measures(run: Run, first: int, last: int) -> dict[str, float]:
    """The table's numbers for the steps first..last; NaN where one is not known."""
    found = by_step(run).loc[first:last].mean().rename(LOGGED).to_dict()
    s = run.selections[run.selections.step.between(first, last)]
    greedy, exploring = s[~s.explored], s[s.explored]
    # Spearman's: of the ranks.
    correlation = exploring.dropna().predicted.rank().corr(exploring.dropna().y.rank())
    return found | {
        "Spearman, exploring": correlation,
        "predicted, greedy": greedy.predicted.mean(),
        "outcome y, greedy": greedy.y.mean(),
        "predicted, exploring": exploring.predicted.mean(),
        "outcome y, exploring": exploring.y.mean(),
        "lift, predicted": (greedy.predicted - greedy.pool_mean).mean(),
        "lift, outcome": greedy.y.mean() - exploring.y.mean(),
    }


def by_block(methods: list[Method], n: int) -> str:
    """Measures in n parts of the longest run's steps: a row for each method and measure."""
    longest = max(run.metrics.index[-1] for m in methods for run in m.runs)
    width = max(1, math.ceil(longest / n))
    blocks = [(first, min(first + width - 1, longest)) for first in range(1, longest + 1, width)]
    rows = []
    for m in methods:
        parts = [pd.DataFrame([measures(run, *block) for run in m.runs]) for block in blocks]
        for name in parts[0]:
            cells = [spread(part[name].dropna(), "", 3) for part in parts]
            if set(cells) != {"–"}:
                rows.append([f"{m.name}: {name}", *cells])
    return table("By steps", ["steps", *(f"{a}–{b}" for a, b in blocks)], rows)


def calibration(methods: list[Method]) -> str:
    """Mean outcome by prediction, with its 95% interval and the number of selections."""
    rows = []
    for m in methods:
        every = pd.concat([run.selections for run in m.runs])
        for explored, name in ((True, "exploring"), (False, "greedy")):
            for b in report.calibration(every[every.explored == explored]).itertuples():
                cells = [f"{b.predicted:.3f}", f"{b.y:.3f} ± {b.error:.3f}", b.count]
                rows.append([f"{m.name}, {name}", *cells])
    header = ["", "mean prediction", "outcome y", "selections"]
    return table("Is the teacher calibrated?", header, rows)


def main(argv=None) -> None:
    """The command line of `audit`."""
    parser = report.arguments(__doc__)
    what = "parts that the steps are divided into (%(default)s)"
    parser.add_argument("--blocks", type=int, default=4, help=what)
    args = parser.parse_args(argv)
    with report.one_line("audit"):
        methods = report.load_methods(args.runs)
        print(by_block(methods, max(1, args.blocks)), calibration(methods), sep="\n", end="")


if __name__ == "__main__":
    main()
