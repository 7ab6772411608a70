"""report: the page of made-up runs, its numbers by hand, and runs that are still being written."""

import re
from html import unescape
from unittest.mock import Mock

from plumbing.files import file_crc32, write_lines
from scripts import report
from tests.helpers.runs import GOLDILOCKS, make_run

COMPLETION = "a < b & c <script>alert(1)</script> \\boxed{\\frac{1}{2}}" + "9" * 5000
SAMPLE = {"step": 2, "problem": 10, "status": "wrong", "prompt": "√2 < ?", "completion": COMPLETION}

# Two groups a step, of which one is dead.
EXPECTED = r"""step 2 of 4 0.50 0.50
Newest samples: 2 wrong · step 2 · #10 √2 < ?
reference gold10
step correct wrong no_box 0 1 1 1 2 2 1 0
0 < x & y? #0 · wrong after 7 tokens · reference gold0 so \boxed{<5>}"""


def words_of(html):
    """What a browser shows."""
    body = html[html.index("<body>") :]
    return " ".join(unescape(re.sub("<[^>]*>", " ", body)).split())


def make(folder, done=2, **config):
    """A run at step `done` of 4, evaluated every 2 steps."""
    data = folder.parent / "data.jsonl"
    problems = [{"problem": f"{i} < x & y?", "expected_answer": f"gold{i}"} for i in range(20)]
    write_lines(data, problems)
    for name in ("train_data", "val_data"):
        config |= {name: str(data), f"{name}_crc32": file_crc32(data)}
    rows = [{"step": step} for step in range(done + 1)]
    for row in rows[::2]:
        row["val_accuracy"] = 0.25 + row["step"] / 8
    make_run(folder, rows, **config | {"steps": 4})
    write_lines(folder / "samples.jsonl", [SAMPLE | {"step": 1}, SAMPLE])
    make_evaluation(folder, 0, "correct wrong no_box")
    make_evaluation(folder, 2, "wrong correct correct")
    return folder


def make_evaluation(folder, step, statuses):
    """Write the file of an evaluation: a completion of 7 tokens for each status."""
    rows = []
    for problem, status in enumerate(statuses.split()):
        row = {"problem": problem, "status": status, "reward": float(status == "correct")}
        rows.append(row | {"tokens": 7, "completion": r"so \boxed{<5>}"})
    write_lines(folder / "evals" / f"step_{step}.jsonl", rows)


def page_of(*runs, follow=False):
    """Write the page about runs; return it."""
    out = runs[0].parent / "page.html"
    report.write(out, runs, follow)
    return out.read_text()


def test_numbers_by_hand_and_texts_as_they_are(tmp_path):
    html = page_of(make(tmp_path / "run"), follow=True)
    for words in (*EXPECTED.splitlines(), COMPLETION):
        assert words in words_of(html)
    assert 'http-equiv="refresh" content="30"' in html
    # Nothing is executed, and nothing is fetched.
    assert html.isascii()
    assert "<script" not in html
    assert "@import" not in html
    assert {*re.findall('src="(.{22})', html)} == {"data:image/png;base64,"}
    assert {*re.findall('href="(.)', html)} == {"#"}


def test_runs_that_are_being_written(tmp_path):
    """An unfinished line, no sample, changed data; another run without a step."""
    run, waiting = make(tmp_path / "run"), make(tmp_path / "new", done=0)
    (run / "samples.jsonl").unlink()
    (tmp_path / "data.jsonl").write_text("")
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "probl')
    page = words_of(page_of(run, waiting))
    assert "Newest samples: 0" in page
    assert "data.jsonl is gone or has changed since the run) #0 · wrong" in page
    assert f"{waiting}: no step yet" in page


def test_a_page_is_written_until_all_runs_are_finished(tmp_path, monkeypatch):
    run, out = make(tmp_path / "run"), tmp_path / "new/page.html"
    rows = [{"step": 3}, {"step": 4, "val_accuracy": 1.0}]

    def go_on(seconds):
        make_evaluation(run, 4, "correct correct correct")
        write_lines(run / "metrics.jsonl", rows, "a")

    monkeypatch.setattr(report.time, "sleep", sleep := Mock(side_effect=go_on))
    report.main([str(run), "--out", str(out), "--follow"])
    assert sleep.call_count == 1
    assert "step 4 of 4, finished" in words_of(out.read_text())
    assert 'http-equiv="refresh"' not in out.read_text()


def test_the_page_begins_with_the_verdict_on_several_methods_and_then_the_runs(tmp_path):
    """Both have the same evaluations: no difference, with one seed."""
    uniform = make(tmp_path / "a", model="models/cold")
    html = page_of(uniform, make(tmp_path / "b", model="models/cold", **GOLDILOCKS))
    assert "<title>uniform, goldilocks: cold on data.jsonl" in html
    assert '<a href="#run1">uniform, seed 0</a>' in html
    order = (
        r"goldilocks − uniform: \+0.0 points at 16 completions, with one seed.*compute-matched.*"
    )
    assert re.search(order + "means of the latest 20 steps.*Newest samples", words_of(html))
