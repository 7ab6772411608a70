"""report: the page of made-up runs, its numbers by hand, and runs that are still being written."""

import json
from html.parser import HTMLParser

import pytest

from plumbing.files import digest, write_lines
from scripts import report
from tests.helpers.runs import GOLDILOCKS, make_run, selection

COMPLETION = "a < b & c\x1b \u202e\x85 <script>alert(1)</script> \\boxed{\\frac{1}{2}}" + "9" * 5000
SAMPLE = {"step": 2, "problem": 10, "status": "wrong", "prompt": "√2 < ?", "completion": COMPLETION}

# Left: two steps and an evaluation. There were 2 steps of 2 groups of 4 completions.
EXPECTED = r"""step 2 of 4 running validation accuracy 25.0% → 50.0% before, and at step 2
dead groups 50.0%
a step 3600.00 s rollout 50.0%, train 25.0%, verify 10.0%, last 2 steps left, about 2:10:00
eval_every 2 (preset: 10)
last box \frac{1}{2} gold gold10
Never solved, 33.3% 10 < x & y? #10 · 0 of 8 right · step 2 · predicted 0.40
Solved at times, 33.3% 12 < x & y? #12 · 2 of 4 right · step 2 · predicted 0.50
Always solved, 33.3% 11 < x & y? #11 · 4 of 4 right · step 1 · predicted 0.30
by prediction 2 0.40 0.00 100.0% uniformly 2 0.40 0.25 50.0%
correct 1 2 66.7% wrong 1 1 33.3% no_box 1 0 0.0%
2 problems were won and 1 lost. Wrong now, for example: 0 < x & y? #0 · wrong after 7
completions cut off at 40 tokens 4 25.0%
rows of a/b: no box (prepare_data) 3 33.3%"""


class Page(HTMLParser):
    """Its text, tags and attributes; every tag has to be closed where it should be."""

    def __init__(self, html):
        super().__init__()
        self.open, self.tags, self.attributes, self.all_text = [], set(), [], ""
        self.feed(html)
        self.close()
        self.text = " ".join(self.all_text.split())
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.attributes += attributes
        self.open += [tag] if tag != "meta" else []

    def handle_startendtag(self, tag, attributes):
        self.attributes += attributes

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        self.all_text += " "

    def handle_data(self, data):
        self.all_text += data


def make(folder, steps=4, done=2, **config):
    """A run at step `done`: an hour a step, ten minutes an evaluation (every 2 steps), groups of 4.

    Problem 10 is never solved, 11 always, 12 half of the time.
    """
    data = folder.parent / "data.jsonl"
    problems = [{"problem": f"{i} < x & y?", "expected_answer": f"gold{i}"} for i in range(20)]
    write_lines(data, problems)
    facts = {"train_data": str(data), "val_data": str(data), "steps": steps, "eval_every": 2}
    facts |= {"train_data_crc32": digest(data)[1], "val_data_crc32": digest(data)[1]}
    each = {"truncated": 0.25, "rollout_s": 1800.0, "train_s": 900.0, "verify_s": 360.0}
    rows = [{"step": 0}, *({"step": step} | each for step in range(1, done + 1))]
    for row in rows[::2]:
        row |= {"val_accuracy": 0.25 + row["step"] / 8, "eval_s": 600.0}
    known = [0.4, 0.3, 0.5] if config.get("sampler") == "goldilocks" else [None] * 3
    chosen = [selection(1, False, known, 0, G=4), selection(1, True, known, 4, 1, G=4)]
    chosen += [selection(2, False, known, 0, G=4), selection(2, True, known, 2, 2, G=4)]
    make_run(folder, rows, chosen, **facts | config)
    write_lines(folder / "samples.jsonl", [SAMPLE | {"step": 1}, SAMPLE])
    for step, statuses in enumerate(("correct wrong no_box", "wrong correct correct")):
        each = enumerate(statuses.split())
        lines = [{"problem": i, "reward": float(s == "correct"), "status": s} for i, s in each]
        write_lines(folder / "evals" / f"step_{2 * step}.jsonl", [x | {"tokens": 7} for x in lines])
    return folder


def shown(*folders):
    return Page(report.page(list(folders))[0])


