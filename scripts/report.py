"""Write one HTML page about runs: progress, curves, samples, selections and verdicts.

    python -m scripts.report runs/demo-* --follow

Problem texts come from the run's data files, as long as these are unchanged. Runs may still be
writing: with --follow the page is written again, and a browser reloads it, until all runs are
finished. The page needs neither a network nor JavaScript.
"""

import base64
import re
import sys
import time
from contextlib import suppress
from datetime import datetime, timedelta
from functools import cache
from io import BytesIO
from pathlib import Path

import pandas as pd
from jinja2 import Environment, StrictUndefined
from matplotlib.figure import Figure

from plumbing import command_line
from plumbing.data.problems import Problems
from plumbing.distributed.shutdown import begin_process
from plumbing.errors import InputError
from plumbing.files import read_lines, write_atomic
from plumbing.metrics import TAIL
from scripts import analysis, plot, verdict
from scripts.analysis import Run
from verify import extract_boxed

RECENT = 20  # steps that the share of dead groups is averaged over
SHOWN = 6  # samples, and problems of a kind
CURVES = [plot.PANELS[i] for i in (0, 1, 3)]  # accuracy, reward, dead groups
SHARES = {"zero_variance": "dead groups", "truncated": "truncated", "no_box": "no box"}
HEALTH = SHARES | {
    "entropy": "entropy",
    "grad_norm": "gradient norm",
    "teacher_mae": "Teacher error",
}
# Control characters, which a browser would hide or obey; tab and newline are not among them.
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@cache  # a run that is followed reads its data once
def open_problems(path: str, crc32: int | None) -> tuple[Problems | None, str]:
    """Open a run's data file. If that fails, return the reason instead of the problems."""
    try:
        analysis.check_unchanged(path, crc32)
        return Problems(path), ""
    except (OSError, InputError) as error:
        return None, str(error)


def texts(problems: Problems | None, index: int) -> dict:
    """A problem's number, text and reference answer; None where the data file cannot be read."""
    if problems is None:
        return {"number": index, "text": None, "answer": None}
    answer = problems.golds([index])[0][0]
    return {"number": index, "text": problems.question(index), "answer": answer}


def percent(share: float) -> str:
    """Format a share in percent; – if NaN."""
    return "–" if pd.isna(share) else f"{100 * share:.1f}%"


def has_no_step(run_dir: Path) -> bool:
    """Whether a run has begun but not finished a step: it loads or evaluates its model."""
    rows = read_lines(run_dir / "metrics.jsonl", torn=True)
    return (run_dir / "config.json").exists() and not any(row["step"] for row in rows)


def is_finished(run: Run) -> bool:
    """Whether the last step is trained and evaluated."""
    return run.config["steps"] in run.curve("val_accuracy").index


def state(run: Run) -> list[str]:
    """Say how far the run is."""
    step, steps, accuracy = run.metrics.index[-1], run.config["steps"], run.curve("val_accuracy")
    seconds = run.metrics.reindex(columns=["seconds", "eval_s"]).sum(axis=1)
    before, after = accuracy.reindex([0, accuracy.index.max()])
    written = datetime.fromtimestamp((run.folder / "metrics.jsonl").stat().st_mtime)
    left = (steps - step) * seconds[seconds.index > 0].mean()
    left, spent = (timedelta(seconds=round(x)) for x in (left, seconds.sum()))
    return [
        f"step {step} of {steps}, written {written:%H:%M:%S}",
        f"finished in {spent}" if is_finished(run) else f"about {left} left",
        f"validation accuracy {percent(before)} → {percent(after)}",
        f"dead groups {percent(run.curve('zero_variance').tail(RECENT).mean())}",
    ]


def samples(run: Run, problems: Problems | None) -> list[dict]:
    """The newest completions, latest first, with their last box and the reference answer."""
    rows = read_lines(run.folder / "samples.jsonl", torn=True)[: -SHOWN - 1 : -1]
    for row in rows:
        row |= texts(problems, row["problem"]) | {"box": extract_boxed(row["completion"])}
    return rows


