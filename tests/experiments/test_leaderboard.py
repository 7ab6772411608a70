"""The leaderboard: scores, comparisons and Holm's method by hand; which runs are started."""

import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from experiments import leaderboard as lb
from experiments import processes
from plumbing.errors import InputError
from plumbing.files import read_lines, write_lines
from scripts.analysis import Run
from tests.helpers.runs import make_run


def scores(**digits):
    """Rows of the CSV, evaluated at each twelfth of 23,040 completions, each time with the accuracy
    of the digits; digits: of two problems, for each seed from 0."""
    parts = [pd.DataFrame({"sampler": name, "right": each}) for name, each in digits.items()]
    rows = pd.concat([part.assign(seed=part.index) for part in parts])
    percent = rows.right.map(lambda right: 20 * sum(map(int, right)) / len(right))
    points = percent.map(lambda x: " ".join(f"{1920 * i}:{x:.2f}" for i in range(1, 13)))
    facts = {"steps": 120, "completions": 23_040, "cpu_seconds": 10.0, "live": 0.4}
    return rows.assign(task="demo", curve="0:13.00 " + points, **facts)[lb.COLUMNS]


@pytest.fixture
def two_problems(tmp_path) -> Run:
    """A run of steps of 8 completions. One problem is right from step 3 on, the other
    from step 7 on."""
    neither = (0, 0)
    one = (1, 0)
    verdicts = [neither, neither, neither, one, one, one, one, (1, 1), (1, 1), (1, 1)]
    return Run.load(make_run(tmp_path, verdicts=verdicts))


def test_score_counts_the_last_evaluation_at_each_of_five_places(two_problems):
    """8 to 12 twelfths of 60 are 40, 45, 50, 55 and 60 completions: steps 5, 5, 6, 6 and 7. The
    next step would be over the budget, of which 56 completions count."""
    curve = "0:0.00 8:0.00 16:0.00 24:50.00 32:50.00 40:50.00 48:50.00 56:100.00"
    row = {"steps": 7, "completions": 60, "live": 0.5, "curve": curve, "right": "51"}
    assert lb.score(two_problems, budget=60) == row


def test_places_are_the_last_five_of_twelve_evaluations():
    spent = 1920 * np.arange(1, 13)
    assert lb.counted(spent, 23_040, "run").tolist() == [7, 8, 9, 10, 11]


def test_places_do_not_depend_on_how_often_a_run_was_evaluated():
    """At each of 24 steps of 10 completions, and at each third of them."""
    often = 10 * np.arange(1, 25)
    seldom = 30 * np.arange(1, 9)
    assert often[lb.counted(often, 240, "run")].tolist() == [160, 180, 200, 220, 240]
    assert seldom[lb.counted(seldom, 240, "run")].tolist() == [150, 180, 180, 210, 240]


def test_a_place_without_an_evaluation_is_rejected():
    with pytest.raises(InputError, match="run: no evaluation after step 0 within 80 completions"):
        lb.counted(np.array([81, 120]), 120, "run")


def test_a_seeds_accuracies_are_percentages_of_five_evaluations():
    rows = scores(a=["51"])
    assert lb.right(rows, 23_040).loc[0].tolist() == pytest.approx([100, 20])


def test_a_seeds_mean_is_that_of_its_curve():
    """The digits' mean is 60%, the curve's 70."""
    rows = scores(a=["51"]).replace(":60.00", ":70.00", regex=True)
    assert lb.right(rows, 23_040).loc[0].tolist() == pytest.approx([110, 30])


def test_score_rejects_a_run_that_spent_less_than_95_percent(two_problems):
    """It spent 72 completions: 95% of 75 is 71.25, and of 76 72.2."""
    assert lb.score(two_problems, budget=75)["completions"] == 72
    with pytest.raises(InputError, match="spent 72 of 76 completions, less than 95%"):
        lb.score(two_problems, budget=76)


