"""train.py: presets, one step, evaluation; whole runs: files, restart, resume, all options."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

import train
from grpo import Group
from plumbing.files import read_lines
from plumbing.metrics import TAIL, Stopwatch, graded_row
from sampler import Goldilocks, join
from scripts.sources import SOURCES
from tests.helpers import ranks
from tests.helpers.checks import rejected
from tests.helpers.groups import completion, group, problems_of
from tests.helpers.ranks import DEMO, ROOT, one_rank, parse
from tests.helpers.samplers import Numbers
from verify import Verdict

# Flags and presets

TABLES_5A_5B = {
    "model": "Qwen/Qwen2.5-1.5B",
    "teacher_model": "Qwen/Qwen2.5-1.5B",
    "prompts_per_step": 288 / 16,
    "learning_rate": 1e-5,
    "group_size": 16,
    "temperature": 0.7,
    "max_prompt_tokens": 1024,
    "max_completion_tokens": 2048,
    "kl_coef": 0.0,
    "update_iterations": 1,
    "eval_every": 200,
    "teacher_learning_rate": 1e-6,
    "teacher_batch_size": 8,
    "teacher_epochs": 4,
    "candidates": 8,
    "epsilon": 0.2,
    "replay_capacity": 64,
    "teacher_update_every": 4,
}


def test_the_bare_command_has_the_papers_settings():
    c = vars(parse())
    assert {name: c[name] for name in TABLES_5A_5B} == TABLES_5A_5B


PRESETS = {  # Table 6 and App. K.1: steps, steps of the baseline, rows a device
    "olmo2-1b": (20_000, 26_800, 4),
    "qwen2.5-1.5b": (20_000, 26_800, 4),
    "qwen3-4b": (8_000, 10_800, 3),
    "phi-4-mini": (10_000, 13_400, 3),
    "one-gpu": (400, 550, 4),  # not the paper's
}


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_have_the_papers_steps_or_its_rule_for_the_baseline(preset):
    """Unless --steps is given."""
    c = parse("--preset", preset)
    uniform = ("--preset", preset, "--sampler", "uniform")
    assert (c.steps, parse(*uniform).steps, c.per_device_batch_size) == PRESETS[preset]
    assert parse("--preset", preset, "--steps", 7).steps == 7
    assert parse(*uniform, "--steps", 7).steps == 7


@pytest.mark.parametrize("preset", [*PRESETS, "reasoning"])
def test_the_data_of_a_preset_can_be_prepared(preset):
    c = parse("--preset", preset)
    assert {Path(c.train_data).parts[1], Path(c.val_data).parts[1]} <= {*SOURCES}


def test_flags_of_the_teacher_are_accepted_and_ignored_without_one():
    """So that the commands of compared runs differ in --sampler alone."""
    flags = ("--teacher_epochs", 2, "--teacher_model", "x", "--teacher_ranks", 2, "--candidates", 4)
    c = parse("--sampler", "uniform", "--epsilon", 0.5, *flags)
    assert (c.teacher_model, c.teacher_ranks) == ("", 0)


def test_the_teacher_begins_as_the_students_model_unless_given():
    assert parse("--preset", "qwen3-4b", "--model", "mine").teacher_model == "mine"
    assert parse("--model", "mine", "--teacher_model", "other").teacher_model == "other"


def test_settings_of_a_sampler_are_checked_with_the_flags():
    with rejected("temperature=hot: settings are keyword arguments of Softmax(context"):
        parse("--sampler", "softmax", "--sampler_args", "temperature=hot")


# One step


def sizes(groups) -> str:
    """Write groups as problem x completions, for example "7x1 5x3"."""
    return " ".join(f"{each.problem}x{each.size}" for each in groups)


class ScriptedSampler:
    """Proposes problems 7 and 5, then more completions for 5, and problem 9. The student is to be
    trained on 9 and on all of 5, not on 7. Adds what it is asked to the calls."""

    def __init__(self, calls: list[str]):
        self.calls = calls

    def propose(self, P):
        self.calls.append(f"propose {P}")
        return [Group(7, size=1), Group(5, size=3)]

    def observe(self, groups):
        self.calls.append(f"observe {sizes(groups)}")

    def more(self, groups):
        self.calls.append(f"more {sizes(groups)}")
        return [Group(5, size=2), Group(9, size=2)] if len(groups) == 2 else []

    def train_on(self, groups):
        self.calls.append(f"train_on {sizes(groups)}")
        return join(groups)[:0:-1]

    def metrics(self):
        return {"own": 3, "loss": 99, "step": 99, "seconds": -1}


def turn(calls, n_problems=10, **replaced) -> dict:
    """Take step 4 of a run; return its metrics. The student draws completions of which the first of
    each round is right, and does not train. replaced: methods of the sampler."""

    def rollout(groups, problems, temperature, stream, watch):
        calls.append(f"rollout {stream}")
        for each in groups:
            each.completions = [completion() for _ in range(each.size)]
        groups[0].completions[0].reward = 1.0

    def update(groups, step):
        calls.append(f"update {sizes(groups)}")
        return {"loss": 0.5}

    def compare(proposals):
        calls.append(f"compare {proposals}")

    def log(step, groups, decode):
        calls.append(f"log {step} {sizes(groups)}")

    config = parse("--prompts_per_step", 2, "--group_size", 2)
    student = Mock(config=config, rollout=rollout, update=update)
    student.layout.assert_equal_in_role = compare
    sampler = ScriptedSampler(calls)
    vars(sampler).update(replaced)
    return train.train_step(4, student, sampler, range(n_problems), log)


def test_a_step_follows_figure_1():
    """Each round has its own random stream; all groups are logged, whatever is trained on."""
    calls = []
    turn(calls)
    assert calls == [
        "propose 2",
        "compare [(7, 1), (5, 3)]",
        "rollout (1, 4, 0)",
        "observe 7x1 5x3",
        "more 7x1 5x3",
        "compare [(5, 2), (9, 2)]",
        "rollout (1, 4, 1)",
        "observe 5x2 9x2",
        "more 7x1 5x3 5x2 9x2",
        "log 4 7x1 5x3 5x2 9x2",
        "train_on 7x1 5x3 5x2 9x2",
        "update 9x2 5x5",
    ]


def test_the_metrics_of_a_step_are_over_its_problems_and_win_over_a_samplers():
    """7 has one right answer of one; 5 has one of five, from the second round; 9 has none."""
    metrics = turn([])
    assert (metrics["groups"], metrics["completions"]) == (3, 8)
    assert metrics["reward_mean"] == 2 / 8
    assert metrics["zero_variance"] == pytest.approx(2 / 3)
    assert metrics["trained_live"] == 1 / 2
    assert (metrics["own"], metrics["loss"], metrics["step"]) == (3, 0.5, 4)
    assert metrics["seconds"] > 0


def test_a_bad_proposal_is_rejected_before_anything_is_drawn():
    calls = []
    with rejected("must be new groups of distinct problems below 7"):
        turn(calls, n_problems=7)
    assert calls == ["propose 2"]


def test_a_step_without_a_proposal_is_rejected():
    with rejected("the sampler proposed no problem in this step"):
        turn([], propose=lambda P: [])


def test_a_completion_cannot_be_trained_on_twice():
    with rejected("the sampler's train_on returns a completion twice"):
        turn([], train_on=lambda groups: groups + join(groups))


# The student's part


class FewProblems:
    """Question i is "i" and its answer "gold i"."""

    def question(self, index):
        return str(index)

    def golds(self, indices):
        return [f"gold {index}" for index in indices], [{} for _ in indices]


@pytest.fixture
def student() -> train.Student:
    """A student without a policy. Its generator makes completions of one token, which are right;
    the reference answer of problem 4 cannot be verified. Problem i has a prompt of i tokens."""
    student = object.__new__(train.Student)
    student.config = parse("--preset", "demo", "--max_prompt_tokens", 4)
    student.layout = one_rank()
    student.tokenizer = Mock(decode=lambda ids: "".join(map(str, ids)))
    student.encode = lambda question: [5] * int(question)
    student.generator, student.verifier = Mock(), Mock()
    student.generator.generate.side_effect = lambda prompts, *_, **__: [
        completion() for _ in prompts
    ]
    student.verifier.grade.side_effect = lambda texts, *_: [Verdict(1.0, "correct") for _ in texts]
    student.verifier.check_golds.side_effect = lambda golds, *_: [
        gold != "gold 4" for gold in golds
    ]
    return student


def roll_out(student, *groups, stream=(1, 6, 0)):
    """Let the student draw and grade the completions of groups; return what the generator got."""
    student.rollout([*groups], FewProblems(), 0.7, stream, Stopwatch())
    return student.generator.generate.call_args


def rewards_of(*groups) -> list[float]:
    return [each.reward for one in groups for each in one.completions]


def test_a_rollout_draws_a_graded_completion_for_each_place_of_a_group(student):
    """A reference answer is checked once; one that cannot be verified earns nothing."""
    three, four = Group(3, size=2), Group(4, size=1)
    asked = roll_out(student, three, four)
    assert asked.args[0] == [[5] * 3, [5] * 3, [5] * 4]
    assert four.prompt_ids == [5] * 4
    assert rewards_of(three, four) == [1, 1, 0]
    assert four.completions[0].status == "bad_gold"
    assert student.verifier.check_golds.call_args.args[0] == ["gold 3", "gold 4"]


def test_special_tokens_are_graded_except_the_stop_token(student, tiny_model):
    """In some tokenizers the marks around thinking are special, as [THINK] in Magistral's."""
    student.tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    student.tokenizer.add_tokens(["[THINK]"], special_tokens=True)
    ids = student.tokenizer("[THINK]7<eos>").input_ids
    student.grade([completion(ids=ids)], [1], FewProblems())
    assert student.verifier.grade.call_args.args[0] == ["[THINK]7"]


