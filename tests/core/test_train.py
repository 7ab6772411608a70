"""train.py: flags, one step, whole runs of every layout, resume, determinism.

Bad input is in test_bad_input.py, faults are in test_faults.py.
"""

import math
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

import train
from plumbing.files import read_lines, write_lines
from plumbing.progress import Stopwatch
from rollout import Rollouts
from sampler import Selections
from scripts.sources import SOURCES
from tests.helpers.ranks import (
    DEMO,
    agent,
    command,
    free_port,
    metrics_of,
    parse,
    run,
    same_run,
    shell,
)

# ---- flags and arithmetic


def test_bare_command_is_the_papers_main_run():
    c = parse()
    assert c.model == c.teacher_model == "Qwen/Qwen2.5-1.5B"
    assert c.prompts_per_step * c.group_size == 288
    assert (c.learning_rate, c.group_size, c.temperature) == (1e-5, 16, 0.7)  # Table 5a
    assert (c.max_prompt_tokens, c.max_completion_tokens) == (1024, 2048)
    assert (c.kl_coef, c.update_iterations, c.eval_every) == (0.0, 1, 200)
    assert (c.teacher_learning_rate, c.teacher_batch_size, c.teacher_epochs) == (1e-6, 8, 4)  # 5b
    assert (c.candidates, c.epsilon) == (8, 0.2)
    assert (c.replay_capacity, c.teacher_update_every) == (64, 4)


PAPER = {  # Table 6 and App. K.1: steps, those of the baseline, rows a device
    "olmo2-1b": (20_000, 26_800, 4),
    "qwen2.5-1.5b": (20_000, 26_800, 4),
    "qwen3-4b": (8_000, 10_800, 3),
    "phi-4-mini": (10_000, 13_400, 3),
}


@pytest.mark.parametrize("preset", PAPER)
def test_presets_have_the_papers_steps(preset):
    c, baseline = parse("--preset", preset), ("--preset", preset, "--sampler", "uniform")
    assert (c.steps, parse(*baseline).steps, c.per_device_batch_size) == PAPER[preset]
    assert parse(*baseline, "--steps", 7).steps == 7
    for every in (3, 10_000):  # how often it is evaluated does not matter
        assert parse(*baseline, "--eval_every", every).steps == parse(*baseline).steps


def test_the_arithmetic_of_one_gpu(layout):
    """128 completions a step, in one process or up to 8; no problem of MATH's 12,000 twice."""
    c, baseline = parse("--preset", "one-gpu"), parse("--preset", "one-gpu", "--sampler", "uniform")
    assert c.prompts_per_step * c.group_size == 128
    assert c.learning_rate == pytest.approx(1e-5 * (128 / 288) ** 0.5, rel=0.12)  # 6.7e-6
    assert (c.steps, baseline.steps) == (400, 550)  # 4/3 x 400 = 533, to the next evaluation
    assert baseline.steps * c.prompts_per_step + c.prompts_per_step * c.candidates < 12_000
    assert [layout(n, "--preset", "one-gpu").n_students for n in (1, 2, 4, 8)] == [1, 2, 4, 8]


def test_what_presets_train_on_is_a_source():
    """A file that is missing is prepared only if its path names a line of SOURCES."""
    for preset in set(train.PRESETS) - {"demo"}:
        config = train.parse(["--preset", preset])
        for path in (config.train_data, config.val_data):
            data, source, _ = Path(path).parts
            assert data == "data" and source in SOURCES


@pytest.fixture
def layout(monkeypatch):
    """The layout of so many ranks."""

    def layout(world, *flags):
        monkeypatch.setenv("WORLD_SIZE", str(world))
        return train.Layout(parse(*flags))

    return layout


@pytest.mark.parametrize(("world", "teachers"), [(8, 2), (4, 1), (1, 0), (16, 4)])
def test_default_layout(world, teachers, layout):
    goldilocks, uniform = layout(world), layout(world, "--sampler", "uniform")
    assert (goldilocks.n_students, goldilocks.n_teachers) == (world - teachers, teachers)
    assert (uniform.n_students, uniform.n_teachers) == (world, 0)


