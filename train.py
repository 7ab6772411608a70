"""Goldilocks RL, the main job:  torchrun --nproc_per_node 8 train.py

Read `train_step` first: it is one turn of Figure 1, and the only place where its steps meet.

    propose (1-2) -> rollout, verify (3) -> observe (5-6) -> advantages, loss, backward, AdamW (4)

World 8 is 6 student ranks and 2 teacher ranks; `--sampler uniform` (the GRPO baseline) makes all 8
students; one process alone runs the same loop with the teacher in it. No state is global.
"""

import math
import os
import shlex
import sys
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from transformers import AutoTokenizer

import grpo
import rollout
from plumbing import checkpoint, command_line, progress
from plumbing.batches import halves, micro_batches
from plumbing.command_line import count, from_0, natural, number, opt, share
from plumbing.distributed.channel import Channel, RemoteSampler, serve
from plumbing.distributed.layout import Layout, begin_process, reject
from plumbing.errors import NonFiniteError
from plumbing.metrics import GradientNoise, evaluate
from plumbing.models import recompute_activations
from plumbing.plugins import path_of
from plumbing.problems import Problems, check_data, prepare_missing
from plumbing.run_dir import RunDir
from rollout import Generator, Policy, PromptEncoder, Rollouts, check_model
from sampler import Context, Pooled, Prefetching, find_sampler, outcome_metrics, sampler_file
from teacher import MODES, Teacher, check_teacher
from verify import Verifier

DEMO = shlex.quote(str(Path(__file__).resolve().parent / "demo"))
DATA = "data/openmathreasoning"  # App. J; data/NAME: prepare_data.py --source NAME


