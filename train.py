"""Goldilocks RL, the main job:  torchrun --nproc_per_node 8 train.py

Read `train_step` first: it is one turn of Figure 1, and the only place where its steps meet.

    propose (1-2) -> rollout, verify (3) -> observe (5-6) -> advantages, loss, backward, AdamW (4)

Of 8 ranks 6 are students and 2 teachers. With `--sampler uniform` (the GRPO baseline) all 8 are
students. A single process runs the same loop with the teacher in it. There is no global state.
"""

import math
import shlex
import signal
import sys
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from transformers import AutoTokenizer

import grpo
import rollout
from plumbing import command_line
from plumbing.batches import micro_batches
from plumbing.checkpoint import Learner
from plumbing.command_line import count, fraction, natural, non_negative, number, opt
from plumbing.distributed import shutdown
from plumbing.distributed.channel import Channel, RemoteSampler, serve
from plumbing.distributed.layout import Layout
from plumbing.errors import InputError, NonFiniteError
from plumbing.metrics import Stopwatch, evaluate
from plumbing.models import Card, checksum, recompute_activations, unsharded
from plumbing.problems import Problems, check_data
from plumbing.progress import Console
from plumbing.run_dir import RunDir
from rollout import Generator, Policy, PromptEncoder, Rollouts, check_model
from sampler import Context, DynamicSampling, Pooled, Sampler, file_of, find_sampler, step_metrics
from teacher import MODES, Prefetching, Teacher, check_teacher
from verify import Verifier

DEMO = shlex.quote(str(Path(__file__).resolve().parent / "demo"))
DATA = "data/openmathreasoning"  # App. J; data/NAME: prepare_data.py --source NAME


