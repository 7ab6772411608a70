"""Compare runs, on the terminal and in one HTML page with health, curves, samples and verdicts.

    python -m scripts.report runs/demo-*

Runs may still be in progress. The page needs neither a network nor JavaScript.
"""

from pathlib import Path

import numpy as np

from plumbing.errors import InputError
from plumbing.files import read_lines, write_atomic
from scripts.command import exit_on_error, make_parser
from scripts.study import categories, figures, findings, scores
from scripts.study.page import Report, Table
from scripts.study.runs import Run, load_methods, read_table

RECENT = 20  # steps that health is averaged over
SHOWN = 6  # samples
CURVES = ("val_accuracy", "reward_mean", "zero_variance")
HEALTH = {
    "val_accuracy": "accuracy",
    "zero_variance": "dead groups",
    "live_but_flat": "live but flat",
    "truncated": "truncated",
    "no_box": "no box",
    "entropy": "entropy",
    "grad_norm": "gradient norm",
    "teacher_mae": "Prediction error",
}


def view(run: Run) -> dict:
    """Return what the template shows of a run. health: means of the latest steps, as texts;
    samples: the newest completions, latest first; verdicts: how many problems had which in the
    newest evaluation, a Table."""
    step = run.curve("val_accuracy").index[-1]  # files of later steps are from before a resume
    verdicts = read_table(run.folder / f"evals/step_{step}.jsonl", "status")
    counts = verdicts.status.value_counts()
    samples = read_lines(run.folder / "samples.jsonl", torn=True)
    health = run.metrics.loc[1:].tail(RECENT).reindex(columns=HEALTH).mean()
    return {
        "folder": run.folder,
        "progress": f"step {run.metrics.index[-1]} of {run.config['steps']}",
        "health": health.map("{:.2f}".format).replace("nan", "–"),
        "samples": [*reversed(samples[-SHOWN:])],
        "verdicts": Table(f"Verdicts at step {step}", [*counts.index], [[*counts]]),
    }


def compare(methods: dict[str, list[Run]]) -> Report:
    """Compare methods of training at the completions that all their runs spent, with uniform
    sampling or, without it, the first. The report of one method has warnings alone. Raises
    InputError if a run was not evaluated after a step, if the validation sets differ, or the
    weights that runs of one seed began from."""
    parts = [
        run.scores(
            cores=1.0 if run.config["world_size"] == 1 else np.nan,
            by_clock=True,
            checksums=["val_data_crc32"],
            task="",
            arm=name,
            seed=run.config["seed"],
        )
        for name, runs in methods.items()
        for run in runs
    ]
    rows = scores.concatenate(parts)
    budget = rows.groupby(scores.RUN).completions.max().min()
    config_of = {name: runs[0].config for name, runs in methods.items()}
    report = Report(warnings=scores.code_differences(rows))
    if len(methods) == 1:
        [(name, config)] = config_of.items()
        row = {"task": "", "arm": name} | scores.describe(rows, rows, [budget])
        if text := findings.warn(row, baseline="", rate=config["learning_rate"]):
            report.warnings.append(text)
        return report
    if not budget:
        raise InputError("a run was not evaluated after a step: nothing can be compared yet")
    # A Teacher without ranks costs no devices: it takes seconds of the students' steps.
    devices = {
        name: config["world_size"] / config["student_ranks"] for name, config in config_of.items()
    }
    baseline = min(config_of, key=lambda name: config_of[name]["sampler"] != "uniform")
    summary = scores.summarize(rows, baseline, budget, devices)
    rates = {("", name): config["learning_rate"] for name, config in config_of.items()}
    findings.add_to(report, summary, baseline, rates)
    return report


def main(argv=None) -> None:
    parser = make_parser(__doc__, runs=True, out="figures/report.html")
    with exit_on_error("report"):
        args = parser.parse_args(argv)
        methods = load_methods(args.runs)
        report = compare(methods)
        column = max((run.config["column"] for runs in methods.values() for run in runs), key=len)
        if column:
            try:
                report.tables += categories.tables(methods, column)
                report.sentences.append(categories.LEGEND)
            except InputError as error:  # the data may have been moved or changed since
                report.warnings.append(f"No tables by {column}: {error}.")
        views = {}
        for method, runs in methods.items():
            for run in runs:
                views[f"{method}, seed {run.config['seed']}"] = view(run)
        model = Path(run.config["model"]).name
        data = Path(run.config["train_data"]).name
        page = report.html(
            title=f"{', '.join(methods)}: {model} on {data}",
            figures={"curves": figures.draw(methods, keys=CURVES)},
            views=views,
            health=HEALTH.values(),
            recent=RECENT,
        )
        write_atomic(args.out, page)
        print(report.markdown() + str(args.out))


if __name__ == "__main__":
    main()
