"""study: plans, and runs by a stand-in for train.py, which writes what a run would."""

import os
import signal
import threading
import time

import pandas as pd
import pytest
from filelock import FileLock

from plumbing.files import file_crc32, write_lines
from plumbing.run.facts import model_files
from scripts.study import __main__ as study
from scripts.study import probe, runner
from scripts.study.plan import Plan
from scripts.study.results import score
from scripts.study.runner import Runner
from tests.helpers.checks import rejected
from tests.helpers.files import change
from tests.helpers.ranks import DEMO

PLAN = """
out = "OUT"
flags = "--preset demo --prompts_per_step 2 --group_size 4 --checkpoint_every 100"
budget = 48
seeds = [1, 2]
compute_matched = true
[arms]
uniform = {flags = "--sampler uniform"}
Goldilocks = {flags = "--sampler goldilocks", seeds = [1]}
"""
# It spends 8 completions a step, and as many more for each of --resample_rounds, and resumes. Under
# --max_grad_norm 6 it loses accuracy, under 7 it fails, under 8 it waits for SIGTERM, and then
# exits as train.py does.
STAND_IN = """
import json, signal, sys, time, zlib
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
facts |= dict(reward="", model="MODEL", model_files=FILES, train_data="DATA", val_data="DATA")
for name in ("train_data", "val_data"):
    facts[f"{name}_crc32"] = zlib.crc32(Path("DATA").read_bytes())
(out / "config.json").write_text(json.dumps(facts))
path = out / "metrics.jsonl"
done = len(path.read_text().splitlines()) if path.exists() else 0
with path.open("a") as metrics, (out / "selections.jsonl").open("a") as selections:
    for step in range(done, steps + 1):
        row = dict(step=step, completions=8 * rounds, completion_tokens=80)
        row |= dict(seconds=60.0, eval_s=30.0, zero_variance=0.5, groups=2)
        if step % eval_every == 0 or step == steps:
            row["val_accuracy"] = 0.1 + 0.01 * step * (1 + (flags["--sampler"] == "goldilocks"))
            if flags.get("--max_grad_norm") == "6":
                row["val_accuracy"] = 0.9 - 0.1 * step
            verdict = json.dumps(dict(problem=0, reward=1.0))
            (out / f"evals/step_{step}.jsonl").write_text(verdict)
        print(json.dumps(row), file=metrics)
        for chosen in range(2 * step, 2 * step + 2 * (step > 0)):
            row = dict(step=step, pool=[chosen], utilities=[None], explored=True)
            p_hat = 0.5 * (chosen % 2)
            row |= dict(chosen=chosen, completions=4, p_hat=p_hat, y=p_hat)
            print(json.dumps(row), file=selections)
if flags.get("--max_grad_norm") == "8":
    metrics.close()
    time.sleep(60)
"""


@pytest.fixture
def train(tmp_path, monkeypatch):
    """Put the stand-in in the place of train.py; the working directory is a temporary one."""
    file = tmp_path / "train.py"
    text = STAND_IN.replace("DATA", str(DEMO.parent / "train.jsonl"))
    text = text.replace("MODEL", str(DEMO)).replace("FILES", str(model_files(DEMO)))
    file.write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runner.train, "__file__", str(file))


def plan(tmp_path, changes=("", "")) -> Plan:
    path = tmp_path / "plan.toml"
    path.write_text(PLAN.replace("OUT", str(tmp_path / "runs")).replace(*changes))
    return Plan.read(str(path))


def job(tmp_path, flags="--sampler goldilocks") -> runner.Job:
    """The plan's only run of Goldilocks, with other flags."""
    made = plan(tmp_path, ("--sampler goldilocks", flags))
    [job] = [job for job in made.jobs() if job.arm == "Goldilocks"]
    return job


