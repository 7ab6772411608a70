"""Whole runs with kills, signals, errors, numbers that are not finite, replicas that differ.

Runs are small, on the demo's model, in forked ranks. `assert_same_run` compares a resumed run with
an uninterrupted one: every number, every exported weight. tests/stress/fault_injection.py kills
processes of torchrun at random moments.
"""

import os
import shutil
import signal
import time
from datetime import timedelta

import numpy as np
import pytest
import torch

import train
from plumbing import checkpoint
from plumbing.distributed import channel
from plumbing.errors import InputError
from plumbing.files import read_lines
from sampler import Uniform
from tests.helpers.ranks import after, assert_same_run, at_step, launch, metrics_of, run

pytestmark = pytest.mark.slow

# Two student ranks and a teacher; evaluations take two micro-batches.
THREE = ("--teacher_ranks", 1, "--max_rollout_tokens", 320, "--checkpoint_every", 1)


def go(folder, *flags, **options):
    return launch(folder, *THREE, *flags, ranks=3, **options)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, halfway):
    """An uninterrupted run of four steps, with a checkpoint of each."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    run(folder, *THREE, "--keep", 4, ranks=3, data=halfway)
    return folder


def resume(folder, whole, data, *flags) -> str:
    """Finish the run with the same command, and compare; return what it printed."""
    output = run(folder, *THREE, *flags, ranks=3, data=data)
    assert_same_run(whole, folder)
    return output


def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)


def checkpoints(folder):
    return sorted(p.name for p in (folder / "checkpoints").iterdir())


def test_resume_after_a_kill_at_the_rename_a_damaged_checkpoint_and_a_torn_log(
    whole, halfway, tmp_path
):
    def kill(rank):
        channel.HEARTBEAT_TIMEOUT_S = 3
        if rank == 0:  # when all of checkpoint 3 is on disk, under its temporary name
            manifest = "step_3.tmp/manifest.json"
            after(
                checkpoint, "write_atomic", lambda path, _: str(path).endswith(manifest) and die()
            )

    folder = tmp_path / "run"
    ended = go(folder, "--keep", 3, data=halfway, before=kill)
    assert ended.statuses == [-signal.SIGKILL, 4, 4] and ended.err.count("error: ") == 1
    assert checkpoints(folder) == ["step_1", "step_2", "step_3.tmp"]
    for file in (folder / "checkpoints/step_2/student/__0_0.distcp", folder / "metrics.jsonl"):
        file.write_bytes(file.read_bytes()[:-7])
    output = resume(folder, whole, halfway)
    assert "step_2 is damaged" in output and "steps    1 to 4" in output
    assert checkpoints(folder) == ["step_3", "step_4"]  # --keep is 2 by default


# ---- signals, lost ranks, errors of other libraries


def test_sigterm_at_one_rank_stops_all_after_the_step_and_saves(whole, halfway, tmp_path):
    def terminate(rank):
        if rank == 1:
            at_step(2, lambda run: os.kill(os.getpid(), signal.SIGTERM))
        if rank == 0:  # it reads the key, and must not be too early
            at_step(2, lambda run: run.layout.store.wait(["stop"], timedelta(seconds=20)))

    folder, flags = tmp_path / "run", ("--checkpoint_every", 4)
    ended = go(folder, *flags, data=halfway, before=terminate)
    assert ended.statuses == [143, 143, 143] and "stopped, and saved" in ended.out
    assert checkpoints(folder) == ["step_2"] and not (folder / "student").exists()
    resume(folder, whole, halfway, *flags)


def test_ctrl_c_at_a_teacher_during_a_long_evaluation_loses_nothing(whole, halfway, tmp_path):
    """The teacher's main thread waits for a message then, and Python runs no handler in it."""

    def interrupt(rank):
        channel.HEARTBEAT_TIMEOUT_S = 4
        (tmp_path / f"pid_{rank}").write_text(str(os.getpid()))

        def rolled_out(student, problems, index_B, temperature, stream, watch):
            if stream == (0, 2) and rank == 0:  # the evaluation of step 2
                os.kill(int((tmp_path / "pid_2").read_text()), signal.SIGINT)
                time.sleep(7)  # longer than the timeout: the teacher's heartbeats are needed

        after(train.Student, "rollout", rolled_out)

    folder, flags = tmp_path / "run", ("--checkpoint_every", 4)
    ended = go(folder, *flags, data=halfway, before=interrupt)
    assert ended.statuses == [143, 143, 143] and "stopped, and saved" in ended.out
    assert checkpoints(folder) == ["step_2"] and not (folder / "student").exists()
    assert not (folder / "evals/step_2.jsonl").exists()
    assert [row["step"] for row in metrics_of(folder) if "val_accuracy" in row] == [0]
    resume(folder, whole, halfway, *flags)
    row = read_lines(folder / "metrics.jsonl")[2]
    assert row["train_s"] > 0 and row["rollout_s"] > 0 and row["eval_s"] > 0  # none overwritten
    evals = [path / "evals/step_2.jsonl" for path in (folder, whole)]
    assert evals[0].read_text() == evals[1].read_text()


def fails(error):
    def fail(*_, **__):
        raise error

    return fail


MEMORY = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
ENDS = {  # which rank ends, and how, in place of an update; its status, the printed error
    "first student killed": (0, die, -9, "error: a rank failed or exceeded --timeout_minutes"),
    "teacher killed": (2, die, -9, "; run the same command again to resume from the newest"),
    "out of memory": (1, fails(MEMORY), 1, f"OutOfMemoryError: {MEMORY}\n"),
    "input": (2, fails(InputError("only 3 of 400 fit")), 2, "error: only 3 of 400 fit\n"),
}


