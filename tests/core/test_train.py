"""train.py: presets, one step, rollouts, evaluation; whole runs: files, restart, resume."""

import os
import shutil
import subprocess
import sys
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from transformers import AutoModel, AutoModelForCausalLM

import train
from grpo import Group
from plumbing.files import read_lines
from plumbing.stopwatch import Stopwatch
from records.metrics import History
from records.rows import selection
from sampler import join
from tests.helpers import ranks
from tests.helpers.checks import rejected
from tests.helpers.groups import completion, problems_of
from tests.helpers.ranks import DEMO, ROOT, one_rank, parse
from tests.helpers.samplers import Numbers
from verify import Verdict, Verifier

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
    c = parse("--preset", preset)
    baseline = parse("--preset", preset, "--sampler", "uniform")
    assert (c.steps, baseline.steps, c.per_device_batch_size) == PRESETS[preset]


DERIVED = {  # flags -> settings
    "--sampler uniform --steps 7": {"steps": 7},
    # Ignored without a teacher, so that the commands of compared runs differ in --sampler alone
    "--sampler uniform --teacher_model x": {"teacher_model": ""},
    "--sampler uniform --teacher_ranks 2": {"teacher_ranks": 0},
    # The teacher begins as the student's model unless given.
    "--preset qwen3-4b --model mine": {"teacher_model": "mine"},
    "--model mine --teacher_model other": {"teacher_model": "other"},
}


@pytest.mark.parametrize("flags", DERIVED)
def test_settings_that_follow_from_other_flags(flags):
    c = vars(parse(*flags.split()))
    assert {name: c[name] for name in DERIVED[flags]} == DERIVED[flags]


# One step


def draw(groups, *_):
    """Fill in groups as Student.rollout does; the first completion of a round is right."""
    for each in groups:
        each.completions = [completion() for _ in range(each.size)]
    groups[0].completions[0].reward = 1.0


# Of selections.jsonl: problem 9 got two groups in a step.
EARLIER = [
    {"step": step, "chosen": problem, "successes": 0, "completions": 2}
    for step, problem in ((2, 9), (2, 9), (3, 4))
]


@pytest.fixture
def mocks() -> Mock:
    """A sampler, a student and a log, which record their calls. The sampler proposes problems 7 and
    5, then more completions for 5, and problem 9; of these it trains on 9 and on all of 5."""
    m = Mock()
    m.sampler.propose.return_value = [Group(7, size=1), Group(5, size=3)]
    m.sampler.more.side_effect = [[Group(5, size=2), Group(9, size=2)], []]
    m.sampler.train_on.side_effect = lambda groups: join(groups)[:0:-1]
    m.sampler.metrics.return_value = {"own": 3, "loss": 99, "step": 99, "seconds": -1}
    m.student.layout = Mock(unsafe=True)  # it has a method whose name begins with "assert"
    m.student.config = parse("--prompts_per_step", 2, "--group_size", 2)
    m.student.rollout.side_effect = draw
    m.student.update.return_value = {"loss": 0.5}
    m.history = History(EARLIER, Numbers(10), "c")
    return m


def take_step(m, n_problems=10) -> dict:
    """Take step 4 of a run; return its metrics."""
    return train.train_step(4, m.student, m.sampler, range(n_problems), m.log, m.history)


FIGURE_1 = """
    sampler.propose  student.layout.assert_equal_in_role  student.rollout  sampler.observe
    sampler.more     student.layout.assert_equal_in_role  student.rollout  sampler.observe
    sampler.more     log  sampler.train_on  student.update  sampler.metrics
"""


def test_a_step_follows_figure_1(mocks):
    """Each round has its own random stream; all groups are logged, whatever is trained on."""
    take_step(mocks)
    assert [name for name, *_ in mocks.mock_calls] == FIGURE_1.split()
    streams = [call.args[3] for call in mocks.student.rollout.call_args_list]
    assert streams == [(1, 4, 0), (1, 4, 1)]
    observed = [problems_of(call.args[0]) for call in mocks.sampler.observe.call_args_list]
    assert observed == [[7, 5], [5, 9]]
    assert problems_of(mocks.log.call_args.args[1]) == [7, 5, 5, 9]
    assert problems_of(mocks.student.update.call_args.args[0]) == [9, 5]


