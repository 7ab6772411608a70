"""train.py: presets, one step, whole runs: their files, restart, resume, all options at once."""

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
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

import train
from plumbing.files import read_lines
from plumbing.metrics import Stopwatch
from rollout import Rollouts
from sampler import Goldilocks, Selections
from scripts.sources import SOURCES
from tests.helpers import ranks
from tests.helpers.ranks import DEMO, ROOT, parse
from verify import Verdict


def test_the_bare_command_is_the_papers_main_run():
    c = parse()
    assert c.model == c.teacher_model == "Qwen/Qwen2.5-1.5B"
    assert c.prompts_per_step * c.group_size == 288
    assert (c.learning_rate, c.group_size, c.temperature) == (1e-5, 16, 0.7)  # Table 5a
    assert (c.max_prompt_tokens, c.max_completion_tokens) == (1024, 2048)
    assert (c.kl_coef, c.update_iterations, c.eval_every) == (0.0, 1, 200)
    assert (c.teacher_learning_rate, c.teacher_batch_size, c.teacher_epochs) == (1e-6, 8, 4)  # 5b
    assert (c.candidates, c.epsilon) == (8, 0.2)
    assert (c.replay_capacity, c.teacher_update_every) == (64, 4)


PRESETS = {  # Table 6 and App. K.1: steps, steps of the baseline, rows a device
    "olmo2-1b": (20_000, 26_800, 4),
    "qwen2.5-1.5b": (20_000, 26_800, 4),
    "qwen3-4b": (8_000, 10_800, 3),
    "phi-4-mini": (10_000, 13_400, 3),
    "one-gpu": (400, 550, 4),  # not the paper's
}


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_have_the_papers_steps_or_its_rule_for_the_baseline(preset):
    c, baseline = parse("--preset", preset), ("--preset", preset, "--sampler", "uniform")
    assert (c.steps, parse(*baseline).steps, c.per_device_batch_size) == PRESETS[preset]
    assert parse(*baseline, "--steps", 7).steps == 7
    for path in (c.train_data, c.val_data):  # can be prepared if it is missing
        assert Path(path).parts[1] in SOURCES


def test_a_step_follows_figure_1():
    """Two rounds of unequal sizes: problem 5 is in both, and problem 7 is not trained on."""
    calls, rewards = Mock(), iter([[0.0, 0, 1, 0], [1.0, 0, 0, 0]])
    calls.student.layout = Mock(unsafe=True)  # else no name may begin with "assert"
    calls.student.config = parse("--prompts_per_step", 2, "--group_size", 2)
    first = Selections.unscored([7, 5], completions_N=np.array([1, 3]), again=True)
    calls.sampler.propose.side_effect = [first, Selections.unscored([5, 9])]
    calls.sampler.train_on.return_value = np.array([2, 1, 2])
    calls.sampler.metrics.return_value = calls.student.update.return_value = {}

    def rollout(problems, index_B, *rest):
        four = [[1]] * 4, [[2]] * 4, [True] * 4, [[0.0]] * 4
        return Rollouts(*four, index_B, next(rewards), ["wrong"] * 4)

    calls.student.rollout.side_effect = rollout
    metrics = train.train_step(7, calls.student, calls.sampler, range(10), calls.log)
    proposal = ["sampler.propose", "student.layout.assert_replicas_equal"]
    turn = [*proposal, "student.rollout", "sampler.observe"]
    order = [name for name, *_ in calls.mock_calls if not name.endswith("metrics")]
    assert order == [*turn, *turn, "log", "sampler.train_on", "student.update"]
    arguments = [call.args[1:4:2] for call in calls.student.rollout.call_args_list]
    assert arguments == [([7, 5, 5, 5], (1, 7, 0)), ([5, 5, 9, 9], (1, 7, 1))]
    observed = [call.args[0] for call in calls.sampler.observe.call_args_list]
    assert [o.index_N.tolist() for o in observed] == [[7, 5], [5, 9]]
    assert [o.completions_N.tolist() for o in observed] == [[1, 3], [2, 2]]
    assert [o.successes_N.tolist() for o in observed] == [[0, 1], [1, 0]]
    rounds, rollouts, _ = calls.log.call_args.args  # all, whatever is trained on
    assert [o for _, o in rounds] == observed and rounds[0][0] is first and len(rollouts) == 8
    assert calls.sampler.train_on.call_args.args[0].completions_N.tolist() == [1, 5, 2]
    assert calls.student.update.call_args.args == (rollouts, [[1, 2, 3, 4, 5], [6, 7]], 7)
    assert metrics["groups"] == 3 and metrics["zero_variance"] == pytest.approx(2 / 3)


