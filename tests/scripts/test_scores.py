"""scores: gains, speed-ups and sentences by hand, and the committed studies' published figures."""

import re
import zlib

import numpy as np
import pandas as pd
import pytest

from plumbing.errors import InputError
from scripts.study import findings, scores
from scripts.study.plan import Plan
from scripts.study.runs import Run
from tests.helpers.checks import rejected
from tests.helpers.models import ROOT
from tests.helpers.runs import make_run

RESULTS = (ROOT / "docs/results.md").read_text("utf-8")


def run_rows(arm, seed, accuracy, **columns):
    """The rows of a run: an evaluation every 100 completions from 0 on, one step each."""
    rows = pd.DataFrame({"accuracy": np.array(accuracy, float), "step": range(len(accuracy))})
    rows = rows.assign(task="", arm=arm, seed=seed, model_crc32="", problems=200)
    return rows.assign(completions=100.0 * rows.step, **columns).reindex(columns=scores.COLUMNS)


def lines(ends, n=13, **columns):
    """Runs whose accuracy rises from 0 to an end in a line, by arm and seed."""
    pairs = [(arm, seed, end) for arm, e in ends.items() for seed, end in enumerate(e)]
    return [run_rows(arm, seed, np.linspace(0, end, n), **columns) for arm, seed, end in pairs]


def summary_of(runs, devices=None):
    rows = scores.concatenate(runs)
    devices = dict.fromkeys(rows.arm, 1) | (devices or {})
    return scores.summarize(rows, "uniform", 1200, devices).set_index("arm")


THREE_SEEDS = {"uniform": (12, 24, 36), "mine": (24, 36, 60)}


def test_a_gain_is_the_mean_over_the_last_third_paired_by_seed():
    """Lines from 0: read at 8/12 to 12/12 of 1,200 completions, so at 10/12 of the end."""
    # 10/12 of 12, 12 and 24: mean 13.33, standard deviation 5.774, t = 4.303 for two degrees:
    # 13.33 ± 4.303 · 5.774 / √3
    assert summary_of(lines(THREE_SEEDS)).gain_text["mine"] == "+13.3 (-1.0 to +27.7) at 1,200"


def test_seeds_without_a_partner_do_not_count():
    summary = summary_of(lines({"uniform": (12, 24, 99), "mine": (24, 36)}))
    assert summary.gain_text["mine"] == "+10.0 (+10.0 to +10.0) at 1,200"


@pytest.mark.parametrize(
    ("evaluations", "text"),
    [(17, "+6.7 at 1,200, baseline 1,600"), (13, "+5.0 at 900, baseline 1,200")],
)
def test_compute_matched_reads_the_baseline_at_four_thirds(evaluations, text):
    """The arm rises by 2 points every 100 completions, uniform by 1; it goes on to 1,600, or not.
    10/12 of the arm's amount are read, of uniform 10/12 of 4/3 of it: 20 - 13.3 and 15 - 10."""
    runs = lines({"mine": (24,)}) + lines({"uniform": (evaluations - 1,)}, evaluations)
    assert summary_of(runs, {"mine": 4 / 3}).matched_text["mine"] == text


def test_a_gain_is_marked_where_a_run_was_not_evaluated_in_the_last_third():
    sparse = run_rows("mine", 0, [0, 10, 20])
    sparse["completions"] *= 7
    assert summary_of([*lines({"uniform": (12,)}), sparse]).gain_text["mine"].startswith("≈ ")


def test_a_run_that_spent_less_than_95_percent_is_not_compared():
    runs = lines({"uniform": (12, 12), "mine": (24,)})
    runs.append(run_rows("mine", 1, range(12)))
    assert summary_of(runs).seeds.to_dict() == {"uniform": 2, "mine": 1}


def test_tasks_may_have_budgets_of_their_own():
    runs = lines({"uniform": (12,), "mine": (24,)})
    rows = pd.concat([run.assign(task=task) for run in runs for task in "ab"])
    devices = {"uniform": 1, "mine": 1}
    summary = scores.summarize(rows, "uniform", {"a": 1200, "b": 600}, devices)
    gains = summary.set_index(["task", "arm"]).gain_text.xs("mine", level="arm")
    assert gains.to_dict() == {"a": "+10.0 at 1,200", "b": "+5.0 at 600"}


