"""train.py: presets, one step, whole runs: their files, restart, resume, all options at once."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

import train
from grpo import Group
from plumbing.errors import InputError
from plumbing.files import read_lines
from plumbing.metrics import Stopwatch
from sampler import Goldilocks
from scripts.sources import SOURCES
from tests.helpers import ranks
from tests.helpers.groups import completion, group, problems_of
from tests.helpers.ranks import DEMO, ROOT, one_rank, parse
from tests.helpers.samplers import Numbers
from verify import Verdict

# Presets


def test_the_bare_command_trains_the_papers_model_with_its_batch():
    c = parse()
    assert c.model == "Qwen/Qwen2.5-1.5B"
    assert c.teacher_model == "Qwen/Qwen2.5-1.5B"
    assert c.prompts_per_step * c.group_size == 288


TABLE_5A = {
    "learning_rate": 1e-5,
    "group_size": 16,
    "temperature": 0.7,
    "max_prompt_tokens": 1024,
    "max_completion_tokens": 2048,
    "kl_coef": 0.0,
    "update_iterations": 1,
    "eval_every": 200,
}
TABLE_5B = {
    "teacher_learning_rate": 1e-6,
    "teacher_batch_size": 8,
    "teacher_epochs": 4,
    "candidates": 8,
    "epsilon": 0.2,
    "replay_capacity": 64,
    "teacher_update_every": 4,
}


@pytest.mark.parametrize(("name", "value"), (TABLE_5A | TABLE_5B).items())
def test_the_bare_command_has_the_papers_settings(name, value):
    assert getattr(parse(), name) == value


PRESETS = {  # Table 6 and App. K.1: steps, steps of the baseline, rows a device
    "olmo2-1b": (20_000, 26_800, 4),
    "qwen2.5-1.5b": (20_000, 26_800, 4),
    "qwen3-4b": (8_000, 10_800, 3),
    "phi-4-mini": (10_000, 13_400, 3),
    "one-gpu": (400, 550, 4),  # not the paper's
}


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_have_the_papers_steps_or_its_rule_for_the_baseline(preset):
    steps, baseline_steps, rows = PRESETS[preset]
    c = parse("--preset", preset)
    assert c.steps == steps
    assert c.per_device_batch_size == rows
    assert parse("--preset", preset, "--sampler", "uniform").steps == baseline_steps


@pytest.mark.parametrize("preset", PRESETS)
def test_steps_override_a_presets_and_its_baselines(preset):
    assert parse("--preset", preset, "--steps", 7).steps == 7
    assert parse("--preset", preset, "--sampler", "uniform", "--steps", 7).steps == 7


@pytest.mark.parametrize("preset", [*PRESETS, "reasoning"])
def test_the_data_of_a_preset_can_be_prepared(preset):
    c = parse("--preset", preset)
    assert Path(c.train_data).parts[1] in SOURCES
    assert Path(c.val_data).parts[1] in SOURCES


# One step


class ScriptedSampler:
    """Proposes problems 7 and 5, then more completions for 5, and problem 9. The student is to be
    trained on 9 and 5, not on 7."""

    def __init__(self, calls: list[str]):
        self.calls = calls
        self.observed: list[list[tuple]] = []  # problem and number of completions, by round

    def propose(self, n):
        self.calls.append("propose")
        self.seven = Group(7, size=1)
        self.five = Group(5, size=3)
        self.nine = Group(9, size=2)
        return [self.seven, self.five]

    def observe(self, groups):
        self.calls.append("observe")
        self.observed.append([(each.problem, len(each.completions)) for each in groups])

    def more(self, groups):
        self.calls.append("more")
        self.seen_by_more = list(groups)
        if len(groups) == 3:
            return []
        self.five.size = 5
        return [self.five, self.nine]

    def train_on(self, groups, n):
        self.calls.append("train_on")
        self.seen_by_train_on = list(groups)
        return [self.nine, self.five, self.nine]

    def metrics(self):
        return {"own": 3, "loss": 99, "step": 99, "seconds": -1}


class ScriptedStudent:
    """Draws completions of which the first of each round is right; does not train."""

    def __init__(self, calls: list[str]):
        self.calls = calls
        self.config = parse("--prompts_per_step", 2, "--group_size", 2)
        self.layout = SimpleNamespace(assert_equal_in_role=self.compare)
        self.tokenizer = SimpleNamespace(decode=str)
        self.compared = []
        self.streams = []

    def compare(self, proposals):
        self.calls.append("compare ranks")
        self.compared.append(proposals)

    def rollout(self, groups, problems, temperature, stream, watch, round):
        self.calls.append("rollout")
        self.streams.append((*stream, round))
        reward = 1.0
        for each in groups:
            while len(each.completions) < each.size:
                each.completions.append(completion(reward))
                reward = 0.0

    def update(self, groups, step):
        self.calls.append("update")
        self.trained = groups
        return {"loss": 0.5}


@pytest.fixture
def turn() -> SimpleNamespace:
    """Step 4 of a run, with all that took part: calls, sampler, student, logged, metrics."""
    calls = []
    logged = []

    def log(step, groups, decode):
        calls.append("log")
        logged.append((step, list(groups)))

    student = ScriptedStudent(calls)
    sampler = ScriptedSampler(calls)
    metrics = train.train_step(4, student, sampler, range(10), log)
    parts = {"calls": calls, "sampler": sampler, "student": student}
    return SimpleNamespace(**parts, logged=logged, metrics=metrics)


def test_a_step_follows_figure_1(turn):
    one_round = ["compare ranks", "rollout", "observe", "more"]
    expected = ["propose", *one_round, *one_round, "log", "train_on", "update"]
    assert turn.calls == expected


def test_a_step_draws_each_round_from_a_stream_of_its_own(turn):
    assert turn.student.streams == [(1, 4, 0), (1, 4, 1)]


def test_a_step_compares_the_proposals_of_the_student_ranks(turn):
    assert turn.student.compared == [[(7, 1), (5, 3)], [(5, 5), (9, 2)]]


def test_a_sampler_observes_the_groups_of_a_round_with_all_their_completions(turn):
    assert turn.sampler.observed == [[(7, 1), (5, 3)], [(5, 5), (9, 2)]]


def test_a_continued_group_is_one_group_of_the_step(turn):
    groups = [turn.sampler.seven, turn.sampler.five, turn.sampler.nine]
    assert turn.sampler.seen_by_more == groups
    assert turn.sampler.seen_by_train_on == groups


def test_a_round_is_drawn_in_the_order_of_the_step():
    """A replay knows this order alone; in another it would draw from other random streams."""
    sampler = ScriptedSampler([])
    more = sampler.more
    sampler.more = lambda groups: more(groups)[::-1]
    train.train_step(4, ScriptedStudent([]), sampler, range(10))
    assert sampler.observed[1] == [(5, 5), (9, 2)]


def test_the_student_is_trained_on_the_chosen_groups_once_in_the_order_of_the_step(turn):
    assert turn.student.trained == [turn.sampler.five, turn.sampler.nine]


def test_a_group_of_another_step_cannot_be_trained_on():
    sampler = ScriptedSampler([])
    sampler.train_on = lambda groups, n: [*groups, Group(7, 1)]
    with pytest.raises(InputError, match="returns a group that is not of this step"):
        train.train_step(4, ScriptedStudent([]), sampler, range(10))


def test_all_groups_are_logged_whatever_is_trained_on(turn):
    [(step, groups)] = turn.logged
    assert step == 4
    assert problems_of(groups) == [7, 5, 9]
    assert [len(each.completions) for each in groups] == [1, 5, 2]


def test_the_metrics_of_a_step_are_over_all_its_groups(turn):
    """7 has one right answer of one; 5 has one of five, drawn in the second round; 9 has none."""
    assert turn.metrics["groups"] == 3
    assert turn.metrics["completions"] == 8
    assert turn.metrics["reward_mean"] == 2 / 8
    assert turn.metrics["zero_variance"] == pytest.approx(2 / 3)


def test_the_trainers_metrics_win_over_a_samplers(turn):
    assert turn.metrics["own"] == 3
    assert turn.metrics["loss"] == 0.5
    assert turn.metrics["step"] == 4
    assert turn.metrics["seconds"] > 0


def test_a_step_without_a_proposal_is_rejected():
    sampler = ScriptedSampler([])
    sampler.propose = lambda n: []
    with pytest.raises(InputError, match="the sampler proposed no problem in this step"):
        train.train_step(4, ScriptedStudent([]), sampler, range(10))


def test_a_proposal_of_problems_without_groups_is_rejected():
    sampler = ScriptedSampler([])
    sampler.propose = lambda n: [7, 5]
    with pytest.raises(InputError, match=r"proposes .7, 5.: must be a list of grpo.Group"):
        train.train_step(4, ScriptedStudent([]), sampler, range(10))


def test_a_bad_proposal_is_rejected_before_anything_is_drawn():
    calls = []
    sampler = ScriptedSampler(calls)
    with pytest.raises(InputError, match="proposes problem 7: must be an index below 7"):
        train.train_step(4, ScriptedStudent(calls), sampler, range(7))
    assert calls == ["propose"]


# The student's part


class FewProblems:
    """Question i is "i" and its answer "gold i"."""

    def question(self, index):
        return str(index)

    def golds(self, indices):
        return [f"gold {index}" for index in indices], [{} for _ in indices]


class ScriptedGenerator:
    """Returns completions of one token each, and records what it is asked for."""

    def __init__(self):
        self.asked = []

    def generate(self, prompts, temperature, **options):
        self.asked.append(SimpleNamespace(prompts=prompts, temperature=temperature, **options))
        return [completion(ids=(2,)) for _ in prompts]


class ScriptedVerifier:
    """Every completion is right; the reference answer of problem 8 cannot be verified."""

    def __init__(self):
        self.graded = []
        self.checked = []

    def grade(self, texts, golds, extras):
        self.graded.append(texts)
        return [Verdict(1.0, "correct") for _ in texts]

    def check_golds(self, golds, extras, problems):
        self.checked.append(golds)
        return [gold != "gold 8" for gold in golds]


@pytest.fixture
def student() -> train.Student:
    """A student with a generator and a verifier that follow a rule, and without a policy."""
    student = object.__new__(train.Student)
    student.config = parse("--preset", "demo", "--max_prompt_tokens", 4)
    student.layout = one_rank()
    student.tokenizer = SimpleNamespace(decode=lambda ids: f"text of {ids}")
    student.encode = lambda question: [5] * int(question)  # problem i has a prompt of i tokens
    student.generator = ScriptedGenerator()
    student.verifier = ScriptedVerifier()
    return student


def roll_out(student, *groups, stream=(1, 6), round=0):
    """Let the student draw and grade what is missing in these groups."""
    student.rollout([*groups], FewProblems(), 0.7, stream, Stopwatch(), round)


def test_a_rollout_draws_a_graded_completion_for_each_place_of_a_group(student):
    one = Group(1, size=2)
    three = Group(3, size=1)
    roll_out(student, one, three)
    assert one.prompt_ids == [5]
    assert three.prompt_ids == [5, 5, 5]
    assert student.generator.asked[0].prompts == [[5], [5], [5, 5, 5]]
    assert [drawn.reward for drawn in one.completions] == [1.0, 1.0]
    assert [drawn.status for drawn in three.completions] == ["correct"]


def test_special_tokens_are_graded_except_the_stop_token(student, tiny_model):
    """In some tokenizers the marks around thinking are special, as [THINK] in Magistral's."""
    student.tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    student.tokenizer.add_tokens(["[THINK]"], special_tokens=True)
    ids = student.tokenizer("[THINK]7<eos>").input_ids
    student.grade([completion(ids=ids)], [1], FewProblems())
    assert student.verifier.graded == [["[THINK]7"]]


