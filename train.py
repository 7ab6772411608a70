"""Goldilocks RL, the main job:  torchrun --nproc_per_node 8 train.py

Read `train_step` first: it is one turn of Figure 1, and the only place where its steps meet.

    propose (1-2) -> rollout, verify (3) -> observe (5-6) -> advantages, loss, backward, AdamW (4)

Of 8 ranks 6 are students and 2 teachers. With `--sampler uniform` (the GRPO baseline) all 8 are
students. A single process runs the same loop with the teacher in it. There is no global state.
"""

import math
import signal
import sys
import time
from collections import Counter
from contextlib import ExitStack
from functools import partial

import numpy as np
import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from transformers import AutoTokenizer

import grpo
from plumbing import command_line
from plumbing.batches import Batch, micro_batches
from plumbing.checkpoint import Learner
from plumbing.config import PRESETS, Config
from plumbing.distributed import shutdown
from plumbing.distributed.channel import Channel, RemoteSampler, serve
from plumbing.distributed.layout import Layout
from plumbing.errors import InputError, NonFiniteError
from plumbing.metrics import Stopwatch, evaluate
from plumbing.models import checksum, recompute_activations, trial, unsharded
from plumbing.problems import Problems, check_data
from plumbing.progress import Console
from plumbing.run_dir import RunDir
from rollout import Generator, Policy, PromptEncoder, Rollouts, check_model
from sampler import Context, DynamicSampling, Pooled, Sampler, file_of, find_sampler, step_metrics
from teacher import Prefetching, Teacher, check_teacher
from verify import Verifier


def parse(argv: list[str] | None = None) -> Config:
    """Parse flags, which override the preset, which overrides the defaults. Raises ValueError."""
    return command_line.parse(Config, PRESETS, find_sampler, argv, __doc__.partition("\n")[0])