def test_a_rollout_rejects_a_prompt_that_is_too_long(student):
    with rejected("problem 5: its prompt is over --max_prompt_tokens"):
        roll_out(student, Group(5, size=2))


def test_a_rollout_draws_at_its_own_temperature_and_keeps_to_the_runs_numbers_of_tokens(student):
    """An evaluation's temperature is not the run's."""
    student.config.temperature = 0.5
    student.config.max_completion_tokens = 9
    student.config.max_rollout_tokens = 70
    asked = roll_out(student, Group(1, size=1))
    limits = [asked.kwargs[name] for name in ("max_new_tokens", "max_batch_tokens")]
    assert [asked.args[1], *limits] == [0.7, 9, 70]


def test_rollouts_of_other_steps_rounds_and_runs_have_other_seeds_of_64_bits(student):
    """With 32 bits, two of 20,000 steps would share random numbers in one run of 22."""
    seeds = set()
    for student.config.seed in (0, 1):
        for stream in [(0, 6, 0), (1, 6, 1), *((1, step, 0) for step in range(1, 21))]:
            seeds.add(roll_out(student, Group(1, size=1), stream=stream).kwargs["seed"])
    assert len(seeds) == 2 * 22
    assert max(seeds) > 2**59  # by chance below it once in 10⁶⁶


