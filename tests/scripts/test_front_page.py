"""README's and docs/results.md's tables are what `python -m studies.front_page` prints."""

import numpy as np
import pandas as pd
import pytest

from scripts.study import scores
from studies import front_page
from tests.helpers.models import ROOT

README = (ROOT / "README.md").read_text("utf-8")
RESULTS = (ROOT / "docs/results.md").read_text("utf-8")


@pytest.fixture(scope="module")
def gains():
    return front_page.read_gains()


def test_readmes_table_is_of_the_committed_scores(gains):
    assert front_page.short_table(gains) in README


def test_the_table_of_results_is_of_the_committed_scores(gains):
    assert front_page.long_table(gains) in RESULTS


def test_readme_shows_what_the_demo_printed():
    lines = front_page.CONSOLE.read_text("utf-8").splitlines()
    assert front_page.console(lines) in README


def test_readmes_accuracies_of_the_demo_are_of_the_committed_scores():
    rows = scores.read(front_page.DEMO / "scores.csv").query("task == 'demo'")
    last = rows[rows.completions == 23040].groupby("arm").accuracy.agg(["mean", "count"])
    assert [*last.loc[["Goldilocks", "uniform"], "count"]] == [12, 12]
    mine, uniform = last["mean"].Goldilocks, last["mean"].uniform
    assert f"accuracy rises from 13.0% to {mine:.1f}%, and\nuniform's to {uniform:.1f}%" in README


def test_a_table_by_hand():
    """One arm and one task: a gain of 1 ± 2 over 16%, with three seeds, at 59% dead."""
    line = {"task": "60", "dead": 0.59, "accuracy": 16.0, "ratio": 4 / 3, "cpu_points": np.nan}
    line |= {"matched_points": 1.0, "matched_low": -1.0, "matched_high": 3.0, "matched_seeds": 3}
    rows = [line | {"arm": arm, "equal_points": 2.0} for arm in front_page.NAMES]
    rows = [row | {"task": task} for row in rows for task in front_page.TASKS]
    gains = pd.DataFrame(rows)
    last = front_page.short_table(gains).splitlines()[3]
    cell = "+1.0 (−1.0 to +3.0; 3)"
    assert last == f"| Goldilocks, K=8 (the paper's) | {cell} | {cell} | {cell} |"
    assert "| DAPO | +2.0 | +2.0 | +2.0 | +2.0 | +2.0 |" in front_page.long_table(gains)
    assert front_page.long_table(gains).endswith("they are known* |  |  |  |  |  |")


def test_an_arm_that_did_not_run_on_a_task_has_a_dash():
    line = {"dead": 0.59, "accuracy": 16.0, "ratio": 1, "cpu_points": np.nan}
    line |= {"equal_points": 2.0, "matched_points": np.nan, "arm": "DAPO"}
    gains = pd.DataFrame([line | {"task": task} for task in front_page.TASKS])
    gains.loc[gains.task == "84", "equal_points"] = np.nan
    assert "| DAPO | +2.0 | – | +2.0 | +2.0 | +2.0 |" in front_page.long_table(gains)


def test_shares_above_99_percent_keep_a_decimal():
    assert [front_page.percent(share) for share in (0.588, 0.9766, 0.996)] == [
        "59%",
        "98%",
        "99.6%",
    ]
