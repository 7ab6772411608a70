"""Kills, damaged checkpoints, full disks, SIGTERM, numbers that are not finite, copies that differ.

Runs are small, on the demo's model, in forked ranks; tests/stress/fault_injection.py does the same by
real kills at random moments. `same_run` compares every number and every exported weight with a run
that nothing happened to.
"""

import os
import resource
import shutil
import signal
import time
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

import train
from plumbing import checkpoint
from plumbing.distributed import channel
from plumbing.errors import InputError
from plumbing.files import read_lines
from sampler import Uniform
from tests.helpers.ranks import after, at_step, launch, metrics_of, run, same_run

pytestmark = pytest.mark.slow

# Two student ranks and a teacher; evaluations take two micro-batches.
THREE = ("--teacher_ranks", 1, "--max_rollout_tokens", 320, "--checkpoint_every", 1)


def go(folder, *flags, **how):
    return launch(folder, *THREE, *flags, ranks=3, **how)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, halfway):
    """Four steps without a fault, with a checkpoint of each."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    run(folder, *THREE, "--keep", 4, ranks=3, data=halfway)
    return folder


def finishes(folder, whole, data, *flags):
    """The same command again ends as if nothing had been. Returns what it printed."""
    said = run(folder, *THREE, *flags, ranks=3, data=data)
    same_run(whole, folder)
    return said


def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)


def steps_of(folder):
    return sorted(p.name for p in (folder / "checkpoints").iterdir())


def tear(path):
    path.write_bytes(path.read_bytes()[:-7])


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


# ---- damaged checkpoints, the disk


DAMAGES = {"student/.metadata": flip, "sampler.pt": Path.unlink, "manifest.json": tear}


@pytest.mark.parametrize("file", DAMAGES)
def test_damage_is_noticed_and_the_checkpoint_before_is_used(file, whole, tmp_path, capsys):
    shutil.copytree(whole, tmp_path / "run")
    assert checkpoint.latest_valid_checkpoint(tmp_path / "run") == 4
    DAMAGES[file](checkpoint.folder_of(tmp_path / "run", 4) / file)
    assert checkpoint.latest_valid_checkpoint(tmp_path / "run") == 3
    said = capsys.readouterr().out
    assert "step_4 is damaged" in said and said.endswith(": going back to the one before it\n")
    assert said.count("\n") == 1


def test_a_kill_before_the_rename_then_damage_and_a_torn_log(whole, halfway, tmp_path):
    def kill(rank):
        channel.HEARTBEAT_TIMEOUT_S = 3
        if rank == 0:  # when all of checkpoint 3 is on disk, under its temporary name
            written = "step_3.tmp/manifest.json"
            after(checkpoint, "write_atomic", lambda path, _: str(path).endswith(written) and die())

    folder = tmp_path / "run"
    ended = go(folder, "--keep", 3, data=halfway, before=kill)
    assert ended.statuses == [-signal.SIGKILL, 4, 4] and ended.err.count("error: ") == 1
    assert steps_of(folder) == ["step_1", "step_2", "step_3.tmp"]
    flip(folder / "checkpoints/step_2/student/__0_0.distcp")
    tear(folder / "metrics.jsonl")
    said = finishes(folder, whole, halfway)
    assert "step_2 is damaged" in said and "steps    1 to 4" in said
    assert steps_of(folder) == ["step_3", "step_4"]  # --keep is 2 by default


def test_a_full_disk_stops_the_run_and_costs_nothing(whole, halfway, tmp_path):
    def fill(rank):  # a limit on the size of files acts like a disk with no room for more
        limit = (resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
        at_step(3, lambda run: resource.setrlimit(*limit))

    ended = go(tmp_path / "run", data=halfway, before=fill)
    assert ended.statuses == [4, 4, 4] and ended.err.count("error: ") == 1
    assert "step_3 cannot be written, maybe as the disk is full (" in ended.err
    assert "the one before it is intact" in ended.err and "Traceback" not in ended.err
    assert steps_of(tmp_path / "run") == ["step_1", "step_2"]
    finishes(tmp_path / "run", whole, halfway)


# ---- SIGTERM, lost ranks, errors that are not ours


def test_sigterm_at_one_rank_stops_all_after_the_step_and_saves(whole, halfway, tmp_path):
    def terminate(rank):
        if rank == 1:
            at_step(2, lambda run: os.kill(os.getpid(), signal.SIGTERM))
        if rank == 0:  # which looks for the note, and is not to come too early
            at_step(2, lambda run: run.layout.store.wait(["stop"], timedelta(seconds=20)))

    folder, flags = tmp_path / "run", ("--checkpoint_every", 4)
    ended = go(folder, *flags, data=halfway, before=terminate)
    assert ended.statuses == [143, 143, 143] and "stopped, and saved" in ended.out
    assert steps_of(folder) == ["step_2"] and not (folder / "student").exists()
    finishes(folder, whole, halfway, *flags)


def test_ctrl_c_at_a_teacher_amid_a_long_evaluation_loses_nothing(whole, halfway, tmp_path):
    """The teacher's main thread waits for a letter then: Python would run no handler in it."""

    def terminate(rank):
        channel.HEARTBEAT_TIMEOUT_S = 4
        (tmp_path / f"pid_{rank}").write_text(str(os.getpid()))

        def then(student, problems, index_B, temperature, stream, watch):
            if stream == (0, 2) and rank == 0:  # the evaluation of step 2
                os.kill(int((tmp_path / "pid_2").read_text()), signal.SIGINT)
                time.sleep(7)

        after(train.Student, "rollout", then)

    folder, flags = tmp_path / "run", ("--checkpoint_every", 4)
    ended = go(folder, *flags, data=halfway, before=terminate)
    assert ended.statuses == [143, 143, 143] and "stopped, and saved" in ended.out
    assert steps_of(folder) == ["step_2"] and not (folder / "student").exists()
    assert not (folder / "evals/step_2.jsonl").exists()
    assert [row["step"] for row in metrics_of(folder) if "val_accuracy" in row] == [0]
    finishes(folder, whole, halfway, *flags)
    row = read_lines(folder / "metrics.jsonl")[2]
    assert row["train_s"] > 0 and row["rollout_s"] > 0 and row["eval_s"] > 0  # none overwritten
    evals = [path / "evals/step_2.jsonl" for path in (folder, whole)]
    assert evals[0].read_text() == evals[1].read_text()


