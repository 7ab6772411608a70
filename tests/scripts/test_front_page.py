"""README and docs/results.md have what `python -m studies.front_page` prints and draws."""

import pytest

from scripts.study import scores
from studies import front_page
from tests.helpers.models import ROOT

README = (ROOT / "README.md").read_text("utf-8")
SENTENCES = " ".join(README.split())  # without line breaks
RESULTS = (ROOT / "docs/results.md").read_text("utf-8")


@pytest.fixture(scope="module")
def summary():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scores, "DRAWS", 2)  # no speed-up is read
        yield front_page.summarize(*front_page.TODAY)


def test_the_tables_are_of_the_committed_scores(summary):
    older = front_page.summarize(*front_page.OLDER)
    for each in (summary, older):
        assert front_page.table(each) in RESULTS


def test_readmes_sentence_is_of_its_figure(summary):
    """The smallest and the largest gain from 94% dead groups on, and the range at 61%."""
    gains = summary[summary.arm.isin(front_page.ARMS)].set_index("task").matched_points
    many = gains[["95", "98", "99.5"]]  # names of tasks: 94, 98 and 99.3% are dead
    sentence = f"the samplers below gain {many.min():.0f} to {many.max():.0f} points of accuracy"
    assert f"**In a toy task, {sentence} over uniform where at least 94% of" in SENTENCES
    few = gains["60"]
    assert few.max() < 0
    assert f"Where 61% are, they gain nothing or lose up to {-few.min():.1f}." in SENTENCES


def test_readmes_sentence_on_cpu_seconds_is_of_the_committed_scores(summary):
    upper_end = summary[summary.arm == "Goldilocks, K=8"].set_index("task").cpu_seconds_high
    assert [*upper_end[upper_end < 0].index] == ["60", "84"]  # 61 and 85% are dead
    assert ") at equal CPU seconds up to 85% dead" in SENTENCES


def test_readme_shows_what_the_demo_printed():
    assert front_page.console() in README
    assert "\n    validation accuracy: 13.0% before" in front_page.console()


def test_readmes_accuracies_of_the_demo_are_of_the_committed_scores():
    rows = scores.read(front_page.DEMO)
    last = (
        rows[rows.completions == front_page.DEMO_BUDGET]
        .groupby("arm")
        .accuracy.agg(["mean", "count"])
        .loc[["Goldilocks", "uniform"]]
    )
    assert [*last["count"]] == [12, 12]
    ours, uniform = last["mean"]
    assert f": Goldilocks ends at {ours:.1f}%, and uniform at {uniform:.1f}%." in SENTENCES