@dataclass
class Config:
    """One field, one flag. The defaults are the paper's for Qwen2.5-1.5B; presets change them."""

    preset: str = opt("qwen2.5-1.5b", "named set of defaults; other flags override it")
    sampler: str = opt("goldilocks", "uniform (the baseline), one of samplers/, or FILE.py:CLASS")
    sampler_args: str = opt("", "settings of the sampler: name=value,name=value")
    steps: int = opt(20_000, "updates (Table 6; without a teacher 4/3, App. D's 8/6)", type=count)
    seed: int = opt(0, "seed of every random stream", type=natural)
    out: str = opt("", "run directory; resumes if it exists [runs/PRESET-SAMPLER-seedSEED]")
    device: str = opt("auto", "auto: GPUs if there are any", choices=("auto", "cpu", "cuda"))
    model: str = opt("Qwen/Qwen2.5-1.5B", "student: hub id or directory (Section 4.1)")
    teacher_model: str = opt("Qwen/Qwen2.5-1.5B", "teacher: hub id or directory (Section 4.2)")
    train_data: str = opt(f"{DATA}/train.jsonl", "JSONL or Parquet: problem, expected_answer")
    column: str = opt("", "of train_data: category (sec, noisy_and) or pass rate (static)")
    val_data: str = opt(f"{DATA}/val.jsonl", "the same, for evaluation: 5,000 problems (App. J)")
    reward: str = opt("", "custom, with verl's signature: FILE.py[:compute_score]")
    # Student
    prompts_per_step: int = opt(18, "P; P x G = 288 is the global batch (App. K.1)", type=count)
    group_size: int = opt(16, "completions G a prompt (Table 5a)", type=number(int, 2, 1000))
    per_device_batch_size: int = opt(4, "full-length rows a forward/backward", type=count)
    max_rollout_tokens: int = opt(200_000, "key-value cache of one generate call", type=count)
    learning_rate: float = opt(1e-5, "AdamW, student (Table 5a)", type=fraction)
    lr_schedule: str = opt("constant", "linear: to 0 at the end", choices=("constant", "linear"))
    max_grad_norm: float = opt(1.0, "gradients are clipped to it; 0: never", type=non_negative)
    max_prompt_tokens: int = opt(1024, "longer ones are dropped (Table 5a)", type=count)
    max_completion_tokens: int = opt(2048, "completions are cut at it (Table 5a)", type=count)
    temperature: float = opt(0.7, "in training; evaluation is greedy", type=number(float, 1e-3))
    prompt_header: str = opt(rollout.PROMPT_HEADER, "text before the question (App. M)")
    prompt_footer: str = opt(rollout.PROMPT_FOOTER, "text after the question (App. M)")
    chat_template: bool = opt(False, "wrap the prompt in the tokenizer's chat template")
    loss: str = opt("grpo", "normaliser: see grpo.row_weights (Section 6)", choices=grpo.LOSSES)
    advantage_std: str = opt("population", "advantages' divisor (Section 2)", choices=grpo.STDS)
    dead_rows: str = opt("in", "count dead groups in denominators", choices=("in", "out"))
    truncated_rows: str = opt("in", "train on truncated completions", choices=("in", "out"))
    mismatch: str = opt("none", "correct for the generator's rounding", choices=grpo.MISMATCHES)
    mismatch_level: str = opt("sequence", "unit of the ratio", choices=("token", "sequence"))
    mismatch_cap: float = opt(3.0, "largest ratio", type=number(float, 1))
    update_iterations: int = opt(1, "updates mu on each batch (Table 5a)", type=count)
    clip_low: float = opt(0.2, "ratios are clipped below 1 - this (Section 6)", type=fraction)
    clip_high: float = opt(0.28, "ratios are clipped above 1 + this (Section 6)", type=non_negative)
    resample_rounds: int = opt(0, "DAPO's extra rounds for dead groups (Section 6)", type=natural)
    kl_coef: float = opt(0.0, "KL to the initial student (Table 5a)", type=non_negative)
    entropy_coef: float = opt(0.0, "bonus beta; 0.0003 in Table 2 (Eq. 4)", type=non_negative)
    activation_checkpointing: bool = opt(False, "recompute activations: less memory, more time")
    # Teacher
    teacher_ranks: int = opt(-1, "-1: world//4, 2 of 8 (Section 5.1)", type=number(int, -1))
    candidates: int = opt(8, "pool K_candidate for each prompt (Alg. 1, Table 5b)", type=count)
    epsilon: float = opt(0.2, "share chosen uniformly from the pool (Alg. 1)", type=fraction)
    teacher_learning_rate: float = opt(1e-6, "AdamW, teacher (Table 5b)", type=fraction)
    teacher_batch_size: int = opt(8, "questions a teacher rank (Table 5b)", type=count)
    teacher_epochs: int = opt(4, "E_teacher over the buffer (Alg. 2, Table 5b)", type=count)
    teacher_update_every: int = opt(4, "M_update outcomes between updates (Table 5b)", type=count)
    replay_capacity: int = opt(64, "N_replay: latest outcomes kept (Alg. 2, Table 5b)", type=count)
    teacher_mode: str = opt("full", "trained part, pooling (App. L)", choices=MODES)
    teacher_lag: int = opt(1, "1: propose, then learn (App. K.3); 0: reversed", choices=(0, 1))
    # The run
    eval_every: int = opt(200, "steps between greedy evaluations (Table 5a)", type=count)
    checkpoint_every: int = opt(0, "steps between checkpoints; 0: at evaluations", type=natural)
    keep: int = opt(2, "checkpoints kept", type=count)
    verify_workers: int = opt(4, "grading processes of a student rank", type=count)
    timeout_minutes: float = opt(60, "longest wait for other ranks", type=number(float, 0.01, 1e5))


