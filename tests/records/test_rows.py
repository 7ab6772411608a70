"""records/rows.py: the rows of selections.jsonl and samples.jsonl, by hand."""

from plumbing.files import read_lines
from records.rows import log_groups, selection
from tests.helpers.groups import solved
from tests.helpers.ranks import make_run_dir, parse


def test_a_selection_by_hand():
    chosen = solved(3, right=2, of=10, pool=[3, 4], utilities=[0.5, 0.2])
    assert selection(7, chosen) == {
        "step": 7,
        "pool": [3, 4],
        "utilities": [0.5, 0.2],
        "chosen": 3,
        "explored": True,
        "completions": 10,
        "successes": 2,
        "p_hat": 0.2,
        "y": 0.4,
    }


def test_three_problems_are_sampled_at_the_first_and_the_last_step_and_at_evaluations(tmp_path):
    config = parse("--preset", "demo", "--out", tmp_path, "--eval_every", 2, "--steps", 5)
    run = make_run_dir(config)
    for step in (1, 2, 3, 4, 5):
        groups = [solved(problem, right=0, of=2) for problem in range(4)]
        log_groups(run, step, groups, decode=str)
    first, *_ = rows = read_lines(run.path / "samples.jsonl")
    assert [row["step"] for row in rows] == [1, 1, 1, 2, 2, 2, 4, 4, 4, 5, 5, 5]
    assert first == {"step": 1, "problem": 0, "status": "", "prompt": "[1]", "completion": "[2]"}