@dataclass
class Config:
    """One field, one flag. The defaults are the paper's for Qwen2.5-1.5B; presets change them."""

    preset: str = opt("qwen2.5-1.5b", "named set of defaults; other flags override it")
    sampler: str = opt("goldilocks", "or uniform (the baseline), one of samplers/, FILE.py:CLASS")
    steps: int = opt(20_000, "updates (Table 6; without a teacher 4/3 of it, App. D)", type=count)
    seed: int = opt(0, "seed of every random stream", type=natural)
    out: str = opt("", "run folder; again the same continues [runs/PRESET-SAMPLER-seedSEED]")
    model: str = opt("Qwen/Qwen2.5-1.5B", "student: hub id or folder (Section 4.1)")
    teacher_model: str = opt("Qwen/Qwen2.5-1.5B", "teacher: hub id or folder (Section 4.2)")
    train_data: str = opt(f"{DATA}/train.jsonl", "JSONL or Parquet: problem, expected_answer")
    column: str = opt("", "of train_data: category (sampler category) or pass rate (static)")
    val_data: str = opt(f"{DATA}/val.jsonl", "likewise, for evaluation: 5,000 problems (App. J)")
    reward: str = opt("", "one of your own, as verl's are: FILE.py[:compute_score]")
    # Student
    prompts_per_step: int = opt(18, "P; P x G = 288 is the global batch (App. K.1)", type=count)
    group_size: int = opt(16, "completions G a prompt (Table 5a)", type=number(int, 2))
    per_device_batch_size: int = opt(4, "full-length rows a forward/backward", type=count)
    max_rollout_tokens: int = opt(200_000, "key-value cache of one generate call", type=count)
    learning_rate: float = opt(1e-5, "AdamW, student (Table 5a)", type=share)
    optimizer: str = opt("adamw", "or sgd: what would plain descent do?", choices=("adamw", "sgd"))
    lr_schedule: str = opt("constant", "linear: to 0 at the end", choices=("constant", "linear"))
    max_grad_norm: float = opt(1.0, "longer gradients are scaled to it; 0: never", type=from_0)
    max_prompt_tokens: int = opt(1024, "longer ones are dropped, counted (Table 5a)", type=count)
    max_completion_tokens: int = opt(2048, "completions are cut there (Table 5a)", type=count)
    temperature: float = opt(0.7, "in training; evaluation is greedy", type=number(float, 1e-3))
    prompt_header: str = opt(rollout.PROMPT_HEADER, "text before the question (App. M)")
    prompt_footer: str = opt(rollout.PROMPT_FOOTER, "text after the question (App. M)")
    chat_template: bool = opt(False, "wrap the prompt in the tokenizer's chat template")
    loss: str = opt("grpo", "mean by sequence, by group (Section 6), or sum", choices=grpo.LOSSES)
    advantage_std: str = opt("population", "over G, over G-1, none (Section 2)", choices=grpo.STDS)
    dead_rows: str = opt("in", "count dead groups in denominators", choices=("in", "out"))
    update_iterations: int = opt(1, "updates mu on each batch (Table 5a)", type=count)
    clip_low: float = opt(0.2, "the ratio is clipped below 1 - this (Section 6)", type=share)
    clip_high: float = opt(0.28, "the ratio is clipped above 1 + this (Section 6)", type=from_0)
    resample_rounds: int = opt(0, "DAPO's extra rounds for dead groups (Section 6)", type=natural)
    kl_coef: float = opt(0.0, "KL to the initial student (Table 5a)", type=from_0)
    entropy_coef: float = opt(0.0, "entropy bonus beta; 0.0003 in Table 2 (Eq. 4)", type=from_0)
    activation_checkpointing: bool = opt(False, "recompute activations: less memory, more time")
    # Teacher
    teacher_ranks: int = opt(-1, "-1: world//4, 2 of 8 (Section 5.1)", type=number(int, -1))
    candidates: int = opt(8, "pool K_candidate for each prompt (Alg. 1, Table 5b)", type=count)
    epsilon: float = opt(0.2, "share chosen uniformly from the pool (Alg. 1)", type=share)
    teacher_learning_rate: float = opt(1e-6, "AdamW, teacher (Table 5b)", type=share)
    teacher_batch_size: int = opt(8, "questions a teacher rank (Table 5b)", type=count)
    teacher_epochs: int = opt(4, "E_teacher over the buffer (Alg. 2, Table 5b)", type=count)
    teacher_update_every: int = opt(4, "M_update outcomes between updates (Alg. 2)", type=count)
    replay_capacity: int = opt(64, "N_replay: latest outcomes kept (Alg. 2, Table 5b)", type=count)
    teacher_mode: str = opt("full", "what is pooled and trained (App. L)", choices=MODES)
    teacher_lag: int = opt(1, "1: propose, then learn (App. K.3); 0: reversed", choices=(0, 1))
    # The run
    eval_every: int = opt(200, "steps between greedy evaluations (Table 5a)", type=count)
    checkpoint_every: int = opt(0, "steps between checkpoints; 0: at evaluations", type=natural)
    keep: int = opt(2, "checkpoints kept", type=count)
    noise_every: int = opt(10, "steps between meters of the gradient; 0: never", type=natural)
    verify_workers: int = opt(4, "processes a student rank grades answers with", type=count)
    timeout_minutes: float = opt(60, "a rank's longest wait", type=number(float, 0.01, 1e5))


