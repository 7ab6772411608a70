"""What a run looks like while it runs: one page of HTML, which needs no network and no script.

    python -m scripts.report runs/demo-goldilocks-seed0
    python -m scripts.report runs/demo-* --out both.html
    python -m scripts.report runs/demo-goldilocks-seed0 --follow

How far it is, the curves (of several runs by method, as `plot` draws them), the settings that are
not the preset's, the newest completions with what was read from them and what was right, the
problems that are hardest and easiest for the student now, whether predictions came true, the
verdicts of the newest evaluation, and what was dropped and why. Problems and golds come from the
run's data files, as long as these are where they were and unchanged.

Runs may still be writing. The page is there whole or not at all. With --follow it is written again
every so many seconds, and a browser that shows it loads it again, until all runs are finished.
"""

import json
import time
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path

import pandas as pd
from jinja2 import Environment, StrictUndefined

import train
from plumbing import command_line, progress
from plumbing.distributed.layout import begin_process
from plumbing.errors import InputError
from plumbing.files import read_lines, write_atomic
from plumbing.problems import Problems
from scripts import analysis, plot
from scripts.analysis import Run
from verify import extract_boxed

RECENT = 20  # the steps that are "now"
SHOWN = 6  # samples, and problems of a kind
DERIVED = {"out", "teacher_ranks", "checkpoint_every"}  # settings that follow from others
LOST = {  # share of the completions in metrics.jsonl -> what it says
    "truncated": "cut off at {max_completion_tokens} tokens",
    "no_box": "without a box, so nothing to compare: reward 0",
    "bad_gold": "of a problem whose gold answer cannot be verified: reward 0",
    "verify_failures": "too long, slow or large for the verifier: reward 0",
}
PARTS = [part for part in progress.PARTS if part != "eval_s"]  # of a step's seconds
LOGGED = ["groups", "seconds", *PARTS, "eval_s", "overlong", *LOST]
LOGGED += ["zero_variance", "zero_variance_hard", "zero_variance_easy"]
# Control characters, which a browser would hide or obey, are shown; tab and newline stay.
UNSEEN = {i: 0x2400 + i for i in range(32) if chr(i) not in "\t\n"}
UNSEEN |= dict.fromkeys([*range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A)], 0xFFFD)


class Texts:
    """The problems of a run's data file by number; `missing` says why where it cannot be read."""

    def __init__(self, path: str, crc32: int | None):
        self.problems, self.missing = None, ""
        try:
            analysis.check_unchanged(path, crc32)
            self.problems = Problems(path)
        except (OSError, InputError) as error:
            self.missing = str(error)

    def __call__(self, index: int) -> dict:
        """The number of a problem, its text and its gold."""
        known = self.problems
        text, gold = (known.question(index), known.answer(index)) if known else (None, None)
        return {"number": index, "text": text, "gold": gold}


texts = cache(Texts)  # while a run is followed its data are read once


def percent(share: float) -> str:
    """A share in percent; – where it is not known."""
    return "–" if pd.isna(share) else f"{100 * share:.1f}%"


def duration(seconds: float) -> str:
    """Days, hours, minutes and seconds."""
    return str(timedelta(seconds=round(seconds)))


def waits(folder: Path) -> bool:
    """Whether a run has begun, and has not finished a step: it loads or evaluates its model."""
    metrics = analysis.read_table(folder / "metrics.jsonl")
    return (folder / "config.json").exists() and not metrics.get("step", pd.Series()).any()


def is_finished(run: Run) -> bool:
    """Whether the last step is there, and evaluated."""
    return run.config["steps"] in run.curve("val_accuracy").index


