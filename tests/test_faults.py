"""Kills, damaged checkpoints, full disks, SIGTERM, numbers that are not finite, copies that differ, replay.

Runs are small, on the demo's model, in forked ranks; scripts/fault_campaign.py does the same by real kills at random
moments. `same_run` compares every number and every exported weight with a run that nothing happened to.
"""

import contextlib
import importlib.util
import io
import json
import multiprocessing
import os
import resource
import signal
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import on_ranks
from test_train import DEMO, ROOT, command, metrics_of, same_run
from torch import nn

import train

pytestmark = pytest.mark.slow


def start(folder, *flags, ranks=1, data, before=lambda: None):
    """A run in forked ranks, `before` called in each: (exit status, what it printed) of rank 0."""

    def body():
        before()
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            code = train.main(
                command(folder, "--checkpoint_every", 1, *flags, model=DEMO, data=data)
            )
        if dist.is_initialized():  # as the end of a process would: the others notice
            dist.destroy_process_group()
        return code, "\n".join(line for line in out.getvalue().splitlines() if "step/s" not in line)

    return on_ranks(ranks, folder.parent, body)


def at_step(step, what):
    """For `before`: calls what(run) on every rank as soon as that step has been logged."""
    log = train.Run.log

    def log_and_more(self, metrics, *arguments):
        log(self, metrics, *arguments)
        if metrics["step"] == step:
            what(self)

    train.Run.log = log_and_more