def test_a_rollout_continues_a_group_and_keeps_its_completions(student):
    continued = group(1, rewards=[0, 1])
    before = list(continued.completions)
    continued.size = 4
    roll_out(student, continued, round=2)
    assert len(student.generator.asked[0].prompts) == 2
    assert continued.completions[0] is before[0]
    assert continued.completions[1] is before[1]
    assert [drawn.round for drawn in continued.completions] == [0, 0, 2, 2]


def test_a_rollout_earns_nothing_where_the_reference_answer_cannot_be_verified(student):
    student.config.max_prompt_tokens = 8
    good = Group(7, size=2)
    bad = Group(8, size=1)
    roll_out(student, good, bad)
    assert [drawn.reward for drawn in good.completions] == [1.0, 1.0]
    assert [drawn.reward for drawn in bad.completions] == [0.0]
    assert [drawn.status for drawn in bad.completions] == ["bad_gold"]


def test_a_rollout_checks_a_reference_answer_once(student):
    roll_out(student, Group(3, size=4), Group(2, size=4))
    assert student.verifier.checked == [["gold 3", "gold 2"]]


def test_a_rollout_rejects_a_prompt_that_is_too_long(student):
    roll_out(student, Group(4, size=2))
    message = "the sampler proposes problem 5: its prompt is over --max_prompt_tokens"
    with pytest.raises(InputError, match=message):
        roll_out(student, Group(5, size=2))