ONE_CARD = "--teacher_ranks 0 --prompts_per_step 8 --teacher_epochs 2 --teacher_update_every 8"
ONE_CARD += " --max_prompt_tokens 512 --max_completion_tokens 512 --keep 1"
OLMO = "allenai/OLMo-2-0425-1B"
SMOLLM = "HuggingFaceTB/SmolLM2-135M-Instruct"
PAPER_4B = "--per_device_batch_size 3 --teacher_model Qwen/Qwen3-1.7B"
PRESETS: dict[str, str] = {
    "qwen2.5-1.5b": "",
    "olmo2-1b": f"--model {OLMO} --teacher_model {OLMO}",
    "qwen3-4b": f"--model Qwen/Qwen3-4B --steps 8000 {PAPER_4B}",
    "phi-4-mini": f"--model microsoft/Phi-4-mini-instruct --steps 10000 {PAPER_4B}",
    # One card of 24 GB (docs/hardware.md). Learning rate: the paper's times the root of the batch
    # ratio, 1e-5 √(128/288), rounded down; 64 teacher updates a step are near the paper's 72.
    "one-gpu": "--model Qwen/Qwen3-0.6B-Base --teacher_model Qwen/Qwen3-0.6B-Base"
    " --train_data data/math/train.jsonl --val_data data/math/val.jsonl --steps 400"
    " --max_rollout_tokens 40000 --activation_checkpointing --learning_rate 6e-6"
    f" --teacher_batch_size 2 --eval_every 25 --checkpoint_every 100 {ONE_CARD}",
    "smollm2": f"--model {SMOLLM} --teacher_model {SMOLLM} --chat_template {ONE_CARD}"
    " --train_data data/gsm8k/train.jsonl --val_data data/gsm8k/val.jsonl --steps 200"
    " --teacher_learning_rate 1e-5 --eval_every 20",
    "demo": f"--model {DEMO}/model --teacher_model {DEMO}/model --steps 120 --eval_every 10"
    f" --train_data {DEMO}/train.jsonl --val_data {DEMO}/val.jsonl --prompts_per_step 12"
    " --prompt_header '' --prompt_footer Solution: --max_prompt_tokens 32 --verify_workers 1"
    " --max_completion_tokens 40 --per_device_batch_size 96 --teacher_batch_size 32"
    " --learning_rate 2e-4 --teacher_learning_rate 1e-3 --device cpu",
}


def parse(argv: list[str] | None = None) -> Config:
    """Parse flags, which override the preset, which overrides the defaults. Raises ValueError."""
    return command_line.parse(Config, PRESETS, find_sampler, argv, __doc__)