SHARES = {  # this rank of two -> its prompts, of [5], [5], [5], [5, 5], and the first one's number
    0: ([[5], [5]], 0),
    1: ([[5], [5, 5]], 2),
}


@pytest.mark.parametrize("rank", SHARES)
def test_a_rank_draws_its_share_and_gets_that_of_the_others(rank, student):
    """The other rank's completions are wrong."""
    student.layout.n_students, student.layout.rank = 2, rank
    others = [completion(reward=0.0), completion(reward=0.0)]
    student.layout.gather_role = lambda mine: [others, mine] if rank else [mine, others]
    one, two = Group(1, size=3), Group(2, size=1)
    asked = roll_out(student, one, two)
    assert (asked.args[0], asked.kwargs["first_row"]) == SHARES[rank]
    assert rewards_of(one, two) == ([0, 0, 1, 1] if rank else [1, 1, 0, 0])


def test_a_rank_without_a_share_grades_nothing(student):
    student.grade([], [], FewProblems())
    assert student.verifier.grade.call_args.args[0] == []


@pytest.mark.parametrize("coefficient", ["entropy_coef", "kl_coef"])
def test_dead_groups_are_forwarded_for_entropy_and_kl_alone(coefficient, student):
    dead = group(2, rewards=[0, 0])
    dead.completions[0].weight = 1.0
    assert not student.has_gradient(dead.completions[0])
    setattr(student.config, coefficient, 0.1)
    assert student.has_gradient(dead.completions[0])


# Evaluation