def test_a_rollout_draws_at_its_own_temperature(student):
    """That of an evaluation is not the run's."""
    student.config.temperature = 0.5
    roll_out(student, Group(1, size=1))
    assert student.generator.asked[0].temperature == 0.7


def test_a_rollout_keeps_to_the_runs_numbers_of_tokens(student):
    student.config.max_completion_tokens = 9
    student.config.max_rollout_tokens = 70
    roll_out(student, Group(1, size=1))
    assert student.generator.asked[0].max_new_tokens == 9
    assert student.generator.asked[0].max_batch_tokens == 70


def test_rollouts_of_other_steps_rounds_and_runs_have_other_seeds(student):
    roll_out(student, Group(1, size=1), stream=(1, 6), round=0)
    roll_out(student, Group(1, size=1), stream=(1, 6), round=1)
    roll_out(student, Group(1, size=1), stream=(1, 7), round=0)
    roll_out(student, Group(1, size=1), stream=(0, 6), round=0)  # an evaluation
    student.config.seed += 1
    roll_out(student, Group(1, size=1), stream=(1, 6), round=0)
    seeds = [asked.seed for asked in student.generator.asked]
    assert len(set(seeds)) == 5


def test_seeds_have_64_bits(student):
    """With 32 bits, two of 20,000 steps would share random numbers in one run of 22."""
    for step in range(1, 21):
        roll_out(student, Group(1, size=1), stream=(1, step))
    seeds = [asked.seed for asked in student.generator.asked]
    assert max(seeds) > 2**59  # one in 10²⁹ fails


