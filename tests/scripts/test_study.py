"""study: plans, and runs by a stand-in for train.py, which writes what a run would."""

import shlex
import time

import pytest

from plumbing.errors import InputError
from plumbing.files import read_lines
from scripts import probe, runner, study
from scripts.runner import Runner
from tests.helpers.ranks import DEMO
from tests.helpers.runs import make_run

PLAN = """
out = "OUT"
flags = "--preset demo --prompts_per_step 2 --group_size 4 --checkpoint_every 100"
budget = 48
seeds = [1, 2]
[arms]
uniform = {flags = "--sampler uniform"}
Goldilocks = {flags = "--sampler goldilocks", seeds = [1]}
"""
# It spends 8 completions a step, and as many more for each of --resample_rounds, and resumes. Under
# --max_grad_norm 7 it fails, under 8 it waits for SIGTERM, and then exits as train.py does.
STAND_IN = """
import json, signal, sys, time
from pathlib import Path
flags = dict(zip(sys.argv[1::2], sys.argv[2::2]))
if flags.get("--max_grad_norm") == "7":
    sys.exit(2)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
out = Path(flags["--out"])
(out / "evals").mkdir(parents=True, exist_ok=True)
(out / "student").mkdir(exist_ok=True)
steps = int(flags["--steps"])
eval_every = int(flags.get("--eval_every", 10))
rounds = 1 + int(flags.get("--resample_rounds", 0))
facts = dict(world_size=1, student_ranks=1, seed=0, group_size=4, steps=steps)
facts |= dict(model_files={"model.safetensors": 5}, train_data="DATA")
(out / "config.json").write_text(json.dumps(facts))
path = out / "metrics.jsonl"
done = len(path.read_text().splitlines()) if path.exists() else 0
with path.open("a") as metrics, (out / "selections.jsonl").open("a") as selections:
    for step in range(done, steps + 1):
        row = dict(step=step, completions=8 * rounds, completion_tokens=80)
        row |= dict(seconds=60.0, eval_s=30.0, zero_variance=0.5, groups=2)
        if step % eval_every == 0 or step == steps:
            row["val_accuracy"] = 0.1 + 0.01 * step * (1 + (flags["--sampler"] == "goldilocks"))
            verdict = json.dumps(dict(problem=0, reward=1.0))
            (out / f"evals/step_{step}.jsonl").write_text(verdict)
        print(json.dumps(row), file=metrics)
        for chosen in range(2 * step, 2 * step + 2 * (step > 0)):
            row = dict(step=step, pool=[chosen], utilities=[None], explored=True)
            row |= dict(chosen=chosen, completions=4, successes=2 * (chosen % 2))
            print(json.dumps(row), file=selections)
if flags.get("--max_grad_norm") == "8":
    metrics.close()
    time.sleep(60)
"""


@pytest.fixture
def train(tmp_path, monkeypatch):
    """Put the stand-in in the place of train.py; the working directory is a temporary one."""
    file = tmp_path / "train.py"
    file.write_text(STAND_IN.replace("DATA", str(DEMO.parent / "train.jsonl")))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runner.train, "__file__", str(file))


def plan(tmp_path, changes=("", "")) -> study.Plan:
    path = tmp_path / "plan.toml"
    path.write_text(PLAN.replace("OUT", str(tmp_path / "runs")).replace(*changes))
    return study.Plan.read(path)


def job(tmp_path, flags="--sampler goldilocks") -> runner.Job:
    """The plan's only run of Goldilocks, with other flags."""
    made = plan(tmp_path, ("--sampler goldilocks", flags))
    [job] = [job for job in made.jobs() if job.arm == "Goldilocks"]
    return job


def settings_of(job: runner.Job, *names: str) -> list:
    settings = runner.settings(job.flags)
    return [settings[name] for name in names]


