"""The leaderboard: scores, comparisons and Holm's method by hand; which runs are started."""

from types import SimpleNamespace

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
    facts = {"steps": 120, "completions": 23_040, "cpu_seconds": 10.0, "live": 0.4, "curve": curve}
    return rows.assign(task="demo", **facts)[lb.COLUMNS]


@pytest.fixture
def two_problems(tmp_path) -> Run:
    """A run of steps of 8 completions. One problem is right from step 3 on, the other
    from step 7 on."""
    neither = (0, 0)
    one = (1, 0)
    verdicts = [neither, neither, neither, one, one, one, one, (1, 1), (1, 1), (1, 1)]
    return Run.load(make_run(tmp_path, verdicts=verdicts))


def test_score_counts_the_last_five_evaluations_within_the_budget(two_problems):
    curve = "0:0.00 8:0.00 16:0.00 24:50.00 32:50.00 40:50.00 48:50.00 56:100.00"
    row = {"steps": 7, "completions": 56, "live": 0.5, "curve": curve, "right": "51"}
    assert lb.score(two_problems, budget=60) == row


def test_a_seeds_accuracies_are_percentages_of_five_evaluations():
    rows = pd.DataFrame([{"right": "51", "seed": 20}])
    assert lb.right(rows).loc[20].tolist() == [100, 20]


def test_score_rejects_a_run_with_fewer_evaluations_in_the_budget(two_problems):
    """Step 0 does not count."""
    with pytest.raises(InputError, match="4 evaluations in 39 completions, not 5"):
        lb.score(two_problems, budget=39)


def test_compare_by_hand():
    """Differences of 10 and 30 points on the seeds in common: t = 20 / 10 with 1 degree."""
    rows = scores(a=["54", "53", "00"], base=["53", "41"]).groupby("sampler")
    a = lb.right(rows.get_group("a"))
    base = lb.right(rows.get_group("base"))
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
    """Within 23,040 completions the last five accuracies are 19 to 23; within 17,280, 13 to 17."""
    return scores(uniform=["00"] * 2, Goldilocks=["00"] * 2)


def test_charged_devices_reduce_the_budget(goldilocks_and_uniform):
    row = goldilocks_and_uniform[:1]
    assert lb.charged(row, 23_040).tolist() == [21]
    assert lb.charged(row, 17_280).tolist() == [15]


@pytest.mark.parametrize(
    ("method", "base", "gain"), [("Goldilocks", "uniform", -6), ("uniform", "Goldilocks", 6)]
)
def test_a_teacher_is_charged_in_the_standings(method, base, gain, goldilocks_and_uniform):
    table = lb.standings(goldilocks_and_uniform, "demo", base).set_index("sampler")
    assert table.charged[method] == gain


def test_standings_multiply_p_by_holm(monkeypatch):
    """In order of p: 4 · 0.01, 3 · 0.02, 2 · 0.03, 1 · 0.9."""
    p_values = iter([0.01, 0.9, 0.02, 0.03])  # of s1 to s4, in this order
    monkeypatch.setattr(lb, "compare", lambda a, base: (1, (0, 2), (0, 2), next(p_values)))
    rows = scores(uniform=["00"] * 2, s1=["10"] * 2, s2=["20"] * 2, s3=["30"] * 2, s4=["40"] * 2)
    table = lb.standings(rows, "demo", "uniform").set_index("sampler")
    assert table.index.tolist() == ["s4", "s3", "s2", "s1", "uniform"]
    assert table.holm[["s1", "s3", "s4", "s2"]].tolist() == pytest.approx([0.04, 0.06, 0.06, 0.9])
    assert table.accuracy["s4"] == 40
    assert table.time.tolist() == [1] * 5


@pytest.fixture
def board(tmp_path, monkeypatch):
    """A leaderboard of uniform and SPEED whose CSV has all their runs but one of SPEED's: the
    function that runs its command, the commands of the runs it starts (which fail), and the CSV."""
    commands = []

    def execute(command, *_, **__):
        commands.append([*command])
        return 1, 0.0

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


@pytest.mark.parametrize(
    ("file", "error"), [("val.jsonl", "no val.jsonl in this folder"), ("task.toml", "unexpected")]
)
def test_a_folder_that_is_no_task_is_rejected(file, error, other_task):
    (other_task / file).unlink()
    if file == "task.toml":
        (other_task / file).write_text("rate = 1")
    with pytest.raises(InputError, match=error):
        lb.find_place(other_task, str(other_task))


def test_tasks_may_differ_in_their_number_of_validation_problems(tmp_path):
    other = scores(uniform=["543"]).assign(task="sums")
    csv = tmp_path / "scores.csv"
    pd.concat([scores(uniform=["54"]), other]).to_csv(csv, index=False)
    assert len(lb.read(csv)) == 2


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