def test_a_rank_draws_its_share_and_gets_that_of_the_others(student):
    """The second of two ranks draws the third and the fourth of four completions."""
    of_first_rank = [completion(reward=0.0), completion(reward=0.0)]
    student.layout.n_students = 2
    student.layout.rank = 1
    student.layout.gather_role = lambda mine: [of_first_rank, mine]
    one = Group(1, size=3)
    two = Group(2, size=1)
    roll_out(student, one, two)
    [asked] = student.generator.asked
    assert asked.prompts == [[5], [5, 5]]
    assert asked.first_row == 2
    assert [drawn.reward for drawn in one.completions] == [0.0, 0.0, 1.0]
    assert [drawn.reward for drawn in two.completions] == [1.0]


def test_a_rank_without_a_share_grades_nothing(student):
    """The first of two ranks, if there is one completion."""
    of_second_rank = [completion(reward=1.0)]
    student.layout.n_students = 2
    student.layout.gather_role = lambda mine: [mine, of_second_rank]
    one = Group(1, size=1)
    roll_out(student, one)
    assert student.verifier.graded == [[]]
    assert one.completions == of_second_rank


def weigh(student, *groups, **settings):
    """Let the student weigh groups, with these settings."""
    for name, value in settings.items():
        assert hasattr(student.config, name)
        setattr(student.config, name, value)
    student.weigh([*groups])


