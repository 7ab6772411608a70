"""docs/clusters.md: several machines, whose ranks share no SIGTERM, folder or files by themselves.

Forked ranks that see other files; torchrun's own agents; docs/slurm.sh, with stand-ins for Slurm.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from datetime import timedelta

import pytest
from safetensors.torch import load_file, save_file

import train
from plumbing import run_dir as folders
from tests.helpers.ranks import (
    DEMO,
    ROOT,
    Grades,
    agent,
    at_step,
    command,
    free_port,
    launch,
    run,
    same_run,
)

pytestmark = pytest.mark.slow


def lose(folder):
    (folder / "train.jsonl").unlink()


def change(folder):
    with (folder / "val.jsonl").open("a") as file:
        file.write('{"problem": "1 + 1", "expected_answer": "2"}\n')


def retrain(folder, model="model"):
    path = folder / model / "model.safetensors"
    weights = {name: 2 * value for name, value in load_file(path).items()}
    save_file(weights, path, metadata={"format": "pt"})


UNLIKE = {  # what is done to the second machine's files; the status, what is said
    "data that are missing": (lose, 2, "train.jsonl cannot be read on "),
    "other data": (change, 4, "val_data_crc32: ranks 0 and 1 hold copies that differ"),
    "another model": (retrain, 4, "weights of --model: ranks 0 and 1 hold copies that differ"),
    "another teacher": (
        lambda folder: retrain(folder, "teacher"),
        4,
        "weights of --teacher_model: ranks 0 and 1 hold copies that differ",
    ),
    "another folder": (lambda folder: None, 2, " does not see what rank 0 writes there; choose"),
}


@pytest.mark.parametrize("case", UNLIKE)
def test_machines_with_files_of_their_own_are_refused(case, tiny_family, tiny_data, tmp_path):
    spoil, status, says = UNLIKE[case]
    for disk in (tmp_path / "0", tmp_path / "1"):
        for model in ("model", "teacher"):
            shutil.copytree(tiny_family("qwen3"), disk / model)
        for name in ("train.jsonl", "val.jsonl"):
            shutil.copy(tiny_data / name, disk)
    spoil(disk)
    shared = tmp_path / "run" if case != "another folder" else "run"

    def before(rank):
        folders.APPEARS = 1
        os.chdir(tmp_path / str(rank))

    # Both ranks train the student, and the teacher between its steps.
    flags = "--out", shared, "--teacher_model", "teacher", "--teacher_ranks", 0
    how = {"ranks": 2, "machines": 2, "model": "model", "data": ".", "before": before}
    ended = launch(tmp_path / "log", *flags, **how)
    assert set(ended.statuses) <= {status, 4} and status in ended.statuses
    assert ended.err.count("error: ") == 1 and says in ended.err
    assert not list(tmp_path.glob("*/checkpoints")) + list(tmp_path.glob("**/*.tmp"))


# ---- two agents of torchrun


def two_agents(main, words, log):
    """What both end with, which know each other by a port, and what they print."""
    here = ("--master_addr", "127.0.0.1", "--master_port", free_port())
    two = ("--nnodes", 2, "--nproc_per_node", 2, *here)
    agents = [agent(main, words, log, *two, "--node_rank", node) for node in range(2)]
    for process in agents:
        process.join(60)
    ended = [process.exitcode for process in agents]
    for process in agents:
        process.kill()
    return ended, log.read_text()


def test_two_agents_are_killed_and_stopped_and_go_on_bit_for_bit(halfway, tmp_path):
    """Three lives: to the death of a machine, to SIGTERM at both agents, to the end."""
    flags = "--steps", 4, "--checkpoint_every", 1
    whole, folder = tmp_path / "whole", tmp_path / "run"
    run(whole, *flags, ranks=4, data=halfway)
    words = command(folder, *flags, model=DEMO, data=halfway)

    def life(name, step=0, *struck):
        """Agents are struck by their own first rank, as soon as that step has been logged."""

        def strike(run):
            for node, number in struck:
                if os.environ["GROUP_RANK"] == str(node) and os.environ["LOCAL_RANK"] == "0":
                    os.kill(os.getppid(), number)
            if (0, signal.SIGTERM) in struck:
                run.layout.store.wait(["stop"], timedelta(seconds=20))

        def rank(words):
            train.Verifier = lambda **settings: contextlib.nullcontext(Grades())
            at_step(step, strike)
            return train.main(words)

        return two_agents(rank, words, tmp_path / name)

    ended, said = life("killed", 2, (1, signal.SIGKILL))
    assert ended == [1, -signal.SIGKILL] and said.count("error: a rank died, or was waited") == 1
    assert said.count("exitcode  : 4 ") >= 1
    ended, said = life("stopped", 2, (0, signal.SIGTERM), (1, signal.SIGTERM))
    assert ended == [1, 1] and said.count("stopped, and saved") == 1 and "error: " not in said
    ended, said = life("finished")
    assert ended == [0, 0]
    same_run(whole, folder)


# ---- docs/slurm.sh

STAND_INS = {  # a step on two nodes is here two processes, whose ids srun leaves for scancel
    "srun": 'for n in 0 1; do SLURM_NODEID=$n "${@:3}" & echo $! >> pids; done; wait $!',
    "scancel": 'echo "scancel $*" >> calls; kill -TERM $(cat pids)',
    "scontrol": 'echo "scontrol $*" >> calls; echo node7; echo node8',
}
NOTE = 'echo "$*" >> calls'
# As torchrun does: the ranks save, and it ends with 1.
SAVES = f'trap "kill \\$!; sleep 2; exit 1" TERM; sleep 60 & {NOTE}; wait'
ENDS = {  # signals to the script; what torchrun does; its status, and whether it is put back
    "finished": ((), NOTE, 0, False),
    "failed": ((), f"{NOTE}; exit 3", 3, False),
    "time is up": ([signal.SIGUSR1], SAVES, 1, True),
    "asked twice": ([signal.SIGUSR1, signal.SIGTERM], SAVES, 1, True),
    "preempted or cancelled": ([signal.SIGTERM], f"{NOTE}; sleep 2; exit 1", 1, False),
}


@pytest.mark.parametrize("case", ENDS)
def test_the_batch_script_puts_itself_back(case, tmp_path):
    signals, agent, status, again = ENDS[case]
    for name, body in (STAND_INS | {"torchrun": agent}).items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    job = {"SLURM_JOB_ID": "17", "SLURM_NNODES": "2", "SLURM_GPUS_ON_NODE": "8"}
    job |= {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_CPUS_PER_TASK": "64"}
    line = ["bash", ROOT / "docs/slurm.sh", "--sampler", "my own"]
    script = subprocess.Popen(line, cwd=tmp_path, env=os.environ | job)
    calls = tmp_path / "calls"
    started, pids = tmp_path / "calls", tmp_path / "pids"
    while not (pids.exists() and pids.read_text().count("\n") == 2) or (
        started.read_text().count("--node_rank") < 2
    ):
        time.sleep(0.01)
    for number in signals:
        script.send_signal(number)
        time.sleep(0.05)
    assert script.wait(20) == status
    said = calls.read_text().splitlines()
    where = "--nnodes 2 --nproc_per_node 8 --master_addr node7 --master_port 20017 train.py"
    agents = [f"--node_rank {n} {where} --sampler my own" for n in range(2)]
    ends = ["scancel --signal=TERM 17", "scontrol requeue 17"] if again else []
    assert said[0] == "scontrol show hostnames " and sorted(said[1:3]) == agents
    assert said[3:] == ends
