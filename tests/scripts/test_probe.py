"""probe: what it says of the untrained model's groups, by hand."""

import functools
import re

import numpy as np
import pandas as pd
import pytest

from plumbing.files import file_crc32, write_lines
from scripts.study import probe, results, runner, scores
from scripts.study.categories import natural_sort_key
from scripts.study.plan import Plan
from scripts.study.runs import Run
from tests.helpers.models import ROOT
from tests.helpers.runs import make_run

MEASURED = pd.read_csv(probe.MEASURED, comment="#", dtype={"task": str})
MEASURED = MEASURED.fillna({"task": "", "case": ""})


def groups_of(p, live):
    """The groups of a probe: their p̂, whether each is live, and that no value is guessed."""
    return pd.DataFrame({"p_hat": p, "y": np.array(live, dtype=float), "guessed": False})


def advice_at(dead, *samplers, cost=1.0):
    """The probe's advice to samplers where so many of 10,000 groups are dead."""
    groups = groups_of([0.5] * 10_000, np.arange(10_000) >= 10_000 * dead)
    return probe.advice(groups, [runner.parse(f"--sampler {name}") for name in samplers], cost)


def test_the_probe_shows_the_nearest_tasks_of_each_model_and_concludes_from_the_lowest(
    tmp_path, monkeypatch
):
    """At 98% dead those of 97.9 and 97%. K = 8 and 64 are one range; `sec` is ahead on one model
    alone, and `noisy_and` was run on one alone; a column that tells nothing stands apart."""
    table = tmp_path / "speed_ups.csv"
    table.write_text("""# a comment
model,arm,untrained,sampler,column,case,low,high
toys,K=8,0.6,goldilocks,,,0.5,1.3
toys,K=8,0.979,goldilocks,,,4,8
toys,K=64,0.979,goldilocks,,,2.31,6
toys,words,0.979,bag_of_words,,,3,4
toys,SEC,0.979,sec,topic,,2,3
toys,SEC,0.979,sec,length,by a blind column,0,1.2
toys,AND,0.979,noisy_and,,,1.5,2
toys,,0.999,,,,,
LM,K=64,0.97,goldilocks,,,2.1,2.9
LM,words,0.97,bag_of_words,,,2.1,5
LM,SEC,0.97,sec,task,,1.04,1.5
""")
    monkeypatch.setattr(probe, "MEASURED", table)
    text = advice_at(0.98, "goldilocks", "bag_of_words", "noisy_and", "sec", "pcl", "mopps", cost=2)
    _, ranges, legend, conclusions = text.split("\n\n")
    assert legend == probe.LEGEND
    assert ranges.splitlines() == [
        "- `bag_of_words`: 3.0 to 4.0 on toys (97.9% dead), 2.1 to 5.0 on LM (97% dead).",
        "- `goldilocks`: 2.3 to 8.0 on toys (97.9% dead; 2 settings), 2.1 to 2.9 on LM (97% dead).",
        "- `noisy_and`: 1.5 to 2.0 on toys (97.9% dead).",
        "- `sec`: 2.0 to 3.0 on toys (97.9% dead; by topic), 1.0 to 1.5 on LM (97% dead; by task): "
        "they disagree.",
        "- `sec` by a blind column: 0.0 to 1.2 on toys (97.9% dead; by length).",
    ]
    assert conclusions == (
        "At least 2.1 times as fast as uniform, in completions: `bag_of_words`, `goldilocks`. "
        "At least 1.5 times as fast as uniform, in completions, on toys alone: `noisy_and`. "
        "There may be nothing to gain from `sec`, `sec` by a blind column: begin with uniform. "
        "Not measured there: `pcl`, `mopps`.\n"
    )
    slow = advice_at(0.98, "goldilocks", "bag_of_words", cost=2.5)
    assert "2.1 times as fast as uniform, in completions, but one takes 2.5 times the sec" in slow
    assert "- On toys (99.9% dead) uniform hardly learned" in advice_at(0.999, "goldilocks")


def test_at_its_own_share_each_measured_speed_up_is_in_the_advice():
    advice = functools.cache(advice_at)
    for row in MEASURED.itertuples():
        text = advice(row.untrained, row.sampler if row.low >= 0 else "goldilocks")
        if not row.low >= 0:
            assert f"- On {row.model} ({row.untrained:.1%} dead) uniform hardly learned" in text
            continue
        name = f"`{row.sampler}` {row.case}".strip()
        [line] = [line for line in text.splitlines() if line.startswith(f"- {name}: ")]
        low, high = re.search(rf"([\d.]+) to ([\d.]+) on {row.model} \(", line).groups()
        assert float(low) <= round(row.low, 1) and round(row.high, 1) <= float(high)
        *_, conclusions = text.split("\n\n")
        faster = re.findall(r"At least ([\d.]+) times as fast[^:]*: ([^.]*)\.", conclusions)
        least = max(
            [float(times) for times, names in faster if name in names.split(", ")], default=0
        )
        assert least <= round(row.low, 1)
        assert row.low > 1 or f"nothing to gain from {name}" in conclusions