def advantages(one) -> list[float]:
    return [each.advantage for each in one.completions]


def weights(one) -> list[float]:
    return [each.weight for each in one.completions]


def with_lengths(problem, rewards, lengths) -> Group:
    """Make a group whose completions have so many tokens."""
    made = group(problem, rewards)
    for each, length in zip(made.completions, lengths, strict=True):
        each.ids = [2] * length
    return made


def test_advantages_and_weights_of_two_groups_by_hand(student):
    """One right of four: √3 and -1/√3. A token's weight is 1 / (2 groups · 4 rows · its row)."""
    live = with_lengths(1, rewards=[1, 0, 0, 0], lengths=[1, 2, 4, 5])
    dead = with_lengths(2, rewards=[0, 0], lengths=[3, 1])
    weigh(student, live, dead)
    assert advantages(live) == pytest.approx([3**0.5, -(3**-0.5), -(3**-0.5), -(3**-0.5)])
    assert advantages(dead) == [0, 0]
    assert weights(live) == pytest.approx([1 / 8, 1 / 16, 1 / 32, 1 / 40])
    assert weights(dead) == pytest.approx([1 / 12, 1 / 4])  # 2 groups · 2 rows · 3, 1 tokens


def test_dead_groups_may_be_left_out_of_the_denominators(student):
    live = group(1, rewards=[1, 0])
    dead = group(2, rewards=[0, 0])
    weigh(student, live, dead, dead_rows="out")
    assert weights(live) == [1 / 2, 1 / 2]  # 1 / (1 group · 2 rows · 1 token)
    assert weights(dead) == [0, 0]


def test_truncated_completions_may_be_left_out_of_the_loss(student):
    """But they count in the group's size and in its mean reward."""
    one = with_lengths(1, rewards=[1, 0], lengths=[2, 6])
    one.completions[1].finished = False
    weigh(student, one, loss="batch", truncated_rows="out")
    assert weights(one) == [1 / 2, 0]  # of 2 tokens in the batch
    assert advantages(one) == [1, -1]


def test_all_tokens_of_the_batch_are_the_normaliser_of_the_loss_batch(student):
    one = with_lengths(1, rewards=[1, 0], lengths=[2, 6])
    other = with_lengths(2, rewards=[0, 1, 0], lengths=[1, 1, 10])
    weigh(student, one, other, loss="batch")
    assert weights(one) == [1 / 20] * 2
    assert weights(other) == [1 / 20] * 3


def test_dead_groups_are_forwarded_for_entropy_and_kl_alone(student):
    dead = group(2, rewards=[0, 0])
    weigh(student, dead)
    assert not student.has_gradient(dead.completions[0])
    student.config.entropy_coef = 0.1
    assert student.has_gradient(dead.completions[0])
    student.config.entropy_coef = 0.0
    student.config.kl_coef = 0.1
    assert student.has_gradient(dead.completions[0])


# The sampler's part


def test_a_prompt_may_have_exactly_the_largest_number_of_tokens(tiny_model):
    """The tokens of question i are its digits."""
    flags = ("--sampler", "uniform", "--prompt_footer", "", "--max_prompt_tokens", 2)
    config = parse("--preset", "demo", "--model", tiny_model, *flags)
    sampler = train.build_sampler(config, one_rank(), Numbers(101))
    assert sampler.fits(99)
    assert not sampler.fits(100)


# Whole runs


@pytest.fixture(scope="module")
def alone(tmp_path_factory, halfway):
    """A run in one process, with the teacher in it, and its output."""
    folder = tmp_path_factory.mktemp("alone") / "run"
    line = [sys.executable, ROOT / "train.py", *ranks.command(folder, data=halfway)]
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}  # as forked ranks have
    return folder, subprocess.check_output(line, text=True, env=one_thread)