OLMO = "allenai/OLMo-2-0425-1B"
PAPER_4B = "--per_device_batch_size 3 --teacher_model Qwen/Qwen3-1.7B"
PRESETS: dict[str, str] = {
    "qwen2.5-1.5b": "",
    "olmo2-1b": f"--model {OLMO} --teacher_model {OLMO}",
    "qwen3-4b": f"--model Qwen/Qwen3-4B --steps 8000 {PAPER_4B}",
    "phi-4-mini": f"--model microsoft/Phi-4-mini-instruct --steps 10000 {PAPER_4B}",
    # One card of 24 GB (README, Hardware). The rate is the paper's by the root of the batches, 1e-5
    # √(128/288), rounded down; 64 updates of the teacher a step are about its 72.
    "one-gpu": "--model Qwen/Qwen3-0.6B-Base --teacher_model Qwen/Qwen3-0.6B-Base"
    " --train_data data/math/train.jsonl --val_data data/math/val.jsonl --steps 400"
    " --teacher_ranks 0 --prompts_per_step 8 --max_prompt_tokens 512 --max_completion_tokens 512"
    " --max_rollout_tokens 40000 --activation_checkpointing --learning_rate 6e-6"
    " --teacher_batch_size 2 --teacher_epochs 2 --teacher_update_every 8"
    " --eval_every 25 --checkpoint_every 100 --keep 1",
    "demo": f"--model {DEMO}/model --teacher_model {DEMO}/model"
    f" --train_data {DEMO}/train.jsonl --val_data {DEMO}/val.jsonl"
    " --prompt_header '' --prompt_footer Solution: --max_prompt_tokens 32"
    " --max_completion_tokens 40 --prompts_per_step 12 --steps 120 --eval_every 10"
    " --learning_rate 2e-4 --teacher_learning_rate 1e-3 --teacher_batch_size 32"
    " --per_device_batch_size 96 --verify_workers 1",
}


def parse(argv: list[str] | None = None) -> Config:
    """Command line -> Config: the preset's values, then the flags given, then what follows from the
    sampler. Raises ValueError with one line."""
    config, given = command_line.parse(Config, PRESETS, argv, __doc__.partition("\n")[0])
    sampler = find_sampler(config.sampler)
    command_line.reject_unused(config, given, sampler)
    if not sampler.uses_teacher:
        config.teacher_model, config.teacher_ranks = "", 0
        if "steps" not in given:  # equal device time, to the preset's next evaluation (App. D)
            to = command_line.parse(Config, PRESETS, ["--preset", config.preset], "")[0].eval_every
            config.steps = math.ceil(config.steps * 4 / 3 / to) * to
    if config.teacher_ranks < 0:
        config.teacher_ranks = int(os.environ.get("WORLD_SIZE", 1)) // 4
    config.checkpoint_every = config.checkpoint_every or config.eval_every
    name = config.sampler.rpartition(":")[2].lower()
    config.out = config.out or f"runs/{config.preset}-{name}-seed{config.seed}"
    return config


