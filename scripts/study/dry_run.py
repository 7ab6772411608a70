"""Describe the runs of a study before they start: commands, steps, memory, disk and GPU hours.

All but the progress is computed, not measured.
"""

import re
import shlex

from transformers import AutoModel

import train
from plumbing.config import Config
from plumbing.distributed.launch import as_rank_0_of
from plumbing.errors import InputError
from scripts import memory
from scripts.study.plan import Plan
from scripts.study.runner import Job, Runner, parse

ADAMW_BYTES = 12  # of a trained weight in a checkpoint: itself and AdamW's two moments, in float32
GB = 1e9


def ranks(launch: str) -> int:
    """Return how many ranks torchrun starts on a machine; 1 for another command."""
    match = re.search(r"--nproc[_-]per[_-]node[ =](\d+)", launch)
    return int(match[1]) if match else 1


def disk_gb(c: Config) -> tuple[float, float]:
    """Return the GB of a run's weights, at most: while the run saves a checkpoint, which are
    --keep and one more, and when it has finished: these and the exported models. A Teacher that is
    frozen or trained by LoRA needs less. Logs are not counted."""
    student = memory.weight_count(c.model)
    teacher = memory.weight_count(c.teacher_model, AutoModel) if c.teacher_model else 0
    checkpoint = ADAMW_BYTES * (student + teacher)
    exported = 4 * (student + teacher)  # a student on GPUs: 2
    return (c.keep + 1) * checkpoint / GB, (c.keep * checkpoint + exported) / GB


def memory_text(c: Config, world: int) -> str:
    """Format the peak of a rank by scripts.memory, or why it cannot be computed."""
    try:
        sizes = memory.rank_gib(c, world)
    except InputError as error:
        return str(error)
    teacher = f", Teacher {sizes[memory.TEACHER]:.1f}" if c.teacher_ranks else ""
    return f"GiB a rank: student {sizes[memory.STUDENT]:.1f}{teacher}"


def gpu_hours(c: Config, steps: int, of_a_run: float) -> float:
    """Return the GPU hours of some steps at a rate: those of a run with its preset's steps."""
    preset = train.parse(["--preset", c.preset, "--sampler", c.sampler])
    return of_a_run * steps / preset.steps


def describe(plan: Plan, jobs: list[Job]) -> str:
    """Format the runs of a plan, and the sums over those that are not finished.
    Raises InputError if a model's size cannot be found."""
    world = ranks(plan.launch)
    command = Runner(launch=shlex.split(plan.launch)).command
    lines = []
    hours_left = 0.0
    finished = [job for job in jobs if job.finished()]
    disks = []
    # As on the machine of the plan, where the number of ranks decides how many are the Teacher's.
    with as_rank_0_of(world):
        for job in jobs:
            c = parse(job.flags)
            steps = job.steps()
            done, _ = job.done()
            peak, kept = disk_gb(c)
            disks.append((peak, kept))
            hours = gpu_hours(c, steps, plan.gpu_hours)
            left = 0.0 if job in finished else gpu_hours(c, steps - done, plan.gpu_hours)
            hours_left += left
            per_step = c.prompts_per_step * c.group_size
            lines += [
                f"{job.run}: {'finished' if job in finished else f'step {done:,} of {steps:,}'}",
                f"    {steps:,} steps × {per_step} = {steps * per_step:,} completions; "
                f"{world - c.teacher_ranks} + {c.teacher_ranks} ranks; {memory_text(c, world)}",
                f"    {peak:.1f} GB of disk; {hours:,.0f} GPU hours, {left:,.0f} left",
                f"    {shlex.join(command(job))}",
            ]
    peak = max((peak for peak, _ in disks), default=0.0)
    all_kept = sum(kept for _, kept in disks)
    return "\n".join(
        [
            *lines,
            f"{len(jobs)} runs, {len(finished)} finished. {hours_left:,.0f} GPU hours left, at "
            f"{plan.gpu_hours:,} a run, the plan's `gpu_hours`.",
            f"Disk: {all_kept + peak:,.0f} GB at most, with --discard {peak:,.0f} GB. "
            "Computed, not measured; logs are not counted.",
            "",
        ]
    )