@pytest.fixture(scope="module")
def whole(tmp_path_factory, halfway):
    """Two ranks, 1 student + 1 teacher, four steps without a fault."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert start(folder, "--teacher_ranks", 1, "--keep", 4, ranks=2, data=halfway)[0] == 0
    return folder


def steps_of(folder):
    return sorted(p.name for p in (folder / "checkpoints").iterdir())


def tear(path):
    path.write_bytes(path.read_bytes()[:-7])


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


# ---- damaged checkpoints


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("student/__0_0.distcp", flip),
        ("teacher/__0_0.distcp", tear),
        ("student/.metadata", flip),
        ("sampler.pt", Path.unlink),
        ("manifest.json", Path.unlink),
        ("manifest.json", tear),
    ],
)
def test_damage_is_noticed_and_the_checkpoint_before_it_is_used(
    file, damage, whole, tmp_path, capsys
):
    import shutil

    shutil.copytree(whole, tmp_path / "run")
    flags = command(tmp_path / "run", "--teacher_ranks", 1, model=DEMO, data=tmp_path)
    run = train.Run(train.parse(flags), layout=None)
    assert run.newest() == 4
    damage(run.checkpoint(4) / file)
    assert run.newest() == 3
    said = capsys.readouterr().out
    assert (
        "step_4 is damaged" in said
        and "going back to the one before it" in said
        and said.count("\n") == 1
    )
    for step in (1, 2, 3):
        tear(run.checkpoint(step) / "sampler.pt")
    with pytest.raises(
        train.InputError, match="no checkpoint there is intact; to start again choose another"
    ):
        run.newest()


def test_a_run_with_a_damaged_checkpoint_and_torn_logs_is_the_same_run(whole, halfway, tmp_path):
    import shutil

    shutil.copytree(whole, tmp_path / "run")
    shutil.rmtree(tmp_path / "run/student")
    flip(tmp_path / "run/checkpoints/step_4/student/__0_0.distcp")
    (tmp_path / "run/checkpoints/step_3").rename(
        tmp_path / "run/checkpoints/step_3.tmp"
    )  # killed while writing it
    tear(tmp_path / "run/metrics.jsonl")
    code, said = start(tmp_path / "run", "--teacher_ranks", 1, ranks=2, data=halfway)
    assert code == 0 and "step_4 is damaged" in said and "steps    2 to 4" in said
    same_run(whole, tmp_path / "run")
    assert steps_of(tmp_path / "run") == ["step_3", "step_4"]  # --keep is 2 by default


# ---- the disk, signals, lost ranks


def test_a_full_disk_stops_the_run_and_costs_nothing(whole, halfway, tmp_path):
    def fill():  # a limit on the size of files acts like a disk with no room for more
        at_step(
            3,
            lambda run: resource.setrlimit(
                resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY)
            ),
        )

    flags = ("--teacher_ranks", 1)
    code, said = start(tmp_path / "run", *flags, ranks=2, data=halfway, before=fill)
    assert code == 4 and said.count("error:") == 1 and "Traceback" not in said
    assert (
        "step_3 cannot be written" in said
        and "the one before it is intact" in said
        and "too large" in said
    )
    assert steps_of(tmp_path / "run") == ["step_1", "step_2"]
    assert start(tmp_path / "run", *flags, ranks=2, data=halfway)[0] == 0
    same_run(whole, tmp_path / "run")


THREE = ("--teacher_ranks", 1, "--checkpoint_every", 4, "--max_rollout_tokens", 320)


@pytest.fixture(scope="module")
def whole_of_three(tmp_path_factory, halfway):
    """Three ranks, evaluated in two micro-batches each, without a fault."""
    folder = tmp_path_factory.mktemp("whole_of_three") / "run"
    assert start(folder, *THREE, ranks=3, data=halfway)[0] == 0
    return folder


def test_sigterm_at_one_rank_stops_all_after_the_step_and_saves(whole_of_three, halfway, tmp_path):
    def terminate():
        at_step(2, lambda run: run.layout.rank == 1 and os.kill(os.getpid(), signal.SIGTERM))

    code, said = start(tmp_path / "run", *THREE, ranks=3, data=halfway, before=terminate)
    assert code == 128 + signal.SIGTERM and "stopped by SIGTERM" in said
    assert steps_of(tmp_path / "run") == ["step_2"] and not (tmp_path / "run/student").exists()
    assert start(tmp_path / "run", *THREE, ranks=3, data=halfway)[0] == 0
    same_run(whole_of_three, tmp_path / "run")


def test_sigterm_at_a_teacher_amid_an_evaluation_stops_all_and_loses_nothing(
    whole_of_three, halfway, tmp_path
):
    """The teacher's main thread waits for a message then: Python would run no handler in it."""

    def terminate():
        (tmp_path / f"pid_{os.environ['RANK']}").write_text(str(os.getpid()))
        rollout = train.Student.rollout

        def rollout_and_terminate(self, prompts, answers, temperature, stream, watch):
            graded = rollout(self, prompts, answers, temperature, stream, watch)
            if stream == (0, 2) and self.layout.rank == 0:  # the evaluation of step 2
                os.kill(int((tmp_path / "pid_2").read_text()), signal.SIGTERM)
                self.layout.store.wait(["stop"], timedelta(seconds=20))
            return graded

        train.Student.rollout = rollout_and_terminate

    folder = tmp_path / "run"
    code, said = start(folder, *THREE, ranks=3, data=halfway, before=terminate)
    assert code == 128 + signal.SIGTERM and "stopped by SIGTERM" in said
    assert steps_of(folder) == ["step_2"] and not (folder / "evals/step_2.jsonl").exists()
    assert [row["step"] for row in metrics_of(folder) if "val_accuracy" in row] == [0]
    assert start(folder, *THREE, ranks=3, data=halfway)[0] == 0
    same_run(whole_of_three, folder)
    row = train.read_lines(folder / "metrics.jsonl")[2]
    assert row["train_s"] > 0 and row["rollout_s"] > 0 and row["eval_s"] > 0  # none overwritten
    evals = [path / "evals/step_2.jsonl" for path in (folder, whole_of_three)]
    assert evals[0].read_text() == evals[1].read_text()