def evaluate(student, rollout, n) -> tuple[dict, list]:
    """Evaluate n problems at step 10 on the first of two ranks; return metrics, and what was
    logged. Problem 1's prompt of 5 tokens is too long, those of the others have 4."""
    student.rollout = rollout
    student.layout.n_students = 2
    student.encode = lambda question: [5] * (5 if question == "1" else 4)
    run = Mock()
    metrics = train.evaluate(10, student, Numbers(n), run)
    return metrics, run.log.call_args


@pytest.mark.parametrize(("rows_of_a_rank", "parts"), [(2, [[0, 2, 3, 4]]), (1, [[0, 2], [3, 4]])])
def test_evaluation_is_greedy_and_in_parts_of_a_micro_batch_a_rank(rows_of_a_rank, parts, student):
    """It logs all in order. Problems 0 and 3 are solved, and problem i's completion is i tokens i;
    one whose prompt is too long counts as wrong."""
    calls = []

    def rollout(groups, problems, temperature, stream, watch):
        calls.append((problems_of(groups), temperature, stream))
        for each in groups:
            i = each.problem
            answer = completion(reward=i in (0, 3), ids=[i] * i, status="graded", finished=False)
            each.completions = [answer] * each.size

    student.config.max_rollout_tokens = rows_of_a_rank * (4 + 40)
    metrics, logged = evaluate(student, rollout, 5)
    assert calls == [(part, 0.0, (0, 10, 0)) for part in parts]
    assert metrics["val_accuracy"] == 2 / 5
    assert metrics["eval_s"] > 0
    name, rows, mode = logged.args
    assert (name, mode) == ("evals/step_10", "w")
    keys = ["problem", "reward", "status", "tokens", "completion"]
    assert rows == [
        dict(zip(keys, values, strict=True)) | {"temperature": 0}
        for values in [
            (0, 1, "graded", 0, ""),
            (1, 0, "overlong_prompt", 0, ""),
            (2, 0, "graded", 2, "22"),
            (3, 1, "graded", 3, "333"),
            (4, 0, "graded", 4, "4444"),
        ]
    ]


def test_evaluation_ends_at_a_signal(student):
    student.layout.stopping = True
    assert evaluate(student, rollout=None, n=5) == ({}, None)


def test_evaluation_keeps_the_end_of_a_completion(student):
    """Without the stop token: the box is at the end."""
    one = Group(1, size=1, completions=[completion(ids=[1, *[2] * (TAIL - 1), 3, 0])])
    row = graded_row(one, student.tokenizer.decode)
    assert row["completion"] == "2" * (TAIL - 1) + "3"


# The sampler's part


def test_a_prompt_may_have_exactly_the_largest_number_of_tokens(tiny_model):
    """The tokens of question i are its digits."""
    flags = ("--sampler", "uniform", "--prompt_footer", "", "--max_prompt_tokens", 2)
    config = parse("--preset", "demo", "--model", tiny_model, *flags)
    sampler = train.build_sampler(config, one_rank(), Numbers(101))
    assert sampler.context.fits(99)
    assert not sampler.context.fits(100)


# Whole runs


@pytest.fixture(scope="module")
def alone(tmp_path_factory, halfway):
    """A run in one process, with the teacher in it, and its output."""
    folder = tmp_path_factory.mktemp("alone") / "run"
    line = [sys.executable, ROOT / "train.py", *ranks.command(folder, data=halfway)]
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}  # as forked ranks have
    return folder, subprocess.check_output(line, text=True, env=one_thread)


@pytest.mark.slow
def test_a_run_has_a_row_of_metrics_for_each_step_and_evaluations_where_due(alone):
    folder, output = alone
    assert "0 to 4, saved every 2" in output
    assert "validation accuracy:" in output
    rows = read_lines(folder / "metrics.jsonl")
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4]
    assert [row["step"] for row in rows if "val_accuracy" in row] == [0, 2, 4]