def test_numbers_by_hand_and_texts_as_they_are(tmp_path):
    dropped = {"source": "a/b", "rows_read": 9, "dropped_rows": {"no_box": 3}}
    (tmp_path / "manifest.json").write_text(json.dumps(dropped))
    html, finished = report.page([make(tmp_path / "run", **GOLDILOCKS)], refresh=30)
    page = Page(html)
    for words in EXPECTED.splitlines():
        assert words in page.text
    seen = str.maketrans({"\x1b": "␛", "\x85": "�", "\u202e": "�"})
    assert COMPLETION.translate(seen) in page.all_text
    assert not finished and ("content", "30") in page.attributes
    # Nothing is run, and nothing is fetched from elsewhere.
    assert html.isascii() and "script" not in page.tags and "@import" not in html
    for name, value in page.attributes:
        assert name.startswith("xmlns") or "//" not in (value or "")
        assert "href" not in name or value.startswith("#")


def test_runs_that_are_being_written(tmp_path):
    """A line that is not whole, no sample, evaluation, teacher or data; another without a step."""
    run, waiting = make(tmp_path / "run"), make(tmp_path / "new", done=0)
    (run / "samples.jsonl").unlink()
    (tmp_path / "data.jsonl").write_text("")
    for file in (run / "evals").iterdir():
        file.unlink()
    for name in ("metrics", "selections", "samples"):
        with (run / f"{name}.jsonl").open("a") as file:
            file.write('{"step": 3, "probl')
    page = shown(run, waiting)
    for words in ("2 of 4", "Newest samples None yet.", "Evaluation None yet.", "0 of 8 right"):
        assert words in page.text
    assert f"{waiting}: no step yet" in page.text and "data.jsonl has changed since" in page.text
    assert "predictions" not in page.text and "predicted" not in page.text
    html, finished = report.page([waiting])
    assert "no step yet" in html and not finished


def test_several_runs_are_compared_by_method(tmp_path):
    uniform = [make(tmp_path / f"u{seed}", seed=seed, steps=2) for seed in (0, 1)]
    page = shown(make(tmp_path / "g", **GOLDILOCKS), *uniform)
    assert "goldilocks uniform (2 runs, their mean thick)" in page.text
    assert "uniform, seed 1 step 2 of 2 finished" in page.text and "took 2:20:00" in page.text
    assert ("style", "background: #E69F00") in page.attributes


def test_followed_until_it_is_finished(tmp_path, monkeypatch, capsys):
    """Written, again after two more lines, and then never again."""
    run, out, pages = make(tmp_path / "run"), tmp_path / "new" / "page.html", []

    def go_on(seconds):
        pages.append((seconds, Page(out.read_text())))
        rows = [{"step": 3, "seconds": 1.0}, {"step": 4, "val_accuracy": 1.0}]
        write_lines(run / "metrics.jsonl", rows, "a")

    monkeypatch.setattr(report.time, "sleep", go_on)
    report.main([str(run), "--out", str(out), "--follow", "7"])
    [(seconds, first)], last = pages, Page(out.read_text())
    assert seconds == 7 and ("http-equiv", "refresh") in first.attributes
    assert "2 of 4 running" in first.text and "4 of 4 finished" in last.text
    assert ("http-equiv", "refresh") not in last.attributes
    assert capsys.readouterr().out == f"{out}\n" and [*out.parent.iterdir()] == [out]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda run: (run / "config.json").unlink(), "not a run folder"),
        (lambda run: (run / "metrics.jsonl").write_text("oops\n{}\n"), "line 1: damaged"),
        (lambda run: (run.parent / "manifest.json").write_text("["), "not as prepare_data writes"),
        (lambda run: (run.parent / "page.html").mkdir(), "page.html is a folder: name the file"),
    ],
)
def test_bad_input_is_one_line(tmp_path, capsys, spoil, message):
    run = make(tmp_path / "run")
    spoil(run)
    before = set(tmp_path.iterdir())
    with pytest.raises(SystemExit, match="2"):
        report.main([str(run), "--out", str(tmp_path / "page.html")])
    printed = capsys.readouterr()
    assert printed.err.startswith("report: ") and message in printed.err
    assert (printed.out, printed.err.count("\n"), set(tmp_path.iterdir())) == ("", 1, before)
