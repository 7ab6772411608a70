"""The plans of the paper's tables: their runs, their dry run, and torchrun that is killed."""

import json
import multiprocessing
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from plumbing.files import read_lines
from scripts.study import __main__ as study
from scripts.study import dry_run, paper, runner
from scripts.study.plan import Plan
from scripts.study.runner import Runner
from tests.helpers.checks import rejected
from tests.helpers.models import ROOT
from tests.helpers.ranks import contents
from tests.helpers.runs import make_run

PLANS = {path.stem: Plan.read(str(path)) for path in ROOT.glob("studies/paper/*.toml")}
FIGURES = ROOT / "studies/paper/figures.csv"
ONE_ARM = ('Goldilocks = { flags = "--sampler goldilocks" }', "")
# A rank in the place of train.py. When all 4 are there, rank 0 logs steps. At step 3 it waits for
# SIGTERM, a second after which the ranks end. One that meets an earlier one fails.
RANK = """
import json, os, signal, sys, time
from pathlib import Path
flags = dict(zip(sys.argv[1::2], sys.argv[2::2]))
rank = os.environ["RANK"]
out = Path(flags["--out"])
(out / "evals").mkdir(parents=True, exist_ok=True)
signals = []
signal.signal(signal.SIGTERM, lambda number, frame: signals.append(number))
alive = out / f"rank{rank}.alive"
alive.touch(exist_ok=False)
facts = dict(world_size=int(os.environ["WORLD_SIZE"]), seed=0, steps=int(flags["--steps"]))
path = out / "metrics.jsonl"

def log_steps():
    while len([*out.glob("*.alive")]) < 4 and not signals:
        time.sleep(0.05)
    (out / "config.json").write_text(json.dumps(facts))
    done = len(path.read_text().splitlines()) if path.exists() else 0
    for step in range(done, facts["steps"] + 1):
        row = dict(step=step, completions=24 * (step > 0), seconds=1.0, groups=6, zero_variance=0.5)
        if step % 2 == 0:
            row["val_accuracy"] = step / 100
            (out / f"evals/step_{step}.jsonl").write_text(json.dumps(dict(problem=0, reward=1.0)))
        with path.open("a") as file:
            print(json.dumps(row), file=file)
        while step == 3 and not signals:
            time.sleep(0.05)
        if signals:
            return
    (out / "done").touch()

if rank == "0":
    log_steps()
while not signals and not (out / "done").exists():
    time.sleep(0.05)
if signals:
    time.sleep(1)
    with (out / "stopped").open("a") as file:
        print(rank, file=file)
alive.unlink()
sys.exit(143 if signals else 0)
"""


@pytest.fixture
def rank(tmp_path, monkeypatch):
    """Put the stand-in in the place of train.py; the working directory is a temporary one."""
    file = tmp_path / "rank.py"
    file.write_text(RANK)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runner.train, "__file__", str(file))


def plan_file(tmp_path, *changes) -> str:
    """Write Table 3's plan with one seed and with changes. Returns its path."""
    text = (ROOT / "studies/paper/table3.toml").read_text()
    for old, new in (
        ("[0, 1, 2, 3, 4]", "[0]"),
        ("studies/paper/figures.csv", str(FIGURES)),
        *changes,
    ):
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / "plan.toml"
    path.write_text(text)
    return str(path)


def fork_study(argv: list[str]) -> multiprocessing.Process:
    """Start the command in a process of its own."""
    fork = multiprocessing.get_context("fork")
    process = fork.Process(target=lambda: sys.exit(study.main(argv)), daemon=True)
    process.start()
    return process


def wait_for_step(metrics: Path, step: int, process) -> None:
    """Wait until a run has logged a step; the process must not end before."""
    while len(read_lines(metrics, torn=True)) <= step:
        assert process.is_alive()
        time.sleep(0.02)


@pytest.mark.slow
def test_a_study_that_is_killed_stops_torchruns_ranks_and_goes_on(rank, tmp_path, capfd):
    """The 4 ranks of a real torchrun get SIGTERM, and the same command goes on. The last five
    evaluations, of which there are four, are 2, 4, 6 and 8%."""
    argv = [plan_file(tmp_path, ONE_ARM), "--miniature"]
    folder = tmp_path / "runs/paper_miniature/Qwen2.5-1.5B/uniform/seed0"
    process = fork_study(argv)
    wait_for_step(folder / "metrics.jsonl", 3, process)
    process.kill()
    process.join()
    assert study.main(argv) == 0
    assert [row["step"] for row in read_lines(folder / "metrics.jsonl")] == [*range(9)]
    assert not [*folder.glob("*.alive")]
    assert sorted((folder / "stopped").read_text().split()) == [*"0123"]
    assert json.loads((folder / "config.json").read_text())["world_size"] == 4
    out = capfd.readouterr().out
    assert "In miniature: the demo's model, not the plan's." in out
    assert "| Qwen2.5-1.5B | uniform | 8 | 0.0 | 5.0 | 5.0 | 26,666 |" in out
    assert "| 30.6, 30.5, 30.4, 29.4, 30.2 | 30.2 ± 0.48 |" in out
    assert "Arms are not compared: no run of uniform and of another arm" in out
    assert (tmp_path / "runs/paper_miniature/table3/report.md").read_text() in out


def test_a_run_is_not_started_before_the_processes_that_print_to_its_log_have_ended(tmp_path):
    """The process inherits the lock, and sleeps for a second."""
    began = time.time()
    path = tmp_path / "seed0.log"
    with path.open("a") as log:
        assert Runner().lock(log)
        process = runner.start(["sleep", "1"], log)
    with path.open("a") as log:
        assert not Runner(end=time.time() + 0.1).lock(log)
        assert Runner().lock(log)
    assert time.time() - began >= 1
    process.wait()


