"""report: the comparison of made-up runs, and the page, whose numbers are by hand."""

import re
from html import unescape

import pytest

from plumbing.files import file_crc32, write_lines
from scripts import report
from scripts.study import categories
from scripts.study.runs import Run, load_methods
from tests.helpers.checks import rejected
from tests.helpers.runs import GOLDILOCKS, make_run

COMPLETION = "a < b & c <script>alert(1)</script> \\boxed{\\frac{1}{2}}" + "9" * 5000
SAMPLE = {"step": 2, "problem": 10, "status": "wrong", "prompt": "√2 < ?", "completion": COMPLETION}
EXPECTED = """step 2 of 4 0.33 0.50
Newest samples: 2 wrong · step 2 · #10 √2 < ?
Verdicts at step 2 wrong correct 2 1"""


def make(folder, **config):
    """A run at step 2 of 4, evaluated each step. Of two groups a step one is dead."""
    verdicts = [[0, 0, 0], [0, 0, 1], [0, 0, 1]]
    paths = {"model": "models/cold", "train_data": "a/data.jsonl"}
    make_run(folder, verdicts=verdicts, steps=4, **paths, **config)
    write_lines(folder / "samples.jsonl", [SAMPLE | {"step": 1}, SAMPLE])
    return str(folder)


def page_of(*runs, out):
    """Write the page about runs; return it, and the words that a browser shows."""
    report.main([*runs, "--out", str(out)])
    html = out.read_text()
    body = html[html.index("<body>") :]
    return html, " ".join(unescape(re.sub("<[^>]*>", " ", body)).split())


def test_numbers_by_hand_and_texts_as_they_are(tmp_path):
    html, words = page_of(make(tmp_path / "run"), out=tmp_path / "new/page.html")
    assert "dead groups live but flat truncated" in words
    for expected in (*EXPECTED.splitlines(), COMPLETION):
        assert expected in words
    # Nothing is executed, and nothing is fetched.
    assert "<script" not in html
    assert "@import" not in html
    assert {*re.findall('src="(.{22})', html)} == {"data:image/png;base64,"}
    assert {*re.findall('href="(.)', html)} == {"#"}


def test_a_run_that_ends_below_its_first_accuracy_is_a_warning_on_page_and_terminal(
    tmp_path, capsys
):
    run = make_run(tmp_path / "run", verdicts=[[1, 1, 0], [1, 0, 0]], model="m", train_data="d")
    write_lines(run / "samples.jsonl", [SAMPLE])
    _, words = page_of(str(run), out=tmp_path / "page.html")
    warning = "WARNING: uniform ends at 33.3%, from 66.7% before training and 66.7% at best."
    assert warning in words
    assert warning in capsys.readouterr().out


def test_runs_with_another_parent_of_a_sampler_are_another_method(tmp_path):
    runs = []
    for seed, (grpo, parent) in enumerate([(1, 3), (2, 3), (1, 4)]):
        code = {"grpo.py": grpo, "samplers/parent.py": parent}
        runs.append(make(tmp_path / str(seed), seed=seed, code=code))
    methods = load_methods(runs)
    seeds = {name: [run.config["seed"] for run in runs] for name, runs in methods.items()}
    assert seeds == {"uniform": [0, 1], "uniform, samplers/parent.py changed": [2]}


def test_several_methods_are_compared_first_in_the_page_and_on_the_terminal(tmp_path, capsys):
    """Both have the same evaluations: no difference, with one seed."""
    runs = (
        make(tmp_path / "a", code={"grpo.py": 1}),
        make(tmp_path / "b", code={"grpo.py": 2}, **GOLDILOCKS, teacher_model="models/cold"),
    )
    _, words = page_of(*runs, out=tmp_path / "page.html")
    sentence = "goldilocks − uniform: +0.0 points at 16 completions, with one seed"
    out = capsys.readouterr().out
    assert sentence in out
    assert "Runs of different code are compared: uniform | goldilocks" in out
    order = "compute-matched.*" + re.escape(sentence) + ".*latest 20 steps.*Newest samples"
    assert re.search(order, words)


@pytest.mark.parametrize(("world", "students", "text"), [(2, 2, "+0.0"), (8, 7, "-7.8 at 21,")])
def test_a_teacher_is_charged_with_the_ranks_that_it_had(world, students, text, tmp_path):
    """Both rise to 75% over 24 completions, read at 5/6. Of 2 ranks none was the Teacher's; of 8
    one was, so Goldilocks is read at 7/8 of 62.5%."""
    verdicts = [[0, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 1], [0, 1, 1, 1]]
    ranks = {"verdicts": verdicts, "world_size": world}
    uniform = make_run(tmp_path / "uniform", student_ranks=world, **ranks)
    goldilocks = make_run(tmp_path / "mine", **GOLDILOCKS | ranks | {"student_ranks": students})
    [(_, header, rows)] = report.compare(load_methods([uniform, goldilocks])).tables
    assert ("compute-matched" in header) == (world == 8)
    assert any(cell.startswith(text) for cell in rows[1])


def test_seconds_of_several_ranks_are_not_compared_with_those_of_one_process(tmp_path):
    """Ranks wait for each other, so that their seconds are not a cost: they are not known."""
    verdicts = [[0, 0], [0, 1], [1, 1]]
    uniform = make_run(tmp_path / "a", verdicts=verdicts, world_size=1, student_ranks=1)
    goldilocks = make_run(tmp_path / "b", verdicts=verdicts, **GOLDILOCKS)
    [(_, header, rows)] = report.compare(load_methods([uniform, goldilocks])).tables
    column = header.index("seconds ×")
    assert [row[column] for row in rows] == ["1.00", "–"]


def test_by_category_groups_and_accuracies_by_hand(tmp_path):
    """Of 4 groups 3 are of level 10: one dead, one live at p̂ 1/8, one at 1/2. Of level 9 one
    problem is wrong before and right after training; of level 10 both stay wrong."""
    levels = [9, 10, 10]
    rows = [{"problem": f"{i}?", "expected_answer": "1", "level": n} for i, n in enumerate(levels)]
    write_lines(tmp_path / "data.jsonl", rows)
    data = str(tmp_path / "data.jsonl")
    verdicts = [[0, 0, 0], [1, 0, 0]]
    crc32 = file_crc32(tmp_path / "data.jsonl")
    files = {"train_data": data, "val_data": data}
    files |= {"train_data_crc32": crc32, "val_data_crc32": crc32}
    folder = make_run(tmp_path / "run", verdicts=verdicts, **files)
    groups = [(0, 0.0), (1, 0.0), (1, 1 / 8), (2, 1 / 2)]
    selections = [{"chosen": i, "p_hat": p, "y": (p * (1 - p)) ** 0.5} for i, p in groups]
    write_lines(folder / "selections.jsonl", selections)
    [(title, header, lines)] = categories.tables({"uniform": [Run.load(folder)]}, "level")
    assert (title, header[0]) == ("uniform, by level", "level")
    assert lines == [
        ["9", "25%", "0%", "0%", "0.0 → 100.0%"],
        ["10", "75%", "67%", "33%", "0.0 → 0.0%"],
    ]
    write_lines(tmp_path / "data.jsonl", rows[::-1])  # row numbers are other problems'
    categories.read_categories.cache_clear()  # another command
    with rejected("data.jsonl has changed since the run"):
        categories.tables({"uniform": [Run.load(folder)]}, "level")