def fails(error):
    def fail(*_, **__):
        raise error

    return fail


MEMORY = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
NCCL = dist.DistBackendError("NCCL error in ProcessGroupNCCL: unhandled cuda error")
ENDS = {  # of one rank: which, what it does in place of an update, its status, what is said
    "first student killed": (0, die, -9, "error: a rank died, or was waited for longer than"),
    "student killed": (1, die, -9, "; the same command goes on from the newest checkpoint\n"),
    "teacher killed": (2, die, -9, "error: a rank died, or was waited for longer than"),
    "out of memory": (1, fails(MEMORY), 1, f"OutOfMemoryError: {MEMORY}\n"),
    "NCCL": (2, fails(NCCL), 1, f"DistBackendError: {NCCL}\n"),
    "input": (2, fails(InputError("only 3 of 400 fit")), 2, "error: only 3 of 400 fit\n"),
}


@pytest.mark.parametrize("case", ENDS)
def test_one_rank_ends_and_the_others_say_so_once_or_leave_it_to_that_rank(case, halfway, tmp_path):
    rank, end, status, says = ENDS[case]

    def before(me):
        channel.HEARTBEAT_TIMEOUT_S = 3
        if me == rank:
            train.Student.update = train.Teacher.update = end

    ended = go(tmp_path / "run", data=halfway, before=before)
    assert ended.statuses == [status if r == rank else 4 for r in range(3)]
    foreign = f"error on rank {rank} ({'student' if rank < 2 else 'teacher'}):\n"
    assert ended.err.count(says) == ended.err.count("error: ") + ended.err.count(foreign) == 1
    assert ended.err.count("Traceback") == ended.err.count("in fail\n") == (status == 1)
    assert ended.err.count("a rank died") == (status == -9)


def until_noted(layout):
    end = time.monotonic() + 20
    while not layout.noted() and time.monotonic() < end:
        time.sleep(0.05)


def test_an_error_after_ctrl_c_in_a_process_alone_is_shown_whole(halfway, tmp_path):
    """There is no other rank that could have died."""

    def before(rank):
        def interrupt(run):
            os.kill(os.getpid(), signal.SIGINT)
            until_noted(run.layout)
            raise RuntimeError("CUBLAS_STATUS_EXECUTION_FAILED")

        at_step(1, interrupt)

    ended = launch(tmp_path / "run", "--sampler", "uniform", data=halfway, before=before)
    assert ended.statuses == [1] and "a rank died" not in ended.err
    assert ended.err.count("Traceback") == ended.err.count("Error: CUBLAS_STATUS") == 1


def test_a_stop_before_the_first_step_says_that_nothing_is_saved(halfway, tmp_path):
    def before(rank):
        def terminate(student, problems, index_B, temperature, stream, watch):
            os.kill(os.getpid(), signal.SIGTERM)
            until_noted(student.layout)

        after(train.Student, "rollout", terminate)

    flags = ("--sampler", "uniform", "--max_rollout_tokens", 320)  # evaluates in two parts
    ended = launch(tmp_path / "run", *flags, data=halfway, before=before)
    assert ended.statuses == [143]
    assert "stopped before the first step: the same command continues" in ended.out


DEATHS = {  # on two machines: the ranks that die in an update, teachers, ranks
    "a student amid backward": ([2], 1, 4),
    "a whole machine amid backward": ([2, 3], 1, 4),  # nobody is left there to leave a note
    "the only rank of a machine, the teacher": ([1], 1, 2),
}