def state(run: Run, now: float) -> dict:
    """Where the run is, by the names that the template has; now: seconds since 1970."""
    m, step, steps = run.metrics.reindex(columns=LOGGED), run.metrics.index[-1], run.config["steps"]
    recent, accuracy = m[m.index > 0].tail(RECENT).mean(), run.curve("val_accuracy")
    spent, written = m[["seconds", "eval_s"]].sum(axis=1), (run.folder / "metrics.jsonl").stat()
    before, after = accuracy.reindex([0, accuracy.index.max()])
    # The next line may take as long as the longest step with its evaluation, and somewhat more.
    silent = now - written.st_mtime
    stopped = f"nothing written for {duration(silent)}: has it stopped?"
    every = run.config["eval_every"]
    evaluations = -(-steps // every) - step // every
    left = (steps - step) * recent.seconds + evaluations * m.eval_s[accuracy.index].tail(1).sum()
    return {
        "step": step,
        "progress": "running" if silent < 60 + 3 * spent.max() else stopped,
        "before": before,
        "after": after,
        "at": accuracy.index[-1] if len(accuracy) else None,
        "recent": recent,
        "over": min(RECENT, step),
        "parts": (recent[PARTS] / recent.seconds).nlargest(3),
        "took": duration(spent.sum()),
        "left": duration(left),
        "written": datetime.fromtimestamp(written.st_mtime),
    }


def changed(config: dict) -> list[tuple] | None:
    """(setting, value, the preset's value) where they differ; None if the preset is not known."""
    try:
        usual, _ = command_line.parse(
            train.Config, train.PRESETS, ["--preset", config["preset"]], ""
        )
    except ValueError:  # another version's
        return None
    pairs = [(name, config.get(name), value) for name, value in asdict(usual).items()]
    return [pair for pair in pairs if pair[1] != pair[2] and pair[0] not in DERIVED]


def samples(run: Run, problems: Texts) -> list[dict]:
    """The newest completions, the last first, with their last box and the gold."""
    rows = read_lines(run.folder / "samples.jsonl", torn=True)[: -SHOWN - 1 : -1]
    golds = [problems(row["problem"]) for row in rows]
    boxes = [{"box": extract_boxed(row["completion"])} for row in rows]
    return [row | gold | box for row, gold, box in zip(rows, golds, boxes, strict=True)]


def selections(run: Run, problems: Texts) -> list[tuple[str, float, list[dict]]]:
    """(kind, the share of the problems tried that are of it, the first of them): those nearest to
    half first, then those tried most, then the latest."""
    rows = run.selections.groupby("chosen")
    known = rows.agg({"step": "max", "successes": ["size", "sum"], "predicted": "last"})
    known.columns = ["step", "tries", "right", "predicted"]
    known["of"] = known.tries * run.config["group_size"]
    p, found = known.right / known.of, []
    order = pd.DataFrame({"far": abs(p - 0.5), "often": -known.tries, "late": -known.step})
    known = known.loc[order.sort_values([*order]).index]
    for kind, is_of_it in (
        ("Never solved", known.right == 0),
        ("Solved at times", (known.right > 0) & (known.right < known.of)),
        ("Always solved", known.right == known.of),
    ):
        first = known[is_of_it].head(SHOWN).to_dict("index")
        found.append((kind, is_of_it.mean(), [problems(i) | row for i, row in first.items()]))
    return found


def predictions(run: Run) -> pd.DataFrame:
    """Mean prediction, outcome y and share of dead groups, and how many, of what was picked by
    prediction (explored: False) and uniformly (True); no row where nothing was predicted."""
    known = run.selections.dropna(subset="predicted")
    picked = known.assign(dead=known.y == 0).groupby("explored")
    return picked[["predicted", "y", "dead"]].mean().assign(count=picked.size())


def evaluation(run: Run, problems: Texts) -> dict | None:
    """Verdicts of the first and the newest evaluation by status, how many problems were won and
    lost between them, and some that are wrong now. None where there was no evaluation."""
    files = {int(file.stem[5:]): file for file in run.folder.glob("evals/step_*.jsonl")}
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
        "wrong": [problems(i) | dict(last.loc[i]) | {"lost": lost[i]} for i in wrong],
    }