def test_compare_by_hand():
    """Differences of 10 and 30 points on the seeds in common: t = 20 / 10 with 1 degree."""
    rows = scores(a=["54", "53", "00"], base=["53", "41"]).groupby("sampler")
    a = lb.right(rows.get_group("a"), 23_040)
    base = lb.right(rows.get_group("base"), 23_040)
    gain, seeds_95, both_95, p = lb.compare(a, base)
    assert gain == pytest.approx(20)
    assert p == pytest.approx(0.2952, abs=1e-4)
    assert seeds_95 == pytest.approx((20 - 127.06, 20 + 127.06), abs=0.01)
    # The four differences are 0, 20, 20, 40.
    assert both_95[0] >= 0
    assert both_95[0] < 20
    assert both_95[1] > 20
    assert both_95[1] <= 40


@pytest.fixture
def goldilocks_and_uniform():
    """The accuracy is i% at the i-th of twelve evaluations."""
    curve = "0:13.00 " + " ".join(f"{1920 * i}:{i}.00" for i in range(1, 13))
    return scores(uniform=["00"] * 2, Goldilocks=["00"] * 2).assign(curve=curve)


def test_devices_reduce_the_budget(goldilocks_and_uniform):
    """The last five of 12 evaluations are 8 to 12, mean 10. Three quarters of these places are
    6, 6.75, 7.5, 8.25 and 9."""
    row = goldilocks_and_uniform[:1]
    assert lb.scores_within(row, 23_040).tolist() == [10]
    assert lb.scores_within(row, 23_040, devices=4 / 3).tolist() == [7.5]


def test_a_curve_is_rejected_without_an_evaluation_at_a_place(goldilocks_and_uniform):
    error = "demo, uniform, seed 0: no evaluation after step 0 within 1600 completions"
    with pytest.raises(InputError, match=error):
        lb.scores_within(goldilocks_and_uniform, 2400)


@pytest.mark.parametrize(
    ("method", "base", "gain"), [("Goldilocks", "uniform", -2.5), ("uniform", "Goldilocks", 2.5)]
)
def test_standings_are_compute_matched_for_a_teacher(method, base, gain, goldilocks_and_uniform):
    table = lb.standings(goldilocks_and_uniform, "demo", base).set_index("sampler")
    assert table.compute_matched[method] == pytest.approx(gain)


def test_standings_multiply_p_by_holm(monkeypatch):
    """In order of p: 4 · 0.01, 3 · 0.02, 2 · 0.03, 1 · 0.9."""
    p_values = iter([0.01, 0.9, 0.02, 0.03])  # of s1 to s4, in this order
    monkeypatch.setattr(lb, "compare", lambda a, base: (1, (0, 2), (0, 2), next(p_values)))
    rows = scores(uniform=["00"] * 2, s1=["10"] * 2, s2=["20"] * 2, s3=["30"] * 2, s4=["40"] * 2)
    table = lb.standings(rows, "demo", "uniform").set_index("sampler")
    assert table.index.tolist() == ["s4", "s3", "s2", "s1", "uniform"]
    assert table.holm[["s1", "s3", "s4", "s2"]].tolist() == pytest.approx([0.04, 0.06, 0.06, 0.9])
    assert table.accuracy["s4"] == pytest.approx(40)
    assert table.time.tolist() == [1] * 5


@pytest.fixture
def board(tmp_path, monkeypatch):
    """A leaderboard of uniform and SPEED whose CSV has all their runs but one of SPEED's: the
    function that runs its command, the commands of the runs it starts (which fail), and the CSV."""
    commands = []

    def execute(command, *_, **__):
        commands.append([*command])
        return 1

    monkeypatch.setattr(lb, "execute", execute)
    monkeypatch.setattr(lb, "ENTRIES", {name: lb.ENTRIES[name] for name in ("uniform", "SPEED")})
    csv = tmp_path / "scores.csv"
    rows = scores(uniform=["50"] * 11, SPEED=["55"] * 10 + ["50"])
    rows.assign(seed=rows.seed + 20).to_csv(csv, index=False)
    files = ["--csv", str(csv), "--out", str(tmp_path / "runs")]

    def main(*flags, task="demo"):
        return lb.main([*flags, *files, "--tasks", str(task)])

    return SimpleNamespace(main=main, runs=commands, csv=csv)


