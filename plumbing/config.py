"""The settings of a run (Tables 5a, 5b, 6): one field, one flag; presets change the defaults."""

import argparse
import shlex
from dataclasses import dataclass
from pathlib import Path

import grpo
from plumbing import command_line
from plumbing.command_line import (
    count_or_auto,
    flag,
    fraction,
    non_negative,
    non_negative_int,
    number,
)

MODES = ("full", "last_token", "frozen", "lora")  # of the teacher (App. L)
ROOT = Path(__file__).resolve().parents[1]
DEMO = shlex.quote(str(ROOT / "demo"))
REWARD = shlex.quote(str(ROOT / "rewards" / "reasoning_gym_score.py"))
DATA = "data/openmathreasoning"  # App. J; data/NAME: prepare_data.py --source NAME

# App. M. Line breaks that only fit the page's width are removed.
PROMPT_HEADER = r"""You are an expert problem solver. Your task is to solve the problem by explicitly showing your detailed Chain of Thought.
You must write out your reasoning step-by-step, explaining your logic for every calculation or deduction.
**Crucially, the final answer must be enclosed in a \boxed{...} command.**"""  # noqa: E501

PROMPT_FOOTER = r"""Strictly follow this output format:
### Step-by-Step Reasoning
<Write your detailed thought process here. Do not skip steps.>

### Final Answer
\boxed{<your final answer>}
**Important: The \boxed{...} command should only contain the final, simplified numerical or symbolic answer, with no extra text or units.**"""  # noqa: E501


ONE_CARD = "--teacher_ranks 0 --prompts_per_step 8 --teacher_epochs 1 --teacher_update_every 8"
ONE_CARD += " --max_prompt_tokens 512 --max_completion_tokens 512 --keep 1"
PAPER_4B = "--per_device_batch_size 3 --teacher_model Qwen/Qwen3-1.7B"
PRESETS: dict[str, str] = {
    "qwen2.5-1.5b": "",
    "olmo2-1b": "--model allenai/OLMo-2-0425-1B",
    "qwen3-4b": f"--model Qwen/Qwen3-4B --steps 8000 {PAPER_4B}",
    "phi-4-mini": f"--model microsoft/Phi-4-mini-instruct --steps 10000 {PAPER_4B}",
    # One card of 24 GB (docs/hardware.md). Learning rate: the paper's times the root of the batch
    # ratio, 1e-5 √(128/288), rounded down; a pass of the Teacher a step, as docs/log.md advises.
    "one-gpu": "--model Qwen/Qwen3-0.6B-Base"
    " --train_data data/math/train.jsonl --val_data data/math/val.jsonl --steps 400"
    " --max_rollout_tokens 40000 --activation_checkpointing --learning_rate 6e-6"
    f" --teacher_batch_size 2 --eval_every 25 --checkpoint_every 100 {ONE_CARD}",
    "smollm2": f"--model HuggingFaceTB/SmolLM2-135M-Instruct --chat_template {ONE_CARD}"
    " --train_data data/gsm8k/train.jsonl --val_data data/gsm8k/val.jsonl --steps 200"
    " --teacher_learning_rate 1e-5 --eval_every 20",
    # A laptop; --model: what studies/cold_start.py wrote. Without a teacher 32 steps.
    "reasoning": "--sampler uniform --model models/cold --steps 24 --eval_every 8"
    " --train_data data/reasoning-gym/train.jsonl --val_data data/reasoning-gym/val.jsonl"
    f" --reward {REWARD} --prompt_header '' --prompt_footer Answer: --prompts_per_step 12"
    " --max_prompt_tokens 80 --max_completion_tokens 60 --per_device_batch_size 16"
    " --max_rollout_tokens 32000 --learning_rate 1e-5 --verify_workers 1",
    "demo": f"--model {DEMO}/model --steps 120 --eval_every 10"
    f" --train_data {DEMO}/train.jsonl --val_data {DEMO}/val.jsonl --prompts_per_step 12"
    " --prompt_header '' --prompt_footer Solution: --max_prompt_tokens 32 --verify_workers 1"
    " --max_completion_tokens 40 --per_device_batch_size 96 --teacher_batch_size 32"
    " --learning_rate 2e-4 --teacher_learning_rate 1e-3 --device cpu",
}