@pytest.mark.slow
def test_a_run_prints_its_plan_and_its_accuracy(alone):
    _, output = alone
    assert "6 prompts x 4 = 24 completions" in output
    assert "validation accuracy:" in output


@pytest.mark.slow
def test_a_run_has_a_row_of_metrics_for_each_step_and_evaluations_where_due(alone):
    folder, _ = alone
    rows = read_lines(folder / "metrics.jsonl")
    evaluated = [row["step"] for row in rows if "val_accuracy" in row]
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4]
    assert evaluated == [0, 2, 4]


@pytest.mark.slow
def test_generator_and_policy_agree_after_each_update(alone):
    """They are one model in float32: refresh has copied the last update's weights."""
    folder, _ = alone
    rows = read_lines(folder / "metrics.jsonl")[1:]
    gaps = [row["logp_gap"] for row in rows if row["logp_gap"] is not None]
    assert len(gaps) > 0
    assert max(gaps) < 1e-5


@pytest.mark.slow
def test_a_run_selects_no_problem_twice_in_a_pass(alone):
    folder, _ = alone
    rows = read_lines(folder / "selections.jsonl")
    assert len(rows) == 24
    assert len({row["chosen"] for row in rows}) == 24
    for row in rows:
        assert row["chosen"] in row["pool"]
        assert len(row["pool"]) == 4
        assert len(row["utilities"]) == 4


@pytest.mark.slow
def test_selections_and_metrics_of_a_run_agree(alone):
    folder, _ = alone
    row = read_lines(folder / "metrics.jsonl")[4]
    selections = [s for s in read_lines(folder / "selections.jsonl") if s["step"] == 4]
    successes = sum(selection["successes"] for selection in selections)
    assert row["reward_mean"] == pytest.approx(successes / 24)


@pytest.mark.slow
def test_verdicts_and_metrics_of_a_run_agree(alone):
    folder, _ = alone
    row = read_lines(folder / "metrics.jsonl")[4]
    verdicts = read_lines(folder / "evals/step_4.jsonl")
    rewards = [verdict["reward"] for verdict in verdicts]
    assert row["val_accuracy"] == pytest.approx(np.mean(rewards))


@pytest.mark.slow
def test_a_run_exports_a_student_whose_weights_are_all_trained(alone):
    folder, _ = alone
    AutoTokenizer.from_pretrained(folder / "student")
    student = AutoModelForCausalLM.from_pretrained(folder / "student").state_dict()
    base = AutoModelForCausalLM.from_pretrained(DEMO).state_dict()
    untrained = [name for name in base if torch.equal(base[name], student[name])]
    assert untrained == []


@pytest.mark.slow
def test_a_run_exports_a_teacher_whose_weights_are_all_trained(alone):
    folder, _ = alone
    backbone = AutoModel.from_pretrained(folder / "teacher/backbone").state_dict()
    base = AutoModel.from_pretrained(DEMO).state_dict()
    untrained = [name for name in base if torch.equal(base[name], backbone[name])]
    assert untrained == []
    head = load_file(folder / "teacher/head.safetensors")
    assert all(weight.any() for weight in head.values())  # at first 0


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
    assert output.count("error: ") == 1
    assert output.count("error: a rank failed") == 1
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
    folder, _ = all_options
    first, second = read_lines(folder / "whole/metrics.jsonl")[1:]
    assert first["learning_rate"] == pytest.approx(2e-4)
    assert second["learning_rate"] == pytest.approx(1e-4)
    for row in (first, second):
        assert row["kl"] > 1e-4  # in step 2 the updates of one step alone make 3e-5
        assert row["grad_norm"] > 0
        live = row["groups"] * (1 - row["zero_variance"])
        assert row["forwarded_rows"] == 2 * min(8, round(live))


@pytest.mark.slow
def test_dead_groups_cost_more_rounds_with_resampling(all_options):
    folder, _ = all_options
    rows = read_lines(folder / "whole/metrics.jsonl")[1:]
    most = max(row["groups"] for row in rows)
    assert most > 8
    assert most <= 24