@pytest.mark.slow
def test_selections_and_verdicts_of_a_run_agree_with_its_metrics(alone):
    """No problem is selected twice in a pass."""
    folder, _ = alone
    last = read_lines(folder / "metrics.jsonl")[4]
    selections = read_lines(folder / "selections.jsonl")
    assert len({row["chosen"] for row in selections}) == len(selections) == 24
    assert all(row["chosen"] in row["pool"] for row in selections)
    successes = sum(row["successes"] for row in selections if row["step"] == 4)
    assert last["reward_mean"] == pytest.approx(successes / 24)
    verdicts = read_lines(folder / "evals/step_4.jsonl")
    assert last["val_accuracy"] == pytest.approx(np.mean([row["reward"] for row in verdicts]))


EXPORTED = [("student", AutoModelForCausalLM), ("teacher/backbone", AutoModel)]


@pytest.mark.slow
@pytest.mark.parametrize(("place", "auto"), EXPORTED)
def test_a_run_exports_models_whose_weights_are_all_trained(place, auto, alone):
    """The teacher's head begins at 0."""
    folder, _ = alone
    AutoTokenizer.from_pretrained(folder / place)
    exported = auto.from_pretrained(folder / place).state_dict()
    for name, weight in auto.from_pretrained(DEMO).state_dict().items():
        assert not torch.equal(weight, exported[name]), name
    assert all(weight.any() for weight in load_file(folder / "teacher/head.safetensors").values())


@pytest.mark.slow
def test_torchrun_restarts_a_run_whose_teacher_is_killed(alone, halfway, tmp_path):
    """A student and a teacher rank end as the teacher in one process does, number by number."""

    def kill(sampler, groups):
        is_first_start = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
        if sampler.teacher.pushed == 18 and is_first_start:
            os.kill(os.getpid(), signal.SIGKILL)

    def main(argv):
        ranks.after(Goldilocks, "observe", kill)
        return train.main(argv)

    argv = ranks.command(tmp_path / "run", "--teacher_ranks", 1, data=halfway)
    options = ("--nproc_per_node", 2, "--max-restarts", 1, "--master_port", ranks.free_port())
    torchrun = ranks.agent(main, argv, tmp_path / "log", *options)
    torchrun.join()
    output = (tmp_path / "log").read_text()
    assert torchrun.exitcode == 0, output
    assert output.count("error: ") == output.count("error: a rank failed") == 1
    assert "steps    0 to 4" in output
    assert "steps    2 to 4" in output
    ranks.assert_same_run(alone[0], tmp_path / "run")


@pytest.fixture(scope="module")
def all_options(tmp_path_factory, halfway):
    """A run with all options and without lag, the same resumed from step 1, and its output.
    tests/plumbing/test_faults.py resumes with the default options, and lag 1."""
    flags = "--loss dapo --resample_rounds 2 --update_iterations 2 --kl_coef 0.01 --teacher_lag 0"
    flags += " --entropy_coef 0.0003 --dead_rows out --advantage_std sample --checkpoint_every 1"
    flags += " --lr_schedule linear --activation_checkpointing --teacher_mode lora --steps 2"
    flags += " --group_size 2 --prompts_per_step 8 --sampler softmax --teacher_ranks 1"
    flags += " --sampler_args temperature=0.1"
    folder = tmp_path_factory.mktemp("options")
    ranks.run(folder / "whole", *flags.split(), ranks=2, data=halfway)
    shutil.copytree(folder / "whole", folder / "resumed")
    shutil.rmtree(folder / "resumed/checkpoints/step_2")
    output = ranks.run(folder / "resumed", *flags.split(), ranks=2, data=halfway)
    return folder, output


@pytest.mark.slow
def test_resume_is_bit_identical_with_all_options_and_without_lag(all_options):
    folder, output = all_options
    assert "steps    1 to 2" in output
    ranks.assert_same_run(folder / "whole", folder / "resumed")


@pytest.mark.slow
def test_all_options_take_effect_at_once(all_options):
    """Dead groups cost more rounds with resampling."""
    first, second = read_lines(all_options[0] / "whole/metrics.jsonl")[1:]
    assert first["learning_rate"] == pytest.approx(2e-4)
    assert second["learning_rate"] == pytest.approx(1e-4)
    assert 8 < max(first["groups"], second["groups"]) <= 24
    for row in (first, second):
        assert row["kl"] > 1e-4  # in step 2 the updates of one step alone make 3e-5
        assert row["grad_norm"] > 0
        live = row["groups"] * (1 - row["zero_variance"])
        assert row["forwarded_rows"] == 2 * min(8, round(live))