def test_the_metrics_of_a_step_are_over_its_problems_and_win_over_a_samplers(mocks):
    """7 has one right answer of one; 5 has one of five, from the second round; 9, which an earlier
    step has tried, has none."""
    metrics = take_step(mocks)
    expected = {
        "groups": 3,
        "completions": 8,
        "reward_mean": 2 / 8,
        "trained_live": 1 / 2,
        "tried_before": 1 / 3,
        "live_but_flat": None,
        "own": 3,
        "loss": 0.5,
        "step": 4,
    }
    assert {name: metrics[name] for name in expected} == expected
    assert metrics["seconds"] > 0
    assert mocks.history.tried == {4, 5, 7, 9}
    assert mocks.history.sums_of["0.5"] == [(0, 0), (0, 4), (0, 6), (1, 7), (2, 12), (2, 14)]


def test_a_resumed_run_remembers_outcomes_from_its_log(mocks):
    """Those by value of --column, and the problems."""
    take_step(mocks)
    rows = [selection(4, group) for group in mocks.log.call_args.args[1]]
    resumed = History(EARLIER + rows, Numbers(10), "c")
    assert resumed.sums_of == mocks.history.sums_of
    assert resumed.tried == {4, 5, 7, 9}


def test_a_bad_proposal_is_rejected_before_anything_is_drawn(mocks):
    with rejected("distinct problems below 7"):
        take_step(mocks, n_problems=7)
    mocks.student.rollout.assert_not_called()


def test_a_step_without_a_proposal_is_rejected(mocks):
    mocks.sampler.propose.return_value = []
    with rejected("proposed no problem"):
        take_step(mocks)


def test_a_completion_cannot_be_trained_on_twice(mocks):
    mocks.sampler.train_on.side_effect = lambda groups: groups + join(groups)
    with rejected("train_on returns a completion twice"):
        take_step(mocks)


# The student's part

PROBLEMS = SimpleNamespace(  # question i is "i", its reference answer "gold i"
    question=str, golds=lambda indices: ([f"gold {i}" for i in indices], [{} for _ in indices])
)


class Encoder:
    """Makes a prompt of i tokens of question i. For question 3 it opens the answer's thinking."""

    def __call__(self, question):
        return [5] * int(question)

    def answer_start(self, question):
        return "[assistant]<think>\n" if question == "3" else "[assistant]"


@pytest.fixture
def actor() -> train.Actor:
    """An actor whose generator makes completions of one token, which are right; the reference
    answer of problem 4 cannot be verified."""
    generator = Mock()
    generator.tokenizer.decode = lambda ids: "".join(map(str, ids))
    config = parse("--preset", "demo", "--max_prompt_tokens", 4)
    actor = train.Actor(config, one_rank(), Mock(), Encoder(), generator)
    generator.generate.side_effect = lambda prompts, *_, **__: [completion() for _ in prompts]
    right = Verdict(1.0, "correct")
    actor.verifier.grade.side_effect = lambda texts, *_: [right] * len(texts)
    actor.verifier.check_golds.side_effect = lambda golds, *_: [x != "gold 4" for x in golds]
    return actor


def roll_out(actor, *groups, stream=(1, 6, 0)):
    """Let the actor draw and grade the completions of groups; return what the generator got."""
    actor.rollout([*groups], PROBLEMS, 0.7, stream, Stopwatch())
    return actor.generator.generate.call_args


def rewards_of(*groups) -> list[float]:
    return [each.reward for one in groups for each in one.completions]


def test_a_rollout_draws_a_graded_completion_for_each_place_of_a_group(actor):
    """A reference answer is checked once; one that cannot be verified earns nothing."""
    three, four = Group(3, size=2), Group(4, size=1)
    asked = roll_out(actor, three, four)
    assert asked.args[0] == [[5] * 3, [5] * 3, [5] * 4]
    assert four.prompt_ids == [5] * 4
    assert rewards_of(three, four) == [1, 1, 0]
    assert four.completions[0].status == "bad_gold"
    assert actor.verifier.check_golds.call_args.args[0] == ["gold 3", "gold 4"]