@pytest.mark.parametrize(
    ("checksum", "runs"),
    [
        ("model_crc32", [("uniform", 0), ("mine", 0)]),  # of one seed
        ("own_code_crc32", [("mine", 0), ("mine", 1)]),  # of one arm
    ],
)
def test_runs_that_differ_in_a_checksum_are_rejected(checksum, runs):
    rows = [run_rows(*run, [0, 1]).assign(**{checksum: f"{i}"}) for i, run in enumerate(runs)]
    arm, seed = runs[1]
    with pytest.raises(InputError, match=f"'{arm}', 'seed': {seed}}} differ in {checksum}"):
        scores.concatenate(rows)


def test_first_reach_is_on_the_monotone_curve():
    """0, 4, 2, 6 becomes 0, 3, 3, 6."""
    accuracy = pd.DataFrame([0.0, 4, 2, 6], index=[0, 100, 200, 300])
    reached = [scores.first_reach(accuracy, [0], level) for level in (0, 1.5, 3, 4.5, 7)]
    assert reached == pytest.approx([0, 50, 100, 250, np.inf])


SPEED_UPS = {  # ends of uniform and of the arm: uniform's level is 10/12 of its end
    "2 (2 to 2)": ((12, 12), (24, 24)),  # reached at 1,000 completions and at 500
    # 0 to 3 of four draws are of the first seed: ratios of 2, 2.7, 4 and 8; of 4 there is none.
    "2.7 (2 to 8)": ((0, 12, 12, 12), (24, 24, 24, 24)),
    "not reached, < 0.83": ((12,), (6,)),
    "not defined, the baseline does not rise: +0.0": ((0, 0), (6, 6)),
    # 0.83% of 200 or 400 answers: standard errors of 0.64 and 0.45; two equal seeds have one of 0.
    "not defined, the baseline hardly moves: +0.8 ± 1.3 points": ((1,), (6,)),
    "not defined, the baseline hardly moves: +0.8 ± 0.9 points": ((1, 1), (6, 6)),
    # Seeds that rise by 0 and by 10 have a standard error of 5.
    "not defined, the baseline hardly moves: +5.0 ± 10.0 points": ((0, 12), (24, 24)),
}


@pytest.mark.parametrize("text", SPEED_UPS)
def test_a_speed_up_is_the_ratio_of_completions_to_the_baselines_level(text):
    uniform, mine = SPEED_UPS[text]
    assert summary_of(lines({"uniform": uniform, "mine": mine})).speed_up_text["mine"] == text


WARNED = [  # the arm, its accuracies -> the warning, "" for none
    ("uniform", [20, 20, 22], ""),
    ("uniform", [20, 30, 12], "ends at 12.0%, from 20.0% before training and 30.0% at best: "
     ".* Likely --learning_rate 0.0003 is too high: run again with --learning_rate 0.0001"),
    ("uniform", [20, 32, 22], "uniform ends at 22.0%.* is too high"),
    ("uniform", [20, 20, 19], "uniform ends at 19.0%.* it has not learned"),
    ("mine", [20, 32, 22], ""),
    ("mine", [20, 22, 12], "mine ends at 12.0%"),
]  # fmt: skip


@pytest.mark.parametrize(("arm", "ends", "warned"), WARNED)
def test_a_baseline_that_loses_accuracy_or_an_arm_that_ends_below_its_start_is_warned_of(
    arm, ends, warned
):
    """Of 200 problems an accuracy of 20% has a standard error of 2.8, a difference one of 4."""
    run = run_rows(arm, 0, ends)
    row = scores.describe(run, run, scores.places_of(200, 5))
    text = findings.warn(row | {"task": "", "arm": arm}, "uniform", rate=3e-4)
    assert re.search(warned, text) if warned else not text


