"""train.py: flags and arithmetic, whole runs of every layout, resume, determinism. Bad input: test_bad_input.py."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from ranks import on_ranks

import train
from rollout import Rollouts
from sampler import Selections

ROOT = Path(train.__file__).parent
DEMO = ROOT / "demo/model"


# ---- flags and arithmetic


def parse(*flags):
    return train.parse([str(f) for f in flags])


def test_bare_command_is_the_papers_main_run():
    c = parse()
    assert (c.model, c.teacher_model) == ("Qwen/Qwen2.5-1.5B", "Qwen/Qwen2.5-1.5B")
    assert c.prompts_per_step * c.group_size == 288
    table_5a = (
        c.learning_rate,
        c.max_prompt_tokens,
        c.max_completion_tokens,
        c.group_size,
        c.temperature,
    )
    assert table_5a == (1e-5, 1024, 2048, 16, 0.7)
    assert (c.kl_coef, c.update_iterations, c.eval_every) == (0.0, 1, 200)
    table_5b = (
        c.teacher_learning_rate,
        c.teacher_batch_size,
        c.teacher_epochs,
        c.candidates,
        c.epsilon,
    )
    assert table_5b == (1e-6, 8, 4, 8, 0.2)
    assert (c.replay_capacity, c.teacher_update_every) == (64, 4)


@pytest.mark.parametrize(
    ("preset", "goldilocks", "baseline", "per_device"),
    [  # Table 6 and App. K.1
        ("olmo2-1b", 20_000, 26_800, 4),
        ("qwen2.5-1.5b", 20_000, 26_800, 4),
        ("qwen3-4b", 8_000, 10_800, 3),
        ("phi-4-mini", 10_000, 13_400, 3),
    ],
)
def test_presets_have_the_papers_steps(preset, goldilocks, baseline, per_device):
    c = parse("--preset", preset)
    assert (c.steps, c.per_device_batch_size) == (goldilocks, per_device)
    assert parse("--preset", preset, "--sampler", "uniform").steps == baseline
    assert parse("--preset", preset, "--sampler", "uniform", "--steps", 7).steps == 7


def test_flags_override_presets_and_every_field_is_a_flag():
    c = parse("--preset", "qwen3-4b", "--steps", 5, "--epsilon", 0.5, "--chat_template")
    assert (c.steps, c.epsilon, c.chat_template, c.teacher_model) == (
        5,
        0.5,
        True,
        "Qwen/Qwen3-1.7B",
    )
    assert c.checkpoint_every == c.eval_every == 200


def layout(world, *flags, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", str(world))
    return train.Layout(parse(*flags))


@pytest.mark.parametrize(
    ("world", "students", "teachers"), [(8, 6, 2), (4, 3, 1), (1, 1, 0), (16, 12, 4)]
)
def test_default_layout(world, students, teachers, monkeypatch):
    goldilocks = layout(world, monkeypatch=monkeypatch)
    assert (goldilocks.n_students, goldilocks.n_teachers) == (students, teachers)
    uniform = layout(world, "--sampler", "uniform", monkeypatch=monkeypatch)
    assert (uniform.n_students, uniform.n_teachers) == (world, 0)


def test_impossible_layouts_say_what_would_work(monkeypatch):
    with pytest.raises(
        ValueError, match=r"18 prompts x 16 = 288 .* 7 student ranks: use 1, 2, 3, 4, 6, 8, 9"
    ) as refusal:
        layout(8, "--teacher_ranks", 1, monkeypatch=monkeypatch)
    for flag in ("--prompts_per_step", "--group_size", "--per_device_batch_size need not divide"):
        assert flag in str(refusal.value)
    assert "\n" not in str(refusal.value)
    with pytest.raises(
        ValueError, match="--teacher_ranks 8 of 8 ranks leaves no student: at most 7"
    ):
        layout(8, "--teacher_ranks", 8, monkeypatch=monkeypatch)


def test_live_groups_come_first_where_there_are_several_rounds():
    def groups(rewards, first_row):
        rewards = torch.tensor(rewards, dtype=torch.float32)
        rows = [[first_row + i] for i in range(rewards.numel())]
        n = len(rewards)
        index_N_1 = np.arange(first_row, first_row + n)[:, None]
        chosen = Selections(index_N_1, np.full((n, 1), np.nan), np.zeros(n, int), np.zeros(n, bool))
        return train.Groups(
            chosen, Rollouts(rows, rows, [True] * len(rows), rows), rewards, ["correct"] * len(rows)
        )

    one = groups([[0, 0], [1, 0], [1, 1]], 0)
    two = groups([[0, 1], [0, 0], [1, 0]], 10)
    batch = one.live_first(3)
    assert batch.rollouts.completion_ids == one.rollouts.completion_ids
    assert torch.equal(batch.rewards_P_G, one.rewards_P_G)
    batch = (one + two).live_first(3)
    assert batch.rewards_P_G.tolist() == [[1, 0], [0, 1], [1, 0]]
    assert batch.rollouts.completion_ids == [[2], [3], [10], [11], [14], [15]]
    assert batch.selections.index_N.tolist() == [1, 10, 12]
    assert (
        len((one + two).live_first(4).rewards_P_G) == 4
    )  # short of live groups: dead ones fill up
    metrics = (one + two).metrics()
    assert metrics["groups"] == 6 and metrics["zero_variance"] == 0.5
    assert metrics["zero_variance_easy"] == pytest.approx(1 / 6)
    assert metrics["completion_tokens"] == 12 and metrics["total_tokens"] == 24
    assert metrics["reward_mean"] == pytest.approx(5 / 12)
    assert metrics["reward_std_group"] == pytest.approx(0.25)
    assert metrics["reward_std_batch"] == pytest.approx(
        np.std([0, 0, 1, 0, 1, 1, 0, 1, 0, 0, 1, 0])
    )
    assert metrics["teacher_mae"] is None


def test_lines_survive_nan(tmp_path):
    train.write_lines(tmp_path / "a" / "x.jsonl", [{"a": math.nan, "b": [1.0, math.inf]}])
    assert train.read_lines(tmp_path / "a" / "x.jsonl") == [{"a": None, "b": [1.0, None]}]
    assert train.read_lines(tmp_path / "none.jsonl") == []


# ---- whole runs


def command(folder, *flags, model, data):
    """Flags of a small run on the tiny model; `flags` come last and win."""
    small = {
        "preset": "demo",
        "out": folder,
        "prompts_per_step": 6,
        "group_size": 4,
        "candidates": 4,
        "steps": 4,
    }
    small |= {"max_completion_tokens": 32, "eval_every": 2, "model": model}
    if not {"uniform", "thompson", "skip", "category", "static"} & {*flags}:
        small["teacher_model"] = model
    small |= {"train_data": f"{data}/train.jsonl", "val_data": f"{data}/val.jsonl"}
    return [str(x) for name, value in small.items() for x in (f"--{name}", value)] + [
        str(f) for f in flags
    ]


def run(folder, *flags, ranks=1, model, data):
    """A run that succeeds, in forked ranks."""
    return on_ranks(
        ranks, folder.parent, lambda: train.main(command(folder, *flags, model=model, data=data))
    )


def shell(folder, *flags, ranks=0, model, data, code=0):
    """The same from the shell, under torchrun where ranks > 0; returns what was printed."""
    launcher = ["-m", "torch.distributed.run", "--nproc_per_node", str(ranks)] if ranks else []
    line = [
        sys.executable,
        *launcher,
        str(ROOT / "train.py"),
        *command(folder, *flags, model=model, data=data),
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(line, capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode == 0) == (code == 0), done.stdout + done.stderr
    return done.stdout + done.stderr


def metrics_of(folder):
    """metrics.jsonl without what a clock measured."""
    rows = train.read_lines(folder / "metrics.jsonl")
    return [
        {k: v for k, v in row.items() if k != "seconds" and not k.endswith("_s")} for row in rows
    ]


def same_run(a, b):
    assert metrics_of(a) == metrics_of(b)
    assert (a / "selections.jsonl").read_text() == (b / "selections.jsonl").read_text()
    for name in (
        "student/model.safetensors",
        "teacher/backbone/model.safetensors",
        "teacher/head.safetensors",
    ):
        assert not (a / name).exists() or (a / name).read_bytes() == (b / name).read_bytes(), name


@pytest.fixture(scope="module")
def alone(tmp_path_factory, halfway):
    """One process, the teacher in it."""
    folder = tmp_path_factory.mktemp("alone") / "run"
    output = shell(folder, model=DEMO, data=halfway)
    return folder, output


@pytest.mark.slow
def test_one_process_leaves_what_the_design_promises(alone):
    folder, output = alone
    assert "6 prompts x 4 = 24, 24 a student rank" in output and "validation accuracy:" in output
    rows = train.read_lines(folder / "metrics.jsonl")
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4]
    assert [row["step"] for row in rows if "val_accuracy" in row] == [0, 2, 4]
    keys = "reward_mean reward_std_group reward_std_batch zero_variance zero_variance_easy zero_variance_hard "
    keys += "grad_norm loss entropy clip_fraction truncated no_box completion_tokens total_tokens learning_rate "
    keys += (
        "seconds eval_s rollout_s verify_s train_s teacher_wait_s teacher_mae teacher_mae_explore "
    )
    keys += "teacher_mae_dead teacher_noise_floor teacher_mu teacher_sigma logp_gap"
    assert set(keys.split()) <= set(rows[-1])
    # Generator and policy are one model in float32: so refresh has brought over the weights of the last update.
    assert all(row["logp_gap"] is None or row["logp_gap"] < 1e-5 for row in rows[1:])
    assert any(row["logp_gap"] is not None for row in rows[1:])
    chosen = train.read_lines(folder / "selections.jsonl")
    assert (
        len(chosen) == 4 * 6 and len({row["chosen"] for row in chosen}) == 24
    )  # nothing twice in a pass
    for row in chosen:
        assert row["chosen"] in row["pool"] and len(row["pool"]) == len(row["utilities"]) == 4
        assert row["y"] == pytest.approx(
            math.sqrt(row["successes"] / 4 * (1 - row["successes"] / 4))
        )
    by_step = {row["step"]: row for row in rows}
    for step in (1, 4):  # the log agrees with itself
        successes = np.array([row["successes"] for row in chosen if row["step"] == step])
        assert by_step[step]["reward_mean"] == pytest.approx(successes.mean() / 4)
        assert by_step[step]["zero_variance"] == pytest.approx(np.isin(successes, (0, 4)).mean())
    assert [p.name for p in sorted((folder / "evals").iterdir())] == [
        "step_0.jsonl",
        "step_2.jsonl",
        "step_4.jsonl",
    ]
    verdicts = train.read_lines(folder / "evals/step_4.jsonl")
    assert [v["problem"] for v in verdicts] == list(range(len(verdicts)))
    assert np.mean([v["reward"] for v in verdicts]) == pytest.approx(rows[-1]["val_accuracy"])
    assert train.read_lines(folder / "samples.jsonl")[0]["prompt"].endswith("\n\nSolution:")


@pytest.mark.slow
def test_exports_load_and_have_been_trained(alone):
    from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

    folder, _ = alone
    before = AutoModelForCausalLM.from_pretrained(DEMO).state_dict()
    after = AutoModelForCausalLM.from_pretrained(folder / "student").state_dict()
    AutoTokenizer.from_pretrained(folder / "student")
    AutoModel.from_pretrained(folder / "teacher/backbone")
    moved = [name for name in before if not torch.equal(before[name], after[name])]
    assert len(moved) == len(before)


@pytest.mark.slow
def test_teacher_on_its_own_rank_is_the_same_run(alone, halfway, tmp_path):
    """1 student + 1 teacher rank over the wire, against the teacher in-process: every number the same."""
    run(tmp_path / "two", "--teacher_ranks", 1, ranks=2, model=DEMO, data=halfway)
    same_run(alone[0], tmp_path / "two")


@pytest.mark.slow
@pytest.mark.parametrize("lag", [0, 1])
def test_four_ranks_repeat_and_resume_bit_for_bit(lag, halfway, tmp_path):
    """The same seed twice, once without a stop and once in two parts: every number and every weight the same."""

    def go(name, steps):
        flags = ("--teacher_lag", lag, "--steps", steps)
        run(tmp_path / name, *flags, ranks=4, model=DEMO, data=halfway)

    go("whole", 4)
    go("parts", 2)
    with (tmp_path / "parts/metrics.jsonl").open(
        "a"
    ) as file:  # as if it had gone on before it died
        file.write('{"step": 3, "reward_mean": 9}\n{"step": 4, "rew')  # the last line torn
    go("parts", 4)
    same_run(tmp_path / "whole", tmp_path / "parts")
    assert all(row["grad_norm"] > 0 for row in metrics_of(tmp_path / "whole")[1:])  # it did train


@pytest.mark.slow
def test_a_checkpoint_before_the_teachers_first_update_changes_nothing(halfway, tmp_path):
    """torch's get_state_dict steps an optimizer that has no state; the run must not notice."""
    flags = (
        "--teacher_update_every",
        8,
        "--steps",
        3,
        "--eval_every",
        3,
    )  # the 8th outcome comes in step 2
    run(tmp_path / "seldom", *flags, model=DEMO, data=halfway)
    run(tmp_path / "often", *flags, "--checkpoint_every", 1, model=DEMO, data=halfway)
    same_run(tmp_path / "seldom", tmp_path / "often")
    run(tmp_path / "parts", *flags[:3], 1, *flags[4:], model=DEMO, data=halfway)
    run(tmp_path / "parts", *flags, model=DEMO, data=halfway)
    rows, whole = metrics_of(tmp_path / "parts"), metrics_of(tmp_path / "seldom")
    assert [row["grad_norm"] for row in rows[1:]] == [row["grad_norm"] for row in whole[1:]]
    assert [row["teacher_mu"] for row in rows[1:]] == [row["teacher_mu"] for row in whole[1:]]


