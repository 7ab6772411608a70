"""compare: its tables by hand, and runs that cannot be compared."""

import pytest
from made_up import GOLDILOCKS, make_run

from scripts import compare
from scripts.report import Run, bootstrap, load_methods


def of(right, problems):
    """Verdicts: so many of the first problems are right."""
    return [i < right for i in range(problems)]


def test_mcnemar_by_hand():
    """A fair coin: as uneven as 1 and 8 or more, 2 (1 + 9) / 512; as 0 and 5, 2 / 32; level, 1."""
    found = [compare.mcnemar(*each) for each in ((1, 8), (0, 5), (3, 3), (0, 0))]
    assert found == pytest.approx([20 / 512, 2 / 32, 1, 1])


def test_accuracy_is_the_mean_of_the_last_five(tmp_path):
    verdicts = [of(right, 10) for right in (1, 9, 2, 3, 4, 5, 6)]  # 0.4 over the last five
    run = Run.load(make_run(tmp_path / "a", verdicts=verdicts))
    assert (run.reported, run.score) == ([2, 3, 4, 5, 6], pytest.approx(40))
    assert run.verdicts.mean(axis=1).tolist() == [20, 30, 40, 50, 60]
    before = Run.load(make_run(tmp_path / "b", verdicts=verdicts[:1]))
    assert (before.reported, before.score) == ([0], 10)


def test_equal_amounts_by_hand(tmp_path):
    """4 problems. g: 1 of 4 to 3 of 4 in 2 steps of 1 hour on 6 + 2 ranks; u: 0 to 4 in 4 steps."""
    g = make_run(tmp_path / "g", verdicts=[of(right, 4) for right in (1, 2, 3)], **GOLDILOCKS)
    u = make_run(tmp_path / "u", verdicts=[of(right, 4) for right in range(5)])
    lines = compare.equal_amounts(load_methods([g, u])).splitlines()
    cells = {tuple(line.split(" | ")[:2]): line.split(" | ")[2:] for line in lines}
    assert cells["| steps", "2"] == ["75.0%", "50.0% |"]
    work = "| steps × ranks / student ranks"  # the paper's 4/3
    assert cells[work, "2.67"] == ["75.0%", "66.7% |"]
    assert cells["| wall-clock hours", "1"] == ["50.0%", "25.0% |"]
    assert cells["| device-hours", "16"] == ["75.0%", "50.0% |"]
    assert cells["| completions, k", "0.008"] == ["50.0%", "25.0% |"]
    assert cells["| generated tokens, M", "0.2"] == ["75.0%", "50.0% |"]


def test_what_a_method_is_compared_with(tmp_path):
    """The uniform run with the fewest other settings changed; an ablation of it, with the first."""
    every = {"u": {}, "u_dapo": {"loss": "dapo"}, "g": GOLDILOCKS}
    every["g_dapo"] = GOLDILOCKS | {"loss": "dapo"}
    runs = [make_run(tmp_path / name, [{"step": 1}], **config) for name, config in every.items()]
    methods = load_methods(runs)
    bases = {m.name: base.name for m in methods if (base := compare.baseline(m, methods))}
    assert bases == {
        "uniform, loss dapo": "uniform, loss grpo",
        "goldilocks, loss grpo": "uniform, loss grpo",
        "goldilocks, loss dapo": "uniform, loss dapo",
    }
    methods = methods[2:]  # no uniform run: against the first
    assert [compare.baseline(m, methods) for m in methods] == [None, methods[0]]