@pytest.mark.parametrize(("by_clock", "name"), [(False, "CPU seconds"), (True, "seconds")])
def test_seconds_by_the_clock_are_not_called_cpu_seconds(by_clock, name):
    """The second arm takes twice the seconds of the first for as many completions."""
    runs = lines(THREE_SEEDS, by_clock=by_clock)
    for run in runs:
        run["cpu_seconds"] = run.step * (1.0 if "uniform" in run.arm.values else 2.0)
    summary = summary_of(runs).reset_index()
    [(_, header, rows)] = findings.tables(summary)
    assert f"at equal {name}" in header
    assert rows[1][header.index(f"{name} ×")] == "2.00"
    *_, last = texts = findings.sentences(summary, "uniform")
    assert f" At equal {name}: " in texts[0]
    assert ("by the clock" in last) == by_clock


def test_a_baseline_that_falls_below_its_level_at_the_end_reached_it_at_the_budget():
    """6, 6, 6, 3 and 0 are a level of 4.2; made monotone the last three evaluations, 6, 6 and 0,
    are 4. The arm is at 4.2 after 840 of 1,200 completions."""
    falls = run_rows("uniform", 0, [0, 0, 0, 0, 6, 6, 0])
    rises = run_rows("mine", 0, range(7))
    for run in (falls, rises):
        run["completions"] *= 2
    assert summary_of([falls, rises]).speed_up_text["mine"] == "1.4"


def test_arms_whose_code_differs_are_named():
    """The second arm has a run of each version; of a run of unknown code nothing is said."""
    codes = {("uniform", 0): "1", ("mine", 0): "1", ("mine", 1): "1+2", ("old", 0): None}
    runs = [run_rows(*run, [0, 1]).assign(code_crc32=crc) for run, crc in codes.items()]
    assert scores.code_differences(scores.concatenate(runs)) == [
        "Runs of different code are compared: uniform, mine (seeds 0) | mine (seeds 1). `code` in "
        "each config.json has the checksums of the files."
    ]
    assert scores.code_differences(scores.concatenate(runs[:2])) == []
    other_task = run_rows("uniform", 0, [0, 1]).assign(task="another", code_crc32="2")
    assert scores.code_differences(scores.concatenate([*runs[:2], other_task])) == []


def test_scores_without_a_column_are_rejected(tmp_path):
    file = tmp_path / "scores.csv"
    run_rows("uniform", 0, [0, 1]).drop(columns="dead").to_csv(file)
    with rejected("scores.csv: has no columns ['dead']"):
        scores.read(file)


def test_scores_of_other_arms_are_rejected_and_an_arm_may_be_called_none(tmp_path):
    file = tmp_path / "scores.csv"
    run_rows("None", 0, [0, 1]).to_csv(file)
    rows = scores.read(file)
    assert {*rows.arm} == {"None"}
    with rejected("no finished run of the plan's arms"):
        scores.concatenate([scores.select(rows, arms=["uniform"], tasks=[""])])


def test_one_place_is_the_end_of_the_budget():
    assert scores.places_of(1200, 1).tolist() == [1200]
    assert scores.places_of(1200, 3).tolist() == [800, 1000, 1200]


def test_holm_by_hand():
    """3 times the least, 2 times the second, and no p below one that was less."""
    assert scores.holm(pd.Series([0.03, 0.01, 0.04])).tolist() == pytest.approx([0.06, 0.03, 0.06])


def test_a_plans_test_corrects_its_comparisons_together(monkeypatch):
    """Of three arms two are tested: their p-values, 0.057, are doubled and not tripled."""
    monkeypatch.setattr(scores, "DRAWS", 2)  # no speed-up is read
    summary = summary_of(lines(THREE_SEEDS | dict.fromkeys("ab", (24, 36, 60)))).reset_index()
    text = findings.tested(summary, arms=["a", "b"], tasks=[""])
    assert "over 2: , a: 0.114; , b: 0.114" in text


def test_a_verdict_says_what_the_seeds_resolve():
    arm = {"arm": "Goldilocks", "gain_points": 1.2, "gain_low": -0.3, "gain_high": 2.7}
    arm |= {"gain_text": "+1.2", "matched_text": "+0.4 at 17,280", "cpu_seconds_text": "–"}
    assert findings.describe_gain(arm | {"gain_at": 23040, "gain_seeds": 5}, "uniform") == (
        "Goldilocks − uniform: +1.2 points (-0.3 to +2.7) at 23,040 completions: not "
        "distinguishable from 0. Compute-matched: +0.4 at 17,280. These 5 seeds "
        "resolve about ±1.5 points; ±1.0 would take about 9."
    )