def test_runs_are_pairs_seed_by_seed_in_folders_of_task_and_arm(tmp_path):
    tasks = '[tasks]\n"a b" = ""\n[replace."a b"]\nuniform = "--sampler mopps"\n[arms]'
    jobs = plan(tmp_path, ("[arms]", tasks)).jobs()
    folders = ["a b/uniform/seed1", "a b/Goldilocks/seed1", "a b/uniform/seed2"]
    assert [str(job.run.relative_to(tmp_path / "runs")) for job in jobs] == folders
    assert [settings_of(job, "sampler") for job in jobs[:2]] == [["mopps"], ["goldilocks"]]


def test_the_baseline_of_an_arm_with_a_teacher_spends_four_thirds(tmp_path):
    budgets = {job.arm: (job.budget, *settings_of(job, "steps")) for job in plan(tmp_path).jobs()}
    assert budgets == {"Goldilocks": (48, 6), "uniform": (64, 8)}


def test_without_an_arm_with_a_teacher_all_spend_the_same(tmp_path):
    jobs = plan(tmp_path, ("--sampler goldilocks", "--sampler mopps")).jobs()
    assert {job.budget for job in jobs} == {48}


def test_without_a_budget_it_is_that_of_a_run_with_a_teacher(tmp_path):
    without = plan(tmp_path, ("budget = 48", ""))
    assert without.completions == 120 * 2 * 4  # the preset's steps


def test_an_arm_that_spends_more_a_step_starts_with_fewer_and_denser_evaluations(tmp_path):
    dapo = job(tmp_path, "--sampler uniform --resample_rounds 2")
    assert settings_of(dapo, "steps", "eval_every") == [1, 2]


BAD_PLANS = [
    ("budget = 48", "budgett = 48", "unexpected keyword argument 'budgett'"),
    ("seeds = [1]", "seed = [1]", "unexpected keyword argument 'seed'"),
    ("uniform =", "other =", "baseline 'uniform' is none of"),
    ("--preset demo", "--preset demo --lr_schedule linear", "must be constant"),
    ("--preset demo", "--no_such_flag 1", "unrecognized arguments"),
]


