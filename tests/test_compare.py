"""compare.py and intervals.py: every statistic by hand, the paper's own five seeds, runs that cannot be compared."""

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))
import compare
from intervals import bootstrap, mcnemar, t_difference, t_interval, t_p_value, t_quantile
from plot import load_groups

CONFIG = {
    "preset": "demo", "sampler": "uniform", "seed": 0, "steps": 2, "loss": "grpo", "entropy_coef": 0.0, "kl_coef": 0.0,
    "world_size": 8, "student_ranks": 8, "group_size": 4, "update_iterations": 1,
}  # fmt: skip
TEACHER = {
    "sampler": "goldilocks", "student_ranks": 6, "candidates": 8, "teacher_update_every": 4, "replay_capacity": 64,
    "teacher_epochs": 4, "teacher_mode": "full",
}  # fmt: skip


def make_run(folder, verdicts, seconds=3600.0, **config):
    """A run with an evaluation at each step; verdicts: of the problems at steps 0, 1, 2, ..."""
    (folder / "evals").mkdir(parents=True)
    rows = []
    for step, rewards in enumerate(verdicts):
        rows.append({"step": step, "val_accuracy": float(np.mean(rewards))})
        if step:
            rows[-1] |= {
                "seconds": seconds,
                "groups": 2,
                "completion_tokens": 100_000,
                "total_tokens": 180_000,
            }
            rows[-1] |= {"forwarded_rows": 4} | (
                {"teacher_updates": 0} if "candidates" in config else {}
            )
        lines = [
            {"problem": i, "reward": float(r), "status": "", "tokens": 1}
            for i, r in enumerate(rewards)
        ]
        (folder / "evals" / f"step_{step}.jsonl").write_text(
            "".join(json.dumps(line) + "\n" for line in lines)
        )
    (folder / "config.json").write_text(json.dumps(CONFIG | {"steps": len(verdicts) - 1} | config))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def method(*folders):
    ((name, runs),) = load_groups(folders).items()
    return compare.Method(name, runs)


@pytest.mark.parametrize(
    ("df", "t"),
    [
        (1, 12.7062),
        (2, 4.30265),
        (3, 3.18245),
        (4, 2.77645),
        (9, 2.26216),
        (30, 2.04227),
        (1000, 1.96234),
    ],
)
def test_t_table(df, t):
    assert t_quantile(df) == pytest.approx(t, abs=1e-4)
    assert t_p_value(-t, df) == pytest.approx(0.05, abs=1e-5)


def test_t_in_closed_form():
    """df 2: 1 - t/√(t² + 2), df 1: 1 - 2 arctan(t)/π; also far out."""
    for t in (0.0, 0.5, 4.0, 1e3):
        assert t_p_value(t, 2) == pytest.approx(2 / ((t * t + 2) + t * math.sqrt(t * t + 2)))
        assert t_p_value(t, 1) == pytest.approx(2 * math.atan2(1, t) / math.pi)


def test_t_interval_of_three():
    """1, 2, 3: mean 2, s 1, so ± 4.30265 / √3."""
    assert t_interval([1, 2, 3]) == pytest.approx((2 - 2.48414, 2 + 2.48414), abs=1e-4)


def test_paired_and_welch_by_hand():
    a, b = [3.0, 5.0, 7.0], [2.0, 3.0, 4.0]
    # differences 1, 2, 3: t = 2 / (1/√3) = 3.4641, p = 1 - t/√(t² + 2) with 2 degrees of freedom
    difference, interval, p = t_difference(a, b, paired=True)
    assert (difference, interval) == (2, pytest.approx((2 - 2.48414, 2 + 2.48414), abs=1e-4))
    assert p == pytest.approx(1 - math.sqrt(12 / 14))
    # variances 4 and 1 of 3: error² = 5/3, df = (5/3)² / ((4/3)²/2 + (1/3)²/2) = 50/17
    difference, interval, p = t_difference(a, b, paired=False)
    half = t_quantile(50 / 17) * math.sqrt(5 / 3)
    assert (difference, interval) == (2, pytest.approx((2 - half, 2 + half)))
    assert p == pytest.approx(t_p_value(2 / math.sqrt(5 / 3), 50 / 17))
    assert (
        3.18 < half / math.sqrt(5 / 3) < 3.24
    )  # between df 3 (3.182) and df 2 (4.303), near the first
    assert t_difference([1, 1], [1, 1], paired=False) == (
        0,
        (0, 0),
        1,
    )  # nothing varies, nothing differs


