"""docs/clusters.md: several machines, which share neither SIGTERM nor files; docs/slurm.sh."""

import os
import shutil
import signal
import subprocess
import time

import pytest

from tests.helpers import ranks
from tests.helpers.models import save_tiny_model

pytestmark = pytest.mark.slow


FILES = {  # the change to the second machine's files; the status, the error
    "missing data": (
        lambda d: (d / "train.jsonl").unlink(),
        2,
        "No such file or directory: 'train.jsonl'",
    ),
    "other data": (
        lambda d: shutil.copy(d / "val.jsonl", d / "train.jsonl"),
        4,
        "data_crc32: ranks 0 and 1 differ: ",
    ),
    "another teacher": (
        lambda d: save_tiny_model(d / "teacher", "qwen3", initializer_range=0.2),
        4,
        "teacher_model_files: ranks 0 and 1 differ: ",
    ),
    "another --out": (lambda disk: None, 4, "No such file or directory: 'run/config.json'"),
}


@pytest.mark.parametrize("case", FILES)
def test_machines_with_different_files_are_rejected(case, tiny_model, halfway, tmp_path):
    damage, status, message = FILES[case]
    for disk in (tmp_path / "0", tmp_path / "1"):
        shutil.copytree(halfway, disk)
        for model in ("model", "teacher"):
            shutil.copytree(tiny_model, disk / model)
    damage(disk)
    out = "run" if case == "another --out" else tmp_path / "run"
    # Both ranks train the student, and the teacher between its steps.
    flags = "--out", out, "--teacher_model", "teacher", "--teacher_ranks", 0
    flags += "--max_prompt_tokens", 100
    options = {"ranks": 2, "machines": 2, "model": "model", "data": "."}
    options["before"] = lambda rank: os.chdir(tmp_path / str(rank))
    ended = ranks.launch(tmp_path / "log", *flags, **options)
    assert set(ended.statuses) <= {status, 4}
    assert status in ended.statuses
    assert ended.err.count("error: ") == 1
    assert message in ended.err
    assert not list(tmp_path.glob("*/checkpoints")) + list(tmp_path.glob("**/*.tmp"))


SLURM = {  # a step on two nodes is two processes here, whose ids srun writes for scancel
    "srun": 'for n in 0 1; do SLURM_NODEID=$n "${@:3}" & echo $! >> pids; done; wait $!',
    "scancel": 'echo "scancel $*" >> calls; kill -TERM $(cat pids)',
    "scontrol": 'echo "scontrol $*" >> calls; echo node7; echo node8',
}
RECORD = 'echo "$*" >> calls'
# As torchrun does: the ranks save, and it ends with status 1.
SAVES = f'trap "kill \\$!; sleep 2; exit 1" TERM; sleep 60 & {RECORD}; wait'
ENDS = {  # a signal to the script; what torchrun does; its status, and whether the job is requeued
    "finished": (None, RECORD, 0, False),
    "failed": (None, f"{RECORD}; exit 3", 3, False),
    "time is up": (signal.SIGUSR1, SAVES, 1, True),
    "preempted or cancelled": (signal.SIGTERM, f"{RECORD}; sleep 2; exit 1", 1, False),
}


@pytest.mark.parametrize("case", ENDS)
def test_the_batch_script_requeues_a_job_that_was_stopped_at_its_time_limit(case, tmp_path):
    number, torchrun, status, requeued = ENDS[case]
    for name, body in (SLURM | {"torchrun": torchrun}).items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    job = {
        "SLURM_JOB_ID": "17",
        "SLURM_NNODES": "2",
        "SLURM_GPUS_ON_NODE": "8",
        "SLURM_CPUS_PER_TASK": "64",
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
    }
    line = ["bash", ranks.ROOT / "docs/slurm.sh", "--sampler", "my own"]
    script = subprocess.Popen(line, cwd=tmp_path, env=os.environ | job)
    calls, pids = tmp_path / "calls", tmp_path / "pids"
    calls.touch()
    pids.touch()
    while pids.read_text().count("\n") < 2 or calls.read_text().count("--node_rank") < 2:
        time.sleep(0.01)
    if number:
        script.send_signal(number)
    assert script.wait(20) == status
    lines = calls.read_text().splitlines()
    flags = "--nnodes 2 --nproc_per_node 8 --master_addr node7 --master_port 20017 train.py"
    agents = [f"--node_rank {n} {flags} --sampler my own" for n in range(2)]
    assert sorted(lines[:3]) == [*agents, "scontrol show hostnames "]
    assert lines[3:] == (["scancel --signal=TERM 17", "scontrol requeue 17"] if requeued else [])