class Student:
    """The policy, and what one student rank does with it: roll out, grade, train its share."""

    def __init__(self, config: Config, layout: Layout, verifier: Verifier):
        self.config, self.layout, self.verifier = config, layout, verifier
        self.tokenizer = AutoTokenizer.from_pretrained(config.model)
        self.encode = PromptEncoder.of(config, self.tokenizer)
        self.good = {}  # (problems, index) -> whether its gold can be verified; else no reward
        self.policy = Policy(config.model, layout.device)
        self.generator = Generator(config.model, layout.device, self.tokenizer)
        self.reference = Policy(config.model, layout.device) if config.kl_coef else None
        if self.reference:
            layout.shard(self.reference.requires_grad_(False))
        if config.activation_checkpointing:
            recompute_activations(self.policy.lm)
        layout.shard(self.policy)
        adamw, parameters = config.optimizer == "adamw", self.policy.parameters()
        how = {"lr": config.learning_rate, "weight_decay": 0.0, "fused": adamw}
        self.optimizer = (torch.optim.AdamW if adamw else torch.optim.SGD)(parameters, **how)

    def rollout(self, problems, index_B: list[int], temperature: float, stream: tuple, watch):
        """One graded completion for each problem named: this rank does a contiguous share, every
        rank gets all. stream: names the random stream, with the seed and the row."""
        c = self.config
        first, asked = self.layout.share(index_B)
        prompt = {i: self.encode(problems.question(i)) for i in dict.fromkeys(asked)}
        with watch("rollout_s"):
            words = np.random.SeedSequence([c.seed, 2, *stream]).generate_state(1, np.uint64)
            limits = c.max_completion_tokens, int(words[0]), c.max_rollout_tokens, first
            rollouts = self.generator.generate([prompt[i] for i in asked], temperature, *limits)
        with watch("verify_s"):
            decode = self.tokenizer.decode
            texts = [decode(ids, skip_special_tokens=True) for ids in rollouts.completion_ids]
            verdicts = self.verifier.grade(texts, *problems.golds(asked, bool(c.reward)))
            new = [i for i in dict.fromkeys(asked) if (problems, i) not in self.good]
            checked = self.verifier.check_golds(*problems.golds(new, bool(c.reward)), problems)
            self.good |= {(problems, i): good for i, good in zip(new, checked, strict=True)}
            for i, verdict in zip(asked, verdicts, strict=True):
                good = self.good[problems, i]
                rollouts.rewards.append(verdict.reward if good else 0.0)
                rollouts.statuses.append(verdict.status if good else "bad_gold")
        with watch("gather_s"):  # here the ranks that were fast wait for the slowest
            return sum(self.layout.gather(rollouts, self.layout.group), Rollouts())

    def update(self, rollouts: Rollouts, step: int) -> dict[str, float | None]:
        """Figure 1, step 4: advantages, loss, backward, clip, AdamW on P groups of G rows, which
        every rank knows whole. Returns metrics. Raises NonFiniteError before the weights change."""
        c, n = self.config, self.layout.n_students
        rewards_P_G = rollouts.rewards_P_G(c.group_size)
        # Eq. 2: these put the factor √(p(1-p)) into the gradient's length, 0 where a group is dead.
        advantage_P_G = grpo.group_advantages(rewards_P_G, c.advantage_std)
        if c.dead_rows == "out":
            advantage_P_G = grpo.leave_out_dead_groups(advantage_P_G)
        weight_P_G = grpo.row_weights(rollouts.lengths().reshape(rewards_P_G.shape), c.loss)
        # A row with advantage 0 has no gradient, unless of KL or entropy: it is not forwarded.
        rows = advantage_P_G.flatten().nonzero()[:, 0].tolist()
        if c.kl_coef or c.entropy_coef:
            rows = list(range(len(rollouts)))
        budget = c.per_device_batch_size * (c.max_prompt_tokens + c.max_completion_tokens)
        how = budget, self.tokenizer.pad_token_id, self.layout.device, self.policy.packed
        columns = advantage_P_G.flatten(), weight_P_G.flatten()
        batches, noise = [], GradientNoise(self, step)
        for part in halves(rows, c.group_size) if noise.halves else [rows]:
            batches += micro_batches(rollouts, part, *columns, self.layout.rank, n, *how)
        left = 1 - (step - 1) / c.steps if c.lr_schedule == "linear" else 1
        for param_group in self.optimizer.param_groups:
            param_group["lr"] = learning_rate = c.learning_rate * left
        coefficients = {name: getattr(c, name) for name in grpo.COEFFICIENTS}

        mine, norms = Counter(), []  # sums over this rank's tokens, by name
        for iteration in range(c.update_iterations):
            for b in batches:
                # Ranks have unlike numbers of batches, and meet at the last; one alone adds each.
                self.policy.set_requires_gradient_sync(b.last or n == 1)
                self.policy.set_reshard_after_backward(b.last)
                logp_N, entropy_N = self.policy(b, c.temperature)
                if iteration == 0:  # the policy has not moved yet: no other forward for these
                    b.old_logp_N = logp_N.detach()
                    if self.reference:
                        with torch.no_grad():
                            b.ref_logp_N = self.reference(b, c.temperature)[0]
                columns = (b.old_logp_N, b.advantage_N, b.weight_N)
                more = {"ref_logp_N": b.ref_logp_N, "entropy_N": entropy_N, **coefficients}
                loss, stats = grpo.policy_loss(logp_N, *columns, **more)
                (loss * n).backward()  # FSDP averages over ranks; the loss is a sum over them
                # Between generator and policy, which differ in bf16 on GPUs.
                stats["logp_gap"] = (b.old_logp_N.cpu() - b.generated_logp_N).abs().sum()
                stats |= {"loss": loss, "tokens": torch.tensor(len(logp_N))}
                for name, value in stats.items():
                    mine[name] += 0.0 if b.idle else value.item()
                if b.last:
                    noise.of_gradient(whole=b is batches[-1])
            sums = self.layout.sum(mine)
            norm = nn.utils.clip_grad_norm_(self.policy.parameters(), c.max_grad_norm or math.inf)
            norms.append(norm.full_tensor().item())
            if not all(map(math.isfinite, [norms[-1], *sums.values()])):
                found = f"step {step}: gradient norm {norms[-1]}, loss {sums['loss']}"
                again = f"`python -m scripts.replay {c.out} --step {step}` computes them again"
                raise NonFiniteError(f"{found}: no update was made; {again}")
            self.optimizer.step()
            self.optimizer.zero_grad()
        noise.of_update()
        self.generator.refresh(self.policy)
        tokens, loss = sums.pop("tokens"), sums.pop("loss")
        metrics = {name: value / tokens if tokens else None for name, value in sums.items()}
        metrics |= {"grad_norm": sum(norms) / len(norms), "loss": loss / c.update_iterations}
        return metrics | noise | {"forwarded_rows": len(rows), "learning_rate": learning_rate}