def test_a_rerun_starts_what_the_csv_lacks(board):
    """The seeds of a method are 20 to 31."""
    assert board.main("--only", "SPEED") == 1  # as the run fails
    [command] = board.runs
    assert "speed" in command
    assert "31" in command


@pytest.fixture
def spending(tmp_path, monkeypatch):
    """Spends a run's budget with processes that take a step of 8 completions instead of training:
    the function that does so, and each process's steps. Each uses 2 seconds."""
    steps = []
    run = tmp_path / "seed1"

    def execute(line, run):
        steps.append(int(line[line.index("--steps") + 1]))
        rows = [{"step": step} for step in range(steps[-1] + 1)]
        rows[0]["completions"] = None
        make_run(run, rows)
        write_lines(processes.usage_file(run), [{"cpu_seconds": 2.0}], "a")
        return 0

    monkeypatch.setattr(lb, "execute", execute)

    def spend(expected, budget):
        return lb.spend(["train.py"], run, expected, budget)

    return SimpleNamespace(spend=spend, steps=steps, run=run)


def test_a_run_is_resumed_until_it_has_spent_its_budget(spending):
    """After 4 steps 68 of 100 completions are left, 8 a step: 9 steps more."""
    assert spending.spend(expected=4, budget=100)
    assert spending.steps == [4, 13]


def test_a_run_that_has_spent_its_budget_is_not_resumed(spending):
    assert spending.spend(expected=4, budget=32)
    assert spending.steps == [4]


def test_an_interrupted_run_keeps_its_extended_steps(spending):
    """As train.py rejects fewer steps than a run has."""
    make_run(spending.run, [{"step": step} for step in range(10)])
    spending.spend(expected=4, budget=72)
    assert spending.steps == [9]


def test_cpu_seconds_are_those_of_all_processes(spending):
    spending.spend(expected=4, budget=100)
    assert processes.cpu_seconds(spending.run) == 4


def test_cpu_seconds_of_a_deleted_run_do_not_count(spending):
    write_lines(processes.usage_file(spending.run), [{"cpu_seconds": 100.0}])
    spending.spend(expected=4, budget=32)
    assert processes.cpu_seconds(spending.run) == 2


def test_a_process_logs_its_output_and_what_it_used(tmp_path):
    line = [sys.executable, "-c", "print(sum(range(10**6))); raise SystemExit(3)"]
    assert lb.execute(line, tmp_path / "seed1") == 3
    assert (tmp_path / "seed1.log").read_text() == "499999500000\n"
    [process] = read_lines(tmp_path / "seed1.usage.jsonl")
    assert process["status"] == 3
    assert process["cpu_seconds"] > 0