def test_the_papers_seeds_give_the_papers_numbers():
    """Table 3 prints 30.2 ± 0.48 and 33.0 ± 0.54."""
    for sampler, mean, std in (("uniform", 30.2, 0.48), ("goldilocks", 33.0, 0.54)):
        scores = compare.PAPER_3[sampler][1]
        assert (np.mean(scores), np.std(scores, ddof=1)) == pytest.approx((mean, std), abs=0.03)


def test_mcnemar_by_hand():
    """A fair coin: 1 and 8 of 9 as uneven as that or more, 2 (1 + 9) / 512; 5 of 5, 2 / 32; level, 1."""
    assert (mcnemar(1, 8), mcnemar(8, 1), mcnemar(0, 5)) == (20 / 512, 20 / 512, 2 / 32)
    assert mcnemar(3, 3) == mcnemar(0, 0) == 1
    assert 0 < mcnemar(1000, 1300) < 1e-8  # 2^2300 is no float


def test_bootstrap():
    """The same each time; 900 verdicts, half of them right: ± 1.96 · 0.5 / 30; alike: no width."""
    verdicts = np.tile([0.0, 1.0], 450)
    assert bootstrap(verdicts) == bootstrap(verdicts[::-1])
    assert bootstrap(verdicts) != bootstrap(verdicts, seed=1)
    assert bootstrap(verdicts) == pytest.approx((0.5 - 1.96 / 60, 0.5 + 1.96 / 60), abs=0.002)
    assert bootstrap([0.1 + 0.2, 0.3]) == pytest.approx((0.3, 0.3))


def test_accuracy_is_the_mean_of_the_last_five(tmp_path):
    verdicts = [[i < k for i in range(10)] for k in (1, 9, 2, 3, 4, 5, 6)]  # 0.4 over the last five
    run = compare.Run(*load_groups([make_run(tmp_path / "a", verdicts)])["uniform"][0])
    assert (run.reported, run.score) == ([2, 3, 4, 5, 6], pytest.approx(40))
    assert run.verdicts.mean(axis=1).tolist() == [20, 30, 40, 50, 60]
    before = compare.Run(*load_groups([make_run(tmp_path / "b", verdicts[:1])])["uniform"][0])
    assert (before.reported, before.score) == ([0], 10)


def test_equal_amounts_by_hand(tmp_path):
    """4 problems. A: 1 of 4 to 3 of 4 in 2 steps of 1 hour on 6 + 2 ranks; B: 0 to 4 of 4 in 4 of half an hour."""
    a = method(make_run(tmp_path / "a", [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0]], **TEACHER))
    b = method(
        make_run(tmp_path / "b", [[i < k for i in range(4)] for k in range(5)], seconds=1800.0)
    )
    run = a.runs[0]
    assert {x: run.totals[x][-1] for x in compare.AMOUNTS} == pytest.approx(
        {
            "steps": 2, "seconds": 2, "device_hours": 16, "tokens": 0.2, "samples": 0.016, "student_work": 8 / 3,
            # prompts of 10,000 tokens: a step reads 2, generates 100,000, trains half of 180,000, scores 16 questions;
            # at the second step's 4th outcome 4 epochs over 4 of them
            "forwarded": (2 * (20_000 + 100_000 + 90_000 + 160_000) + 160_000) / 1e6,
        }
    )  # fmt: skip
    assert run.accuracy_at("steps", 0.5) == 37.5
    lines = [
        line.split(" | ")
        for line in compare.equal_amounts([a, b]).splitlines()
        if line.startswith("| ")
    ]
    cells = {(line[0][2:], line[1]): line[2:] for line in lines[2:]}
    assert cells["steps", "2"] == ["75.0%", "50.0% |"]
    assert cells["steps × ranks / student ranks", "2.67"] == ["75.0%", "66.7% |"]  # the paper's 4/3
    assert cells["wall-clock hours", "1"] == ["50.0%", "50.0% |"]
    assert cells["device-hours", "16"] == ["75.0%", "100.0% |"]
    assert cells["completions, k", "0.008"] == ["50.0%", "25.0% |"]
    # b forwards 210,000 a step; after 840,000 a is (840 - 370) / (900 - 370) into its second step
    assert cells["tokens forwarded, M", "0.84"] == ["72.2%", "100.0% |"]
    assert "| uniform | 4 | 4 | 2 | 16 |" in compare.spent([a, b])