class Student:
    """The policy on one student rank: it rolls out, grades, trains and evaluates its share."""

    def __init__(self, config: Config, layout: Layout, verifier: Verifier):
        self.config, self.layout, self.verifier, c = config, layout, verifier, config
        self.tokenizer = AutoTokenizer.from_pretrained(c.model)
        self.encode = PromptEncoder(c, self.tokenizer)
        self.policy = Policy.load(c.model, layout.device)
        self.generator = Generator.load(c.model, layout.device, self.tokenizer)
        self.reference = Policy.load(c.model, layout.device) if c.kl_coef else None
        if self.reference:
            layout.shard(self.reference.requires_grad_(False))
        if c.activation_checkpointing:
            recompute_activations(self.policy.lm)
        layout.shard(self.policy)
        settings = {"lr": c.learning_rate, "weight_decay": 0.0, "fused": True}
        self.optimizer = torch.optim.AdamW(self.policy.parameters(), **settings)
        weights = partial(checksum, self.generator.lm)
        self.learner = Learner(self.policy, self.optimizer, weights, self.generator.export)

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
        """Take step 4 of Figure 1 on groups of rows, which every rank holds. Returns metrics: means
        over the response tokens that were forwarded, gradient norm, loss, learning rate."""
        c = self.config
        batches, forwarded_rows = self.weigh(rollouts, groups)
        left = 1 - (step - 1) / c.steps if c.lr_schedule == "linear" else 1
        learning_rate = c.learning_rate * left
        self.optimizer.param_groups[0]["lr"] = learning_rate
        sums = Counter()
        norms = []
        for iteration in range(c.update_iterations):
            token_sums = self.forward_backward(batches, first=iteration == 0)
            norms.append(self.apply(token_sums, step))
            sums.update(token_sums)
        self.generator.refresh(self.policy)
        tokens = sums.pop("tokens")
        loss = sums.pop("loss")
        metrics = {name: value / tokens if tokens else None for name, value in sums.items()}
        metrics["grad_norm"] = sum(norms) / len(norms)
        metrics["loss"] = loss / c.update_iterations
        return metrics | {"forwarded_rows": forwarded_rows, "learning_rate": learning_rate}

    def weigh(self, rollouts: Rollouts, groups: list[list[int]]) -> tuple[list[Batch], int]:
        """Compute the advantage and token weight of every row; return this rank's micro-batches of
        the rows that have a gradient, and the number of these rows on all ranks."""
        c = self.config
        rewards_B = torch.tensor(rollouts.rewards)
        lengths_B = rollouts.lengths()
        if c.dead_rows == "out":
            groups = [rows for rows in groups if not grpo.dead_groups(rewards_B[rows][None])]
        if c.truncated_rows == "out":
            lengths_B *= torch.tensor(rollouts.finished)
        P = len(groups)
        batch_tokens = int(sum(lengths_B[rows].sum() for rows in groups))
        advantage_B = torch.zeros(len(rollouts))
        weight_B = torch.zeros(len(rollouts), dtype=torch.float64)
        for rows in groups:
            # Eq. 2: right answers get √((1-p̂)/p̂), wrong ones -√(p̂/(1-p̂)), so the mean of
            # Â ∇log π has the factor √(p̂(1-p̂)). A dead group's advantages are 0.
            advantage_B[rows] = grpo.group_advantages(rewards_B[rows][None], c.advantage_std)[0]
            weight_B[rows] = grpo.row_weights(
                lengths_B[rows], P, c.loss, batch_tokens, longest=c.max_completion_tokens
            )
        has_gradient_B = advantage_B * weight_B != 0
        if c.kl_coef or c.entropy_coef:  # then rows with advantage 0 have one, too
            has_gradient_B = weight_B != 0
        rows = has_gradient_B.nonzero()[:, 0].tolist()
        batches = micro_batches(
            rollouts,
            rows,
            advantage_B,
            weight_B,
            self.layout,
            max_tokens=c.per_device_batch_size * (c.max_prompt_tokens + c.max_completion_tokens),
            pad_id=self.tokenizer.pad_token_id,
            packed=self.policy.packed,
        )
        return batches, len(rows)

    def forward_backward(self, batches: list[Batch], first: bool) -> dict[str, float]:
        """Add the gradient of the loss over this rank's batches. Returns the loss, the number of
        response tokens, and statistics summed over them, of all student ranks. first: the policy is
        still the one that the step began with, π_old."""
        c, n = self.config, self.layout.n_students
        sums = Counter()
        for batch in batches:
            if isinstance(self.policy, FSDPModule):  # not on a single CPU rank
                # Ranks have different numbers of micro-batches: the last reduces gradients.
                self.policy.set_requires_gradient_sync(batch.last or n == 1)
                self.policy.set_reshard_after_backward(batch.last)
            logp_N, entropy_N = self.policy(batch, c.temperature)
            if first:  # so that π_old and π_ref need no forward pass of their own
                batch.old_logp_N = logp_N.detach()
                if self.reference:
                    with torch.no_grad():
                        batch.ref_logp_N = self.reference(batch, c.temperature)[0]
            loss, stats = grpo.policy_loss(
                logp_N,
                batch.old_logp_N,
                batch.advantage_N,
                batch.weight_N,
                clip_low=c.clip_low,
                clip_high=c.clip_high,
                ref_logp_N=batch.ref_logp_N,
                kl_coef=c.kl_coef,
                entropy_N=entropy_N,
                entropy_coef=c.entropy_coef,
                generator_logp_N=batch.generator_logp_N,
                row_N=batch.row_N,
                mismatch=c.mismatch,
                mismatch_level=c.mismatch_level,
                mismatch_cap=c.mismatch_cap,
            )
            (loss * n).backward()  # FSDP averages over ranks; the loss is a sum over them
            stats |= {"loss": loss, "tokens": torch.tensor(len(logp_N))}
            # An idle batch repeats a row of another rank.
            sums.update({k: 0.0 if batch.idle else v.item() for k, v in stats.items()})
        return self.layout.sum(sums)

    def apply(self, token_sums: dict[str, float], step: int) -> float:
        """Clip the gradient and take an AdamW step; return the norm before clipping. Raises
        NonFiniteError, instead of a bad update, if the norm or a statistic is not finite."""
        c = self.config
        norm = nn.utils.clip_grad_norm_(self.policy.parameters(), c.max_grad_norm or math.inf)
        norm = unsharded(norm).item()
        if not all(map(math.isfinite, [norm, *token_sums.values()])):
            raise NonFiniteError(
                f"step {step}: gradient norm {norm}, loss {token_sums['loss']}: no update was "
                f"made; `python -m scripts.replay {c.out} --step {step}` computes them again"
            )
        self.optimizer.step()  # AdamW's momentum moves the weights even if all groups are dead
        self.optimizer.zero_grad()
        return norm


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
    console = Console(run, start, student, len(problems), len(val_problems))
    shutdown.stop_at_sigterm(layout)
    for step in range(start, c.steps + 1):
        if step > start:
            metrics = train_step(step, student, sampler, problems, run.log_outcomes)
            run.log("metrics", [metrics])
            console.update(metrics)
        if run.evaluation_pending(step):
            evaluation = evaluate(student.rollout, student.encode, val_problems, run, step)
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
    shutdown.stop_at_sigterm(layout)
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
    with trial(c.model, "cannot make a prompt"):  # a chat template is a program
        empty = PromptEncoder(c, AutoTokenizer.from_pretrained(c.model))("")
    if len(empty) >= c.max_prompt_tokens:
        raise ValueError(f"--max_prompt_tokens {c.max_prompt_tokens}: must be above {len(empty)}")
    check_data(c, c.prompts_per_step * (c.candidates if issubclass(cls, Pooled) else 1))
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
        except ValueError as error:
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
