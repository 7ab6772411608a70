"""What training curves cannot separate: Markdown tables from run folders.

    python -m scripts.audit runs/goldilocks_* runs/uniform_* > audit.md

Values are mean ± sample standard deviation over runs. Predictions are those that a problem was
selected with, outcomes y = √(p̂(1-p̂)) of its G completions.

Exploring picks uniformly (the uniform sampler always does): it judges the teacher without bias, and
its mean outcome is the pool's. Greedy takes the largest of K predictions, so on average it
overrates. Lift: how far greedy lies above its pool, predicted (utility less the pool's mean) and in
outcomes (greedy less exploring). Noise floor: a perfect teacher's error, from G only.

Gradient norm: a dead group adds nothing to the sum but counts in the denominator, so fewer of them
raise the norm with no group's gradient changed. ÷ live share undoes it, as `--dead_rows out` does.
"""

from functools import partial

from scripts import report
from scripts.report import Run

LOGGED = ["zero_variance", "grad_norm", "groups"]
LOGGED += ["teacher_mae", "teacher_mae_explore", "teacher_noise_floor"]


def measures(run: Run, first: int, last: int) -> dict[str, float]:
    """The table's numbers for the steps first..last; NaN where one is not known."""
    m = run.metrics.reindex(columns=LOGGED).loc[first:last]
    P = run.config["prompts_per_step"]
    # Resampling (DAPO) rolls out more groups than the P that the loss takes, the live ones first.
    live = (m.groups * (1 - m.zero_variance)).round().clip(1, P) / P
    norm = m.grad_norm * (live if run.config["dead_rows"] == "out" else 1)
    s = run.selections[run.selections.step.between(first, last)]
    greedy, exploring = s[~s.explored], s[s.explored]
    known = exploring.dropna()
    return {
        "dead groups": m.zero_variance.mean(),
        "gradient norm, dead rows in the denominators": norm.mean(),
        "gradient norm, dead rows out: ÷ live share": (norm / live).mean(),
        "teacher MAE": m.teacher_mae.mean(),
        "teacher MAE, exploring": m.teacher_mae_explore.mean(),
        "noise floor of G": m.teacher_noise_floor.mean(),
        "teacher MAE − noise floor": (m.teacher_mae - m.teacher_noise_floor).mean(),
        "Spearman, exploring": known.predicted.rank().corr(known.y.rank()),
        "predicted, greedy": greedy.predicted.mean(),
        "outcome y, greedy": greedy.y.mean(),
        "predicted, exploring": exploring.predicted.mean(),
        "outcome y, exploring": exploring.y.mean(),
        "lift, predicted": (greedy.predicted - greedy.pool_mean).mean(),
        "lift, outcome": greedy.y.mean() - exploring.y.mean(),
    }


def audit(methods: dict[str, list[Run]]) -> str:
    """A table for each quarter of the longest run's steps."""
    longest, parts = max(run.metrics.index[-1] for runs in methods.values() for run in runs), []
    width = -(-longest // 4)
    for first in range(1, longest + 1, width):
        last = min(first + width - 1, longest)
        of_steps = partial(measures, first=first, last=last)
        parts.append(report.by_method(f"Steps {first} to {last}", methods, of_steps, "", 3))
    return "\n".join(parts)


def main(argv=None) -> None:
    """The command line of `audit`."""
    args = report.parser(__doc__, runs=True).parse_args(argv)
    with report.one_line("audit"):
        print(audit(report.load_methods(args.runs)), end="")


if __name__ == "__main__":
    main()