@pytest.mark.slow
def test_a_run_cannot_go_back(alone, halfway):
    output = shell(alone[0], "--steps", 2, model=DEMO, data=halfway, code=2)
    assert "--steps 2: the run in" in output and "is at step 4 already" in output


@pytest.mark.slow
def test_torchrun(halfway, tmp_path):
    flags = ("--steps", 1, "--teacher_ranks", 1)
    output = shell(tmp_path / "run", *flags, ranks=2, model=DEMO, data=halfway)
    assert "2 = 1 student + 1 teacher" in output and output.count("validation accuracy:") == 1
    assert (tmp_path / "run/teacher/backbone/model.safetensors").exists()


@pytest.mark.slow
def test_baseline_on_eight_ranks_with_groups_that_straddle_them(halfway, tmp_path):
    # 6 x 4 = 24 rows on 8 ranks: 3 rows a rank, so a group of 4 lies on two ranks.
    run(tmp_path / "run", "--sampler", "uniform", "--steps", 2, ranks=8, model=DEMO, data=halfway)
    rows = train.read_lines(tmp_path / "run/metrics.jsonl")
    assert len(rows) == 3 and rows[-1]["teacher_mae"] is None
    assert json.loads((tmp_path / "run/config.json").read_text())["student_ranks"] == 8
    assert not (tmp_path / "run/teacher").exists()