def test_the_speed_ups_that_the_probe_shows_are_those_of_the_studies():
    shown = MEASURED.dropna(subset="low")
    parts = []
    for name in shown.summary.unique():
        studies = pd.read_csv(ROOT / f"studies/{name}.csv", dtype={"task": str})
        parts.append(studies.fillna({"task": ""}).assign(summary=name))
    found = shown.merge(pd.concat(parts), on=["summary", "task", "arm"])
    assert len(found) == len(shown) > 70
    assert found.low.tolist() == found.speed_up_low.tolist()
    assert found.high.tolist() == found.speed_up_high.tolist()


@pytest.mark.parametrize(
    ("plan", "csv", "summary", "task"),
    [
        ("leaderboard/demo.toml", "leaderboard/demo.csv", "leaderboard/demo_summary.csv", "demo"),
        pytest.param(
            *("sparsity/curve.toml", "sparsity/curve.csv", "sparsity/curve_summary.csv", "98"),
            marks=pytest.mark.hour,
        ),
        pytest.param(
            *("useful/plan.toml", "useful/scores.csv", "useful/summary.csv", "98"),
            marks=pytest.mark.hour,
        ),
        pytest.param(
            *("useful/small.toml", "useful/small.csv", "useful/small_summary.csv", "92"),
            marks=pytest.mark.hour,
        ),
    ],
)
def test_speed_ups_of_the_studies_follow_from_their_scores(plan, csv, summary, task):
    """One task of each: it takes 3 s, but the demo less."""
    studies = ROOT / "studies"
    plan = Plan.read(studies / plan)
    rows = scores.select(scores.read(studies / csv), [*plan.arms], [task])
    compared, _ = results.compare(rows, plan)
    published = pd.read_csv(studies / summary, dtype={"task": str})
    published = published[published.task == task]
    assert len(published)
    found = compared.merge(published, on=["task", "arm"], suffixes=("", "_published"))
    assert found.speed_up_low.round(4).tolist() == published.speed_up_low.tolist()
    assert found.speed_up_high.round(4).tolist() == published.speed_up_high.tolist()


@pytest.mark.parametrize(
    ("p", "sentence"),
    [
        ([0.0] * 200, "No problem of 200 is within reach, so at most 1.5% are (95%)"),
        ([1.0, 1.0, 0.5], "67% are mastered: harder data first."),
    ],
)
def test_the_probe_says_what_is_out_of_reach_or_mastered(p, sentence):
    groups = groups_of(p, [each == 0.5 for each in p])
    assert probe.advice(groups, []).startswith(sentence)


def test_values_without_a_p_hat_of_a_quarter_are_perhaps_guessed(tmp_path):
    """The highest p̂ of `mod` is 1/8, of `sums` 1/4; `caesar` has no live group."""
    rows = [
        {"problem": task, "expected_answer": "1", "task": task}
        for task in ("mod", "sums", "caesar")
    ]
    write_lines(tmp_path / "data.jsonl", rows)
    data = tmp_path / "data.jsonl"
    files = {"train_data": str(data), "train_data_crc32": file_crc32(data)}
    run = Run.load(make_run(tmp_path / "run", [{"step": 0}], **files))
    chosen = groups_of([1 / 16, 1 / 8, 1 / 4, 0], [1, 1, 1, 0]).assign(chosen=[0, 0, 1, 2])
    write_lines(run.folder / "selections.jsonl", chosen.to_dict("records"))
    assert not probe.read_groups(run, "").guessed.any()
    groups = probe.read_groups(run, "task")
    assert groups.guessed.tolist() == [True, True, False, False]
    text = probe.describe(groups, "task", 16)
    assert "| mod (perhaps guessed) | 2 |" in text
    assert "| sums | 1 |" in text


@pytest.mark.parametrize(("live", "is_warned"), [(4, True), (5, False)])
def test_speed_ups_may_be_too_high_where_a_quarter_of_the_live_groups_is_guessed(live, is_warned):
    groups = groups_of([1 / 8] * live, [1] * live)
    groups.loc[0, "guessed"] = True
    text = probe.advice(groups, [runner.parse("--sampler goldilocks")])
    assert ("25% of the live groups are perhaps guessed" in text) == is_warned


def test_prompts_that_are_too_long_are_counted(tmp_path):
    """3 beside 9 problems whose prompts fit."""
    rows = [{"step": 0}, {"step": 1, "overlong": 3}]
    run = Run.load(make_run(tmp_path / "run", rows, max_prompt_tokens=32))
    sentence = "3 of 12 problems (25.0%) are longer than --max_prompt_tokens 32"
    assert probe.count_overlong(run, 9).startswith(sentence)


def test_categories_are_in_the_order_of_their_numbers():
    texts = ["sums, 10", "sums, 9", "10", "9.5", "-3", "caesar"]
    ordered = ["-3", "9.5", "10", "caesar", "sums, 9", "sums, 10"]
    assert sorted(texts, key=natural_sort_key) == ordered
