"""Estimate a training step on 8 to 64 GPUs from assumptions. Nothing here is measured.

    python -m benchmarks.scaling
    python -m benchmarks.scaling --flops_share 0.25 --dead 0.6

The model is the paper's Qwen2.5-1.5B with its settings (Table 5), at 18 prompts a step and at 8
times as many. Each assumption is a flag, and the command prints all of them.
"""

import math
import sys
from dataclasses import dataclass, fields, replace

import numpy as np

import train
from benchmarks.roofline import Machine, Shape, attended_keys, floors, model_config
from benchmarks.step import command
from plumbing.command_line import Parser, add_fields, count, first_line, fraction, number, opt
from scripts.analysis import table

positive = number(float, 1e-3)


@dataclass
class Assumptions:
    """One field, one flag. None of these was measured with this code."""

    dead: float = opt(0.5, "share of dead groups, which are not trained on", type=fraction)
    peak_tflops: float = opt(989.0, "dense bf16 TFLOP/s of a GPU (H100 SXM)", type=positive)
    flops_share: float = opt(0.4, "share of peak_tflops that is reached", type=positive)
    peak_tb_s: float = opt(3.35, "memory bandwidth of a GPU (H100 SXM), TB/s", type=positive)
    bandwidth_share: float = opt(0.6, "share of peak_tb_s that is reached", type=positive)
    gpus_per_machine: int = opt(8, "GPUs in one machine", type=count)
    within_gb_s: float = opt(300.0, "GB/s a GPU sends within its machine (NVLink)", type=positive)
    between_gb_s: float = opt(40.0, "GB/s a GPU sends to other machines", type=positive)
    prompt_tokens: int = opt(300, "tokens of a prompt", type=count)
    question_tokens: int = opt(100, "tokens of a question, which the teacher reads", type=count)


def step_seconds(student: Shape, teacher: Shape, c, cards: int, a: Assumptions) -> dict[str, float]:
    """Estimated seconds of a step on `cards` GPUs, a quarter of them teachers, from train.Config c.

    Completion lengths are spread evenly from 1 to max_completion_tokens. Collectives send (n - 1)/n
    of their bytes. Waiting, kernel launches and verification take no time.

    Returns:
        rollout, train: `roofline.floors` of a student rank's share.
        exchange: each gradient is reduced in float32, and each weight is gathered in bf16 twice,
            for training and for generation.
        teacher: scoring the candidates and all updates of Alg. 2, one after the other: forward and
            backward of a rank's questions, AdamW, exchange of gradients and weights.
        step: max(rollout + train + exchange, teacher), because the teacher learns meanwhile.
    """
    machine = Machine(1e12 * a.peak_tb_s * a.bandwidth_share, 1e12 * a.peak_tflops * a.flops_share)
    teachers, P, G = cards // 4, c.prompts_per_step, c.group_size
    students = cards - teachers
    new_B = np.linspace(1, c.max_completion_tokens, P * G).round().astype(int)
    new_B = new_B.reshape(G, P).T.flatten()  # so that each group has short and long rows
    live = range(round((1 - a.dead) * P) * G)
    prompt_B = [a.prompt_tokens] * (P * G)
    parts = floors(student, machine, prompt_B, new_B, live, G=G, ranks=students, size=2)

    def exchange(moved: float, ranks: int) -> float:
        speed = a.within_gb_s if ranks <= a.gpus_per_machine else a.between_gb_s
        return moved * (ranks - 1) / ranks / (1e9 * speed)

    def forward(questions: int) -> float:
        tokens = questions * a.question_tokens
        flops = teacher.forward_flops(tokens, questions * attended_keys(a.question_tokens), 0)
        return machine.floor(flops, 2 * teacher.matrices)

    batches = math.ceil(c.replay_capacity / (c.teacher_batch_size * teachers))
    updates = P / c.teacher_update_every * c.teacher_epochs * batches
    questions = math.ceil(c.replay_capacity / batches / teachers)
    adamw = machine.floor(moved=7 * 4 * teacher.parameters / teachers)
    update = 3 * forward(questions) + adamw + exchange((4 + 2) * teacher.parameters, teachers)
    row = {"rollout": parts["rollout_s"], "train": parts["train_s"]}
    row["exchange"] = exchange((4 + 2 + 2) * student.parameters, students)
    row["teacher"] = updates * update + forward(math.ceil(P * c.candidates / teachers))
    row["step"] = max(row["rollout"] + row["train"] + row["exchange"], row["teacher"])
    return row


@command
def main(argv: list[str] | None = None) -> None:
    """Print both tables."""
    parser = Parser(description=first_line(__doc__))
    add_fields(parser, Assumptions)
    a = Assumptions(**vars(parser.parse_args(argv)))
    paper = train.parse(["--preset", "qwen2.5-1.5b"])
    shape, lines, row = Shape(model_config(paper.model)), [], {}
    for factor in (1, 8):  # the teacher makes as many updates a step with 8 times the prompts
        scaled = ("prompts_per_step", "teacher_update_every")
        c, first = replace(paper, **{name: factor * getattr(paper, name) for name in scaled}), None
        for cards in (8, 16, 32, 64):
            row = step_seconds(shape, shape, c, cards, a)
            first = first or row["step"]
            line = [c.prompts_per_step, f"{cards - cards // 4} + {cards // 4}"]
            lines.append([*line, *(f"{x:.2f}" for x in (*row.values(), first / row["step"]))])
    flags = [[f"--{f.name}", f"{getattr(a, f.name):g}", f.metadata["help"]] for f in fields(a)]
    print(table("ASSUMPTIONS, NOT MEASUREMENTS", ["flag", "value", "meaning"], flags))
    header = ["prompts", "ranks", *row, "speed-up"]
    print(table("COMPUTED FROM THESE ASSUMPTIONS: seconds of a step", header, lines))


if __name__ == "__main__":
    sys.exit(main())
