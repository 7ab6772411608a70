"""Whole runs with kills, signals, errors, replicas that differ; resumed runs are bit-identical.

tests/stress/fault_injection.py kills processes of torchrun at random moments.
"""

import os
import shutil
import signal
import time

import pytest

import train
from plumbing.files import read_lines
from plumbing.run import checkpoint
from tests.helpers.ranks import after, assert_same_run, launch, metrics_of, run

pytestmark = pytest.mark.slow

# Two student ranks and a teacher; evaluations take two micro-batches.
THREE = ("--teacher_ranks", 1, "--max_rollout_tokens", 320, "--checkpoint_every", 1)


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
    time.sleep(1)  # until all that shall die are here: a lost peer would end them otherwise
    os.kill(os.getpid(), signal.SIGKILL)


def checkpoints(folder):
    return sorted(path.name for path in folder.glob("checkpoints/*"))


def test_resume_after_a_kill_damage_and_a_torn_log(whole, halfway, tmp_path):
    def written(path, _):  # all of checkpoint 3 is on disk, under its temporary name
        if str(path).endswith("step_3.tmp/manifest.json"):
            die()

    def kill(rank):
        if rank == 0:
            after(checkpoint, "write_atomic", written)

    folder = tmp_path / "run"
    ended = launch(folder, *THREE, "--keep", 3, ranks=3, data=halfway, before=kill)
    assert ended.statuses == [-signal.SIGKILL, 4, 4]
    assert ended.err.count("error: ") == 1
    assert checkpoints(folder) == ["step_1", "step_2", "step_3.tmp"]
    for file in (folder / "checkpoints/step_2/student/__0_0.distcp", folder / "metrics.jsonl"):
        file.write_bytes(file.read_bytes()[:-7])
    output = resume(folder, whole, halfway)
    assert "step_2 is damaged" in output
    assert "Goldilocks RL from step 1: " in output
    assert checkpoints(folder) == ["step_3", "step_4"]  # --keep is 2 by default


def test_ctrl_c_during_an_evaluation(whole, halfway, tmp_path):
    def interrupt(rank):
        def rolled_out(student, groups, problems, temperature, stream, watch):
            if stream[:2] == (0, 2) and rank == 1:  # the evaluation of step 2
                os.kill(os.getpid(), signal.SIGINT)

        after(train.Student, "rollout", rolled_out)

    folder, flags = tmp_path / "run", ("--checkpoint_every", 4)
    ended = launch(folder, *THREE, *flags, ranks=3, data=halfway, before=interrupt)
    assert ended.statuses == [143, 143, 143]
    assert "stopped: run" in ended.out
    assert checkpoints(folder) == ["step_2"]
    assert not (folder / "student").exists()
    assert not (folder / "evals/step_2.jsonl").exists()
    resume(folder, whole, halfway, *flags)


ENDS = {  # machines, ranks, ranks that are killed in the first update
    "the teacher": (1, 3, [2]),
    "a student on another machine": (2, 4, [2]),
    "another machine": (2, 4, [2, 3]),  # no rank is left to set a key
    "the teacher, alone on another machine": (2, 2, [1]),
}


@pytest.mark.parametrize("case", ENDS)
def test_where_a_rank_is_killed_all_end_and_one_prints_the_error(case, halfway, tmp_path):
    machines, ranks, killed = ENDS[case]

    def before(rank):
        if rank in killed:
            train.Student.update = train.Teacher.update = die

    options = {"ranks": ranks, "machines": machines, "data": halfway, "before": before}
    ended = launch(tmp_path / "run", "--teacher_ranks", 1, "--eval_every", 4, **options)
    assert ended.statuses == [-signal.SIGKILL if rank in killed else 4 for rank in range(ranks)]
    assert ended.err.count("error: ") == 1
    assert "Traceback" not in ended.err
    assert "error: a rank failed or exceeded" in ended.err


def test_replicas_that_differ_stop_the_run_at_a_checkpoint(halfway, tmp_path):
    def before(rank):
        def change(generator, policy):
            next(generator.lm.parameters()).data[0] += rank

        after(train.Generator, "refresh", change)

    folder, flags = tmp_path / "run", ("--sampler", "uniform", "--checkpoint_every", 1)
    ended = launch(folder, *flags, ranks=2, data=halfway, before=before)
    assert ended.statuses == [4, 4]
    assert ended.err.count("error: ") == 1
    assert "error: weights of the student: ranks 0 and 1 differ: " in ended.err
    assert len(metrics_of(folder)) == 2
    assert checkpoints(folder) == []


def test_a_run_resumes_with_another_number_of_ranks(whole, halfway, tmp_path):
    folder = shutil.copytree(whole, tmp_path / "run")
    for step in (3, 4):
        shutil.rmtree(folder / f"checkpoints/step_{step}")
    run(folder, *THREE, "--steps", 3, ranks=2, data=halfway)
    run(folder, *THREE, "--teacher_ranks", 0, data=halfway)  # one process, the teacher in it
    chosen = [row["chosen"] for row in read_lines(folder / "selections.jsonl")]
    assert len(chosen) == len(set(chosen)) == 24  # no problem twice, none lost
    updates, of_whole = (
        [row.get("teacher_updates") for row in metrics_of(each)] for each in (folder, whole)
    )
    assert updates == of_whole