def test_what_a_method_is_compared_with(tmp_path):
    """The uniform run with the fewest other settings changed; an ablation of the baseline with the baseline."""
    every = {
        "u": {},
        "u_dapo": {"loss": "dapo"},
        "g": TEACHER,
        "g_dapo": TEACHER | {"loss": "dapo"},
    }
    runs = [make_run(tmp_path / name, [[0], [1]], **config) for name, config in every.items()]
    methods = [compare.Method(*item) for item in load_groups(runs).items()]
    bases = {m.name: base.name for m in methods if (base := m.baseline(methods))}
    assert bases == {
        "uniform, loss dapo": "uniform, loss grpo",
        "goldilocks, loss grpo": "uniform, loss grpo",
        "goldilocks, loss dapo": "uniform, loss dapo",
    }
    methods = methods[2:]  # no uniform run: against the first
    assert [m.baseline(methods) for m in methods] == [None, methods[0]]


def test_whole_command(tmp_path, capsys):
    """8 problems, 3 seeds: Goldilocks gets 5, 6, 7 right, uniform 3, 3, 3: differences 25, 37.5, 50 points.

    That is the mean of the last five evaluations: one more is right at the first of them, one fewer at the last.
    """
    runs = []
    for name, k, seed in [
        ("u", 3, 0),
        ("u", 3, 1),
        ("u", 3, 2),
        ("g", 5, 0),
        ("g", 6, 1),
        ("g", 7, 2),
    ]:
        verdicts = [[i < right for i in range(8)] for right in (0, k + 1, k, k, k, k - 1)]
        config = TEACHER if name == "g" else {}
        runs.append(make_run(tmp_path / f"{name}{seed}", verdicts, seed=seed, **config))
    compare.main(list(map(str, runs)))
    printed = capsys.readouterr()
    assert printed.err == ""
    assert "| demo | 0.0% | 37.5 ± 0.0% | 75.0 ± 12.5% |" in printed.out
    assert "| Qwen2.5-1.5B (paper) | 13.48% | 30.6% | 33.4% |" in printed.out
    assert "| Standard GRPO | goldilocks | – | 75.0 ± 12.5% | 29.5% |" in printed.out
    assert "| Entropy Reg. | Goldilocks | β=0.0003 | – | 29.1% |" in printed.out
    # ± 4.30265 · 12.5 / √3 = 31.05; t = 37.5 / 7.217 = 5.196, p = 1 - t / √(t² + 2) = 0.0351
    assert "| goldilocks | 5 | 62.5, 75.0, 87.5 | 75.0 ± 12.5 | 43.9 to 106.1 |" in printed.out
    assert "| goldilocks − uniform | +37.5 | 6.4 to 68.6 | 0.035 | paired by seed |" in printed.out
    assert (
        "| Goldilocks − Baseline (paper, Table 3) | +2.8 | 2.0 to 3.5 | 2.9e-05 | Welch |"
        in printed.out
    )
    low, high = (100 * x for x in bootstrap([0, 0, 0.2, 0.8, 0.8, 0.2, 0, 0]))
    assert (
        f"| goldilocks − uniform, seed 0 | +25.0 | {low:.1f} to {high:.1f} | 2 | 0 | 0.5 |"
        in printed.out
    )
    assert "| goldilocks − uniform, mean of 3 seeds | +37.5 |" in printed.out