@pytest.mark.slow
def test_every_option_at_once(tmp_path, tiny_model, tiny_data):
    flags = "--loss dapo --resample_rounds 2 --update_iterations 2 --kl_coef 0.01 --entropy_coef 0.0003 "
    flags += (
        "--dead_rows out --advantage_std sample --lr_schedule linear --activation_checkpointing "
    )
    flags += "--teacher_mode lora --teacher_lag 0 --keep 1"
    run(tmp_path / "run", *flags.split(), ranks=2, model=tiny_model, data=tiny_data)
    rows = train.read_lines(tmp_path / "run/metrics.jsonl")
    assert [row["learning_rate"] for row in rows[1:]] == pytest.approx([2e-4, 1.5e-4, 1e-4, 0.5e-4])
    assert (
        max(row["groups"] for row in rows[1:]) == 18
    )  # the model is never right: 1 + 2 rounds of 6
    assert all(row["kl"] >= 0 for row in rows[1:]) and all(
        row["forwarded_rows"] == 24 for row in rows[1:]
    )
    assert [p.name for p in (tmp_path / "run/checkpoints").iterdir()] == ["step_4"]


@pytest.mark.parametrize(
    ("world", "devices", "says"),
    [
        (8, 8, None),
        (8, 6, None),  # a teacher may share a student's
        (8, 5, "6 student ranks on a machine with 5 GPUs"),
        (2, 1, None),
        (3, 1, "2 student ranks on a machine with 1 GPU:"),
    ],
)
def test_ranks_of_a_role_have_a_gpu_each(world, devices, says, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    for name, value in {
        "WORLD_SIZE": world,
        "LOCAL_WORLD_SIZE": world,
        "RANK": 1,
        "LOCAL_RANK": 1,
    }.items():
        monkeypatch.setenv(name, str(value))
    config = train.parse(["--teacher_ranks", str(max(1, world // 4))])
    if says is None:
        assert train.Layout(config).device == torch.device("cuda", 1 % devices)
        return
    with pytest.raises(ValueError, match=says):
        train.Layout(config)


def test_ranks_of_another_machine_do_not_need_a_gpu_here(monkeypatch):
    """Rank 5 of 8 is the second of the second machine, which has students 4 and 5, teachers 6 and 7."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for name, value in {"WORLD_SIZE": 8, "LOCAL_WORLD_SIZE": 4, "RANK": 5, "LOCAL_RANK": 1}.items():
        monkeypatch.setenv(name, str(value))
    assert train.Layout(train.parse(["--teacher_ranks", "2"])).device == torch.device("cuda", 1)


def test_a_rollout_has_a_seed_of_64_bits():
    """Of 32 bits, two of a run's 20,000 steps would share their random numbers in one run of 22."""
    seeds, student = [], object.__new__(train.Student)
    student.config = train.parse(["--preset", "demo"])
    student.layout = SimpleNamespace(n_students=1, rank=0)

    class Enough(Exception):
        pass

    def generate(prompts, temperature, limit, seed, *rest):
        seeds.append(seed)
        raise Enough

    student.generator = SimpleNamespace(generate=generate)
    for step in range(20):
        with pytest.raises(Enough):
            student.rollout([[1]], ["1"], 1.0, (1, step, 0), train.Stopwatch())
    assert len(set(seeds)) == 20 and 2**62 < max(seeds) < 2**64
