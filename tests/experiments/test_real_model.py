"""The study's runner: which runs it starts, resumes and stops; scores and comparisons by hand."""

import json
import os
import shutil
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from experiments import equal_cost, real_model
from experiments.real_model import Job, Plan, Runner
from plumbing.errors import InputError
from plumbing.files import digest, read_lines, write_lines
from tests.helpers.runs import make_run
from verify import Verifier

PLAN = """
out = "{out}"
flags = "--preset demo --steps 4"
by = "topic"
seeds = [2, 1]
[arms]
uniform = {{flags = "--sampler uniform"}}
"a/b" = {{flags = "--sampler sec --column topic", seeds = [1]}}
"""
# Instead of train.py: a run of `sec` fails, another takes as long as the file `slow` is there.
FAKE_TRAIN = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
folder = pathlib.Path(__file__).parent
pathlib.Path(sys.argv[sys.argv.index("--out") + 1]).mkdir(exist_ok=True)
print("running", flush=True)
(folder / "started").touch()
while (folder / "slow").exists():
    time.sleep(0.01)
sys.exit(4 if "sec" in sys.argv else 0)
"""


@pytest.fixture
def plan(tmp_path, monkeypatch) -> Plan:
    """A plan of three runs, which a fake train.py beside its runs makes."""
    (tmp_path / "plan.toml").write_text(PLAN.format(out=tmp_path / "runs"))
    (tmp_path / "train.py").write_text(FAKE_TRAIN)
    monkeypatch.setattr(real_model, "TRAIN", tmp_path / "train.py")
    return Plan.read(tmp_path / "plan.toml")


def started(capsys) -> list[str]:
    """Return the runs that were started, by the lines printed so far."""
    lines = capsys.readouterr().out.splitlines()
    return [line.partition("started: ")[2] for line in lines if "started" in line]


def test_runs_are_ordered_seed_by_seed(plan):
    assert [(job.arm, job.seed) for job in plan.jobs()] == [
        ("uniform", 1),
        ("a/b", 1),
        ("uniform", 2),
    ]


def test_each_run_has_its_directory_and_flags(plan):
    job = plan.jobs()[1]
    assert job.run == Path(plan.out) / "a-b" / "seed1"
    own = f"--seed 1 --out {job.run}"
    assert job.flags == f"--preset demo --steps 4 --sampler sec --column topic {own}"


def test_a_rerun_starts_only_the_runs_that_are_not_finished(plan, capsys):
    first = Runner(plan.jobs(), 1, np.inf)
    first.run()
    assert started(capsys) == ["uniform, seed 1", "a/b, seed 1", "uniform, seed 2"]
    assert first.failed == 1
    Runner(plan.jobs(), 1, np.inf).run()
    assert started(capsys) == ["a/b, seed 1"]


def test_a_run_that_was_deleted_is_made_again(plan, capsys):
    Runner(plan.jobs(), 2, time.time() + 60).run()
    started(capsys)
    shutil.rmtree(plan.jobs()[0].run)
    Runner(plan.jobs(), 2, time.time() + 60).run()
    assert "uniform, seed 1" in started(capsys)


def test_more_steps_continue_finished_runs(plan, capsys):
    Runner(plan.jobs()[:1], 1, np.inf).run()
    plan.flags += " --steps 8"
    Runner(plan.jobs()[:1], 1, np.inf).run()
    assert started(capsys) == ["uniform, seed 1"] * 2


def test_discard_deletes_the_weights_of_finished_runs_alone(plan):
    finished, failed, _ = jobs = plan.jobs()
    for job in (finished, failed):
        (job.run / "checkpoints" / "step_4").mkdir(parents=True)
        (job.run / "student").mkdir()
        (job.run / "teacher").mkdir()
        (job.run / "metrics.jsonl").touch()
    Runner(jobs, 1, np.inf, discards=True).run()
    assert [path.name for path in finished.run.iterdir()] == ["metrics.jsonl"]
    assert (failed.run / "checkpoints" / "step_4").exists()
    assert (failed.run / "student").exists()


def test_discard_deletes_the_weights_of_what_finished_before(plan, tmp_path, monkeypatch):
    monkeypatch.setattr(real_model.signal, "signal", lambda *_: None)  # pytest keeps its handlers
    finished = plan.jobs()[0]
    Runner([finished], 1, np.inf).run()
    (finished.run / "student").mkdir(parents=True)
    real_model.main(["run", str(tmp_path / "plan.toml"), "--discard"])
    assert not (finished.run / "student").exists()


def test_at_the_deadline_runs_are_stopped_and_no_other_starts(plan, tmp_path, capsys):
    (tmp_path / "slow").touch()
    runner = Runner(plan.jobs(), 1, np.inf)
    poll = runner.poll

    def poll_and_end(process):
        if (tmp_path / "started").exists():
            runner.stop()
        poll(process)

    runner.poll = poll_and_end
    runner.run()
    assert started(capsys) == ["uniform, seed 1"]
    assert runner.failed == 0
    [process] = read_lines(plan.jobs()[0].usage)
    assert process["status"] == 143
    assert process["cpu_seconds"] > 0
    assert not plan.jobs()[0].finished()


def test_the_usage_of_a_run_that_ends_at_the_deadline_is_kept(plan):
    runner = Runner(plan.jobs()[:1], 1, np.inf)
    runner.start(runner.waiting.pop())
    [process] = runner.running
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it ends, and stays unreaped
    runner.stop()
    runner.run()
    [row] = read_lines(plan.jobs()[0].usage)
    assert row["status"] == 0


def test_nothing_is_started_after_the_deadline(plan, capsys):
    Runner(plan.jobs(), 1, time.time() - 1).run()
    assert started(capsys) == []


def test_until_is_the_next_time_that_a_clock_shows_it():
    ends = [real_model.deadline(f"{hour:02}:00", None) for hour in range(24)]
    assert min(ends) > time.time()
    assert max(ends) - time.time() < 24 * 3600 + 1


BAD_PLANS = {  # text of the plan, what replaces it, error
    "unknown key": ("by =", "bye =", "unexpected keyword argument 'bye'"),
    "no TOML": ("seeds = [", "seeds = ", "line 5"),
    "unknown baseline": ("by =", 'against = "x"\nby =', "against 'x' is none of"),
    "seeds in quotes": ("[2, 1]", '"21"', "must be a list of distinct whole numbers"),
    "a seed twice": ("[2, 1]", "[1, 1]", "must be a list of distinct whole numbers"),
    "unknown key of an arm": ("seeds = [1]}", "seed = 1}", "'a/b' must have flags"),
}


@pytest.mark.parametrize("case", BAD_PLANS)
def test_a_bad_plan_is_rejected(case, plan, tmp_path):
    old, new, error = BAD_PLANS[case]
    text = (tmp_path / "plan.toml").read_text()
    assert old in text
    (tmp_path / "plan.toml").write_text(text.replace(old, new))
    with pytest.raises(InputError, match=error):
        Plan.read(tmp_path / "plan.toml")


def test_bad_flags_of_an_arm_are_rejected_before_anything_starts(plan, tmp_path, capsys):
    text = (tmp_path / "plan.toml").read_text()
    (tmp_path / "plan.toml").write_text(text.replace("--column topic", ""))
    with pytest.raises(SystemExit, match="2"):
        real_model.main(["run", str(tmp_path / "plan.toml")])
    assert "--sampler sec needs --column" in capsys.readouterr().err
    assert not Path(plan.out).exists()


def test_a_learning_rate_that_is_not_constant_is_rejected(plan):
    plan.flags += " --lr_schedule linear"
    with pytest.raises(InputError, match="arm 'uniform': --lr_schedule linear: must be constant"):
        plan.jobs()


@pytest.fixture
def evaluated(tmp_path) -> Path:
    """A run of four steps of 8 completions, 100,000 tokens and 3,600 s, evaluated at 0, 2 and 4. It
    learns to write the box of the first of two problems, whose answer it knew."""
    val_data = tmp_path / "val.jsonl"
    rows = [{"problem": f"q{i}", "expected_answer": str(i), "topic": "ab"[i]} for i in range(2)]
    write_lines(val_data, rows)
    metrics = [{"step": 0, "val_accuracy": 0.0}, {"step": 1}, {"step": 2, "val_accuracy": 0.5}]
    metrics += [{"step": 3, "zero_variance": 1.0}, {"step": 4, "val_accuracy": 0.5}]
    facts = {"val_data": str(val_data), "val_data_crc32": digest(val_data)[1]}
    facts["model_files"] = {"model.safetensors": 6}
    folder = make_run(tmp_path / "run", metrics, **facts)
    wrong = {"problem": 1, "reward": 0.0, "status": "wrong", "tokens": 3}
    for step, box in ((0, "it is 0"), (2, r"\boxed{0}"), (4, r"\boxed{0}")):
        right = {"problem": 0, "reward": float(step > 0), "tokens": 3, "completion": box}
        right["status"] = "correct" if step else "no_box"
        verdicts = [right, wrong | {"completion": r"\boxed{5}"}]
        write_lines(folder / "evals" / f"step_{step}.jsonl", verdicts)
    return folder


def test_scores_of_a_run_by_hand(evaluated):
    """Its two processes used three quarters of a core."""
    usage = [{"cpu_seconds": 5, "wall_seconds": 4}, {"cpu_seconds": 1, "wall_seconds": 4}]
    with Verifier(workers=1) as verifier:
        rows = equal_cost.scores(evaluated, usage, "topic", verifier)
    assert rows.step.tolist() == [0, 2, 4]
    assert rows.completions.tolist() == [0, 16, 32]
    assert rows.response_tokens.tolist() == [0, 200_000, 400_000]
    assert rows.cpu_seconds.tolist() == [0, 5400, 10_800]
    assert rows.live_updates.tolist() == [0, 2, 3]
    assert rows.dead[1:].tolist() == [0.5, 0.75]
    assert rows.strict.tolist() == [0, 50, 50]
    assert rows.lenient.tolist() == [50, 50, 50]
    assert rows["strict: a"].tolist() == [0, 100, 100]
    assert rows["strict: b"].tolist() == [0, 0, 0]


def curve(arm, seed, *accuracies, per_step=10) -> pd.DataFrame:
    """Rows of a run that was evaluated at every step."""
    steps = np.arange(len(accuracies))
    rows = pd.DataFrame({"arm": arm, "seed": seed, "step": steps, "strict": accuracies})
    costs = dict.fromkeys(equal_cost.COSTS, per_step * steps)
    return rows.assign(**costs, lenient=100.0, dead=0.5)


@pytest.mark.parametrize("times", [1, 2, 3])
def test_runs_on_one_line_have_one_score_whatever_they_spend_a_step(times):
    """All gain 10 points over 18,000 completions: from 12,000 to 18,000 the mean is that at 15,000,
    8.33; from 4,000 to 6,000 that at 5,000, 2.78."""
    per_step = 3000 * times
    line = np.arange(0, 18_001, per_step) / 1800
    run = curve("a", 1, *line, per_step=per_step)
    assert equal_cost.value_at(run, "strict", "completions", 18_000) == pytest.approx(25 / 3)
    assert equal_cost.value_at(run, "strict", "completions", 6000) == pytest.approx(25 / 9)


def test_below_the_first_evaluation_a_score_is_on_the_line_from_step_0():
    """From 8 to 12 the mean is that at 10, a third of the way to 6 points."""
    run = curve("a", 1, 0, 6, per_step=30)
    assert equal_cost.value_at(run, "strict", "completions", 12) == pytest.approx(2)


def test_there_is_no_score_beyond_the_last_evaluation():
    run = curve("a", 1, 0, 6, per_step=30)
    assert np.isnan(equal_cost.value_at(run, "strict", "completions", 31))


def test_gain_is_taken_at_the_amount_that_all_runs_reached():
    """The method spends twice as much a step: its second step is the baseline's last, 4. It is
    ahead by 10 and 30 points since its first: t = 20 / 10 with 1 degree of freedom."""
    base = pd.concat([curve("u", seed, 0, 5, 5, 5, 5) for seed in (1, 2, 3)])
    runs = [curve("m", seed, 0, x, x, 99, per_step=20) for seed, x in ((1, 15), (2, 35))]
    text = equal_cost.gain(pd.concat(runs), base, "strict", "completions")
    assert text == "+20.0 (-107.1 to +147.1) at 40, n = 2"


def test_gain_of_one_seed_has_no_interval():
    text = equal_cost.gain(curve("m", 1, 0, 7, 7), curve("u", 1, 0, 5, 5), "strict", "completions")
    assert text == "+2.0 at 20, n = 1"


def test_gain_is_marked_if_a_run_has_no_evaluation_in_the_last_third():
    """The method is evaluated at 50, where it has 8, not from 20 to 30: its mean there is 4."""
    base = curve("u", 1, 0, 5, 5, 5)
    rare = curve("m", 1, 0, 8, 8, per_step=50)
    text = equal_cost.gain(rare, base, "strict", "completions")
    assert text == "-1.0 at 30, n = 1, interpolated"


def test_gain_without_a_common_seed_is_missing():
    text = equal_cost.gain(curve("m", 1, 0, 7), curve("u", 2, 0, 5), "strict", "completions")
    assert text == "–"


def test_the_report_and_the_figure_are_of_the_csv(plan, tmp_path, capsys):
    csv = tmp_path / "scores.csv"
    rows = pd.concat([curve("uniform", 1, 0, 5, 5), curve("a/b", 1, 0, 7, 7)])
    rows.to_csv(csv, index=False)
    real_model.main(["report", str(tmp_path / "plan.toml"), "--csv", str(csv)])
    printed = capsys.readouterr().out
    assert "| uniform | 1 | 0.0% | 5.0% | 50% | – |" in printed
    assert "| a/b | 1 | 0.0% | 7.0% | 50% | +2.0 at 20, n = 1 |" in printed
    assert csv.with_suffix(".png").exists()


def test_the_csv_of_another_command_is_rejected(plan, tmp_path, capsys):
    csv = tmp_path / "scores.csv"
    csv.write_text("task,sampler,seed\nsums,uniform,0\n")
    with pytest.raises(SystemExit, match="2"):
        real_model.main(["report", str(tmp_path / "plan.toml"), "--csv", str(csv)])
    assert capsys.readouterr().err.startswith(f"real_model: {csv}: has no column arm")


def test_more_arms_in_the_figure_than_colours_are_rejected(plan, tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        real_model.main(["report", str(tmp_path / "plan.toml"), "--draw", *"abcdefgh"])
    assert capsys.readouterr().err == "real_model: --draw: at most 7 arms\n"


def finish(job: Job, evaluated: Path, status: int = 0) -> None:
    """Write the files of a run of this job, with the logs of `evaluated` and its one process."""
    old = json.loads((evaluated / "config.json").read_text())
    shutil.copytree(evaluated, job.run)
    facts = old | asdict(job.config())
    (job.run / "config.json").write_text(json.dumps(facts))
    process = {"flags": job.flags, "status": status, "cpu_seconds": 1, "wall_seconds": 1}
    write_lines(job.usage, [process])


@pytest.fixture
def study(plan, evaluated, tmp_path) -> Plan:
    """The plan, with the validation data of `evaluated`."""
    text = (tmp_path / "plan.toml").read_text()
    text = text.replace("--steps 4", f"--steps 4 --val_data {tmp_path / 'val.jsonl'}")
    (tmp_path / "plan.toml").write_text(text)
    return Plan.read(tmp_path / "plan.toml")


def test_a_table_has_the_finished_runs(study, evaluated, tmp_path, capsys):
    finish(study.jobs()[0], evaluated)
    finish(study.jobs()[1], evaluated, status=143)
    csv = tmp_path / "scores.csv"
    real_model.main(["table", str(tmp_path / "plan.toml"), "--csv", str(csv)])
    rows = pd.read_csv(csv)
    assert set(rows.arm) == {"uniform"}
    assert rows.strict.tolist() == [0, 50, 50]
    assert f"note: {study.jobs()[1].run} is not finished" in capsys.readouterr().err


METRICS = {"empty": [], "step 0": [{"step": 0}], "evaluated": [{"step": 0, "val_accuracy": 0.5}]}


@pytest.mark.parametrize("case", METRICS)
def test_a_run_without_an_evaluation_after_step_0_is_left_out(case, study, evaluated, capsys):
    jobs = study.jobs()[:2]
    for job in jobs:
        finish(job, evaluated)
    write_lines(jobs[0].run / "metrics.jsonl", METRICS[case])
    assert real_model.to_score(jobs) == jobs[1:]
    note = f"note: {jobs[0].run} has no evaluation after step 0\n"
    assert capsys.readouterr().err == note


def test_a_run_of_other_flags_than_the_plans_is_rejected(study, evaluated):
    finish(study.jobs()[0], evaluated)
    study.arms["uniform"]["flags"] += " --resample_rounds 2"
    error = "uniform/seed1 differs from the plan: resample_rounds was 0, is 2"
    with pytest.raises(InputError, match=error):
        real_model.all_scores(study)


def finish_with(fact: str, values: dict[Job, object], evaluated: Path) -> None:
    """Write the files of these jobs' runs, with a value of a fact in each one's config.json."""
    for job, value in values.items():
        finish(job, evaluated)
        path = job.run / "config.json"
        config = json.loads(path.read_text())
        path.write_text(json.dumps(config | {fact: value}))


@pytest.mark.parametrize("fact", ["model_files", "teacher_model_files"])
def test_runs_of_a_seed_from_a_model_that_was_made_again_are_rejected(fact, study, evaluated):
    first, second, _ = study.jobs()
    values = {first: {"model.safetensors": 1}, second: {"model.safetensors": 2}}
    finish_with(fact, values, evaluated)
    with pytest.raises(InputError, match="began from different files of"):
        real_model.to_score([first, second])


def test_seeds_of_different_data_are_rejected(study, evaluated):
    first, _, second = study.jobs()
    finish_with("train_data_crc32", {first: 1, second: 2}, evaluated)
    with pytest.raises(InputError, match="began from different files of"):
        real_model.to_score([first, second])


@pytest.mark.parametrize("fact", ["model_files", "teacher_model_files"])
def test_another_seed_may_begin_from_a_model_that_was_made_again(fact, study, evaluated):
    first, _, second = study.jobs()
    values = {first: {"model.safetensors": 1}, second: {"model.safetensors": 2}}
    finish_with(fact, values, evaluated)
    assert real_model.to_score([first, second]) == [first, second]


def test_scores_have_the_checksum_of_the_weights_that_a_run_began_from(study, evaluated):
    job = study.jobs()[0]
    finish_with("model_files", {job: {"config.json": 5, "model.safetensors": 11}}, evaluated)
    rows = real_model.all_scores(study)
    assert rows.model_crc32.tolist() == ["11"] * 3


def add(study: Plan, evaluated: Path, tmp_path: Path, old: pd.DataFrame) -> pd.DataFrame:
    """Add the plan's first run, uniform's seed 1, to old rows; return the CSV."""
    finish(study.jobs()[0], evaluated)
    csv = tmp_path / "scores.csv"
    old.to_csv(csv, index=False)
    real_model.main(["table", str(tmp_path / "plan.toml"), "--csv", str(csv), "--add"])
    return pd.read_csv(csv)


def test_add_keeps_the_other_runs_of_the_csv(study, evaluated, tmp_path):
    old = [curve("uniform", seed, 7, 7).assign(model_crc32=7) for seed in (1, 9)]
    rows = add(study, evaluated, tmp_path, pd.concat(old))
    assert rows.seed.tolist() == [1, 1, 1, 9, 9]
    assert rows.strict.tolist() == [0, 50, 50, 7, 7]


def test_add_accepts_a_pair_of_one_model(study, evaluated, tmp_path):
    """That of `evaluated`."""
    old = curve("a/b", 1, 7, 7).assign(model_crc32=6)
    rows = add(study, evaluated, tmp_path, old)
    assert rows.arm.tolist() == ["a/b"] * 2 + ["uniform"] * 3


BAD_CSVS = {  # old rows, error
    "a pair of two models": (
        curve("a/b", 1, 7, 7).assign(model_crc32=8),
        "--add: seed 1 has runs of models 8 and 6: choose new seeds",
    ),
    "no checksum": (curve("a/b", 1, 7, 7), "--add: rows of the CSV lack the model's checksum"),
}


@pytest.mark.parametrize("case", BAD_CSVS)
def test_add_rejects_a_csv_and_keeps_it(case, study, evaluated, tmp_path, capsys):
    old, error = BAD_CSVS[case]
    with pytest.raises(SystemExit, match="2"):
        add(study, evaluated, tmp_path, old)
    assert f"real_model: {error}" in capsys.readouterr().err
    assert len(pd.read_csv(tmp_path / "scores.csv")) == 2


UNUSED = {  # the command and its flags: the error
    "report --add": "--add: report does not use it",
    "table --jobs 3": "--jobs: table does not use it",
    "run --draw uniform": "--draw: run does not use it",
    "run --until 18:00 --minutes 5": "--until, --minutes: give one of them",
}


@pytest.mark.parametrize("line", UNUSED)
def test_a_flag_that_the_command_does_not_use_is_rejected(line, plan, tmp_path, capsys):
    command, *flags = line.split()
    with pytest.raises(SystemExit, match="2"):
        real_model.main([command, str(tmp_path / "plan.toml"), *flags])
    assert capsys.readouterr().err == f"real_model: {UNUSED[line]}\n"


def test_a_longer_plan_does_not_reject_its_runs(study, evaluated):
    finish(study.jobs()[0], evaluated)
    study.flags += " --steps 8"
    assert real_model.to_score(study.jobs()) == []


def test_lenient_scores_are_by_the_reward_of_the_run(study, evaluated, tmp_path):
    """The first answer, without a box, is right, but this reward accepts none."""
    reward = tmp_path / "none.py"
    reward.write_text("def compute_score(*args, **kwargs):\n    return 0.0\n")
    study.arms["uniform"]["flags"] += f" --reward {reward}"
    finish(study.jobs()[0], evaluated)
    assert real_model.all_scores(study).lenient.tolist() == [0, 50, 50]