def test_what_cannot_be_said(tmp_path, capsys):
    """One seed: no interval over seeds. No common seed: Welch, and no test on verdicts. Unfinished, few evaluations."""
    runs = [
        make_run(tmp_path / "u", [[0, 0], [1, 0]]),
        make_run(tmp_path / "g", [[0, 0], [1, 1]], **TEACHER),
    ]
    compare.main(list(map(str, runs)))
    printed = capsys.readouterr()
    assert "| uniform | 1 | 50.0 | 50.0 | one seed: no interval |" in printed.out
    assert (
        "| goldilocks − uniform | +50.0 | – | – | one seed: no interval can be given |"
        in printed.out
    )
    assert "| goldilocks − uniform, seed 0 | +50.0 | 0.0 to 100.0 | 1 | 0 | 1 |" in printed.out
    assert printed.err.splitlines() == [
        f"note: {run} has 1 evaluation to average, not five" for run in runs
    ]
    runs = [make_run(tmp_path / f"u{s}", [[0, 0], [1, 0]], seed=s) for s in (1, 2)]
    runs += [
        make_run(tmp_path / f"g{s}", [[0, 0], [1, 1]], seed=s, **TEACHER | {"steps": 9})
        for s in (3, 4)
    ]
    compare.main(list(map(str, runs)))
    printed = capsys.readouterr()
    assert "| goldilocks − uniform | +50.0 | 50.0 to 50.0 | 0 | Welch |" in printed.out
    assert "Would other problems" not in printed.out
    assert (
        "note: goldilocks and uniform have no common seed: no test on their verdicts" in printed.err
    )
    assert f"note: {runs[-1]} is at step 1 of 9" in printed.err


def test_runs_that_cannot_be_compared_get_one_line(tmp_path, capsys):
    good = make_run(tmp_path / "good", [[0, 0], [1, 0]], val_data_crc32=1)
    twin = make_run(tmp_path / "twin", [[0, 0], [1, 0]], val_data_crc32=1)
    size = make_run(tmp_path / "size", [[0, 0, 0], [1, 0, 0]], seed=1)
    other = make_run(tmp_path / "other", [[0, 0], [1, 0]], seed=1, val_data_crc32=2)
    lost = make_run(tmp_path / "lost", [[0, 0], [1, 0]], seed=1)
    (lost / "evals/step_1.jsonl").unlink()
    holed = make_run(tmp_path / "holed", [[0, 0], [1, 0]], seed=1)
    (holed / "evals/step_1.jsonl").write_text('{"problem": 1, "reward": 1.0}\n')
    bare = make_run(tmp_path / "bare", [[0, 0], [1, 0]], seed=1)
    (bare / "evals/step_1.jsonl").write_text('{"problem": 0}\n')
    blind = make_run(tmp_path / "blind", [[0, 0], [1, 0]], seed=1)
    (blind / "metrics.jsonl").write_text('{"step": 1, "seconds": 1.0}\n')
    unsized = make_run(tmp_path / "unsized", [[0, 0], [1, 0]], seed=1, student_ranks=None)
    for runs, message in [
        ([good, size], "have different validation sets (2 and 3 problems): not comparable"),
        ([good, other], "have different validation sets (2 and 2 problems): not comparable"),
        ([good, twin], "two runs of 'uniform' have the same seed: 0, 0"),
        ([good, lost], "step_1.jsonl: No such file or directory; the tests over problems need it"),
        ([good, holed], "step_1.jsonl: a problem is missing, or there twice"),
        ([good, bare], "step_1.jsonl: a line has no reward"),
        ([good, blind], "never evaluated"),
        ([good, unsized], "no world_size and student_ranks in config.json"),
        ([good, tmp_path / "none"], "no such run folder"),
    ]:
        with pytest.raises(SystemExit) as stop:
            compare.main(list(map(str, runs)))
        printed = capsys.readouterr()
        errors = [line for line in printed.err.splitlines() if not line.startswith("note: ")]
        assert (stop.value.code, len(errors), printed.out) == (2, 1, "")
        assert errors[0].startswith("compare: ") and message in errors[0]