def selections(run: Run, problems: Problems | None) -> list[tuple[str, float, list[dict]]]:
    """(kind of problem, its share of the problems tried, the first of them). First come those
    nearest to half right, then those tried most often, then the latest."""
    tried = run.selections.groupby("chosen").agg(
        step=("step", "max"),
        tries=("step", "size"),
        of=("completions", "sum"),
        right=("successes", "sum"),
        predicted=("predicted", "last"),
    )
    tried["far"] = abs(tried.right / tried.of - 0.5)
    tried = tried.sort_values(["far", "tries", "step"], ascending=[True, False, False])
    kinds = {
        "Never solved": tried.right == 0,
        "Sometimes solved": (tried.right > 0) & (tried.right < tried.of),
        "Always solved": tried.right == tried.of,
    }
    cards = []
    for kind, mask in kinds.items():
        first = tried[mask].head(SHOWN).to_dict("index")
        cards.append((kind, mask.mean(), [texts(problems, i) | row for i, row in first.items()]))
    return cards


def evaluation(run: Run, problems: Problems | None) -> dict | None:
    """Verdicts of the first and the newest evaluation by status, how many problems were won and
    lost between them, and some that are wrong now. None if there was no evaluation."""
    steps = run.curve("val_accuracy").index  # files of later steps are from before a resume
    files = {step: run.folder / "evals" / f"step_{step}.jsonl" for step in steps}
    files = {step: file for step, file in files.items() if file.exists()}
    if not files:
        return None
    tables = {step: analysis.read_table(files[step], "status") for step in (min(files), max(files))}
    counts = pd.DataFrame({step: table.status.value_counts() for step, table in tables.items()})
    first, last = (tables[step].set_index("problem") for step in (min(files), max(files)))
    won, lost = first.reward < last.reward, first.reward > last.reward
    wrong = [*last.index[lost][: SHOWN // 2], *last.index[~lost & (last.reward == 0)]][:SHOWN]
    return {
        "counts": counts.fillna(0).astype(int).sort_values(max(files), ascending=False),
        "problems": len(last),
        "won": won.sum(),
        "lost": lost.sum(),
        "wrong": [wrong_answer(i, last.loc[i], problems) | {"lost": lost[i]} for i in wrong],
    }


def wrong_answer(index: int, verdict: pd.Series, problems: Problems | None) -> dict:
    """What the page shows of a validation problem that is wrong now. Its completion is "" where the
    evaluation has none: of an over-long prompt, or of an earlier version."""
    row = texts(problems, index) | {"completion": ""} | dict(verdict)
    cut = len(row["completion"]) == TAIL
    return row | {"completion": "… " * cut + row["completion"]}


def view(run: Run) -> dict:
    """What the template shows of a run."""
    c = run.config
    train_problems, train_error = open_problems(c["train_data"], c.get("train_data_crc32"))
    val_problems, val_error = open_problems(c["val_data"], c.get("val_data_crc32"))
    return {
        "folder": run.folder,
        "state": state(run),
        "missing": sorted({train_error, val_error} - {""}),
        "samples": samples(run, train_problems),
        "selections": selections(run, train_problems),
        "evaluation": evaluation(run, val_problems),
    }


def visible(value):
    """A value as the page shows it, without control characters; – for None."""
    if isinstance(value, str):
        return CONTROL.sub("\N{REPLACEMENT CHARACTER}", value)
    return "–" if value is None else value


def encode(figure: Figure) -> str:
    """Return a figure as a PNG in base64."""
    file = BytesIO()
    figure.savefig(file, dpi=120)
    return base64.b64encode(file.getvalue()).decode()


def pictures(methods: dict[str, list[analysis.Run]]) -> dict[str, str]:
    """Draw the curves that have data: by title, each a PNG in base64."""
    drawn = {}
    for panel in CURVES:
        title, *_ = panel
        if plot.has_data(panel, methods):
            drawn[title] = encode(plot.draw(methods, "steps", [panel], 1, reliability=False))
    return drawn


def health(runs: dict[str, Run]) -> tuple[str, list, list]:
    """Return a table, as verdict.tables: HEALTH of each run, the mean of its latest steps."""
    lines = []
    for name, run in runs.items():
        recent = run.metrics[run.metrics.index > 0].tail(RECENT).reindex(columns=HEALTH).mean()
        values = [percent(x) if key in SHARES else analysis.number(x) for key, x in recent.items()]
        lines.append([name, *values])
    return f"Health: means of the latest {RECENT} steps", ["run", *HEALTH.values()], lines


def compared(methods: dict[str, list[Run]]) -> tuple[list[str], list[tuple]]:
    """Return the sentences and tables that compare methods; none for one method alone, or before
    all runs are evaluated."""
    every = [run for runs in methods.values() for run in runs]
    if len(methods) < 2 or not all(len(run.curve("val_accuracy")) > 1 for run in every):
        return [], []
    try:
        summary, baseline = verdict.of_methods(methods)
    except InputError as error:  # other validation sets
        return [str(error)], []
    return verdict.sentences(summary, baseline), verdict.tables(summary)


def render(**values) -> str:
    """Fill in the template; return ASCII. Values: title, verdict (sentences), tables (as those of
    verdict.tables), pictures and, of runs, views and waiting."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, finalize=visible)
    environment.filters |= {"percent": percent, "number": analysis.number}
    template = Path(__file__).with_name("report.html").read_text(encoding="utf-8")
    defaults = {"refresh": 0, "waiting": [], "views": {}, "written": datetime.now()}
    text = environment.from_string(template).render(defaults | values)
    return text.encode("ascii", "xmlcharrefreplace").decode()


def page(run_dirs: list[Path], refresh: int = 0) -> tuple[str, bool]:
    """The page as ASCII, and whether all runs are finished. Until then a browser is told to reload
    it every `refresh` seconds (0: never). Raises InputError or OSError."""
    waiting = [run_dir for run_dir in run_dirs if has_no_step(run_dir)]
    methods = analysis.load_methods([run_dir for run_dir in run_dirs if run_dir not in waiting])
    runs = {}
    for method, members in methods.items():
        for run in members:
            runs[f"{method}, seed {run.config['seed']}"] = run
    finished = not waiting and all(map(is_finished, runs.values()))
    findings, tables = compared(methods)
    models = {Path(run.config["model"]).name for run in runs.values()}
    data = {Path(run.config["train_data"]).name for run in runs.values()}
    text = render(
        title=f"{', '.join(methods)}: {', '.join(sorted(models))} on {', '.join(sorted(data))}",
        verdict=findings,
        tables=[*tables, health(runs)],
        pictures=pictures(methods),
        refresh=0 if finished else refresh,
        waiting=waiting,
        views={name: view(run) for name, run in runs.items()},
    )
    return text, finished


def write(out: Path, run_dirs: list[Path], refresh: int) -> bool:
    """Write the page; return whether all runs are finished."""
    text, finished = page(run_dirs, refresh)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(out, text)
    return finished


def main(argv=None) -> None:
    parser = analysis.parser(__doc__, runs=True)
    help = "rewrite it every so many seconds (30) until all runs are finished"
    follow = {"nargs": "?", "const": 30, "default": 0, "metavar": "SECONDS", "help": help}
    parser.add_argument("--follow", type=command_line.count, **follow)
    help = "the page (%(default)s)"
    out = {"type": command_line.file_path, "default": "figures/report.html", "help": help}
    parser.add_argument("--out", **out)
    args = parser.parse_args(argv)
    begin_process()
    with analysis.one_line("report"), suppress(KeyboardInterrupt):
        if args.out.is_dir():
            raise InputError(f"--out {args.out} is a directory: name the file")
        print(f"reading {len(args.runs)} run directories", file=sys.stderr, flush=True)
        job = args.out, [Path(run) for run in args.runs], args.follow
        finished = write(*job)
        print(args.out, flush=True)
        while args.follow and not finished:
            time.sleep(args.follow)
            finished = write(*job)


if __name__ == "__main__":
    main()