def test_a_custom_sampler_is_run_on_all_seeds(board, tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text("from sampler import Goldilocks\nclass Mine(Goldilocks): ...\n")
    flags = ["--completions", "384", "--only", "uniform", "--flags=--clip_low 0.1"]
    board.main(f"{mine}:Mine", *flags)
    own = [command for command in board.runs if f"{mine}:Mine" in command]
    assert len(own) == 12
    for command in own:
        assert "60" in command  # steps
        assert "--teacher_model" in command
        assert "--clip_low" in command


def test_completions_of_no_sampler_are_rejected(board, capsys):
    with pytest.raises(SystemExit, match="2"):
        board.main("--completions", "384")
    assert "--completions: only used with a FILE.py:CLASS" in capsys.readouterr().err


def test_the_table_and_the_plot_are_of_the_rows_in_the_csv(board, capsys):
    board.main("--only", "SPEED")
    assert "| SPEED | 11 | 95.5% |" in capsys.readouterr().out
    assert board.csv.with_suffix(".png").exists()
    assert len(pd.read_csv(board.csv)) == 22


def test_no_run_is_started_after_the_minutes_allowed(board):
    assert board.main("--minutes", "0") == 0
    assert board.runs == []


@pytest.fixture
def other_task(tmp_path):
    """The folder of another task, whose categories are called `task`."""
    folder = tmp_path / "sums"
    (folder / "model").mkdir(parents=True)
    for name in ("train.jsonl", "val.jsonl"):
        (folder / name).touch()
    text = 'flags = "--prompt_footer A:"\ncategory = "task"\nlevel = "level"\nseeds = 2\n'
    (folder / "task.toml").write_text(text)
    return folder


def test_a_folders_runs_have_its_files_flags_columns_and_seeds(board, other_task, monkeypatch):
    entries = {
        "uniform": lb.Entry("--sampler uniform"),
        "SEC": lb.Entry("--sampler sec --column topic"),
    }
    entries["bins"] = lb.Entry("--sampler learnability_bins --column topic,length")
    monkeypatch.setattr(lb, "ENTRIES", entries)
    board.main("--only", "SEC", "bins", task=other_task)
    assert len(board.runs) == 4
    for run in board.runs:
        assert str(other_task / "val.jsonl") in run
        assert run[run.index("--prompt_footer") + 1] == "A:"
    columns = {run[run.index("--column") + 1] for run in board.runs}
    assert columns == {"task", "task,level"}


def test_a_folder_that_is_no_task_is_rejected(other_task):
    (other_task / "val.jsonl").unlink()
    with pytest.raises(InputError, match=r"no val\.jsonl in this folder"):
        lb.find_place(other_task, str(other_task))


SETTINGS = {  # a line of task.toml: the error
    "rate = 1": "unexpected",
    "seeds = 0": "seeds = 0: must be a whole number above 0",
    'flags = "\'"': "No closing quotation",
    "steps = 1.5": "steps = 1.5: must be a whole number",
    "flags = ['--bf16']": "must be a text",
}


@pytest.mark.parametrize("line", SETTINGS)
def test_a_bad_setting_of_a_task_is_rejected(line, other_task):
    (other_task / "task.toml").write_text(line)
    with pytest.raises(InputError, match=SETTINGS[line]):
        lb.find_place(other_task, str(other_task))


def test_a_loop_of_links_is_no_task(tmp_path):
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(InputError, match="no model in this folder"):
        lb.find_place(tmp_path, str(loop))


def test_tasks_may_differ_in_their_number_of_validation_problems(tmp_path):
    other = scores(uniform=["543"]).assign(task="sums")
    csv = tmp_path / "scores.csv"
    pd.concat([scores(uniform=["54"]), other]).to_csv(csv, index=False)
    assert len(lb.read(csv)) == 2


def test_rows_that_spent_less_than_95_percent_are_rejected(board):
    rows = lb.read(board.csv)
    rows.loc[[3, 15], "completions"] = 21_887  # 95% are 21,888
    rows.to_csv(board.csv, index=False)
    error = "2 rows spent less than 95% of their budget, as demo, uniform, seed 23: delete them"
    with pytest.raises(InputError, match=error):
        lb.read(board.csv)


DAMAGE = {  # text of the CSV, what replaces it, error
    "another base model": ("0:13.0", ":13.0", "base model differs"),
    "cut off": ("0\n", "\n", "delete the row that was cut off"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_csv_is_rejected(case, board, capsys):
    old, new, error = DAMAGE[case]
    text = board.csv.read_text()
    assert old in text
    board.csv.write_text(text.replace(old, new))
    with pytest.raises(SystemExit):
        board.main()
    assert error in capsys.readouterr().err