@dataclass
class Config:
    """One field, one flag. The defaults are the paper's for Qwen2.5-1.5B; presets change them."""

    preset: str = flag("qwen2.5-1.5b", "defaults; other flags override them", choices=PRESETS)
    sampler: str = flag("goldilocks", "uniform (the baseline), one of samplers/, or FILE.py:CLASS")
    sampler_args: str = flag("", "settings of the sampler: name=value,name=value")
    steps: int = flag(
        20_000,
        "updates (Table 6); without a teacher 4/3 of the preset's, App. D, unless given",
    )
    seed: int = flag(0, "seed of every random stream", type=non_negative_int)
    out: str = flag("", "run directory; resumes if it exists [runs/PRESET-SAMPLER-seedSEED]")
    allow_code_change: bool = flag(
        False, "resume though the code has changed; config.json has both"
    )
    device: str = flag("auto", "auto: GPUs if there are any", choices=("auto", "cpu", "cuda"))
    bf16: bool = flag(False, "compute in bf16 on a CPU too: faster with AMX; without it, measure")
    model: str = flag("Qwen/Qwen2.5-1.5B", "student: hub id or directory (Section 5)")
    teacher_model: str = flag("Qwen/Qwen2.5-1.5B", "teacher (Section 5.1); by default --model")
    train_data: str = flag(f"{DATA}/train.jsonl", "JSONL or Parquet: problem, expected_answer")
    column: str = flag("", "of train_data: categories, or two (task,level); pass rate (static)")
    val_data: str = flag(f"{DATA}/val.jsonl", "the same, for evaluation: 5,000 problems (App. J)")
    reward: str = flag("", "custom, with verl's signature: FILE.py[:compute_score]")
    # Student
    prompts_per_step: int = flag(18, "P; P x G = 288 is the global batch (App. K.1)")
    group_size: int = flag(16, "completions G a prompt (Table 5a)", type=number(int, 2, 1000))
    per_device_batch_size: int = flag(4, "longest rows a forward/backward: a token budget (K.1)")
    max_rollout_tokens: int = flag(200_000, "key-value cache of one generate call")
    learning_rate: float = flag(1e-5, "AdamW, student (Table 5a)", type=fraction)
    lr_schedule: str = flag("constant", "linear: to 0 at the end", choices=("constant", "linear"))
    max_grad_norm: float = flag(1.0, "gradients are clipped to it; 0: never", type=non_negative)
    max_prompt_tokens: int = flag(1024, "longer ones are dropped (Table 5a)")
    max_completion_tokens: int = flag(2048, "completions are cut at it (Table 5a)")
    temperature: float = flag(0.7, "in training; evaluation is greedy", type=number(float, 1e-3))
    prompt_header: str = flag(PROMPT_HEADER, "text before the question (App. M)")
    prompt_footer: str = flag(PROMPT_FOOTER, "text after the question (App. M)")
    chat_template: bool = flag(False, "wrap the prompt in the tokenizer's chat template")
    loss: str = flag("grpo", "normaliser: see grpo.row_weights (Section 6)", choices=grpo.LOSSES)
    advantage_std: str = flag("population", "advantages' divisor (Section 2)", choices=grpo.STDS)
    dead_rows: str = flag("in", "count dead groups in denominators", choices=("in", "out"))
    truncated_rows: str = flag("in", "train on truncated completions", choices=("in", "out"))
    mismatch: str = flag("none", "correct for the generator's rounding", choices=grpo.MISMATCHES)
    mismatch_level: str = flag("sequence", "unit of the ratio", choices=("token", "sequence"))
    mismatch_cap: float = flag(3.0, "largest ratio", type=number(float, 1))
    update_iterations: int = flag(1, "updates mu on each batch (Table 5a)")
    clip_low: float = flag(0.2, "ratios are clipped below 1 - this (Section 6)", type=fraction)
    clip_high: float = flag(
        0.28, "ratios are clipped above 1 + this (Section 6)", type=non_negative
    )
    resample_rounds: int = flag(
        0, "DAPO's extra rounds for dead groups (Section 6)", type=non_negative_int
    )
    kl_coef: float = flag(0.0, "KL to the initial student (Table 5a)", type=non_negative)
    entropy_coef: float = flag(0.0, "bonus beta; 0.0003 in Table 2 (Eq. 4)", type=non_negative)
    activation_checkpointing: bool = flag(False, "recompute activations: less memory, more time")
    # Teacher
    teacher_ranks: int = flag(-1, "-1: world//4, 2 of 8 (Section 5.1)", type=number(int, -1))
    candidates: int | str = flag(
        8, "pool K_candidate for each prompt (Alg. 1, Table 5b); auto: fits K", type=count_or_auto
    )
    epsilon: float = flag(0.2, "share chosen uniformly from the pool (Alg. 1)", type=fraction)
    teacher_learning_rate: float = flag(1e-6, "AdamW, teacher (Table 5b)", type=fraction)
    teacher_batch_size: int = flag(8, "questions a teacher rank (Table 5b)")
    teacher_epochs: int = flag(4, "E_teacher over the buffer (Alg. 2, Table 5b)")
    teacher_update_every: int = flag(4, "M_update outcomes between updates (Table 5b)")
    replay_capacity: int = flag(64, "N_replay: latest outcomes kept (Alg. 2, Table 5b)")
    teacher_mode: str = flag("full", "trained part, pooling (App. L)", choices=MODES)
    teacher_lag: int = flag(
        1,
        "1: propose, then learn (K.3 as we read it); 0: reversed",
        type=non_negative_int,
        choices=(0, 1),
    )
    # The run
    eval_every: int = flag(200, "steps between greedy evaluations (Table 5a)")
    checkpoint_every: int = flag(
        0, "steps between checkpoints; 0: at evaluations", type=non_negative_int
    )
    keep: int = flag(2, "checkpoints kept")
    verify_workers: int = flag(4, "grading processes of a student rank")
    timeout_minutes: float = flag(
        60,
        "longest wait for ranks; in evaluations for a part",
        type=number(float, 0.01, 1e5),
    )