class Student:
    """The policy on one student rank: it rolls out, grades, trains and evaluates its share."""

    def __init__(self, config: Config, layout: Layout, verifier: Verifier):
        self.config, self.layout, self.verifier, c = config, layout, verifier, config
        self.tokenizer = AutoTokenizer.from_pretrained(c.model)
        self.encode = PromptEncoder(c, self.tokenizer)
        self.policy = Policy.load(c.model, layout.device)
        self.generator = Generator.load(c.model, layout.device, self.tokenizer)
        self.reference = Policy.load(c.model, layout.device, trained=False) if c.kl_coef else None
        if c.activation_checkpointing:
            recompute_activations(self.policy.lm)
        layout.shard(self.policy)
        settings = {"lr": c.learning_rate, "weight_decay": 0.0, "fused": True}
        self.optimizer = torch.optim.AdamW(self.policy.parameters(), **settings)
        weights = partial(checksum, self.generator.lm)
        export = partial(self.generator.export, card=Card(c))
        self.learner = Learner(self.policy, self.optimizer, weights, export)

    def rollout(
        self, problems: Problems, index_B: list[int], temperature: float, stream, watch: Stopwatch
    ) -> Rollouts:
        """Return one graded completion for each problem: this rank makes a contiguous share, every
        rank gets all. stream: integers that, with the seed and the row, name the random stream."""
        c = self.config
        first_row, own_B = self.layout.share(index_B)
        prompt = {i: self.encode(problems.question(i)) for i in dict.fromkeys(own_B)}
        if long := [i for i, ids in prompt.items() if len(ids) > c.max_prompt_tokens]:
            raise InputError(f"the sampler proposes problem {long[0]}: over --max_prompt_tokens")
        with watch("rollout_s"):
            seed = np.random.SeedSequence([c.seed, 2, *stream]).generate_state(1, np.uint64)
            options = {"max_new_tokens": c.max_completion_tokens, "seed": int(seed[0])}
            options |= {"max_batch_tokens": c.max_rollout_tokens, "first_row": first_row}
            rollouts = self.generator.generate([prompt[i] for i in own_B], temperature, **options)
            rollouts.problems = own_B
        with watch("verify_s"):
            decode = self.tokenizer.decode  # batch_decode([]) would return [""]
            texts = [decode(ids, skip_special_tokens=True) for ids in rollouts.completion_ids]
            verdicts = self.verifier.grade(texts, *problems.golds(own_B))
            valid = self.verifier.check_golds(*problems.golds(list(prompt)), problems)
            verifiable = dict(zip(prompt, valid, strict=True))
            for i, verdict in zip(own_B, verdicts, strict=True):
                rollouts.rewards.append(verdict.reward if verifiable[i] else 0.0)
                rollouts.statuses.append(verdict.status if verifiable[i] else "bad_gold")
        with watch("gather_s"):  # fast ranks wait here for the slowest
            return sum(self.layout.gather(rollouts, self.layout.group), Rollouts())

    def update(self, rollouts: Rollouts, groups: list[list[int]], step: int) -> dict:
        """Take step 4 of Figure 1 on groups of rows, which every rank holds: advantages, loss,
        backward, clip, AdamW. Returns metrics. Raises NonFiniteError instead of a bad update."""
        c, n = self.config, self.layout.n_students
        rewards_B, lengths_B = torch.tensor(rollouts.rewards), rollouts.lengths()
        advantage_B, weight_B = torch.zeros(len(rollouts)), torch.zeros_like(lengths_B).double()
        if c.dead_rows == "out":
            groups = [rows for rows in groups if not grpo.dead_groups(rewards_B[rows][None])]
        if c.truncated_rows == "out":
            lengths_B *= torch.tensor(rollouts.finished)
        P, longest = len(groups), c.max_completion_tokens
        batch_tokens = int(sum(lengths_B[rows].sum() for rows in groups))
        for rows in groups:
            # Eq. 2: right answers get √((1-p̂)/p̂), wrong ones -√(p̂/(1-p̂)), so the mean of
            # Â ∇log π has the factor √(p̂(1-p̂)). A dead group's advantages are 0.
            advantage_B[rows] = grpo.group_advantages(rewards_B[rows][None], c.advantage_std)[0]
            weight_B[rows] = grpo.row_weights(lengths_B[rows], P, c.loss, batch_tokens, longest)
        all_matter = c.kl_coef or c.entropy_coef  # else rows with advantage 0 have no gradient
        rows = (weight_B if all_matter else advantage_B * weight_B).nonzero()[:, 0].tolist()
        max_tokens = c.per_device_batch_size * (c.max_prompt_tokens + c.max_completion_tokens)
        pad_id, packed = self.tokenizer.pad_token_id, self.policy.packed
        batches = micro_batches(
            rollouts, rows, advantage_B, weight_B, self.layout, max_tokens, pad_id, packed
        )
        left = 1 - (step - 1) / c.steps if c.lr_schedule == "linear" else 1
        self.optimizer.param_groups[0]["lr"] = rate = c.learning_rate * left
        coefficients = {name: getattr(c, name) for name in grpo.COEFFICIENTS}
        token_sums, norms = Counter(), []
        for iteration in range(c.update_iterations):
            for batch in batches:
                if isinstance(self.policy, FSDPModule):  # not on a single CPU rank
                    # Ranks have different numbers of micro-batches: the last reduces gradients.
                    self.policy.set_requires_gradient_sync(batch.last or n == 1)
                    self.policy.set_reshard_after_backward(batch.last)
                logp_N, entropy_N = self.policy(batch, c.temperature)
                if iteration == 0:  # before the first update: no other forward is needed for these
                    batch.old_logp_N = logp_N.detach()
                    if self.reference:
                        with torch.no_grad():
                            batch.ref_logp_N = self.reference(batch, c.temperature)[0]
                columns = batch.columns() | {"entropy_N": entropy_N}
                loss, stats = grpo.policy_loss(logp_N, **columns, **coefficients)
                (loss * n).backward()  # FSDP averages over ranks; the loss is a sum over them
                for name, value in (stats | {"loss": loss}).items():
                    token_sums[name] += 0.0 if batch.idle else value.item()
                token_sums["tokens"] += 0 if batch.idle else len(logp_N)
            sums = self.layout.sum(token_sums)
            norm = nn.utils.clip_grad_norm_(self.policy.parameters(), c.max_grad_norm or math.inf)
            norms.append(unsharded(norm).item())
            if not all(map(math.isfinite, [norms[-1], *sums.values()])):
                raise NonFiniteError(
                    f"step {step}: gradient norm {norms[-1]}, loss {sums['loss']}: no update was "
                    f"made; `python -m scripts.replay {c.out} --step {step}` computes them again"
                )
            self.optimizer.step()  # AdamW's momentum moves the weights even if all groups are dead
            self.optimizer.zero_grad()
        self.generator.refresh(self.policy)
        tokens, loss = sums.pop("tokens"), sums.pop("loss")
        metrics = {name: value / tokens if tokens else None for name, value in sums.items()}
        metrics |= {"grad_norm": sum(norms) / len(norms), "loss": loss / c.update_iterations}
        return metrics | {"forwarded_rows": len(rows), "learning_rate": rate}