def test_all_tokens_are_graded_except_the_stop_token(actor):
    """In some tokenizers the marks around thinking are special, as [THINK] in Magistral's."""
    finished, cut_off = (completion(ids=[3, 7, 1], finished=end) for end in (True, False))
    actor.grade([finished, cut_off], [1, 1], PROBLEMS)
    assert actor.verifier.grade.call_args.args[0] == ["37", "371"]


@pytest.mark.parametrize(
    ("written", "status"), [(r"\boxed{7} or", "no_box"), (r"hm</think> \boxed{7}", "correct")]
)
def test_thinking_is_graded_alike_if_the_prompt_or_the_completion_opens_it(written, status, actor):
    """A box in a thought that has no end is no answer. The prompt of problem 3 opens thinking, that
    of problem 2 does not. Of the completion the actor's tokenizer returns the text."""
    actor.generator.tokenizer.decode = lambda ids: ["", written, "<think>" + written][ids[0]]
    golds = Mock(question=str, golds=lambda indices: (["7"] * len(indices), None))
    by_prompt, by_itself, unmarked = (completion(ids=[i, 1]) for i in (1, 2, 1))
    with Verifier(workers=1) as actor.verifier:
        actor.grade([by_prompt, by_itself, unmarked], [3, 2, 2], golds)
    assert [by_prompt.status, by_itself.status, unmarked.status] == [status, status, "correct"]


def test_a_rollout_rejects_a_prompt_that_is_too_long(actor):
    with rejected("problem 5: its prompt is over"):
        roll_out(actor, Group(5, size=2))


def test_a_rollout_draws_at_its_own_temperature_and_keeps_to_the_runs_numbers_of_tokens(actor):
    """An evaluation's temperature is not the run's."""
    actor.config.temperature = 0.5
    actor.config.max_completion_tokens = 9
    actor.config.max_rollout_tokens = 70
    asked = roll_out(actor, Group(1, size=1))
    limits = [asked.kwargs[name] for name in ("max_new_tokens", "max_batch_tokens")]
    assert [asked.args[1], *limits] == [0.7, 9, 70]


def test_rollouts_of_other_steps_rounds_and_runs_have_other_seeds_of_64_bits(actor):
    """With 32 bits, two of 20,000 steps would share random numbers in one run of 22."""
    seeds = set()
    for actor.config.seed in (0, 1):
        for stream in [(0, 6, 0), (1, 6, 0), (1, 6, 1), (1, 7, 0)]:
            seeds.add(roll_out(actor, Group(1, size=1), stream=stream).kwargs["seed"])
    assert len(seeds) == 2 * 4
    assert max(seeds) > 2**32


def test_a_rank_draws_its_share_and_gets_that_of_the_others(actor):
    """It is the second of two: rows 2 and 3. The first rank's completions are wrong."""
    actor.layout.n_students, actor.layout.rank = 2, 1
    others = [completion(reward=0.0), completion(reward=0.0)]
    actor.layout.gather_role = lambda mine: [others, mine]
    one, two = Group(1, size=3), Group(2, size=1)
    asked = roll_out(actor, one, two)
    assert (asked.args[0], asked.kwargs["first_row"]) == ([[5], [5, 5]], 2)
    assert rewards_of(one, two) == [0, 0, 1, 1]


# Evaluation


