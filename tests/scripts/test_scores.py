"""scores: gains, speed-ups and sentences by hand, and the committed studies' published figures."""

import numpy as np
import pandas as pd
import pytest

from plumbing.errors import InputError
from scripts import scores, study, verdict
from scripts.analysis import Run
from tests.helpers.models import ROOT
from tests.helpers.runs import make_run


def run_rows(arm, seed, accuracy, task="", per_step=100, **columns):
    """The rows of a run: an evaluation every 100 completions from 0 on, one step each."""
    n = len(accuracy)
    rows = pd.DataFrame({"accuracy": np.array(accuracy, float), "step": range(n)})
    rows["completions"] = per_step * rows.step.astype(float)
    rows = rows.assign(task=task, arm=arm, seed=seed, model_crc32="", problems=200, **columns)
    return rows.reindex(columns=scores.COLUMNS)


def line(start, end, n=13):
    return np.linspace(start, end, n)


def summary_of(runs, devices=None, budget=1200):
    rows = scores.together(runs)
    table = scores.summarize(rows, "uniform", budget, devices or {}, 5)
    return table.set_index(["task", "arm"])


def test_a_gain_is_the_mean_over_the_last_third_paired_by_seed():
    """Lines from 0: read at 8/12 to 12/12 of 1,200 completions, so at 10/12 of the end."""
    ends = {"uniform": (12, 24, 36), "mine": (24, 36, 60)}
    runs = [run_rows(arm, s, line(0, end)) for arm, e in ends.items() for s, end in enumerate(e)]
    gain = summary_of(runs).gain["", "mine"]
    # 10/12 of 12, 12 and 24: mean 13.33, standard deviation 5.774, t = 4.303 for two degrees
    assert gain.points == pytest.approx(40 / 3)
    assert gain.high - gain.points == pytest.approx(4.3027 * 5.7735 / 3**0.5, rel=1e-4)
    assert str(gain) == "+13.3 (-1.0 to +27.7) at 1,200"


def test_compute_matched_reads_a_baseline_that_went_on_at_four_thirds():
    """Uniform has 16 evaluations; the arm's Teacher takes 2 of 8 devices."""
    runs = [run_rows("uniform", 0, line(0, 16, 17)), run_rows("mine", 0, line(0, 24))]
    matched = summary_of(runs, {"mine": 4 / 3}).matched["", "mine"]
    assert (matched.amount, matched.base_amount) == (pytest.approx(1200), pytest.approx(1600))
    assert matched.points == pytest.approx(20 - 16 * 10 / 12)


def test_compute_matched_reads_the_arm_earlier_if_the_baseline_did_not_go_on():
    runs = [run_rows("uniform", 0, line(0, 12)), run_rows("mine", 0, line(0, 24))]
    matched = summary_of(runs, {"mine": 4 / 3}).matched["", "mine"]
    assert (matched.amount, matched.base_amount) == (pytest.approx(900), pytest.approx(1200))
    assert matched.points == pytest.approx(15 - 10)


def test_a_gain_is_marked_where_a_run_was_not_evaluated_in_the_last_third():
    sparse = run_rows("mine", 0, [0, 10, 20], per_step=700)
    gain = summary_of([run_rows("uniform", 0, line(0, 12)), sparse]).gain["", "mine"]
    assert gain.interpolated
    assert str(gain).startswith("≈ ")


def test_one_seed_has_no_interval():
    runs = [run_rows("uniform", 0, line(0, 12)), run_rows("mine", 0, line(0, 24))]
    gain = summary_of(runs).gain["", "mine"]
    assert np.isnan(gain.low)
    assert "one seed" in verdict.verdict("mine", "uniform", gain)


def test_a_run_that_spent_less_than_95_percent_is_not_compared():
    runs = [run_rows("uniform", s, line(0, 12)) for s in (0, 1)]
    runs += [run_rows("mine", 0, line(0, 24)), run_rows("mine", 1, line(0, 24, 12))]
    table = summary_of(runs)
    assert table.seeds["", "mine"] == 1
    assert table.seeds["", "uniform"] == 2


def test_runs_of_other_weights_are_not_paired():
    runs = [run_rows("uniform", 0, line(0, 12)), run_rows("mine", 0, line(0, 12))]
    runs[0]["model_crc32"] = "1"
    runs[1]["model_crc32"] = "2"
    with pytest.raises(InputError, match="seed 0: models 1 and 2 differ"):
        scores.together(runs)


def test_first_reach_is_on_the_monotone_curve():
    """0, 4, 2, 6 becomes 0, 3, 3, 6."""
    at = np.array([0, 100, 200, 300])
    accuracy = np.array([0.0, 4, 2, 6])
    assert scores.first_reach(at, accuracy, 1.5) == pytest.approx(50)
    assert scores.first_reach(at, accuracy, 3) == pytest.approx(100)
    assert scores.first_reach(at, accuracy, 4.5) == pytest.approx(250)
    assert scores.first_reach(at, accuracy, 7) == np.inf
    assert scores.first_reach(at, accuracy, 0) == 0


def test_a_speed_up_is_the_ratio_of_completions_to_the_baselines_level():
    """Twice as steep: uniform reaches its level, 10, at 1,000 completions, the arm at 500."""
    runs = [run_rows("uniform", s, line(0, 12)) for s in (0, 1)]
    runs += [run_rows("mine", s, line(0, 24)) for s in (0, 1)]
    speed = summary_of(runs).speed_up["", "mine"]
    assert (speed.value, speed.low, speed.high) == pytest.approx((2, 2, 2))