def dropped(run: Run) -> list[tuple[str, int, int | None]]:
    """(what was dropped or earned nothing, how many, of how many where that is known)."""
    m, c = run.metrics.reindex(columns=LOGGED), run.config
    long = f"training problems passed over: prompts longer than {c['max_prompt_tokens']} tokens"
    found = [(long, int(m.overlong.fillna(0).max()), None)]
    completions = m.groups * c["group_size"]
    for name, what in LOST.items():
        count = round((m[name] * completions).sum())
        found.append((f"completions {what.format(**c)}", count, int(completions.sum())))
    manifest = Path(c["train_data"]).parent / "manifest.json"
    try:
        made = json.loads(manifest.read_text(encoding="utf-8")) if manifest.exists() else {}
        for facts in (made, made.get("validation", {})):
            for reason, count in facts.get("dropped_rows", {}).items():
                what = f"rows of {facts['source']}: {reason.replace('_', ' ')} (prepare_data)"
                found.append((what, count, facts["rows_read"]))
    except (ValueError, KeyError, AttributeError) as error:
        raise InputError(f"{manifest}: not as prepare_data writes it ({error!r})") from error
    return found


def view(run: Run) -> dict:
    """What the template shows of a run."""
    c = run.config
    train_texts, val_texts = (texts(c[d], c.get(f"{d}_crc32")) for d in ("train_data", "val_data"))
    return {
        "state": state(run, time.time()),
        "finished": is_finished(run),
        "missing": sorted({train_texts.missing, val_texts.missing} - {""}),
        "changed": changed(c),
        "samples": samples(run, train_texts),
        "selections": selections(run, train_texts),
        "predictions": predictions(run),
        "evaluation": evaluation(run, val_texts),
        "dropped": dropped(run),
    }


def visible(value):
    """A value as the page has it: control characters can be seen, what is missing is a dash."""
    if isinstance(value, str):
        return value.translate(UNSEEN)
    return "–" if value is None else value


def page(folders: list[Path], refresh: int = 0) -> tuple[str, bool]:
    """The page as ASCII, and whether all runs are finished; until then a browser is told to load it
    again after `refresh` seconds, unless that is 0. Raises InputError or OSError."""
    waiting = [folder for folder in folders if waits(folder)]
    methods = analysis.load_methods([folder for folder in folders if folder not in waiting])
    every = [run for runs in methods.values() for run in runs]
    finished = not waiting and all(map(is_finished, every))
    environment = Environment(autoescape=True, undefined=StrictUndefined, finalize=visible)
    environment.filters |= {"percent": percent, "number": analysis.number}
    template = Path(__file__).with_suffix(".html").read_text(encoding="utf-8")
    text = environment.from_string(template).render(
        written=datetime.now(),
        refresh=0 if finished else refresh,
        waiting=waiting,
        methods=methods,
        colours=plot.COLOURS,
        views={run: view(run) for run in every},
        panels=plot.draw_each(methods),
    )
    return text.encode("ascii", "xmlcharrefreplace").decode(), finished


def write(out: Path, folders: list[Path], refresh: int) -> bool:
    """Writes the page; returns whether all runs are finished."""
    text, finished = page(folders, refresh)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(out, text)
    return finished


def main(argv=None) -> None:
    """The command line of `report`."""
    parser = analysis.parser(__doc__, runs=True)
    parser.add_argument("--out", type=Path, default="figures/report.html", help="(%(default)s)")
    what = "write it again every so many seconds (30) until all runs are finished"
    how = {"nargs": "?", "const": 30, "default": 0, "metavar": "SECONDS"}
    parser.add_argument("--follow", type=command_line.count, help=what, **how)
    args = parser.parse_args(argv)
    begin_process()
    job = args.out, [Path(folder) for folder in args.runs], args.follow
    with analysis.one_line("report"), suppress(KeyboardInterrupt):
        if args.out.is_dir():
            raise InputError(f"--out {args.out} is a folder: name the file")
        finished = write(*job)
        print(args.out, flush=True)
        while args.follow and not finished:
            time.sleep(args.follow)
            finished = write(*job)


if __name__ == "__main__":
    main()
