"""Write one HTML page about runs: comparison, health, curves, samples and verdicts.

    python -m scripts.report runs/demo-* --follow

Problem texts come from the run's data files, as long as these are unchanged. Runs may still be
writing: with --follow the page is written again, and a browser reloads it, until all runs are
finished. The page needs neither a network nor JavaScript.
"""

import base64
import time
from contextlib import suppress
from datetime import datetime
from functools import cache
from io import BytesIO
from pathlib import Path

import pandas as pd
from jinja2 import Environment, StrictUndefined
from matplotlib.figure import Figure

from plumbing.data.problems import Problems
from plumbing.errors import InputError
from plumbing.files import check_writable, read_lines, write_atomic
from scripts import analysis, plot, verdict
from scripts.analysis import Run

FOLLOW_S = 30  # seconds between pages
RECENT = 20  # steps that health is averaged over
SHOWN = 6  # samples and wrong answers
CURVES = ("val_accuracy", "reward_mean", "zero_variance")
HEALTH = {
    "val_accuracy": "accuracy",
    "zero_variance": "dead groups",
    "truncated": "truncated",
    "no_box": "no box",
    "entropy": "entropy",
    "grad_norm": "gradient norm",
    "teacher_mae": "Teacher error",
}


@cache  # a run that is followed reads its data once
def open_problems(path: str) -> Problems | None:
    """Open a data file; None if it is gone or cannot be read."""
    with suppress(OSError, InputError):
        return Problems(path)


def with_texts(rows: list[dict], run: Run, data: str) -> list[dict]:
    """Add the text and the reference answer of each row's problem, from train_data or val_data."""
    path = run.config[data]
    problems = open_problems(path)
    is_same = problems and problems.crc32 == run.config[f"{data}_crc32"]
    for row in rows:
        row["text"] = f"({path} is gone or has changed since the run)"
        row["answer"] = "–"
        if is_same:
            row["text"] = problems.question(row["problem"])
            [row["answer"]], _ = problems.golds([row["problem"]])
    return rows


def has_no_step(run_dir: Path) -> bool:
    """Whether a run has begun but not finished a step: it loads or evaluates its model."""
    rows = read_lines(run_dir / "metrics.jsonl", torn=True)
    return (run_dir / "config.json").exists() and not any(row["step"] for row in rows)


def is_finished(run: Run) -> bool:
    """Whether the last step is trained and evaluated."""
    return run.config["steps"] in run.curve("val_accuracy").index


def evaluation(run: Run) -> tuple[tuple, list[dict]]:
    """Return how many problems had which verdict in the first and in the newest evaluation, as a
    table of verdict.tables, and some that are wrong now."""
    steps = run.curve("val_accuracy").index  # files of later steps are from before a resume
    rows = []
    for step in (steps.min(), steps.max()):
        verdicts = analysis.read_table(run.folder / f"evals/step_{step}.jsonl", "status")
        rows.append(verdicts.status.value_counts().rename(step))
    counts = pd.DataFrame(rows).fillna(0).astype(int)
    table = ("Verdicts by step", ["step", *counts], counts.reset_index().to_numpy())
    wrong = verdicts[verdicts.reward == 0].head(SHOWN).to_dict("records")
    return table, with_texts(wrong, run, "val_data")


def view(run: Run) -> dict:
    """Return what the template shows of a run. samples: the newest completions, latest first;
    health: means of the latest steps, as texts."""
    progress = f"step {run.metrics.index[-1]} of {run.config['steps']}"
    samples = read_lines(run.folder / "samples.jsonl", torn=True)
    health = run.metrics.loc[1:].tail(RECENT).reindex(columns=HEALTH).mean()
    return {
        "folder": run.folder,
        "progress": progress + ", finished" * is_finished(run),
        "health": health.map("{:.2f}".format).replace("nan", "–"),
        "samples": with_texts(samples[: -SHOWN - 1 : -1], run, "train_data"),
        "evaluation": evaluation(run),
    }


def encode(figure: Figure) -> str:
    """Return a figure as a PNG in base64."""
    file = BytesIO()
    figure.savefig(file, dpi=120)
    return base64.b64encode(file.getvalue()).decode()


def compared(methods: dict[str, list[Run]]) -> tuple[list[str], list[tuple]]:
    """Return the sentences and tables that compare methods, none for one method alone; where they
    cannot be compared, as before the first evaluations, the sentence says why."""
    if len(methods) < 2:
        return [], []
    try:
        return verdict.of_methods(methods)
    except InputError as error:
        return [f"Not compared: {error}."], []


def render(**values) -> str:
    """Fill in the template; return ASCII. Values: title, verdict (sentences), tables (as those of
    verdict.tables), pictures (by title, as `encode` returns) and, of runs, those of `write`."""
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    template = Path(__file__).with_name("report.html").read_text(encoding="utf-8")
    defaults = {"refresh": 0, "waiting": [], "views": {}, "written": datetime.now()}
    text = environment.from_string(template).render(defaults | values)
    return text.encode("ascii", "xmlcharrefreplace").decode()


def write(out: Path, run_dirs: list[Path], follow: bool) -> bool:
    """Write the page; return whether all runs are finished. If it is to `follow` them, a browser is
    told to reload the page until then. Raises InputError or OSError."""
    waiting = [run_dir for run_dir in run_dirs if has_no_step(run_dir)]
    methods = analysis.load_methods([run_dir for run_dir in run_dirs if run_dir not in waiting])
    runs = {}
    used = set()
    for method, members in methods.items():
        for run in members:
            runs[f"{method}, seed {run.config['seed']}"] = run
            used.add(f"{Path(run.config['model']).name} on {Path(run.config['train_data']).name}")
    finished = not waiting and all(map(is_finished, runs.values()))
    findings, tables = compared(methods)
    page = render(
        title=f"{', '.join(methods)}: {', '.join(sorted(used))}",
        verdict=findings,
        tables=tables,
        pictures={"curves": encode(plot.draw(methods, keys=CURVES))} if methods else {},
        refresh=FOLLOW_S * (follow and not finished),
        waiting=waiting,
        views={name: view(run) for name, run in runs.items()},
        health=HEALTH.values(),
        recent=RECENT,
    )
    write_atomic(out, page)
    return finished


def main(argv=None) -> None:
    parser = analysis.parser(__doc__, runs=True, out="figures/report.html")
    help = f"write it again every {FOLLOW_S} seconds until all runs are finished"
    parser.add_argument("--follow", action="store_true", help=help)
    args = parser.parse_args(argv)
    with analysis.one_line("report"), suppress(KeyboardInterrupt):
        check_writable(args.out)
        finished = write(args.out, args.runs, args.follow)
        print(args.out, flush=True)
        while args.follow and not finished:
            time.sleep(FOLLOW_S)
            finished = write(args.out, args.runs, args.follow)


if __name__ == "__main__":
    main()
