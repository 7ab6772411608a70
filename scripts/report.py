"""Compare runs, on the terminal and in one HTML page with health, curves, samples and verdicts.

    python -m scripts.report runs/demo-*

Runs may still be in progress. The page needs neither a network nor JavaScript.
"""

from pathlib import Path

from plumbing.files import read_lines, write_atomic
from scripts.command import exit_on_error, make_parser
from scripts.study import categories, figures, verdict
from scripts.study.page import render
from scripts.study.runs import Run, load_methods, read_table

RECENT = 20  # steps that health is averaged over
SHOWN = 6  # samples
CURVES = ("val_accuracy", "reward_mean", "zero_variance")
HEALTH = {
    "val_accuracy": "accuracy",
    "zero_variance": "dead groups",
    "truncated": "truncated",
    "no_box": "no box",
    "entropy": "entropy",
    "grad_norm": "gradient norm",
    "teacher_mae": "Prediction error",
}


def view(run: Run) -> dict:
    """Return what the template shows of a run. health: means of the latest steps, as texts;
    samples: the newest completions, latest first; verdicts: how many problems had which in the
    newest evaluation, as a table of verdict.tables."""
    step = run.curve("val_accuracy").index[-1]  # files of later steps are from before a resume
    verdicts = read_table(run.folder / f"evals/step_{step}.jsonl", "status")
    counts = verdicts.status.value_counts()
    samples = read_lines(run.folder / "samples.jsonl", torn=True)
    health = run.metrics.loc[1:].tail(RECENT).reindex(columns=HEALTH).mean()
    return {
        "folder": run.folder,
        "progress": f"step {run.metrics.index[-1]} of {run.config['steps']}",
        "health": health.map("{:.2f}".format).replace("nan", "–"),
        "samples": samples[: -SHOWN - 1 : -1],
        "verdicts": (f"Verdicts at step {step}", counts.index, [counts]),
    }


def main(argv=None) -> None:
    parser = make_parser(__doc__, runs=True, out="figures/report.html")
    args = parser.parse_args(argv)
    with exit_on_error("report"):
        methods = load_methods(args.runs)
        warned, findings, tables = verdict.of_methods(methods)
        column = max((run.config["column"] for runs in methods.values() for run in runs), key=len)
        if column:
            tables += categories.tables(methods, column)
            findings.append(categories.LEGEND)
        views = {}
        for method, runs in methods.items():
            for run in runs:
                views[f"{method}, seed {run.config['seed']}"] = view(run)
        model = Path(run.config["model"]).name
        data = Path(run.config["train_data"]).name
        page = render(
            title=f"{', '.join(methods)}: {model} on {data}",
            verdict=warned + findings,
            tables=tables,
            figures={"curves": figures.draw(methods, keys=CURVES)},
            views=views,
            health=HEALTH.values(),
            recent=RECENT,
        )
        write_atomic(args.out, page)
        print(verdict.markdown(findings, tables, warned) + str(args.out))


if __name__ == "__main__":
    main()
