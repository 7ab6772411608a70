"""The leaderboard: scores, comparisons and Holm's method by hand; which runs are started."""

from unittest.mock import Mock

import pandas as pd
import pytest

from experiments import leaderboard as lb
from plumbing.errors import InputError
from scripts.analysis import Run
from tests.helpers.runs import make_run


def scores(**digits):
    """Rows of the CSV; digits: of two problems, for each seed from 0."""
    parts = [pd.DataFrame({"sampler": name, "right": each}) for name, each in digits.items()]
    rows = pd.concat([part.assign(seed=part.index) for part in parts])
    curve = "0:13.00 " + " ".join(f"{1000 * i}:{i}.00" for i in range(1, 24))
    facts = {"steps": 120, "completions": 1000, "cpu_seconds": 10.0, "live": 0.4, "curve": curve}
    return rows.assign(task="demo", **facts)[lb.COLUMNS]


def test_score_counts_the_last_five_evaluations_within_the_budget(tmp_path, monkeypatch):
    """The problems are right at steps 3 to 7, and at 7 alone; a step is 8 completions."""
    monkeypatch.setattr(lb, "BUDGET", 60)
    run = Run.load(make_run(tmp_path, verdicts=3 * [(0, 0)] + 4 * [(1, 0)] + 3 * [(1, 1)]))
    curve = "0:0.00 8:0.00 16:0.00 24:50.00 32:50.00 40:50.00 48:50.00 56:100.00"
    row = {"steps": 7, "completions": 56, "live": 0.5, "curve": curve, "right": "51"}
    assert lb.score(run) == row
    assert lb.right(pd.DataFrame([row | {"seed": 20}])).loc[20].tolist() == [100, 20]
    monkeypatch.setattr(lb, "BUDGET", 39)  # step 0 does not count
    with pytest.raises(InputError, match="4 evaluations in 39 completions, not 5"):
        lb.score(run)


def test_compare_by_hand():
    """Differences of 10 and 30 points on the seeds in common: t = 20 / 10 with 1 degree."""
    rows = scores(a=["54", "53", "00"], base=["53", "41"]).groupby("sampler")
    a, base = (lb.right(rows.get_group(name)) for name in ("a", "base"))
    gain, seeds_95, both_95, p = lb.compare(a, base)
    assert gain == pytest.approx(20) and p == pytest.approx(0.2952, abs=1e-4)
    assert seeds_95 == pytest.approx((20 - 127.06, 20 + 127.06), abs=0.01)
    assert 0 <= both_95[0] < 20 < both_95[1] <= 40  # the four differences are 0, 20, 20, 40


def test_charged_devices_reduce_the_budget():
    """Within 23,040 completions the last five accuracies are 19 to 23; within 17,280, 13 to 17."""
    rows = scores(uniform=["00"] * 2, Goldilocks=["00"] * 2)
    assert lb.charged(rows[:1], 1).tolist() == [21] and lb.charged(rows[:1], 4 / 3).tolist() == [15]
    for method, base, gain in (("Goldilocks", "uniform", -6), ("uniform", "Goldilocks", 6)):
        table = lb.standings(rows, "demo", base).set_index("sampler")
        assert table.charged[method] == gain


def test_standings_multiply_p_by_holm(monkeypatch):
    known = [(1, (0, 2), (0, 2), p) for p in (0.01, 0.9, 0.02, 0.03)]  # of s1 to s4, in this order
    monkeypatch.setattr(lb, "compare", Mock(side_effect=known))
    rows = scores(uniform=["00"] * 2, **{f"s{i}": [f"{i}0"] * 2 for i in (1, 2, 3, 4)})
    table = lb.standings(rows, "demo", "uniform").set_index("sampler")
    assert table.index.tolist() == ["s4", "s3", "s2", "s1", "uniform"]
    # In order: 4 · 0.01, 3 · 0.02, 2 · 0.03, 1 · 0.9.
    assert table.holm[["s1", "s3", "s4", "s2"]].tolist() == pytest.approx([0.04, 0.06, 0.06, 0.9])
    assert table.accuracy["s4"] == 40 and table.time.tolist() == [1] * 5


def test_a_rerun_starts_what_the_csv_lacks_and_takes_a_file(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(lb, "execute", run := Mock(return_value=(1, 0.0)))
    monkeypatch.setattr(lb, "ENTRIES", {name: lb.ENTRIES[name] for name in ("uniform", "SPEED")})
    done = scores(uniform=["50"] * 11, SPEED=["55"] * 10 + ["50"])
    csv, mine = tmp_path / "scores.csv", tmp_path / "mine.py"
    done.assign(seed=done.seed + 20).to_csv(csv, index=False)
    mine.write_text("from sampler import Goldilocks\nclass Mine(Goldilocks): ...\n")
    files = ["--csv", str(csv), "--out", str(tmp_path / "runs"), "--tasks", "demo"]
    flags = ["--completions", "384", "--only", "SPEED", "--flags=--clip_low 0.1", *files]
    assert lb.main([f"{mine}:Mine", *flags]) == 1  # all fail
    speed, *own = sorted((call.args[0] for call in run.call_args_list), key=len)
    assert {"speed", "31"} <= {*speed} and len(own) == 12
    wanted = {f"{mine}:Mine", "60", "--teacher_model", "--clip_low"}  # 60 steps
    assert all(wanted <= {*line} for line in own)
    assert "| SPEED | 11 | 95.5% |" in capsys.readouterr().out
    assert csv.with_suffix(".png").exists() and len(pd.read_csv(csv)) == len(done)
    assert lb.main(["--minutes", "0", *files]) == 0 and run.call_count == 13  # no more
    errors = {"0:13.0": "base model differs", "0\n": "delete the row that was cut off"}
    for old, error in errors.items():
        csv.write_text(csv.read_text().replace(old, old.replace("0", "", 1)))
        with pytest.raises(SystemExit):
            lb.main(files)
        assert error in capsys.readouterr().err
