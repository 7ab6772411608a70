"""Compare runs, on the terminal and in one HTML page with health, curves, samples and verdicts.

    python -m scripts.report runs/demo-*

Runs may still be in progress. The page needs neither a network nor JavaScript.
"""

import base64
from datetime import datetime
from io import BytesIO
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from matplotlib.figure import Figure

from plumbing.files import read_lines, write_atomic
from scripts import analysis, categories, plot, verdict
from scripts.analysis import Run

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
    verdicts = analysis.read_table(run.folder / f"evals/step_{step}.jsonl", "status")
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


def encode(figure: Figure) -> str:
    """Return a figure as a PNG in base64."""
    file = BytesIO()
    figure.savefig(file, dpi=120)
    return base64.b64encode(file.getvalue()).decode()


def render(**values) -> str:
    """Fill in the template: title, verdict (sentences), tables (as those of verdict.tables),
    figures (by title) and, of runs, those of `main`."""
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    environment.filters["encode"] = encode
    template = Path(__file__).with_name("report.html").read_text(encoding="utf-8")
    return environment.from_string(template).render(written=datetime.now(), **values)


def main(argv=None) -> None:
    parser = analysis.parser(__doc__, runs=True, out="figures/report.html")
    args = parser.parse_args(argv)
    with analysis.one_line("report"):
        methods = analysis.load_methods(args.runs)
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
            figures={"curves": plot.draw(methods, keys=CURVES)},
            views=views,
            health=HEALTH.values(),
            recent=RECENT,
        )
        write_atomic(args.out, page)
        print(verdict.markdown(findings, tables, warned) + str(args.out))


if __name__ == "__main__":
    main()