def train_step(
    step: int, student: Student, sampler: Sampler, problems: Problems, log=lambda *_: None
) -> dict:
    """Take one turn of Figure 1; return its row of metrics.jsonl. log(rounds, rollouts, decode) is
    called before the update, so that a failed update can be repeated from the logs."""
    c, P, layout = student.config, student.config.prompts_per_step, student.layout
    start, watch, rounds, rollouts = time.perf_counter(), Stopwatch(), [], Rollouts()
    while not rounds or rounds[-1][0].again:  # one round, unless the sampler asks for more
        # Steps 1-2: the sampler proposes P problems (Alg. 1).
        with watch("teacher_wait_s"):
            selections = sampler.propose(P)
            index_B = selections.rows(c.group_size, len(problems))
            layout.assert_replicas_equal(layout.group, proposals=index_B)
        # Step 3: G completions of each, and their verified rewards.
        new = student.rollout(problems, index_B, c.temperature, (1, step, len(rounds)), watch)
        outcomes = new.outcomes(step)
        # Steps 5-6: the teacher gets the outcomes, and learns (Alg. 2) while the student trains.
        with watch("teacher_wait_s"):
            sampler.observe(outcomes)
        rounds, rollouts = [*rounds, (selections, outcomes)], rollouts + new
    log(rounds, rollouts, student.tokenizer.decode)
    # Step 4: GRPO. The completions of a problem are one group, whichever rounds they come from.
    groups, outcomes = rollouts.groups(), rollouts.outcomes(step)
    with watch("train_s"):
        chosen = [groups[i] for i in outcomes.positions(sampler.train_on(outcomes, P))]
        update = student.update(rollouts, chosen, step)
    metrics = {"step": step} | sampler.metrics() | step_metrics(rounds, outcomes)
    metrics |= rollouts.metrics() | update | watch | {"step": step}  # these win over a sampler's
    return metrics | {"seconds": time.perf_counter() - start}


def train(config: Config, layout: Layout, run: RunDir, start: int, verifier: Verifier) -> bool:
    """Run the student ranks' main program. Returns False if a signal stopped it."""
    c, problems, val_problems = config, Problems(config.train_data), Problems(config.val_data)
    student = Student(c, layout, verifier)
    sampler = build_sampler(c, layout, problems)
    remote, learners = layout.n_teachers > 0, {"student": student.learner}
    if teacher := getattr(sampler, "teacher", None):  # in this process
        learners["teacher"] = teacher.learner
    run.load(start, learners, sampler)
    if start:  # the generator has the initial weights already
        student.generator.refresh(student.policy)
    console = Console(run, start, student, problems, val_problems)
    shutdown.stop_at_signals(layout)
    for step in range(start, c.steps + 1):
        if step > start:
            metrics = train_step(step, student, sampler, problems, run.log_outcomes)
            run.log("metrics", [metrics])
            console.update(metrics)
        if run.evaluation_pending(step):
            evaluation = evaluate(student.rollout, student.encode, val_problems, run, step, console)
            run.finish_evaluation(step, evaluation)
        stop = shutdown.stop_requested(layout)
        finished = step == c.steps and not stop
        if step > start and (finished or stop or step % c.checkpoint_every == 0):
            if remote:
                sampler.save(step)  # the teacher ranks write their part
            run.save(step, sampler.state_dict(), learners)
        if stop:
            break
    if finished:
        run.export(learners)
    if remote:
        sampler.stop(finished)
    console.end(finished)
    return finished