@pytest.mark.parametrize("case", ENDS)
def test_where_one_rank_ends_exactly_one_rank_prints_the_error(case, halfway, tmp_path):
    rank, end, status, message = ENDS[case]

    def before(this_rank):
        channel.HEARTBEAT_TIMEOUT_S = 3
        if this_rank == rank:
            train.Student.update = train.Teacher.update = end

    ended = go(tmp_path / "run", data=halfway, before=before)
    assert ended.statuses == [status if r == rank else 4 for r in range(3)]
    header = f"error on rank {rank} ({'student' if rank < 2 else 'teacher'}):\n"
    assert ended.err.count(message) == ended.err.count("error: ") + ended.err.count(header) == 1
    assert ended.err.count("Traceback") == ended.err.count("in fail\n") == (status == 1)
    assert ended.err.count("a rank failed") == (status == -9)


DEATHS = {  # on two machines: the ranks that die in an update, teachers, ranks
    "a student": ([2], 1, 4),
    "a whole machine": ([2, 3], 1, 4),  # no rank is left there to set a key
    "the only rank of a machine, the teacher": ([1], 1, 2),
}


@pytest.mark.parametrize("case", DEATHS)
def test_a_death_on_one_machine_ends_the_other_with_one_line(case, halfway, tmp_path):
    dead, teachers, ranks = DEATHS[case]

    def before(rank):
        channel.HEARTBEAT_TIMEOUT_S, channel.NO_SIGTERM_FACTOR = 5, 1
        if rank in dead:
            train.Policy.forward = train.Teacher.update = die

    options = {"ranks": ranks, "machines": 2, "data": halfway, "before": before}
    flags = "--teacher_ranks", teachers, "--eval_every", 4
    ended = launch(tmp_path / "run", *flags, **options)
    assert ended.statuses == [-9 if rank in dead else 4 for rank in range(ranks)]
    assert ended.err.count("error: a rank failed or exceeded") == ended.err.count("error: ") == 1
    assert "Traceback" not in ended.err


# ---- numbers that are not finite, replicas that differ, another number of ranks


def test_a_gradient_that_is_not_finite_stops_before_the_update(whole, halfway, tmp_path):
    def poison(rank):
        def replace_forward(run):  # the first tokens of each micro-batch become NaN
            forward = train.Policy.forward

            def poisoned(self, *batch):
                logp_N, entropy_N = forward(self, *batch)
                return torch.cat([logp_N[:3] * torch.nan, logp_N[3:]]), entropy_N

            train.Policy.forward = poisoned

        at_step(1, replace_forward)
        if rank == 0:
            after(torch.optim.AdamW, "step", lambda *_: print("an update"))

    folder = tmp_path / "run"
    ended = go(folder, data=halfway, before=poison)
    assert ended.statuses == [3, 3, 4] and ended.err.count("error: ") == 1
    assert "error: step 2: gradient norm nan" in ended.err and "no update was made" in ended.err
    assert f"scripts.replay {folder} --step 2`" in ended.err
    assert ended.out.count("an update") == 1  # that of step 1
    assert [row["step"] for row in metrics_of(folder)] == [0, 1]
    assert checkpoints(folder) == ["step_1"]
    assert [row["step"] for row in read_lines(folder / "selections.jsonl")] == [1] * 6 + [2] * 6
    resume(folder, whole, halfway)


def other_weights(rank):
    def change(generator, policy):
        next(generator.lm.parameters()).data[0] += rank

    after(train.Generator, "refresh", change)


def other_choices(rank):
    def seed(sampler, context):
        sampler.rng = np.random.default_rng(rank)

    after(Uniform, "__init__", seed)


@pytest.mark.parametrize(
    ("change", "name", "steps"),
    [(other_weights, "weights_for_generation", 1), (other_choices, "proposals", 0)],
)
def test_replicas_that_differ_stop_the_run(change, name, steps, halfway, tmp_path):
    """Proposals are compared before they are used, weights at a checkpoint."""
    folder, flags = tmp_path / "run", ("--sampler", "uniform", "--checkpoint_every", 1)
    ended = launch(folder, *flags, ranks=2, data=halfway, before=change)
    assert ended.statuses == [4, 4] and ended.err.count("error: ") == 1
    assert f"error: {name} differs between ranks 0 and 1: " in ended.err
    assert len(metrics_of(folder)) == 1 + steps and not (folder / "checkpoints").exists()


def test_a_run_resumes_with_another_number_of_ranks(whole, halfway, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    for step in (3, 4):
        shutil.rmtree(folder / f"checkpoints/step_{step}")
    output = run(folder, *THREE, "--steps", 3, ranks=2, data=halfway)
    assert "note: world_size was 3, is 2; student_ranks was 2, is 1: resumes, but not" in output
    run(folder, *THREE, "--teacher_ranks", 0, data=halfway)  # one process, the teacher in it
    rows = metrics_of(folder)
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4]
    assert all(row["grad_norm"] > 0 for row in rows[1:])
    chosen = [row["chosen"] for row in read_lines(folder / "selections.jsonl")]
    assert len(chosen) == len(set(chosen)) == 24  # no problem twice, none lost
    updates = [[row["teacher_updates"] for row in metrics_of(run)[1:]] for run in (folder, whole)]
    assert updates[0] == updates[1]