def test_a_rollout_earns_nothing_where_the_reference_answer_is_unverifiable():
    problems, config = Mock(), parse("--preset", "demo")
    problems.golds.return_value = [], None
    student = Mock(config=config, encode=lambda question: [1])
    student.layout.share.return_value = 0, [7, 7, 8]
    student.layout.gather.side_effect = lambda mine, group: [mine]
    student.generator.generate.return_value = Rollouts([[1]] * 3, [[2]] * 3, [True] * 3, [[]] * 3)
    student.verifier.grade.return_value = [Verdict(1.0, "correct")] * 3
    student.verifier.check_golds.return_value = [True, False]  # of problems 7 and 8
    rollouts = train.Student.rollout(student, problems, [7, 7, 8], 1.0, (1, 7, 0), Stopwatch())
    assert rollouts.rewards == [1, 1, 0] and rollouts.statuses == ["correct"] * 2 + ["bad_gold"]
    assert rollouts.problems == [7, 7, 8]
    # With seeds of 32 bits, two of 20,000 steps would share random numbers in one run of 22.
    assert student.generator.generate.call_args.kwargs["seed"] > 2**40

    student.layout.share.return_value, student.generator.generate.return_value = (0, []), Rollouts()
    student.verifier.grade.return_value = student.verifier.check_golds.return_value = []
    train.Student.rollout(student, problems, [], 1.0, (1, 7, 1), Stopwatch())
    assert student.verifier.grade.call_args.args[0] == []  # a rank may have no rows


@pytest.fixture(scope="module")
def alone(tmp_path_factory, halfway):
    """A run in one process, with the teacher in it, and its output."""
    folder = tmp_path_factory.mktemp("alone") / "run"
    line = [sys.executable, ROOT / "train.py", *ranks.command(folder, data=halfway)]
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}  # as forked ranks have
    return folder, subprocess.check_output(line, text=True, env=one_thread)


@pytest.mark.slow
def test_one_process_writes_logs_verdicts_samples_and_models(alone):
    folder, output = alone
    assert "6 prompts x 4 = 24 completions" in output and "validation accuracy:" in output
    rows = read_lines(folder / "metrics.jsonl")
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4]
    assert [row["step"] for row in rows if "val_accuracy" in row] == [0, 2, 4]
    # Generator and policy are one model in float32: refresh has copied the last update's weights.
    gaps = [row["logp_gap"] for row in rows[1:] if row["logp_gap"] is not None]
    assert gaps and max(gaps) < 1e-5
    chosen = read_lines(folder / "selections.jsonl")
    assert len(chosen) == 24 == len({row["chosen"] for row in chosen})  # nothing twice in a pass
    assert all(row["chosen"] in row["pool"] and len(row["utilities"]) == 4 for row in chosen)
    last = sum(row["successes"] for row in chosen if row["step"] == 4)
    assert rows[4]["reward_mean"] == pytest.approx(last / 24)  # both logs agree
    verdicts = read_lines(folder / "evals/step_4.jsonl")
    assert np.mean([v["reward"] for v in verdicts]) == pytest.approx(rows[-1]["val_accuracy"])
    AutoTokenizer.from_pretrained(folder / "student")
    AutoModel.from_pretrained(folder / "teacher/backbone")
    student = AutoModelForCausalLM.from_pretrained(folder / "student").state_dict()
    base = AutoModelForCausalLM.from_pretrained(DEMO).state_dict()
    assert not any(torch.equal(base[name], student[name]) for name in base)  # all are trained


@pytest.mark.slow
def test_torchrun_restarts_a_run_whose_teacher_is_killed(alone, halfway, tmp_path):
    """A student and a teacher rank end as the teacher in one process does, number by number."""

    def kill(sampler, outcomes):
        if sampler.teacher.pushed == 18 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
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
    assert "steps    0 to 4" in output and "steps    2 to 4" in output
    ranks.assert_same_run(alone[0], tmp_path / "run")


@pytest.mark.slow
def test_resume_is_bit_identical_with_all_options_and_without_lag(halfway, tmp_path):
    """tests/plumbing/test_faults.py resumes with the default options, and lag 1."""
    flags = "--loss dapo --resample_rounds 2 --update_iterations 2 --kl_coef 0.01 --teacher_lag 0"
    flags += " --entropy_coef 0.0003 --dead_rows out --advantage_std sample --checkpoint_every 1"
    flags += " --lr_schedule linear --activation_checkpointing --teacher_mode lora --steps 2"
    flags += " --group_size 2 --prompts_per_step 8 --sampler softmax --teacher_ranks 1"
    flags += " --sampler_args temperature=0.1"
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    ranks.run(whole, *flags.split(), ranks=2, data=halfway)
    shutil.copytree(whole, resumed)
    shutil.rmtree(resumed / "checkpoints/step_2")
    output = ranks.run(resumed, *flags.split(), ranks=2, data=halfway)
    assert "steps    1 to 2" in output
    ranks.assert_same_run(whole, resumed)
    rows = read_lines(whole / "metrics.jsonl")[1:]
    assert [row["learning_rate"] for row in rows] == pytest.approx([2e-4, 1e-4])
    assert 8 < max(row["groups"] for row in rows) <= 24  # dead groups cost more rounds
    live = [min(8, round(row["groups"] * (1 - row["zero_variance"]))) for row in rows]
    assert [row["forwarded_rows"] for row in rows] == [2 * n for n in live]
    assert all(row["kl"] >= 0 and row["grad_norm"] > 0 for row in rows)