def train_step(step, student, sampler, problems, log=lambda *outcomes: None) -> dict:
    """One turn of Figure 1. Returns its row of metrics.jsonl.

    log(step, selections, rollouts, decode) is called before the update, so that one that fails can
    be made again from what was logged.
    """
    c, P, G = student.config, student.config.prompts_per_step, student.config.group_size
    began, watch, tried, rollouts = time.perf_counter(), progress.Stopwatch(), None, Rollouts()
    for extra in range(1 + c.resample_rounds):  # one round, unless DAPO replaces dead groups
        # Steps 1-2: the sampler proposes P problems (Alg. 1).
        with watch("teacher_wait_s"):
            selections = sampler.propose(P)
            student.layout.assert_replicas_equal(
                student.layout.group, problems_chosen=selections.index_N.tolist()
            )
        # Step 3: G completions of each, and their verified rewards.
        index_B = selections.index_N.repeat(G).tolist()
        new = student.rollout(problems, index_B, c.temperature, (1, step, extra), watch)
        # Steps 5-6: the teacher hears of them, and learns (Alg. 2) while the student goes on.
        with watch("teacher_wait_s"):
            sampler.observe(selections.index_N, new.successes_P(G), G)
        tried, rollouts = tried + selections if tried else selections, rollouts + new
        dead = grpo.dead_groups(rollouts.rewards_P_G(G)).tolist()
        if dead.count(False) >= P:
            break
    log(step, tried, rollouts, student.tokenizer.decode)
    # Step 4: GRPO on P groups: all there are, or of more (DAPO) live ones before dead ones.
    keep = sorted(sorted(range(len(dead)), key=lambda i: dead[i])[:P])
    with watch("train_s"):
        update = student.update(rollouts.take([i * G + g for i in keep for g in range(G)]), step)
    metrics = {"step": step} | outcome_metrics(tried, rollouts.successes_P(G), G)
    metrics |= rollouts.metrics() | update | sampler.metrics() | watch
    return metrics | {"seconds": time.perf_counter() - began}


def train(config: Config, layout: Layout, run: RunDir, start: int, verifier: Verifier) -> bool:
    """The student ranks' main program. Returns False where SIGTERM ended it."""
    c, problems, val_problems = config, Problems(config.train_data), Problems(config.val_data)
    student = Student(c, layout, verifier)
    sampler = build_sampler(c, layout, problems)
    checkpoint.load(run, start, sampler, student)
    screen = progress.Screen(run, start, student.policy, len(problems), len(val_problems))
    layout.stop_at_sigterm()
    stop, step = False, start
    if run.evaluation_pending(start):
        evaluation = run.complete(start, evaluate(student, val_problems, start, run.path))
        screen.hear({"step": start} | evaluation)
        stop = not evaluation
    finished = start == c.steps and not stop
    screen.begin()
    while not (finished or stop):
        step += 1
        metrics = train_step(step, student, sampler, problems, run.log_outcomes)
        if step % c.eval_every == 0 or step == c.steps:
            metrics |= evaluate(student, val_problems, step, run.path)
        run.log("metrics", [metrics])
        finished = step == c.steps and "val_accuracy" in metrics
        stop = not finished and layout.stopping()
        if finished or stop or step % c.checkpoint_every == 0:
            checkpoint.save(run, step, sampler, student)
        screen.step(metrics)
    if finished:
        checkpoint.export(run, sampler, student)
    if isinstance(sampler, RemoteSampler):
        sampler.stop(finished)
    screen.end(finished)
    return finished