def parse_flags(argv: list[str] | None, description: str | None) -> tuple[Config, Config, set]:
    """Parse train.py's command line: returns the settings, the preset's, and the names of the flags
    that were given. --help shows the values of the preset. Raises ValueError with one line."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--preset", nargs="?", default=Config.preset)
    name = first.parse_known_args(argv)[0].preset
    preset = PRESETS.get(name, "")  # `parser` rejects another name
    plain = command_line.Parser(None)
    command_line.add_fields(plain, Config)
    of_preset = vars(plain.parse_args(shlex.split(preset)))
    if "model" in of_preset:
        of_preset.setdefault("teacher_model", of_preset["model"])
    parser = command_line.Parser(description)
    command_line.add_fields(parser, Config, shown=of_preset | {"preset": name})
    given = vars(parser.parse_args(argv))
    if "model" in given:
        given.setdefault("teacher_model", given["model"])
    c = Config(**of_preset | given)
    c.checkpoint_every = c.checkpoint_every or c.eval_every
    sampler_name = c.sampler.rpartition(":")[2].lower()
    c.out = c.out or f"runs/{c.preset}-{sampler_name}-seed{c.seed}"
    return c, Config(**of_preset), {*given}


def learning_rate(c: Config, step: int) -> float:
    """Return the student's learning rate at a step, by --lr_schedule."""
    left = 1 - (step - 1) / c.steps if c.lr_schedule == "linear" else 1
    return c.learning_rate * left


def is_due(step: int, every: int, steps: int) -> bool:
    """Return whether `step` is a multiple of `every`, or the last of the run's steps."""
    return step % every == 0 or step == steps