@pytest.mark.parametrize(
    ("rank", "error"),
    [  # at a student, at the teacher
        (1, torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")),
        (2, dist.DistBackendError("NCCL error in ProcessGroupNCCL: unhandled cuda error")),
    ],
    ids=["out of memory", "NCCL"],
)
def test_an_error_that_is_not_ours_is_shown_whole_by_its_rank_alone(
    rank, error, halfway, tmp_path, capfd
):
    def body():
        def fail(*_):
            raise error

        if os.environ["RANK"] == str(rank):
            train.Student.update = train.Teacher.update = fail
        # The store is this test's, as it is torchrun's: it outlives rank 0.
        os.environ |= {"MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
        code = train.main(command(tmp_path / "run", *flags, model=DEMO, data=halfway))
        dist.destroy_process_group()
        return code

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    flags = ("--teacher_ranks", 1)
    assert on_ranks(3, tmp_path, body) == 4  # of rank 0, which lost a connection
    said = capfd.readouterr().err
    role = "student" if rank == 1 else "teacher"
    assert f"error on rank {rank} ({role}):" in said and said.count("Traceback") == 1
    assert f"{type(error).__name__}: {error}" in said and "in fail" in said
    assert "a rank died" not in said


def test_a_rank_that_dies_or_hangs_is_noticed(halfway, tmp_path):
    """The teacher falls asleep: its students wait as long as --timeout_minutes allows, and say so."""

    def sleep(*_):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(60)

    def body():
        train.serve = sleep
        out = io.StringIO()
        with contextlib.redirect_stderr(out):
            code = train.main(command(tmp_path / "run", *flags, model=DEMO, data=halfway))
        (tmp_path / "said").write_text(f"{code} {out.getvalue()}")
        os._exit(code)

    flags = ("--teacher_ranks", 1, "--timeout_minutes", 0.1)
    with pytest.raises(torch.multiprocessing.ProcessExitedException, match="exit code 4"):
        on_ranks(2, tmp_path, body)
    said = (tmp_path / "said").read_text()
    assert said.startswith("4 ") and "error: a rank died, or was waited for 0.1 minutes" in said


def test_a_second_job_is_kept_out(whole, halfway):
    config = train.parse(command(whole, "--teacher_ranks", 1, model=DEMO, data=halfway))

    def hold(ready, done):
        train.Run(config, None).lock()
        ready.set()
        done.wait(60)

    fork = multiprocessing.get_context("fork")
    ready, done = fork.Event(), fork.Event()
    other = fork.Process(target=hold, args=(ready, done))
    other.start()
    assert ready.wait(60)
    with pytest.raises(train.InputError, match="another job is writing there"):
        train.Run(config, None).lock()
    done.set()
    other.join()
    train.Run(config, None).lock()  # the other's end has freed it


# ---- numbers that are not finite, copies that differ


def test_a_gradient_that_is_not_finite_stops_before_the_update(halfway, tmp_path):
    def poison():
        at_step(1, poison_head)

    def poison_head(run):  # the head's input becomes NaN for one token of the vocabulary
        forward = train.Policy.forward

        def wrong(self, *batch):
            logp, entropy = forward(self, *batch)
            bad = torch.ones_like(logp)
            bad[:3] = float("nan")
            return logp * bad, entropy

        train.Policy.forward = wrong

    code, said = start(tmp_path / "run", "--teacher_ranks", 1, ranks=3, data=halfway, before=poison)
    assert code == 3 and said.count("error:") == 1 and "error: step 2: gradient norm nan" in said
    assert "no update was made" in said and "nonfinite.jsonl" in said
    assert [row["step"] for row in metrics_of(tmp_path / "run")] == [0, 1] and steps_of(
        tmp_path / "run"
    ) == ["step_1"]
    rows = train.read_lines(tmp_path / "run/nonfinite.jsonl")
    assert {row["step"] for row in rows} == {2} and {row["finite_logp"] for row in rows} == {
        True,
        False,
    }
    assert (
        2 <= sum(not row["finite_logp"] for row in rows) < len(rows)
    )  # the first row of each micro-batch
    assert all(row["completion_ids"] and row["prompt_ids"] and row["advantage"] for row in rows)
    problems = train.read_lines(halfway / "train.jsonl")
    from transformers import AutoTokenizer

    text = AutoTokenizer.from_pretrained(DEMO).decode(rows[0]["prompt_ids"])
    assert text == problems[rows[0]["problem"]]["problem"] + "\n\nSolution:"
    assert (
        start(tmp_path / "run", "--teacher_ranks", 1, ranks=3, data=halfway)[0] == 0
    )  # goes on from step 1


def test_a_teacher_that_is_not_finite_stops_before_the_update(tiny_model):
    from test_teacher import make

    t = make(tiny_model)
    before = [p.clone() for p in t.model.backbone.parameters()]
    nn.init.constant_(t.model.head.bias, float("nan"))
    with pytest.raises(
        train.NonFiniteError, match="teacher's gradient norm is nan at update 1"
    ) as error:
        for i in range(4):
            t.update(f"what is {i}?", i, 8)
    assert sorted(row["question"] for row in error.value.rows) == [
        f"what is {i}?" for i in range(4)
    ]
    assert all(
        torch.equal(a, b) for a, b in zip(before, t.model.backbone.parameters(), strict=True)
    )


def test_copies_that_differ_stop_the_run_before_they_are_saved(halfway, tmp_path):
    def differ():
        refresh = train.Generator.refresh

        def scribble(run):
            def refresh_badly(self, policy):
                refresh(self, policy)
                next(self.lm.parameters()).data[0] += run.layout.rank  # one row of one rank's copy

            train.Generator.refresh = refresh_badly

        at_step(1, scribble)

    code, said = start(
        tmp_path / "run", "--sampler", "uniform", ranks=2, data=halfway, before=differ
    )
    assert code == 4 and said.count("error:") == 1
    assert "weights for generation: ranks 0 and 1 hold copies that differ" in said
    assert steps_of(tmp_path / "run") == ["step_1"]


# ---- another number of ranks, replay


def test_a_run_goes_on_with_other_ranks(whole, halfway, tmp_path):
    folder = tmp_path / "run"
    assert start(folder, "--teacher_ranks", 1, "--steps", 2, ranks=4, data=halfway)[0] == 0
    code, said = start(folder, "--teacher_ranks", 1, "--steps", 3, ranks=2, data=halfway)
    assert code == 0 and "note: world_size 4 there, 2 here; student_ranks 3 there, 1 here" in said
    assert "not bit for bit" in said
    code, said = start(folder, "--steps", 4, data=halfway)  # one process, the teacher in it
    assert code == 0
    rows = metrics_of(folder)
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4] and all(
        row["grad_norm"] > 0 for row in rows[1:]
    )
    chosen = [row["chosen"] for row in train.read_lines(folder / "selections.jsonl")]
    assert len(chosen) == len(set(chosen)) == 4 * 6  # no problem twice, none lost
    assert [row["teacher_updates"] for row in rows[1:]] == [
        row["teacher_updates"] for row in metrics_of(whole)[1:]
    ]


def replay(*arguments):
    spec = importlib.util.spec_from_file_location("replay", ROOT / "scripts/replay.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = module.main([str(a) for a in arguments])
    return code, out.getvalue()


def test_replay_of_a_step_is_the_step(whole, tmp_path):
    import shutil

    from safetensors.torch import load_file

    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    for step in (1, 3):
        shutil.rmtree(folder / f"checkpoints/step_{step}")
    code, said = on_ranks(
        1, tmp_path, lambda: replay(folder, "--step", 4)
    )  # from step 2, without its teacher
    assert code == 0 and "replaying steps 3 to 4" in said and "numbers are the same" in said
    chosen = [row for row in train.read_lines(whole / "selections.jsonl") if row["step"] == 4]
    rows = train.read_lines(folder / "replay/step_4.jsonl")
    assert [row["problem"] for row in rows] == [row["chosen"] for row in chosen for _ in range(4)]
    assert sum(row["reward"] for row in rows) == sum(row["successes"] for row in chosen)
    gradient = load_file(folder / "replay/step_4.safetensors")
    norm = sum(g.double().pow(2).sum() for g in gradient.values()).sqrt().item()
    assert norm == pytest.approx(
        min(1.0, metrics_of(whole)[4]["grad_norm"]), rel=1e-4
    )  # clipped at 1
    assert same_run(whole, folder) is None

    rows = train.read_lines(folder / "metrics.jsonl")
    rows[4]["grad_norm"] += 1e-9
    train.write_lines(folder / "metrics.jsonl", rows)
    code, said = on_ranks(1, tmp_path, lambda: replay(folder, "--step", 4))
    assert code == 1 and "  grad_norm: " in said


def test_replay_says_what_it_cannot_do(whole, tmp_path, monkeypatch):
    code, said = replay(whole, "--step", 9)
    assert code == 2 and "--step 9" in said and "has steps 1 to 4" in said
    monkeypatch.setenv("WORLD_SIZE", "3")
    code, said = replay(whole, "--step", 2)
    assert code == 2 and "torchrun --nproc_per_node 1 scripts/replay.py" in said
    code, said = replay(tmp_path, "--step", 2)
    assert code == 2 and "holds no run" in said
    assert not (whole / "replay").exists() and json.loads((whole / "config.json").read_text())
