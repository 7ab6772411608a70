"""analysis and compare: amounts, methods and tables of runs by hand."""

from scripts import compare
from scripts.analysis import bootstrap, load_methods
from tests.helpers.runs import GOLDILOCKS, make_run


def test_runs_that_differ_only_in_their_seed_are_one_method(tmp_path):
    runs = []
    for i, loss in enumerate(("grpo", "grpo", "dapo")):
        runs.append(make_run(tmp_path / str(i), [{"step": 1}], seed=1 - i % 2, loss=loss))
    runs.append(make_run(tmp_path / "g", [{"step": 1}], epsilon=0.2, **GOLDILOCKS))
    names = {"uniform, loss grpo": [0, 1], "uniform, loss dapo": [1], "goldilocks": [0]}
    methods = load_methods(runs).items()
    assert {name: [run.config["seed"] for run in runs] for name, runs in methods} == names
    runs = [make_run(tmp_path / p, [{"step": 1}], preset=p, model=f"a/{p}") for p in ("s", "l")]
    assert list(load_methods(runs)) == ["s, uniform", "l, uniform"]


def verdicts(right, problems):
    """The first `right` problems are right."""
    return [i < right for i in range(problems)]


def test_equal_amounts_by_hand(tmp_path):
    """4 problems. g: 1 of 4 to 3 of 4 in 2 steps of 1 hour on 6 + 2 ranks; u: 0 to 4 in 4 steps."""
    g = make_run(tmp_path / "g", verdicts=[verdicts(right, 4) for right in (1, 2, 3)], **GOLDILOCKS)
    u = make_run(tmp_path / "u", verdicts=[verdicts(right, 4) for right in range(5)])
    lines = compare.compare(load_methods([g, u])).splitlines()
    for line in (
        "| base model | 25.0% | 0.0% |",
        "| at 2 steps | 75.0% | 50.0% |",
        "| at 2.67 steps × ranks / student ranks | 75.0% | 66.7% |",  # the paper's 4/3
        "| at 1 wall-clock hours | 50.0% | 25.0% |",
    ):
        assert line in lines


def test_differences_over_seeds_and_problems(tmp_path, capsys):
    """8 problems, 3 seeds: Goldilocks gets 5, 6, 7 right, uniform 3, 3, 3, in the mean of the last
    five evaluations (one more at the first, one fewer at the last): differences 25, 37.5, 50."""
    runs = []
    for name, right, config in (("u", (3, 3, 3), {}), ("g", (5, 6, 7), GOLDILOCKS)):
        for seed, k in enumerate(right):
            each = [verdicts(n, 8) for n in (0, 0, k + 1, k, k, k, k - 1)]
            run = make_run(tmp_path / f"{name}{seed}", verdicts=each, seed=seed, **config)
            runs.append(str(run))
    compare.main(runs)
    printed = capsys.readouterr().out
    assert "| last five evaluations | 37.5 ± 0.0% | 75.0 ± 12.5% |" in printed
    # By problem, of 15: Goldilocks 15, 15, 15, 15, 14, 10, 5, 1; uniform 15, 15, 12, 3, 0, 0, 0, 0.
    differences = [0, 0, 3, 12, 14, 10, 5, 1]
    low, high = bootstrap([100 * x / 15 for x in differences])
    # ± 4.30265 · 12.5 / √3 = 31.05; t = 37.5 / 7.217 = 5.196, p = 1 - t / √(t² + 2) = 0.0351
    seeds = "| goldilocks | +37.5 | 6.4 to 68.6 | 0.035 | paired |"
    assert f"{seeds} {low:.1f} to {high:.1f} |" in printed