def test_the_last_five_evaluations_are_averaged():
    """As the paper does (Section 5.2); the one before the first step never counts."""
    rows = pd.DataFrame({"step": range(7), "accuracy": [25, 50, 75, 75, 75, 75, 100]})
    rows = rows.assign(task="", arm="uniform", seed=0)
    columns = ["before", "accuracy", "step"]
    of_run = paper.last_evaluations(rows)[columns]
    assert of_run.to_numpy().tolist() == [[25, 80, 6]]
    of_short_run = paper.last_evaluations(rows[:3])[columns]
    assert of_short_run.to_numpy().tolist() == [[25, 62.5, 2]]


def test_the_plans_have_the_papers_runs():
    """Table 4: 23 runs. Runs that plans share have the same flags."""
    flags = {}
    for plan in PLANS.values():
        for job in plan.jobs():
            assert flags.setdefault(job.run, job.flags) == job.flags
    assert len(flags) == 23


def test_a_dry_run_prints_the_cost_of_each_run_and_starts_nothing(tmp_path, monkeypatch, capsys):
    """docs/hardware.md: checkpoints take 111 GB at most, ranks 49.5 and 34.5 GiB. Half the steps of
    Goldilocks are done: 500 of its GPU hours. Uniform has no Teacher, and 4/3 of the steps."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["study"])
    path = plan_file(tmp_path)
    rows = [{"step": step} for step in range(10_001)]
    make_run(tmp_path / "runs/paper/Qwen2.5-1.5B/Goldilocks/seed0", rows)
    before = contents(tmp_path)
    assert study.main([path, "--dry_run"]) == 0
    assert contents(tmp_path) == before
    out = capsys.readouterr().out
    assert "26,800 steps × 288 = 7,718,400 completions; 8 + 0 ranks; " in out
    assert "1,000 GPU hours, 1,000 left\n" in out
    assert "Goldilocks/seed0: step 10,000 of 20,000\n" in out
    assert "20,000 steps × 288 = 5,760,000 completions; 6 + 2 ranks; " in out
    assert "GiB a rank: student 49.5, Teacher 34.5\n" in out
    assert "111.1 GB of disk; 1,000 GPU hours, 500 left\n" in out
    assert "torchrun --standalone --nproc_per_node 8 " in out
    assert "2 runs, 0 finished. 1,500 GPU hours left, at 1,000 a run" in out


def test_the_ranks_of_a_launch_command():
    launches = ["torchrun --nproc_per_node 8", "torchrun --nproc-per-node=4 --standalone", "srun"]
    assert [dry_run.ranks(launch) for launch in launches] == [8, 4, 1]


def test_in_miniature_the_baseline_has_four_thirds_of_the_steps_and_arms_keep_their_teacher():
    jobs = PLANS["appendix_l"].miniature().jobs()
    configs = {job.arm: runner.parse(job.flags) for job in jobs}
    assert {arm: (c.steps, c.teacher_mode) for arm, c in configs.items()} == {
        "uniform": (8, "full"),
        "Goldilocks": (6, "full"),
        "Goldilocks, last token": (6, "last_token"),
        "Goldilocks, frozen": (6, "frozen"),
        "Goldilocks, LoRA": (6, "lora"),
    }


BAD = [  # changes of a plan, flags, message
    (("torchrun --standalone", "nosuchrun"), "", "this machine has no program nosuchrun"),
    (("torchrun", "'"), "", "No closing quotation"),
    (("[paper]", "[paper]\nrow = 1"), "", "must have `figures` and `table`"),
    (("torchrun", "torchrun"), "--jobs 2", "--jobs 2: a run by `launch` takes the whole machine"),
]


@pytest.mark.parametrize(("change", "flags", "message"), BAD)
def test_a_bad_launch_is_one_line_before_anything_is_written(
    change, flags, message, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    path = plan_file(tmp_path, change)
    before = contents(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        study.main([path, *flags.split()])
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
    assert contents(tmp_path) == before


def test_a_table_that_the_figures_lack_is_rejected_before_the_first_run(tmp_path):
    plan = Plan.read(plan_file(tmp_path, ('table = "Table 3"', 'table = "Table 9"')))
    with rejected("has no rows of Table 9"):
        study.check(plan.miniature())


def test_torchrun_is_found_beside_python(monkeypatch):
    monkeypatch.setenv("PATH", "")
    path, *rest = runner.launcher("torchrun --nproc_per_node 2")
    assert Path(path) == Path(sys.executable).parent / "torchrun"
    assert rest == ["--nproc_per_node", "2"]


def test_a_stopped_launch_is_no_failure_and_a_failed_one_is(tmp_path, monkeypatch, capsys):
    """The launch command ends with status 1 in both cases, as torchrun does. At a second SIGTERM
    torchrun would end before its ranks, so there is one."""
    [job] = Plan.read(plan_file(tmp_path, ONE_ARM)).jobs()
    job = replace(job, out=tmp_path)
    assert Runner(launch=["false"]).run([job]) == 1
    ready, signals = tmp_path / "ready", tmp_path / "signals"
    script = f"trap 'echo TERM >> {signals}' TERM; touch {ready}; "
    script += "for i in $(seq 10); do sleep 0.1; done; exit 1"
    stopped = Runner(launch=["bash", "-c", script])

    def stop():
        while not ready.exists():
            time.sleep(0.02)
        stopped.stop()

    threading.Thread(target=stop).start()
    assert stopped.run([job]) == 0
    assert signals.read_text() == "TERM\n"
    assert f"stopped: {job.run}" in capsys.readouterr().err