@pytest.mark.parametrize(("old", "new", "message"), BAD_PLANS)
def test_a_bad_plan_is_rejected(old, new, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        plan(tmp_path, (old, new)).jobs()


def test_a_run_is_extended_until_its_budget_is_spent(train, tmp_path):
    """24 completions a step: one step at first, then the rest of 48."""
    dapo = job(tmp_path, "--sampler uniform --resample_rounds 2")
    Runner([dapo]).run()
    assert dapo.finished()
    assert [row["step"] for row in read_lines(dapo.run / "metrics.jsonl")] == [0, 1, 2]
    assert [process["status"] for process in dapo.usage()] == [0, 0]


def test_a_finished_run_is_run_again_only_if_it_was_deleted(train, tmp_path):
    finished = job(tmp_path)
    for _ in range(2):
        Runner([finished]).run()
        assert len(finished.usage()) == 1
    finished.run.rename(tmp_path / "elsewhere")
    assert not finished.finished()
    Runner([finished]).run()
    assert len(finished.usage()) == 1


def test_at_the_deadline_runs_stop_and_can_be_resumed(train, tmp_path):
    jobs = plan(tmp_path, ("--preset demo", "--preset demo --max_grad_norm 8")).jobs()
    assert Runner(jobs, at_a_time=1, end=time.time() + 15).run() == 0
    [process] = jobs[0].usage()
    assert process["status"] != 0  # stopped
    assert not jobs[0].finished()
    assert not jobs[1].run.exists()


def test_a_run_that_fails_is_counted_and_the_others_go_on(train, tmp_path):
    changes = ("--sampler goldilocks", "--sampler goldilocks --max_grad_norm 7")
    jobs = plan(tmp_path, changes).jobs()
    assert Runner(jobs, at_a_time=2).run() == 1
    assert [job.finished() for job in jobs] == [True, False, True]


def test_discard_deletes_the_weights_of_finished_runs(train, tmp_path):
    discarded = job(tmp_path)
    Runner([discarded], discards=True).run()
    assert discarded.finished()
    assert not (discarded.run / "student").exists()


def test_a_run_made_with_other_flags_is_rejected(train, tmp_path):
    made = job(tmp_path)
    Runner([made]).run()
    made.check()
    with pytest.raises(InputError, match="was made with"):
        job(tmp_path, "--sampler goldilocks --epsilon 0.1").check()


def test_a_study_probes_runs_and_reports(train, tmp_path, capsys):
    """Uniform rises by a point a step, Goldilocks by 2: read at 5/6 of 6 steps, and 4/3 of it. The
    scores make the report again without the runs."""
    plan(tmp_path, ("--preset demo", "--preset demo --eval_every 1 --column topic"))
    file = str(tmp_path / "plan.toml")
    assert study.main([file, "--jobs", "2", "--problems", "4"]) == 0
    out = capsys.readouterr().out
    assert "Probe: 4 training problems × 4 completions" in out
    assert "| all | 4 | 50.0% | 0.0% | 0.0% | 50.0% | 0.0% | 0.0% | 25.0% |" in out
    assert "| Grove | 1 | 100.0% |" in out
    # 8 steps of a minute, 9 evaluations of half
    assert "A run takes: uniform about 12 minutes" in out
    assert "| Goldilocks | 1 | 10.0 → 20.0% | +5.0 at 48 |" in out
    assert "+3.3 at 48, baseline 64" in out
    assert "one validation problem is 100.0 points: too coarse" in out
    files = {"report.md", "report.html", "figure.png", "scores.csv", "summary.csv"}
    assert files < {path.name for path in (tmp_path / "runs").iterdir()}
    (tmp_path / "runs/scores.csv").rename(tmp_path / "scores.csv")
    (tmp_path / "runs").rename(tmp_path / "old")
    study.main([file, "--csv", "scores.csv", "--report"])
    assert out.endswith(capsys.readouterr().out)


def test_flags_make_a_plan_with_arms_named_after_their_classes():
    words = "--preset demo --prompts_per_step 2 --group_size 4 --steps 6 --seed 3 --seeds 2 --out x"
    options, inputs, flags = study.arguments(
        shlex.split(f"--samplers goldilocks a.py:Mine {words}")
    )
    made = study.plan_of_flags(options, flags)
    assert made.arms.keys() == {"uniform", "goldilocks", "Mine"}
    assert (made.out, made.seeds, made.completions) == ("x", [3, 4], 48)
    assert (inputs, "--steps" in made.flags) == ([], False)


def test_a_plan_takes_no_flags_of_train_py():
    with pytest.raises(ValueError, match="--epsilon 0: a plan or a run has these flags"):
        study.arguments(["plan.toml", "--epsilon", "0"])


def test_runs_of_train_py_can_be_compared(tmp_path, capsys):
    """Two seeds of each: 8 problems, the last evaluation at 8 completions a step."""
    folders = []
    for name, right in (("uniform", 2), ("mopps", 6)):
        for seed in (0, 1):
            verdicts = [[0] * 8, *[[1] * (right + seed) + [0] * (8 - right - seed)] * 6]
            folder = tmp_path / f"{name}{seed}"
            folders.append(str(make_run(folder, verdicts=verdicts, sampler=name, seed=seed)))
    study.main(folders)
    assert "mopps − uniform: +50.0 points" in capsys.readouterr().out
    assert not (tmp_path / "report.md").exists()


def test_the_probe_advises_by_the_share_of_dead_groups(monkeypatch):
    monkeypatch.setattr(probe, "CURVES", dict([*probe.CURVES.items()][1:]))  # the pilot
    assert "98% of groups are dead: Goldilocks, K=64 needed 0.14" in probe.advice(0.97, 0.01, 200)
    assert "little to gain, begin with uniform" in probe.advice(0.3, 0.01, 200)
    assert "No problem of 200 is within reach" in probe.advice(1.0, 0.0, 200)
    assert "are mastered: harder data first" in probe.advice(0.1, 0.6, 200)


def test_the_deadline_is_the_next_time_that_a_clock_shows_it():
    now = time.time()
    end = study.time_of_day(time.strftime("%H:%M", time.localtime(now - 120)))
    assert now < end < now + 24 * 3600