def test_runs_are_pairs_seed_by_seed_in_folders_of_task_and_arm(tmp_path):
    tasks = '[tasks]\n"a b" = ""\n[replace."a b"]\nuniform = "--sampler mopps"\n[arms]'
    jobs = plan(tmp_path, ("[arms]", tasks)).jobs()
    folders = ["a b/uniform/seed1", "a b/Goldilocks/seed1", "a b/uniform/seed2"]
    assert [str(job.run.relative_to(tmp_path / "runs")) for job in jobs] == folders
    samplers = [runner.parse(job.flags).sampler for job in jobs]
    assert samplers == ["mopps", "goldilocks", "mopps"]


@pytest.mark.parametrize(("sampler", "uniform"), [("goldilocks", (64, 8)), ("mopps", (48, 6))])
def test_the_baseline_of_an_arm_with_a_teacher_spends_four_thirds(sampler, uniform, tmp_path):
    """Completions and steps; beside an arm without a Teacher the baseline spends the same."""
    jobs = plan(tmp_path, ("--sampler goldilocks", f"--sampler {sampler}")).jobs()
    budgets = {job.arm: (job.budget, job.steps()) for job in jobs}
    assert budgets == {"Goldilocks": (48, 6), "uniform": uniform}


def test_on_one_device_the_baseline_spends_no_more(tmp_path):
    """Unless the plan has `launch`, as on several GPUs, or asks for it."""
    alone = plan(tmp_path, ("compute_matched = true", ""))
    assert {job.budget for job in alone.jobs()} == {48}
    launched = plan(tmp_path, ("compute_matched = true", "launch = 'torchrun'"))
    assert {job.budget for job in launched.jobs()} == {48, 64}


BAD_PLANS = [
    ("seeds = [1, 2]", "", "missing 1 required positional argument: 'seeds'"),
    ("seeds = [1]", "seed = [1]", "unexpected keyword argument 'seed'"),
    ("seeds = [1, 2]", "seeds = 2", "seeds = 2: must be <class 'list'>"),
    ("uniform =", "other =", r"no arm or task: \['uniform'\]"),
    ("[arms]", "[replace.other]\n[arms]", r"no arm or task: \['other'\]"),
    ("[arms]", "[test]\ntasks = []\n[arms]", "must have `arms` and `tasks`"),
    ("[arms]", "[test]\ntasks = []\narms = ['other']\n[arms]", r"no arm or task: \['other'\]"),
    ("--preset demo", "--preset demo --lr_schedule linear", "must be constant"),
]