def run_teacher(config: Config, layout: Layout, run: RunDir, start: int) -> bool:
    """Run the teacher ranks' main program: answer and learn until the students stop."""
    sampler = build_sampler(config, layout, Problems(config.train_data))
    learners = {"teacher": sampler.teacher.learner}
    run.load(start, learners, sampler)
    shutdown.stop_at_signals(layout)
    finished = serve(sampler, Channel(layout), partial(run.save, learners=learners))
    if finished:
        run.export(learners)
    return finished


def build_sampler(config: Config, layout: Layout, problems: Problems) -> Sampler:
    """Build the sampler, or on student ranks that have teacher ranks a RemoteSampler."""
    c, cls = config, find_sampler(config.sampler)
    if layout.n_teachers and not layout.is_teacher:
        sampler = RemoteSampler(Channel(layout), cls.train_on)
    else:
        encode = PromptEncoder(c, AutoTokenizer.from_pretrained(c.model))
        limit = c.max_prompt_tokens
        context = Context(problems, c, lambda i: len(encode(problems.question(i))) <= limit)
        context.settings = command_line.settings(c.sampler_args, cls.settings, c.sampler)
        if cls.uses_teacher:
            context.teacher = Teacher(c, layout.device, layout.shard, layout.group)
        sampler = cls(context)
        if cls.uses_teacher:
            sampler = Prefetching(sampler, c.prompts_per_step, c.teacher_lag)
    if c.resample_rounds and not layout.is_teacher:
        return DynamicSampling(sampler, c.resample_rounds)
    return sampler


def check(config: Config, run: RunDir) -> int:
    """Check flags, models and data before anything is built. Returns the step to resume from.
    Raises ValueError or OSError with one line; nothing is written before these checks pass."""
    c, cls = config, find_sampler(config.sampler)
    check_model(c.model, c.max_prompt_tokens + c.max_completion_tokens)
    if cls.uses_teacher:
        check_teacher(c.teacher_model, c.max_prompt_tokens, c.teacher_mode)
    encode = PromptEncoder(c, AutoTokenizer.from_pretrained(c.model))
    if (empty := len(encode(""))) >= c.max_prompt_tokens:
        raise ValueError(f"--max_prompt_tokens {c.max_prompt_tokens}: must be above {empty}")
    check_data(c, c.prompts_per_step * (c.candidates if issubclass(cls, Pooled) else 1))
    encode.check(Problems(c.val_data))
    return run.open()


def main(argv: list[str] | None = None) -> int:
    """Run the command; return its exit status. 0: finished; 143: stopped by a signal, can be
    resumed. With one line on stderr 2: bad input; 3: a loss or gradient is not finite; 4: a fault
    (full disk, lost rank). 1: any other error, with the traceback of each rank that raised it."""
    shutdown.begin_process()
    with ExitStack() as stack:
        try:
            config = parse(argv)
            layout = Layout(config)
            verifier = Verifier(workers=config.verify_workers, reward=config.reward)
            if not layout.is_teacher:  # workers must start before CUDA and the process groups exist
                verifier = stack.enter_context(verifier)
        except (ValueError, OSError) as error:
            return shutdown.reject(error)

        def body() -> int:
            run = RunDir(config, layout, file_of(config.sampler))
            start = layout.on_rank_0(partial(check, config, run))
            run.assert_machines_agree()
            main_loop = run_teacher if layout.is_teacher else partial(train, verifier=verifier)
            return 0 if main_loop(config, layout, run, start) else 128 + signal.SIGTERM

        return shutdown.run_ranks(layout, config.timeout_minutes, body)


if __name__ == "__main__":
    sys.exit(main())