def run_teacher(config: Config, layout: Layout, run: RunDir, start: int) -> bool:
    """The teacher ranks' main program: answer and learn until the students stop, then export."""
    sampler = build_sampler(config, layout, Problems(config.train_data))
    checkpoint.load(run, start, sampler)
    layout.stop_at_sigterm()
    finished = serve(sampler, Channel(layout), lambda step: checkpoint.save(run, step, sampler))
    if finished:
        checkpoint.export(run, sampler)
    return finished


def build_sampler(config: Config, layout: Layout, problems: Problems):
    """The sampler as this rank meets it: on student ranks with a teacher elsewhere what stands for
    it, else the real one."""
    if layout.n_teachers and not layout.is_teacher:
        return RemoteSampler(Channel(layout))
    encode = PromptEncoder.of(config, AutoTokenizer.from_pretrained(config.model))
    limit, cls = config.max_prompt_tokens, find_sampler(config.sampler)
    context = Context(problems, config, lambda i: len(encode(problems.question(i))) <= limit)
    if not cls.uses_teacher:
        return cls(context)
    context.teacher = Teacher(config, layout.device, layout.shard, layout.group)
    return Prefetching(cls(context), config.prompts_per_step, config.teacher_lag)


def check(config: Config, run: RunDir) -> int:
    """Looks at everything that can be wrong before the first step. Returns the step to continue
    from. Raises ValueError or OSError with one line; nothing is written before all is well."""
    c, sampler = config, find_sampler(config.sampler)
    check_model(c.model, c.max_prompt_tokens + c.max_completion_tokens)
    if sampler.uses_teacher:
        check_teacher(c.teacher_model, c.max_prompt_tokens)
    encode = PromptEncoder.of(c, AutoTokenizer.from_pretrained(c.model))
    pooled = issubclass(sampler, Pooled)
    prepare_missing([c.train_data, c.val_data])
    check_data(c, len(encode("")), c.prompts_per_step * (c.candidates if pooled else 1))
    return run.open()


def main(argv: list[str] | None = None) -> int:
    """Returns the exit status: 0 finished, 143 stopped by a signal, to be continued; with a line on
    stderr from one rank 2 bad input, 3 a loss or gradient that is not finite, 4 a fault (full disk,
    lost rank); 1 any other error, shown whole by the rank that it happened to."""
    begin_process()
    with ExitStack() as stack:
        try:
            config = parse(argv)
            layout = Layout(config)
            # Worker processes start before CUDA and the process groups exist.
            grading = Verifier(workers=config.verify_workers, reward=config.reward)
            verifier = None if layout.is_teacher else stack.enter_context(grading)
        except ValueError as error:
            return reject(error)
        layout.connect(config.timeout_minutes)
        plugins = {"sampler": sampler_file(config.sampler), "reward": path_of(config.reward)}
        run = RunDir(config, layout, plugins)
        try:
            start = layout.on_first(lambda: check(config, run))
            run.assert_replicas_equal()
            if layout.is_teacher:
                finished = run_teacher(config, layout, run, start)
            else:
                finished = train(config, layout, run, start, verifier)
            layout.gather(None)
        except Exception as error:  # whatever it is: this rank has to say it
            return layout.report(error)
    dist.destroy_process_group()
    return 0 if finished else 143  # 128 + SIGTERM


if __name__ == "__main__":
    sys.exit(main())