@pytest.mark.parametrize(("old", "new", "message"), BAD_PLANS)
def test_a_bad_plan_is_rejected(old, new, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        plan(tmp_path, (old, new)).jobs()


def test_a_run_is_extended_until_its_budget_is_spent(train, tmp_path):
    """24 completions a step: one step, as its flags say, then the rest of 48."""
    dapo = job(tmp_path, "--sampler uniform --resample_rounds 2 --steps 1")
    Runner().run([dapo])
    assert dapo.finished()
    assert dapo.done() == (2, 48)
    assert [process["status"] for process in dapo.usage()] == [0, 0]


def test_a_run_whose_extension_was_killed_before_its_last_evaluation_is_not_finished(tmp_path):
    """Its first step spent 24 of 48 completions; the process of the second left no status."""
    killed = job(tmp_path, "--sampler uniform --steps 1")
    killed.run.mkdir(parents=True)
    write_lines(killed.run.with_suffix(".usage.jsonl"), [{"flags": killed.flags, "status": 0}])
    rows = [{"step": step, "completions": 24} for step in range(3)]
    for evaluated in (False, True):
        if evaluated:
            rows[-1]["val_accuracy"] = 0.5
        write_lines(killed.run / "metrics.jsonl", rows)
        assert killed.finished() == evaluated
    assert killed.steps() == 2


def test_a_finished_run_is_not_run_again_and_may_lose_its_weights(train, tmp_path):
    """It is known that the plan's flags have changed since."""
    finished = job(tmp_path)
    for _ in range(2):
        Runner().run([finished], discard=True)
        assert len(finished.usage()) == 1
        assert not (finished.run / "student").exists()
    assert not finished.other_flags()
    assert job(tmp_path, "--sampler goldilocks --epsilon 0.1").other_flags() == [finished.flags]


def test_the_seconds_of_a_run_on_a_gpu_are_by_the_clock(train, tmp_path):
    """Six steps of a minute, during which the process has used less of a core."""
    made = job(tmp_path)
    Runner().run([made])
    for device in ("cpu", "cuda"):
        change(made.run / "config.json", device=device)
        [rows] = score([made])
        assert (rows.cpu_seconds.max() == 6 * 60) == (device == "cuda")
        assert rows.by_clock.all() == (device == "cuda")


def test_a_run_that_stopped_after_its_last_step_is_asked_for_no_more(tmp_path):
    """40 completions a step spend more than 48 in 2 steps, of the 6 in its flags."""
    stopped = job(tmp_path)
    stopped.run.mkdir(parents=True)
    rows = [{"step": step, "completions": 40} for step in range(7)]
    write_lines(stopped.run / "metrics.jsonl", rows)
    assert stopped.steps() == 6


def test_a_run_that_fails_is_counted_and_the_others_go_on(train, tmp_path):
    changes = ("--sampler goldilocks", "--sampler goldilocks --max_grad_norm 7")
    jobs = plan(tmp_path, changes).jobs()
    assert Runner(at_a_time=2).run(jobs) == 1
    assert [job.finished() for job in jobs] == [True, False, True]


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
    assert "A run of uniform takes about 12 minutes" in out
    assert "| Goldilocks | 1 | 10.0 → 20.0% | +5.0 at 48 |" in out
    assert "+3.3 at 48, baseline 64" in out
    assert "one validation problem is 100.0 points: too coarse" in out
    assert "## Goldilocks, by topic" in out
    files = {"report.md", "report.html", "figure.png", "scores.csv", "summary.csv"}
    assert files < {path.name for path in (tmp_path / "runs").iterdir()}
    rows = pd.read_csv(tmp_path / "runs/scores.csv")
    other = rows[rows.arm == "Goldilocks"].assign(arm="SEC")  # the plan has no such arm
    pd.concat([rows, other]).to_csv(tmp_path / "scores.csv")
    (tmp_path / "runs").rename(tmp_path / "old")
    study.main([file, "--csv", "scores.csv", "--report"])
    assert {*capsys.readouterr().out.splitlines()} < {*out.splitlines()}


def test_a_probe_is_repeated_where_its_flags_reward_or_the_models_weights_have_changed(
    train, tmp_path
):
    made = plan(tmp_path)
    job = probe.jobs_of(made, "", 4)[-1]
    probe.probe(made, "", 4, Runner())
    assert probe.is_current(job)
    assert not probe.is_current(probe.jobs_of(made, "", 6)[-1])
    reward = tmp_path / "reward.py"
    reward.write_text("strict = True")
    change(job.run / "config.json", reward=str(reward), reward_crc32=file_crc32(reward))
    assert probe.is_current(job)
    reward.write_text("strict = False")
    assert not probe.is_current(job)
    reward.write_text("strict = True")
    change(job.run / "config.json", model_files={"model.safetensors": 1})
    assert not probe.is_current(job)


def test_a_baseline_that_loses_accuracy_is_reported_when_its_first_run_ends(
    train, tmp_path, capsys
):
    plan(tmp_path, ("--preset demo", "--preset demo --max_grad_norm 6 --eval_every 1"))
    study.main([str(tmp_path / "plan.toml"), "--jobs", "1", "--problems", "4"])
    printed = capsys.readouterr()
    lines = printed.err.splitlines()
    [first, *_] = [i for i, line in enumerate(lines) if "WARNING: uniform ends at" in line]
    [goldilocks] = [i for i, line in enumerate(lines) if "starts:" in line and "runs/Gold" in line]
    assert first < goldilocks
    report = (tmp_path / "runs/report.md").read_text()
    assert report.startswith("WARNING: uniform ends at 30.0%, from 90.0% before training")


@pytest.mark.parametrize("sampler", ["mopps --sampler_args decay=0.9", "goldilocks"])
def test_a_probe_draws_uniformly_beside_a_baseline_that_does_not(sampler, tmp_path):
    """And it does not overwrite the run that measures the time of an arm with a Teacher."""
    jobs = probe.jobs_of(plan(tmp_path, ("--sampler uniform", f"--sampler {sampler}")), "", 4)
    assert [runner.parse(job.flags).sampler for job in jobs] == ["goldilocks", "uniform"]
    assert len({job.run for job in jobs}) == 2


def test_a_probe_stops_as_other_runs_do(train, tmp_path):
    assert probe.probe(plan(tmp_path), "", 4, Runner(end=0)) == "The probe was stopped.\n"


def test_two_studies_in_a_directory_are_rejected(train, tmp_path, capsys):
    """Each would delete the other's probe."""
    plan(tmp_path)
    with FileLock(tmp_path / "runs/lock"), pytest.raises(SystemExit):
        study.main([str(tmp_path / "plan.toml")])
    assert "is in use by another study" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--sampler sec", "this sampler needs --column"),
        ("--sampler sec --column topics", "no field 'topics'"),
        ("--sampler sek", "no such file, nor one of bag_of_words"),
        ("--sampler sec --column topic --model tinylm", "model 'tinylm' cannot be used: no such"),
    ],
)
def test_a_mistake_in_the_last_arm_shows_before_the_first_run(
    flags, message, train, tmp_path, capsys
):
    plan(tmp_path, ("--sampler goldilocks", flags))
    with pytest.raises(SystemExit) as exit:
        study.main([str(tmp_path / "plan.toml")])
    assert exit.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "runs/probe").exists()


