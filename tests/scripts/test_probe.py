"""probe: what it says of the untrained model's groups, by hand."""

import numpy as np
import pandas as pd
import pytest

from plumbing.files import write_lines
from scripts.study import probe, runner
from scripts.study.categories import natural_sort_key
from scripts.study.runs import Run
from tests.helpers.models import ROOT
from tests.helpers.runs import make_run


def groups_of(p, live):
    """The groups of a probe: their p̂, and whether each is live."""
    return pd.DataFrame({"p_hat": p, "y": np.array(live, dtype=float)})


def test_the_probe_shows_the_nearest_measured_tasks_of_each_model(tmp_path, monkeypatch):
    """At 98% dead those of 97.9 and 97%. `sec` did not reach uniform's level."""
    table = tmp_path / "speed_ups.csv"
    table.write_text("""# a comment
model,arm,untrained,sampler,column,low,high
toys,K=8,0.6,goldilocks,,1.02,1.3
toys,K=8,0.979,goldilocks,,4,8
toys,SEC,0.979,sec,topic,0,0
LM,K=64,0.97,goldilocks,,2.1,2.9
""")
    monkeypatch.setattr(probe, "MEASURED", table)
    groups = groups_of([0.5] * 1000, [i < 20 for i in range(1000)])
    arms = [runner.parse("--sampler goldilocks")]
    text = probe.advice(groups, arms)
    assert "| toys | 97.9% | K=8 |  | 4.0 to 8.0 |" in text
    assert "| LM | 97.0% | K=64 |  | 2.1 to 2.9 |" in text
    assert "60.0%" not in text
    assert "SEC" not in text
    assert text.endswith("On toys and LM `goldilocks` was at least 2.1 times as fast as uniform.\n")
    assert "A completion takes 2.5 times" in probe.advice(groups, arms, cost=2.5)
    names = ("mopps", "sec", "pcl", "headroom")
    several = [runner.parse(f"--sampler {name} --column topic") for name in names]
    sentence = "There may be nothing to gain from `sec`: begin with uniform."
    unknown = "`mopps`, `pcl` and `headroom` were not measured there."
    assert probe.advice(groups, several).endswith(f"{sentence} {unknown}\n")
    assert probe.advice(groups, several[:2]).endswith(
        f"{sentence} `mopps` was not measured there.\n"
    )


def test_the_speed_ups_that_the_probe_shows_are_those_of_the_studies():
    shown = pd.read_csv(probe.MEASURED, comment="#", keep_default_na=False)
    parts = []
    for name in ("sparsity/summary", "sparsity/smollm2_summary", "real_model/summary"):
        parts.append(pd.read_csv(ROOT / f"studies/{name}.csv", keep_default_na=False))
    studies = pd.concat(parts).astype({"speed_up_low": float, "speed_up_high": float})
    found = shown.astype({"task": str}).merge(studies.astype({"task": str}), on=["task", "arm"])
    assert len(found) == len(shown) > 70
    assert found.low.tolist() == found.speed_up_low.tolist()
    assert found.high.tolist() == found.speed_up_high.tolist()


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
    tasks = ["mod", "sums", "caesar"]
    rows = [{"problem": task, "expected_answer": "1", "task": task} for task in tasks]
    write_lines(tmp_path / "data.jsonl", rows)
    data = str(tmp_path / "data.jsonl")
    run = Run.load(make_run(tmp_path / "run", [{"step": 0}], train_data=data))
    groups = groups_of([1 / 16, 1 / 8, 1 / 4, 0], [1, 1, 1, 0]).assign(chosen=[0, 0, 1, 2])
    text = probe.describe(run, groups, "task")
    assert "| mod (perhaps guessed) | 2 |" in text
    assert "| sums | 1 |" in text
    assert "| caesar | 1 |" in text


def test_categories_are_in_the_order_of_their_numbers():
    texts = ["sums, 10", "sums, 9", "10", "9.5", "-3", "caesar"]
    ordered = ["-3", "9.5", "10", "caesar", "sums, 9", "sums, 10"]
    assert sorted(texts, key=natural_sort_key) == ordered