def test_whole_command(tmp_path, capsys):
    """8 problems, 3 seeds: Goldilocks gets 5, 6, 7 right, uniform 3, 3, 3, in the mean of the last
    five evaluations (one more at the first, one fewer at the last): differences 25, 37.5, 50."""
    runs = []
    for name, right, config in (("u", (3, 3, 3), {}), ("g", (5, 6, 7), GOLDILOCKS)):
        for seed, k in enumerate(right):
            verdicts = [of(n, 8) for n in (0, k + 1, k, k, k, k - 1)]
            run = make_run(tmp_path / f"{name}{seed}", verdicts=verdicts, seed=seed, **config)
            runs.append(str(run))
    compare.main(runs)
    printed = capsys.readouterr()
    assert printed.err == ""
    low, high = (100 * x for x in bootstrap([0, 0, 0.2, 0.8, 0.8, 0.2, 0, 0]))
    for line in (
        # ± 4.30265 · 12.5 / √3 = 31.05; t = 37.5 / 7.217 = 5.196, p = 1 - t / √(t² + 2) = 0.0351
        "| goldilocks | 5 | 0.0% | 62.5, 75.0, 87.5 | 75.0 ± 12.5% | 43.9 to 106.1 |",
        "| goldilocks − uniform | +37.5 | 6.4 to 68.6 | 0.035 | paired by seed |",
        f"| goldilocks − uniform, seed 0 | +25.0 | {low:.1f} to {high:.1f} | 2 | 0 | 0.5 |",
        "| goldilocks − uniform, mean of 3 seeds | +37.5 |",
    ):
        assert line in printed.out


def test_what_cannot_be_said(tmp_path, capsys):
    """One seed: no interval. No common seed: no test on verdicts. Unfinished, few evaluations."""
    u = make_run(tmp_path / "u", verdicts=[[0, 0], [1, 0]])
    g = make_run(tmp_path / "g", verdicts=[[0, 0], [1, 1]], **GOLDILOCKS)
    late = make_run(tmp_path / "late", verdicts=[[0, 0], [1, 1]], **GOLDILOCKS, seed=1, steps=9)
    compare.main([str(u), str(g)])
    printed = capsys.readouterr()
    assert "| uniform | 1 | 0.0% | 50.0 | 50.0% | one seed: no interval |" in printed.out
    assert "− uniform | +50.0 | – | – | one seed: no interval can be given |" in printed.out
    assert "− uniform, seed 0 | +50.0 | 0.0 to 100.0 | 1 | 0 | 1 |" in printed.out
    what = "at step 1 of 1; evaluations to average, of five: 1"
    assert printed.err.splitlines() == [f"note: {run} is {what}" for run in (u, g)]
    compare.main([str(u), str(late)])
    printed = capsys.readouterr()
    assert "− uniform, seed 1 | the baseline has no such seed | – |" in printed.out
    assert f"note: {late} is at step 1 of 9" in printed.err


@pytest.mark.parametrize(
    ("config", "last", "message"),
    [
        ({"verdicts": [[0] * 3] * 2}, None, "different validation sets (2 and 3 problems)"),
        ({"val_data_crc32": 2}, None, "different validation sets (2 and 2 problems)"),
        ({"seed": 0}, None, "two runs of 'uniform' have the same seed: 0, 0"),
        ({}, "", "step_1.jsonl: there is none, or it has no line yet"),
        ({}, '{"problem": 1, "reward": 1}\n', "a problem is missing, or there twice"),
        ({}, '{"problem": 0}\n', "step_1.jsonl: a line has no reward"),
        ({"verdicts": (), "rows": [{"step": 1}]}, None, "never evaluated"),
    ],
)
def test_runs_that_cannot_be_compared_get_one_line(tmp_path, capsys, config, last, message):
    shared = {"verdicts": [[0, 0], [1, 0]], "val_data_crc32": 1}
    good = make_run(tmp_path / "good", **shared)
    bad = make_run(tmp_path / "bad", **shared | {"seed": 1} | config)
    if last is not None:
        (bad / "evals/step_1.jsonl").write_text(last)
    with pytest.raises(SystemExit) as stop:
        compare.main([str(good), str(bad)])
    printed = capsys.readouterr()
    errors = [line for line in printed.err.splitlines() if not line.startswith("note: ")]
    assert (stop.value.code, len(errors), printed.out) == (2, 1, "")
    assert errors[0].startswith("compare: ") and message in errors[0]