IMPOSSIBLE = {  # ranks, flags -> what would let 7 student ranks, or others, share a step
    (8, "--teacher_ranks 1"): "--prompts_per_step 14 or 21, or --teacher_ranks 2 or 0",
    (7, "--sampler uniform"): "--prompts_per_step 14 or 21, or 6 or 8 ranks",
    (8, "--teacher_ranks 1 --prompts_per_step 3"): "--prompts_per_step 7, or --teacher_ranks 2 or",
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_an_impossible_layout_says_what_would_work(case, layout):
    """The nearest on both sides: 7 is no factor of 16, so that the prompts must be a multiple."""
    world, flags = case
    with pytest.raises(ValueError, match="7 student ranks: use " + IMPOSSIBLE[case]) as refusal:
        layout(world, *flags.split())
    assert "\n" not in str(refusal.value)


GPUS = {  # ranks, those of this machine, this rank, GPUs -> this rank's, or what is wrong
    (8, 8, 1, 8): 1,
    (8, 8, 7, 6): 1,  # a teacher may share a student's
    (8, 8, 1, 5): "6 student ranks on a machine with 5 GPUs",
    (2, 2, 1, 1): 0,
    (3, 3, 1, 1): "2 student ranks on a machine with 1 GPU:",
    (8, 4, 5, 2): 1,  # of the second machine: students 4 and 5, teachers 6 and 7
}


@pytest.mark.parametrize("case", GPUS)
def test_ranks_of_a_role_have_a_gpu_each(case, layout, monkeypatch):
    world, here, rank, devices = case
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    names = {"LOCAL_WORLD_SIZE": here, "RANK": rank, "LOCAL_RANK": rank % here}
    for name, value in names.items():
        monkeypatch.setenv(name, str(value))
    wrong = isinstance(GPUS[case], str)
    with pytest.raises(ValueError, match=GPUS[case]) if wrong else nullcontext():
        found = layout(world, "--teacher_ranks", max(1, world // 4))
        assert found.device == torch.device("cuda", GPUS[case])


def test_lines_survive_nan(tmp_path):
    write_lines(tmp_path / "a" / "x.jsonl", [{"a": math.nan, "b": [1.0, math.inf]}])
    assert read_lines(tmp_path / "a" / "x.jsonl") == [{"a": None, "b": [1.0, None]}]
    assert read_lines(tmp_path / "none.jsonl") == []


# ---- one step


def stand_ins(rounds, *flags):
    """A student and a sampler whose rounds of 3 groups have these rewards; their calls, in order.
    The completions of round r are [10 r], [10 r + 1], ..."""
    calls, proposed, rolled = Mock(), [], []
    for r, rewards in enumerate(rounds):
        ids = [[10 * r + b] for b in range(6)]
        proposed.append(Selections.unscored(np.arange(3) + 10 * r))
        rolled.append(Rollouts(ids, ids, [True] * 6, [[0.0]] * 6, rewards, ["wrong"] * 6))
    calls.sampler.propose.side_effect, calls.student.rollout.side_effect = proposed, rolled
    calls.sampler.metrics.return_value = calls.student.update.return_value = {}
    calls.student.config = parse("--prompts_per_step", 3, "--group_size", 2, *flags)
    return calls


ONE, TWO = [0.0, 0, 1, 0, 1, 1], [0.0, 1, 0, 0, 1, 0]


def test_a_step_goes_as_figure_1():
    calls = stand_ins([ONE, TWO], "--resample_rounds", 2)
    metrics = train.train_step(7, calls.student, calls.sampler, None, calls.log)
    turn = ["sampler.propose", "student.layout.agree", "student.rollout", "sampler.observe"]
    order = [name for name, *_ in calls.mock_calls if not name.endswith("metrics")]
    assert order == [*turn, *turn, "log", "student.update"]
    told = [call.args[1].tolist() for call in calls.sampler.observe.call_args_list]
    assert told == [[0, 1, 2], [1, 0, 1]]
    asked = (call.args[1:4:2] for call in calls.student.rollout.call_args_list)
    index_B, streams = zip(*asked, strict=True)
    assert index_B[1] == [10, 10, 11, 11, 12, 12] and streams == ((1, 7, 0), (1, 7, 1))
    (batch, step), _ = calls.student.update.call_args
    assert batch.completion_ids == [[2], [3], [10], [11], [14], [15]] and step == 7
    assert batch.rewards == [1, 0, 0, 1, 1, 0]
    assert len(calls.log.call_args.args[2]) == 12  # what is left out is logged and counted too
    assert metrics["groups"] == 6 and metrics["zero_variance"] == 0.5
    assert metrics["completion_tokens"] == 12 and metrics["total_tokens"] == 24
    assert metrics["reward_mean"] == pytest.approx(5 / 12)


def test_where_live_groups_are_short_dead_ones_fill_up():
    calls = stand_ins([ONE, [0.0, 0, 0, 1, 0, 0]], "--resample_rounds", 1)
    train.train_step(1, calls.student, calls.sampler, None)
    (batch, _), _ = calls.student.update.call_args
    assert batch.completion_ids == [[0], [1], [2], [3], [12], [13]]


def test_ranks_take_rows_that_follow_each_other(layout):
    """8 rows over 3 ranks: each row once, in order, and no rank has two more than another."""
    student = layout(3, "--preset", "demo", "--sampler", "uniform")
    parts = []
    for student.rank in range(3):
        parts.append(student.share([*"abcdefgh"]))
    assert parts == [(0, ["a", "b"]), (2, ["c", "d", "e"]), (5, ["f", "g", "h"])]


def test_a_rollout_has_a_seed_of_64_bits():
    """Of 32 bits, two of a run's 20,000 steps would share random numbers in one run of 22."""
    student = Mock(config=parse("--preset", "demo"), encode=lambda question: [1])
    student.layout.share.return_value = 0, [0]
    student.generator.generate.side_effect = StopIteration  # enough
    with pytest.raises(StopIteration):
        train.Student.rollout(student, Mock(), [0], 1.0, (1, 7, 0), Stopwatch())
    assert student.generator.generate.call_args.args[3] > 2**40


# ---- whole runs


@pytest.fixture(scope="module")
def alone(tmp_path_factory, halfway):
    """One process, the teacher in it."""
    folder = tmp_path_factory.mktemp("alone") / "run"
    succeeded, said = shell(command(folder, model=DEMO, data=halfway))
    assert succeeded, said
    return folder, said


@pytest.mark.slow
def test_one_process_leaves_what_the_design_promises(alone):
    folder, said = alone
    assert "6 prompts x 4 = 24, 24 a student rank" in said and "validation accuracy:" in said
    assert said.count("note: a step takes ") == 1
    rows = read_lines(folder / "metrics.jsonl")
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4]
    assert [row["step"] for row in rows if "val_accuracy" in row] == [0, 2, 4]
    keys = "reward_mean reward_std_group reward_std_batch zero_variance zero_variance_easy"
    keys += " zero_variance_hard grad_norm loss entropy clip_fraction truncated no_box logp_gap"
    keys += " completion_tokens total_tokens learning_rate seconds eval_s rollout_s verify_s"
    keys += " train_s teacher_wait_s teacher_mae teacher_mae_explore teacher_mae_dead"
    keys += " teacher_noise_floor teacher_mu teacher_sigma"
    assert set(keys.split()) <= set(rows[-1])
    # Generator and policy are one model in float32: refresh has brought the last update's weights.
    gaps = [row["logp_gap"] for row in rows[1:] if row["logp_gap"] is not None]
    assert gaps and max(gaps) < 1e-5
    chosen = read_lines(folder / "selections.jsonl")
    assert len(chosen) == 24 == len({row["chosen"] for row in chosen})  # nothing twice in a pass
    assert all(row["chosen"] in row["pool"] and len(row["utilities"]) == 4 for row in chosen)
    last = sum(row["successes"] for row in chosen if row["step"] == 4)
    assert rows[4]["reward_mean"] == pytest.approx(last / 24)  # the log agrees with itself
    verdicts = read_lines(folder / "evals/step_4.jsonl")
    assert [v["problem"] for v in verdicts] == list(range(len(verdicts)))
    assert np.mean([v["reward"] for v in verdicts]) == pytest.approx(rows[-1]["val_accuracy"])
    assert read_lines(folder / "samples.jsonl")[0]["prompt"].endswith("\n\nSolution:")
    AutoTokenizer.from_pretrained(folder / "student")
    AutoModel.from_pretrained(folder / "teacher/backbone")
    student = AutoModelForCausalLM.from_pretrained(folder / "student").state_dict()
    base = AutoModelForCausalLM.from_pretrained(DEMO).state_dict()
    assert not any(torch.equal(base[name], student[name]) for name in base)  # all are trained


KILL = """
import os, signal
from sampler import Goldilocks

class Kill(Goldilocks):
    def observe(self, *outcomes):
        super().observe(*outcomes)
        if self.teacher.pushed == 18 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_torchrun_restarts_a_run_whose_teacher_is_killed(alone, halfway, tmp_path):
    """A student and a teacher rank against the teacher in one process: every number the same."""
    (tmp_path / "kill.py").write_text(KILL)
    flags = ("--teacher_ranks", 1, "--sampler", f"{tmp_path}/kill.py:Kill")
    argv = command(tmp_path / "run", *flags, model=DEMO, data=halfway)
    how = ("--nproc_per_node", 2, "--max-restarts", 1, "--master_port", free_port())
    torchrun = agent(train.main, argv, tmp_path / "said", *how)
    torchrun.join()
    said = (tmp_path / "said").read_text()
    assert torchrun.exitcode == 0, said
    assert said.count("error: ") == said.count("error: a rank died") == 1
    assert "2 = 1 student + 1 teacher" in said and said.count("validation accuracy:") == 1
    assert "steps    0 to 4" in said and "steps    2 to 4" in said
    same_run(alone[0], tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize(("lag", "each"), [(0, 1), (1, 2)])
def test_ranks_repeat_and_resume_bit_for_bit(lag, each, halfway, tmp_path):
    """Once without a stop and once in two parts, with so many ranks of each role: all numbers and
    weights the same."""

    def go(name, steps):
        flags = ("--teacher_ranks", each, "--teacher_lag", lag, "--eval_every", 1, "--steps", steps)
        run(tmp_path / name, *flags, ranks=2 * each, data=halfway)

    go("whole", 3)
    go("parts", 2)
    with (tmp_path / "parts/metrics.jsonl").open("a") as file:
        # As if it had gone on before it died, the last line torn.
        file.write('{"step": 3, "reward_mean": 9}\n{"step": 4, "rew')
    go("parts", 3)
    same_run(tmp_path / "whole", tmp_path / "parts")
    assert all(row["grad_norm"] > 0 for row in metrics_of(tmp_path / "whole")[1:])  # it did train


@pytest.mark.slow
def test_a_checkpoint_before_the_teachers_first_update_changes_nothing(halfway, tmp_path):
    """torch steps an optimizer without state to save it. The 8th outcome comes in step 2."""
    flags = ("--teacher_update_every", 8, "--eval_every", 3, "--steps")
    run(tmp_path / "seldom", *flags, 3, data=halfway)
    run(tmp_path / "often", *flags, 1, data=halfway)
    run(tmp_path / "often", *flags, 3, "--checkpoint_every", 1, data=halfway)
    rows = read_lines(tmp_path / "often/metrics.jsonl")
    del rows[1]["val_accuracy"]  # evaluated as its last step
    write_lines(tmp_path / "often/metrics.jsonl", rows)
    same_run(tmp_path / "seldom", tmp_path / "often")


@pytest.mark.slow
def test_every_option_at_once(tmp_path, tiny_model, tiny_data):
    flags = "--loss dapo --resample_rounds 2 --update_iterations 2 --kl_coef 0.01 --keep 1"
    flags += " --entropy_coef 0.0003 --dead_rows out --advantage_std sample --teacher_lag 0"
    flags += " --lr_schedule linear --activation_checkpointing --teacher_mode lora --steps 2"
    flags += " --group_size 2 --prompts_per_step 8"
    run(tmp_path / "run", *flags.split(), ranks=2, model=tiny_model, data=tiny_data)
    rows = read_lines(tmp_path / "run/metrics.jsonl")
    assert [row["learning_rate"] for row in rows[1:]] == pytest.approx([2e-4, 1e-4])
    assert 8 < max(row["groups"] for row in rows[1:]) <= 24  # dead groups cost more rounds
    assert all(row["kl"] >= 0 and row["forwarded_rows"] == 16 for row in rows[1:])
    assert [p.name for p in (tmp_path / "run/checkpoints").iterdir()] == ["step_2"]