@pytest.mark.parametrize("case", DEATHS)
def test_a_death_on_one_machine_ends_the_other_with_a_line(case, halfway, tmp_path):
    dead, teachers, ranks = DEATHS[case]

    def before(me):
        channel.HEARTBEAT_TIMEOUT_S, channel.MACHINE = 5, 1
        if me in dead:
            train.Policy.forward = train.Teacher.update = die

    how = {"ranks": ranks, "machines": 2, "data": halfway, "before": before}
    flags = "--teacher_ranks", teachers, "--eval_every", 4
    ended = launch(tmp_path / "run", *flags, **how)
    assert ended.statuses == [-9 if me in dead else 4 for me in range(ranks)]
    assert ended.err.count("error: a rank died, or was waited for") == 1
    assert ended.err.count("error: ") == 1 and "Traceback" not in ended.err


# ---- numbers that are not finite, copies that differ, another number of ranks


def test_a_gradient_that_is_not_finite_stops_before_the_update(whole, halfway, tmp_path):
    def poison(rank):
        def head(run):  # the first tokens of each micro-batch become NaN
            forward = train.Policy.forward

            def wrong(self, *batch):
                logp_N, entropy_N = forward(self, *batch)
                return torch.cat([logp_N[:3] * torch.nan, logp_N[3:]]), entropy_N

            train.Policy.forward = wrong

        at_step(1, head)
        if rank == 0:
            after(torch.optim.AdamW, "step", lambda *_: print("an update"))

    folder = tmp_path / "run"
    ended = go(folder, data=halfway, before=poison)
    assert ended.statuses == [3, 3, 4] and ended.err.count("error: ") == 1
    assert "error: step 2: gradient norm nan" in ended.err and "no update was made" in ended.err
    assert f"scripts.replay {folder} --step 2`" in ended.err
    assert ended.out.count("an update") == 1  # that of step 1
    assert [row["step"] for row in metrics_of(folder)] == [0, 1] and steps_of(folder) == ["step_1"]
    assert [row["step"] for row in read_lines(folder / "selections.jsonl")] == [1] * 6 + [2] * 6
    finishes(folder, whole, halfway)


def test_a_teacher_that_is_not_finite_stops_before_the_update(tiny_model):
    config = train.parse(["--preset", "demo", "--teacher_model", str(tiny_model)])
    teacher = train.Teacher(config, torch.device("cpu"), lambda model, float32: None)
    before = [p.clone() for p in teacher.model.backbone.parameters()]
    torch.nn.init.constant_(teacher.model.head.bias, torch.nan)
    says = "the teacher's gradient norm is nan at update 1: no update was made"
    with pytest.raises(train.NonFiniteError, match=says):
        for i in range(4):
            teacher.update(f"what is {i}?", i, 8)
    assert all(map(torch.equal, before, teacher.model.backbone.parameters()))


def other_weights(rank):
    def scribble(generator, policy):
        next(generator.lm.parameters()).data[0] += rank

    after(train.Generator, "refresh", scribble)


def other_choices(rank):
    def seed(sampler, context):
        sampler.rng = np.random.default_rng(rank)

    after(Uniform, "__init__", seed)


@pytest.mark.parametrize(
    ("differ", "what", "steps"),
    [(other_weights, "weights for generation", 1), (other_choices, "problems_chosen", 0)],
)
def test_copies_that_differ_stop_the_run_before_they_are_used(
    differ, what, steps, halfway, tmp_path
):
    """Of a sampler that chooses otherwise on another rank no step is trained; weights are compared
    at a checkpoint."""
    folder, flags = tmp_path / "run", ("--sampler", "uniform", "--checkpoint_every", 1)
    ended = launch(folder, *flags, ranks=2, data=halfway, before=differ)
    assert ended.statuses == [4, 4] and ended.err.count("error: ") == 1
    assert f"{what}: ranks 0 and 1 hold copies that differ" in ended.err
    assert len(metrics_of(folder)) == 1 + steps and not (folder / "checkpoints").exists()


def test_a_run_goes_on_with_other_ranks(whole, halfway, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    for step in (3, 4):
        shutil.rmtree(folder / f"checkpoints/step_{step}")
    said = run(folder, *THREE, "--steps", 3, ranks=2, data=halfway)
    assert "note: world_size 3 there, 2 here; student_ranks 2 there, 1 here" in said
    assert "not bit for bit" in said
    run(folder, *THREE, "--teacher_ranks", 0, data=halfway)  # one process, the teacher in it
    rows = metrics_of(folder)
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4]
    assert all(row["grad_norm"] > 0 for row in rows[1:])
    chosen = [row["chosen"] for row in read_lines(folder / "selections.jsonl")]
    assert len(chosen) == len(set(chosen)) == 24  # no problem twice, none lost
    updates = [[row["teacher_updates"] for row in metrics_of(run)[1:]] for run in (folder, whole)]
    assert updates[0] == updates[1]
