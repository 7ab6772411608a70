"""report: the page of made-up runs, its numbers by hand, and runs that are still being written."""

import re
import shutil
from html import unescape
from unittest.mock import Mock

import pandas as pd

from plumbing.files import digest, write_lines
from scripts import report
from tests.helpers.runs import GOLDILOCKS, make_run, selection

COMPLETION = "a < b & c\x1b \u202e\x85 <script>alert(1)</script> \\boxed{\\frac{1}{2}}" + "9" * 5000
SAMPLE = {"step": 2, "problem": 10, "status": "wrong", "prompt": "√2 < ?", "completion": COMPLETION}

# Left: two steps of an hour, and an evaluation of ten minutes. Two groups a step, of which one is
# dead.
EXPECTED = r"""· about 2:10:00 left · validation accuracy 25.0% → 50.0% · dead groups 50.0%
last box \frac{1}{2} reference gold10
Never solved, 33.3% 10 < x & y? #10 · 0 of 12 right · step 2 · predicted 0.40
Sometimes solved, 33.3% 12 < x & y? #12 · 2 of 4 right · step 2 · predicted 0.50
Always solved, 33.3% 11 < x & y? #11 · 4 of 4 right · step 1 · predicted 0.30
correct 1 2 66.7% wrong 1 1 33.3% no_box 1 0 0.0%
2 problems were won and 1 lost. Wrong now, for example: 0 < x & y? #0 · wrong after 7
tokens, right at first · reference gold0 so \boxed{<5>}"""


def words_of(html):
    """What a browser shows."""
    body = html[html.index("<body>") :]
    return " ".join(unescape(re.sub("<[^>]*>", " ", body)).split())


def make(folder, steps=4, done=2, **config):
    """A run at step `done`: an hour a step, ten minutes an evaluation (every 2 steps)."""
    data = folder.parent / "data.jsonl"
    problems = [{"problem": f"{i} < x & y?", "expected_answer": f"gold{i}"} for i in range(20)]
    write_lines(data, problems)
    facts = {"train_data": str(data), "val_data": str(data), "steps": steps, "eval_every": 2}
    facts |= {"train_data_crc32": digest(data)[1], "val_data_crc32": digest(data)[1]}
    rows = [{"step": step} for step in range(done + 1)]
    for row in rows[::2]:
        row |= {"val_accuracy": 0.25 + row["step"] / 8, "eval_s": 600.0}
    make_run(folder, rows, selections(config.get("sampler")), **facts | config)
    write_lines(folder / "samples.jsonl", [SAMPLE | {"step": 1}, SAMPLE])
    make_evaluation(folder, 0, "correct wrong no_box")
    make_evaluation(folder, 2, "wrong correct correct")
    make_evaluation(folder, 3, "")  # from before a resume
    return folder


def selections(sampler):
    """Groups of 4 or 8. Problem 10 is never solved, 11 always, 12 half of the time."""
    utilities = [0.4, 0.3, 0.5] if sampler == "goldilocks" else [None] * 3
    return [
        selection(1, False, utilities, 0, G=4),
        selection(1, True, utilities, 4, 1, G=4),
        selection(2, False, utilities, 0, G=8),
        selection(2, True, utilities, 2, 2, G=4),
    ]


def make_evaluation(folder, step, statuses):
    """Write the file of an evaluation: a completion of 7 tokens for each status."""
    rows = [
        {
            "problem": problem,
            "tokens": 7,
            "completion": r"so \boxed{<5>}",
            "status": status,
            "reward": float(status == "correct"),
        }
        for problem, status in enumerate(statuses.split())
    ]
    write_lines(folder / "evals" / f"step_{step}.jsonl", rows)


def test_numbers_by_hand_and_texts_as_they_are(tmp_path):
    html, finished = report.page([make(tmp_path / "run", **GOLDILOCKS)], refresh=30)
    for words in EXPECTED.splitlines():
        assert words in words_of(html)
    visible = str.maketrans(dict.fromkeys("\x1b\x85\u202e", "�"))
    assert COMPLETION.translate(visible) in words_of(html)
    assert not finished
    assert 'http-equiv="refresh" content="30"' in html
    # Nothing is executed, and nothing is fetched.
    assert html.isascii()
    assert "<script" not in html
    assert "@import" not in html
    assert {*re.findall('src="(.{22})', html)} == {"data:image/png;base64,"}
    assert {*re.findall('href="(.)', html)} == {"#"}


def test_a_completion_that_was_cut_is_marked_and_an_earlier_version_has_none():
    verdict = {"status": "wrong", "tokens": 7}
    shown = [
        report.wrong_answer(0, pd.Series(verdict | text), None)["completion"]
        for text in ({"completion": "7" * report.TAIL}, {"completion": "7"}, {})
    ]
    assert shown == ["… " + "7" * report.TAIL, "7", ""]


def test_runs_that_are_being_written(tmp_path):
    """An unfinished line, no sample, evaluation, teacher or data; another run without a step."""
    run, waiting = make(tmp_path / "run"), make(tmp_path / "new", done=0)
    (run / "samples.jsonl").unlink()
    (tmp_path / "data.jsonl").write_text("")
    shutil.rmtree(run / "evals")
    for name in ("metrics", "selections", "samples"):
        with (run / f"{name}.jsonl").open("a") as file:
            file.write('{"step": 3, "probl')
    page = words_of(report.page([run, waiting])[0])
    for words in ("2 of 4", "Newest samples: 0", "Evaluation None yet.", "0 of 12 right"):
        assert words in page
    assert f"{waiting}: no step yet" in page
    assert "data.jsonl has changed since" in page
    assert "predicted" not in page


def test_a_page_is_written_until_all_runs_are_finished(tmp_path, monkeypatch):
    run, out = make(tmp_path / "run"), tmp_path / "new/page.html"
    rows = [{"step": 3, "seconds": 1.0}, {"step": 4, "val_accuracy": 1.0}]
    go_on = Mock(side_effect=lambda _: write_lines(run / "metrics.jsonl", rows, "a"))
    monkeypatch.setattr(report.time, "sleep", go_on)
    report.main([str(run), "--out", str(out), "--follow", "7"])
    assert go_on.call_count == 1
    assert "finished in" in words_of(out.read_text())
    assert 'http-equiv="refresh"' not in out.read_text()


def test_the_page_begins_with_the_verdict_on_several_methods_and_then_health(tmp_path):
    """Both have the same evaluations: no difference, with one seed."""
    both = {"a": {}, "b": GOLDILOCKS}
    runs = [make(tmp_path / name, model="models/cold", **c) for name, c in both.items()]
    html, _ = report.page(runs)
    page = words_of(html)
    assert "<title>uniform, goldilocks: cold on data.jsonl" in html
    first = page.index("goldilocks − uniform: +0.0 points at 16 completions, with one seed")
    assert first < page.index("compute-matched") < page.index("Health: means of the latest 20")
    assert page.index("Health") < page.index("Newest samples")


def test_samples_are_folded_and_runs_are_listed(tmp_path):
    html, _ = report.page([make(tmp_path / "run")])
    assert "<details><summary>Newest samples: 2</summary>" in html
    assert '<li><a href="#run1">uniform, seed 0</a>' in html


def test_runs_with_other_validation_sets_are_shown_without_a_verdict(tmp_path):
    runs = [make(tmp_path / "a"), make(tmp_path / "b", val_data_crc32=1, **GOLDILOCKS)]
    assert "have different validation sets" in words_of(report.page(runs)[0])