def test_a_runs_rows_by_hand(tmp_path):
    """Two steps of an hour, of which half a core was used; of 2 groups a step one is live. The
    sampler's file is its own, train.py that of all runs."""
    code = {"train.py": 1, "samplers/parent.py": 3}
    run = make_run(tmp_path / "run", verdicts=[[0, 0], [0, 1], [1, 1]], code=code)
    rows = Run.load(run).scores(cores=0.5, checksums=[], task="", arm="uniform", seed=0)
    names = ["step", "completions", "cpu_seconds", "live", "dead", "accuracy", "problems"]
    assert rows[names].to_numpy()[1:].tolist() == [
        [1, 8, 1800, 1, 0.5, 50, 2],
        [2, 16, 3600, 2, 0.5, 100, 2],
    ]
    checksums = [
        str(zlib.crc32(text)) for text in (b'{"train.py": 1}', b'{"samplers/parent.py": 3}')
    ]
    assert rows[["code_crc32", "own_code_crc32"]].to_numpy()[0].tolist() == checksums


# Figures of docs/results.md: plan, scores, task, arm, column of scores.summarize, text.
PUBLISHED = [
    ("sparsity/plan", "sparsity/scores", "unnamed", "words, K=64", "gain", "+3.7 (+1.6 to +5.8)"),
    ("target/plan", "target/scores", "none", "PaperTarget", "gain", "+0.3 (−0.4 to +1.1)"),
    ("real_model/plan", "real_model/scores", "", "Goldilocks", "matched", "−1.3 (−2.6 to +0.1)"),
    ("sparsity/smollm2", "sparsity/smollm2", "97", "bins", "speed_up", "2.2 (1.8 to 2.9)"),
    ("sparsity/smollm2", "sparsity/smollm2", "97", "SEC", "cpu_seconds", "+1.0 (+0.2 to +1.8)"),
    ("sparsity/smollm2", "sparsity/smollm2_again", "92", "bins", "gain", "−4.0 (−22.5 to +14.4)"),
    ("gemma/plan", "gemma/scores", "", "Goldilocks", "gain", "−0.1 (−3.5 to +3.3)"),
]


def compare(plan, csv, task, arms):
    """Compare arms of a committed study on a task: a row of scores.summarize by arm."""
    plan = Plan.read(ROOT / f"studies/{plan}.toml")
    rows = scores.read(ROOT / f"studies/{csv}.csv")
    rows = scores.select(rows, arms=[*arms, plan.baseline], tasks=[task])
    table = scores.summarize(rows, plan.baseline, plan.budget, plan.devices, plan.places)
    return table.set_index("arm").loc[arms]


@pytest.mark.parametrize(("plan", "csv", "task", "arm", "column", "text"), PUBLISHED)
def test_published_figures_come_from_the_committed_scores(plan, csv, task, arm, column, text):
    row = compare(plan, csv, task, [arm]).loc[arm]
    assert row[f"{column}_text"].replace("-", "−").startswith(text)
    assert text in RESULTS


def test_the_demo_column_of_samplers_md_is_of_the_leaderboard(monkeypatch):
    monkeypatch.setattr(scores, "DRAWS", 2)
    names = {  # arm of the plan -> name on the page
        "Goldilocks": "goldilocks",
        "headroom": "headroom",
        "PCL": "pcl",
        "noisy AND, text": "noisy_and",
        "bag of words": "bag_of_words",
        "Knapsack": "knapsack",
        "SEC": "sec",
        "MoPPS": "mopps",
        "SPEED": "speed",
        "Reinforce-Ada": "reinforce_ada",
    }
    table = compare("leaderboard/plan", "leaderboard/scores", "demo", [*names])
    page = (ROOT / "docs/samplers.md").read_text("utf-8")
    for arm, name in names.items():
        text = f"{table.gain_points[arm]:+.1f}".replace("-", "−")
        few = " ‡" if table.gain_seeds[arm] == 6 else ""
        assert re.search(rf"^\| `{name}` \| .* \| {re.escape(text + few)} \|$", page, re.M)