def test_validation_problems_that_are_trained_on_are_reported(tmp_path, capsys):
    data = DEMO.parent / "train.jsonl"
    study.check(plan(tmp_path, ("--preset demo", f"--preset demo --val_data {data}")))
    assert "train.jsonl: 12,000 of 12,000 problems are trained on" in capsys.readouterr().err


def test_a_study_that_a_signal_stops_has_trainings_exit_status(train, tmp_path, capsys):
    plan(tmp_path, ("--preset demo", "--preset demo --max_grad_norm 8"))

    def interrupt():
        while not [*tmp_path.glob("runs/probe/*/*/evals")]:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)  # as the terminal's, it interrupts what main waits for

    threading.Thread(target=interrupt, daemon=True).start()
    assert study.main([str(tmp_path / "plan.toml"), "--problems", "4"]) == 143
    assert "stopped: the same command resumes" in capsys.readouterr().err


def test_a_miniature_without_a_plan_does_not_write_into_the_studys_directory(tmp_path, monkeypatch):
    """Its budget is 6 steps of 24 completions."""
    monkeypatch.chdir(tmp_path)
    run = {"task": "", "seed": 0, "model_crc32": "", "problems": 9, "live": 1.0, "dead": 0.5}
    rows = [
        run | {"arm": arm, "step": step, "completions": 24 * step, "accuracy": step}
        for arm in ("uniform", "goldilocks")
        for step in range(7)
    ]
    pd.DataFrame(rows).to_csv("scores.csv")
    study.main(["--preset", "demo", "--out", "mine", "--miniature", "--csv", "scores.csv"])
    assert (tmp_path / "mine_miniature/report.md").exists()
    assert not (tmp_path / "mine").exists()


def test_flags_make_a_plan_with_arms_named_as_typed():
    words = "--preset demo --prompts_per_step 2 --group_size 4 --steps 6 --seed 3 --seeds 2"
    samplers = ["sec", "sec --epsilon 0", "a.py:Mine"]
    _, made = study.parse_arguments(["--samplers", *samplers, *words.split()])
    assert [*made.arms] == ["uniform", *samplers]
    assert [made.config("", arm).epsilon for arm in samplers[:2]] == [0.2, 0]
    assert (made.seeds, made.budget) == ([3, 4], 48)
    for flags in (["--sampler", "sec"], ["--sampler=sec"]):
        with rejected("--sampler: name arms by --samplers"):
            study.parse_arguments(flags)