def test_evaluation_is_greedy_and_counts_overlong_prompts_as_wrong(actor):
    """On the first of two ranks. The prompt of problem 1 is too long; problems 0 and 3 are solved,
    2 in part. Parts have a row for each rank; verdicts are logged in order."""
    actor.layout.n_students = 2
    actor.encode = lambda question: [5] * (5 if question == "1" else 4)
    actor.config.max_rollout_tokens = 4 + actor.config.max_completion_tokens  # one row a rank
    calls = []

    def rollout(groups, problems, temperature, stream, watch):
        calls.append((problems_of(groups), temperature, stream))
        for each in groups:
            each.completions = [completion(reward={0: 1, 2: 0.5, 3: 1}.get(each.problem, 0))]

    actor.rollout = rollout
    run = Mock(val_problems=Numbers(5))
    train.evaluate(10, actor, run, console=Mock(), channel=Mock())
    step, rows, metrics = run.log_evaluation.call_args.args
    assert calls == [([0, 2], 0.0, (0, 10, 0)), ([3, 4], 0.0, (0, 10, 0))]
    assert metrics["val_accuracy"] == 2 / 5
    assert step == 10
    assert [row["problem"] for row in rows] == [0, 1, 2, 3, 4]
    assert [row["reward"] for row in rows] == [1, 0, 0.5, 1, 0]


# Whole runs


def output_of(*words) -> str:
    """Run a Python command with one thread, as forked ranks have; return what it printed."""
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.check_output([sys.executable, *words], text=True, env=one_thread)


@pytest.fixture(scope="module")
def alone(tmp_path_factory, halfway):
    """A run in one process, with the teacher in it."""
    folder = tmp_path_factory.mktemp("alone") / "run"
    output = output_of(ROOT / "train.py", *ranks.command(folder, data=halfway))
    assert "validation accuracy:" in output
    return folder


@pytest.mark.slow
def test_a_run_has_a_row_of_metrics_for_each_step_and_evaluations_where_due(alone):
    rows = read_lines(alone / "metrics.jsonl")
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4]
    assert [row["step"] for row in rows if "val_accuracy" in row] == [0, 2, 4]


EXPORTED = [("student", AutoModelForCausalLM), ("teacher/backbone", AutoModel)]


@pytest.mark.slow
@pytest.mark.parametrize(("place", "auto"), EXPORTED)
def test_a_run_exports_models_whose_weights_are_all_trained(place, auto, alone):
    before = auto.from_pretrained(DEMO).state_dict()
    exported = auto.from_pretrained(alone / place).state_dict()
    assert not [name for name in before if torch.equal(before[name], exported[name])]


KILLED = """
import os
import signal

from sampler import Goldilocks

class Killed(Goldilocks):
    def observe(self, groups):
        super().observe(groups)
        if self.teacher.pushed == 18 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_torchrun_restarts_a_run_whose_teacher_is_killed(alone, halfway, tmp_path):
    """A student and a teacher rank end as the teacher in one process does, number by number."""

    (tmp_path / "killed.py").write_text(KILLED)
    flags = ("--teacher_ranks", 1, "--sampler", f"{tmp_path}/killed.py:Killed")
    argv = ranks.command(tmp_path / "run", *flags, data=halfway)
    torchrun = ["torch.distributed.run", "--nproc_per_node=2", "--max-restarts=1"]
    torchrun.append(f"--master_port={ranks.free_port()}")
    assert "from step 2:" in output_of("-m", *torchrun, ROOT / "train.py", *argv)
    ranks.assert_same_run(alone, tmp_path / "run")


@pytest.mark.slow
def test_resume_is_bit_identical_with_all_options_and_without_lag(halfway, tmp_path):
    """tests/plumbing/test_faults.py resumes with the default options, and lag 1."""
    flags = """
        --loss dapo --resample_rounds 2 --update_iterations 2 --kl_coef 0.01 --teacher_lag 0
        --entropy_coef 0.0003 --dead_rows out --advantage_std sample --checkpoint_every 1
        --lr_schedule linear --activation_checkpointing --teacher_mode lora --steps 2
        --group_size 2 --prompts_per_step 8 --sampler softmax --teacher_ranks 1
        --sampler_args temperature=0.1
    """
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    ranks.run(whole, *flags.split(), ranks=2, data=halfway)
    shutil.copytree(whole, resumed)
    shutil.rmtree(resumed / "checkpoints/step_2")
    output = ranks.run(resumed, *flags.split(), ranks=2, data=halfway)
    assert "from step 1:" in output
    ranks.assert_same_run(whole, resumed)