def test_a_level_that_is_not_reached_gives_a_bound():
    runs = [run_rows("uniform", 0, line(0, 12)), run_rows("mine", 0, line(0, 6))]
    speed = summary_of(runs).speed_up["", "mine"]
    assert speed.value == 0
    assert str(speed) == "not reached, < 0.83"


def test_a_baseline_that_does_not_rise_has_no_speed_up():
    runs = [run_rows("uniform", 0, line(5, 5)), run_rows("mine", 0, line(5, 6))]
    assert str(summary_of(runs).speed_up["", "mine"]) == "–"


def test_the_fit_finds_the_exponent():
    """S = √r on three tasks: arms 2, 3 and 4 times as steep, with 4, 9 and 16 times as many live
    groups."""
    runs = []
    for factor in (2, 3, 4):
        for arm, steep, live in (("uniform", 1, 1), ("mine", factor, factor**2)):
            rows = run_rows(arm, 0, line(0, 12 * steep), task=str(factor))
            runs.append(rows.assign(live=live * rows.step))
    assert "a = 0.50 (0.50 to 0.50" in verdict.fit(summary_of(runs).reset_index())


def test_holm_by_hand():
    p = pd.Series([0.03, np.nan, 0.01, 0.04])
    assert scores.holm(p).to_dict() == pytest.approx({2: 0.03, 0: 0.06, 3: 0.06})


def test_a_plans_test_corrects_its_comparisons_together():
    """Of three arms two are tested: their p-values are doubled and not tripled."""
    ends = {"uniform": (12, 24, 36), "a": (24, 36, 60), "b": (24, 36, 60), "c": (24, 36, 60)}
    runs = [run_rows(arm, s, line(0, end)) for arm, e in ends.items() for s, end in enumerate(e)]
    summary = summary_of(runs).reset_index()
    p = summary.set_index("arm").gain["a"].p
    text = verdict.tested(summary, {"arms": ["a", "b"], "tasks": [""]})
    assert f"over 2: , a: {2 * p:.3f}; , b: {2 * p:.3f}" in text


def test_a_verdict_says_what_the_seeds_resolve():
    gain = scores.Gain(1.2, -0.3, 2.7, 0.1, 23040, 23040, 5, False)
    assert verdict.verdict("Goldilocks", "uniform", gain) == (
        "Goldilocks − uniform: +1.2 points (-0.3 to +2.7) at 23,040 completions: not "
        "distinguishable from 0. These 5 seeds resolve about ±1.5 points; ±1.0 would take about 9."
    )


def test_a_runs_rows_by_hand(tmp_path):
    """Two steps of an hour, of which half a core was used; of 2 groups a step one is live."""
    run = make_run(tmp_path / "run", verdicts=[[0, 0], [0, 1], [1, 1]])
    usage = [{"cpu_seconds": 3600.0, "wall_seconds": 7200.0}]
    rows = scores.of_run(Run.load(run), usage).set_index("step")
    assert rows.accuracy.tolist() == [0, 50, 100]
    assert rows.completions.tolist() == [0, 8, 16]
    assert rows.cpu_seconds.tolist() == [0, 1800, 3600]
    assert rows.live.tolist() == [0, 1, 2]
    assert rows.dead.tolist()[1:] == [0.5, 0.5]
    assert set(rows.problems) == {2}


PUBLISHED = [  # study, task, arm, column, text: figures of docs/samplers.md, real_model.md, log.md
    ("leaderboard", "demo", "Goldilocks", "gain", "+1.6 (+1.1 to +2.1) at 23,040"),
    ("leaderboard", "demo", "Goldilocks", "matched", "+0.7 (+0.3 to +1.2) at 17,280"),
    ("leaderboard", "all within reach", "Goldilocks", "matched", "-4.4 (-6.3 to -2.6) at 17,280"),
    ("leaderboard", "demo", "noisy AND, text", "gain", "+4.2 (+3.4 to +5.0) at 23,040"),
    ("leaderboard", "demo", "GRESO", "gain", "-3.6 (-4.9 to -2.4) at 23,040"),
    ("real_model", "", "Goldilocks", "gain", "-0.2 (-1.8 to +1.3) at 4,608"),
    ("real_model", "", "Goldilocks", "cpu_seconds", "≈ -2.0 (-4.0 to -0.1) at 560"),
    ("real_model", "", "learnability bins", "tokens", "≈ +0.4 (-0.4 to +1.2) at 97,442"),
    ("real_model", "", "DAPO", "updates", "+1.3 (+0.8 to +1.9) at 9"),
    ("gemma", "", "learnability bins", "gain", "-0.1 (-5.9 to +5.8) at 2,304"),
    ("reasoning_small", "reasoning", "DAPO", "gain", "-4.5 (-4.9 to -4.2) at 7,680"),
    ("target", "none", "PaperTarget", "gain", "+0.3 (-0.4 to +1.1) at 23,040"),
    ("target", "mean", "PaperTarget", "gain", "-0.2 (-1.2 to +0.9) at 23,040"),
]


@pytest.mark.parametrize(("name", "task", "arm", "column", "text"), PUBLISHED)
def test_published_figures_come_from_the_committed_scores(name, task, arm, column, text):
    plan = study.Plan.read(ROOT / f"studies/{name}/plan.toml")
    rows = scores.read(ROOT / f"studies/{name}/scores.csv")
    rows = rows[(rows.task == task) & rows.arm.isin([arm, plan.baseline])]
    devices = {arm: plan.devices[arm]}
    table = scores.summarize(rows, plan.baseline, plan.completions, devices, plan.places)
    assert str(table.set_index("arm")[column][arm]).startswith(text)
