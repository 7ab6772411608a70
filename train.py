"""Goldilocks RL, the main job:  torchrun --nproc_per_node 8 train.py

Read `train_step` first: one turn of the paper's Figure 1, and the only caller of all its steps.

    propose (1-2) -> rollout, grade (3) -> observe (5-6) -> weigh, forward_backward, apply (4)

Of 8 ranks 6 are students and 2 teachers; with `--sampler uniform`, the baseline, all are students.
A single process runs the same loop with the teacher in it.
"""

import math
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import chain

import numpy as np
import torch
import torch.distributed as dist

import grpo
from grpo import Completion, Group
from plumbing.batches import Batch, micro_batches
from plumbing.config import Config, is_due, learning_rate, parse_flags
from plumbing.data.problems import Problems
from plumbing.distributed import shutdown
from plumbing.distributed.channel import Channel
from plumbing.distributed.launch import launch
from plumbing.distributed.layout import Layout
from plumbing.errors import InputError, NonFiniteError
from plumbing.models import checksum, recompute_activations, unsharded
from plumbing.plugins import construct
from plumbing.progress import Console
from plumbing.run.checkpoint import TrainedModel
from plumbing.run.directory import RunDir
from plumbing.stopwatch import Stopwatch
from records.metrics import History, step_metrics
from records.rows import graded_row, log_groups, logged_groups
from rollout import Generator, Policy, PromptEncoder, check_model
from sampler import (
    Context,
    Sampler,
    check_enough,
    check_proposals,
    check_trained,
    file_of,
    find_sampler,
    join,
    sampler_class,
)
from teacher import Teacher, TeacherServer, check_teacher
from verify import Verifier, opened_thinking

# What a rollout is for: the first integer of its random stream, then step and round.
EVALUATION, TRAINING = 0, 1


@dataclass
class Actor:
    """The model on one student rank, as training and evaluation use it: it answers, and its answers
    are graded."""

    config: Config
    layout: Layout
    verifier: Verifier
    encode: PromptEncoder
    generator: Generator

    @classmethod
    def load(cls, config: Config, layout: Layout, verifier: Verifier) -> "Actor":
        """Load --model: a directory or hub id."""
        encode = PromptEncoder.load(config)
        generator = Generator.load(config.model, layout.device, encode.tokenizer, layout.dtype)
        return cls(config, layout, verifier, encode, generator)

    def rollout(
        self,
        groups: list[Group],
        problems: Problems,
        temperature: float,
        stream: tuple[int, int, int],
        watch: Stopwatch,
    ) -> None:
        """Draw and grade the completions of new groups: this rank makes a contiguous share of them,
        every rank gets all. stream: integers that, with the seed and a completion's position, name
        its random stream. Raises InputError if a prompt is too long."""
        c = self.config
        for group in groups:
            group.prompt_ids = group.prompt_ids or self.encode(problems.question(group.problem))
            if len(group.prompt_ids) > c.max_prompt_tokens:
                raise InputError(f"problem {group.problem}: its prompt is over --max_prompt_tokens")
        group_B = [group for group in groups for _ in range(group.size)]
        first_row, own_B = self.layout.share(group_B)
        with watch("rollout_s"):
            seed = np.random.SeedSequence([c.seed, 2, *stream])  # 1 is the sampler's
            completions = self.generator.generate(
                [group.prompt_ids for group in own_B],
                temperature,
                max_new_tokens=c.max_completion_tokens,
                seed=int(seed.generate_state(1, np.uint64)[0]),
                max_batch_tokens=c.max_rollout_tokens,
                first_row=first_row,
            )
        with watch("verify_s"):
            self.grade(completions, [group.problem for group in own_B], problems)
        with watch("gather_s"):  # fast ranks wait here for the slowest
            shares = self.layout.gather_role(completions)
        for group, completion in zip(group_B, chain(*shares), strict=True):
            group.completions.append(completion)

    def grade(self, completions: list[Completion], index_B: list[int], problems: Problems) -> None:
        """Fill in the status and reward of completions; index_B: the problem of each. If a prompt
        ends by opening the model's thinking, that mark is put before the completion."""
        distinct = list(dict.fromkeys(index_B))
        starts = [self.encode.answer_start(problems.question(index)) for index in distinct]
        mark = dict(zip(distinct, map(opened_thinking, starts), strict=True))
        texts = [
            mark[index] + self.generator.tokenizer.decode(o.text_ids)
            for index, o in zip(index_B, completions, strict=True)
        ]
        verdicts = self.verifier.grade(texts, *problems.golds(index_B))
        valid = self.verifier.check_golds(*problems.golds(distinct), problems)
        is_valid = dict(zip(distinct, valid, strict=True))
        for completion, index, verdict in zip(completions, index_B, verdicts, strict=True):
            completion.status = verdict.status if is_valid[index] else "bad_gold"
            completion.reward = verdict.reward if is_valid[index] else 0.0


@dataclass
class Student(Actor):
    """The actor whose policy π_θ is trained: step 4 of Figure 1. The generator holds a copy of its
    weights, the reference π_ref (with --kl_coef) those that training began from."""

    policy: Policy
    optimizer: torch.optim.Optimizer
    reference: Policy | None = None

    @classmethod
    def load(cls, config: Config, layout: Layout, verifier: Verifier) -> "Student":
        """Load --model once for each of its roles, and shard the policy over the student ranks."""
        actor = Actor.load(config, layout, verifier)
        policy = Policy.load(config.model, layout.device)
        reference = None
        if config.kl_coef:
            reference = Policy.load(config.model, layout.device, layout.dtype, trained=False)
        if config.activation_checkpointing:
            recompute_activations(policy.lm)
        layout.shard(policy)
        optimizer = torch.optim.AdamW(
            policy.parameters(), lr=config.learning_rate, weight_decay=0.0, fused=True
        )
        return cls(**vars(actor), policy=policy, optimizer=optimizer, reference=reference)

    @property
    def trained_model(self) -> TrainedModel:
        """The policy, as checkpoints see it. Every rank holds the generator's copy of it."""
        return TrainedModel(
            self.policy,
            self.optimizer,
            checksum=partial(checksum, self.generator.lm),
            export=self.generator.export,
        )

    def update(self, groups: list[Group], step: int) -> dict:
        """Take step 4 of Figure 1 on groups that every rank holds: `weigh`, `forward_backward`,
        `apply`. Returns metrics: means over forwarded response tokens, norm, loss, rate."""
        c = self.config
        grpo.weigh(
            groups,
            c.loss,
            std=c.advantage_std,
            max_completion_tokens=c.max_completion_tokens,
            dead_rows=c.dead_rows,
            truncated_rows=c.truncated_rows,
        )
        # The advantages of a dead group are 0: its loss has a gradient only with KL or entropy.
        is_regularized = c.kl_coef or c.entropy_coef
        rows = [
            (group.prompt_ids, o)
            for group in groups
            for o in group.completions
            if o.weight and (o.advantage or is_regularized)
        ]
        batches = micro_batches(
            rows,
            self.layout,
            max_tokens=c.per_device_batch_size * (c.max_prompt_tokens + c.max_completion_tokens),
            pad_id=self.generator.tokenizer.pad_token_id,
            packed=self.policy.packed,
        )
        rate = learning_rate(c, step)
        self.optimizer.param_groups[0]["lr"] = rate
        sums = Counter()
        norms = []
        for iteration in range(c.update_iterations):
            token_sums = self.forward_backward(batches, first=iteration == 0)
            norms.append(self.apply(token_sums, step))
            sums.update(token_sums)  # adds them
        self.generator.refresh(self.policy)
        tokens = sums.pop("tokens")
        loss = sums.pop("loss")
        means = {name: value / tokens if tokens else None for name, value in sums.items()}
        return means | {
            "grad_norm": sum(norms) / len(norms),
            "loss": loss / c.update_iterations,
            "forwarded_rows": len(rows),
            "learning_rate": rate,
        }

    def forward_backward(self, batches: list[Batch], first: bool) -> dict[str, float]:
        """Add the gradient of the loss over this rank's batches. Returns the loss, the number of
        response tokens and sums of statistics, of all student ranks. first: π_θ = π_old, ρ = 1."""
        c = self.config
        sums: dict[str, float] = defaultdict(float)
        for batch in batches:
            self.layout.set_gradient_sync(self.policy, batch.last)
            logp_N, entropy_N = self.policy(batch, c.temperature)  # by grpo.token_logprobs
            if first:  # no weight has changed yet: these log-probs are π_old's
                batch.old_logp_N = logp_N.detach()
                if self.reference:
                    with torch.no_grad():
                        batch.ref_logp_N = self.reference(batch, c.temperature)[0]
            gap_N = batch.old_logp_N - batch.generator_logp_N
            advantage_N, gap_stats = grpo.correct_mismatch(  # changes none without --mismatch
                batch.advantage_N, gap_N, batch.row_N, c.mismatch, c.mismatch_level, c.mismatch_cap
            )
            loss, stats = grpo.policy_loss(
                logp_N,
                batch.old_logp_N,
                advantage_N,
                batch.weight_N,
                clip_low=c.clip_low,
                clip_high=c.clip_high,
                ref_logp_N=batch.ref_logp_N,
                kl_coef=c.kl_coef,
                entropy_N=entropy_N,
                entropy_coef=c.entropy_coef,
            )
            (loss * self.layout.n_students).backward()  # FSDP averages; the loss sums over ranks
            stats |= gap_stats | {"loss": loss, "tokens": torch.tensor(len(logp_N))}
            for name, value in stats.items():  # an idle batch's row is filler, and counts as 0
                sums[name] += 0.0 if batch.idle else value.item()
        return self.layout.sum(sums)

    def apply(self, token_sums: dict[str, float], step: int) -> float:
        """Clip the gradient and take an AdamW step; return the norm before clipping. Raises
        NonFiniteError, instead of a bad update, if the norm or a statistic is not finite."""
        c = self.config
        max_norm = c.max_grad_norm or math.inf
        total_norm = torch.nn.utils.clip_grad_norm_(self.policy.parameters(), max_norm)
        norm: float = unsharded(total_norm).item()
        if not all(math.isfinite(x) for x in (norm, *token_sums.values())):
            raise NonFiniteError(
                f"step {step}: gradient norm {norm}, loss {token_sums['loss']}: the update was "
                f"not made; `python -m scripts.replay {c.out} --step {step}` computes them again"
            )
        self.optimizer.step()  # AdamW's momentum moves the weights even if all groups are dead
        self.optimizer.zero_grad()
        return norm


def train_step(
    step: int,
    student: Student,
    sampler: Sampler,
    problems: Problems,
    log=lambda *_: None,
    history: History | None = None,
) -> dict:
    """Take one turn of Figure 1; return its row of metrics.jsonl. log(step, groups, decode) is
    called before the update, so that a failed update can be repeated from the logs. history: the
    groups of earlier steps, for the metrics; this step's are added."""
    began = time.perf_counter()
    watch = Stopwatch()
    c = student.config
    history = history or History([], problems)
    groups = []
    rounds = 0
    with watch("teacher_wait_s"):
        proposed = sampler.propose(c.prompts_per_step)  # steps 1-2 (Alg. 1)
    while proposed:  # once, unless the sampler asks for more
        check_proposals(proposed, len(problems))
        sizes = [(group.problem, group.size) for group in proposed]
        student.layout.assert_equal_in_role({"proposals": sizes})
        student.rollout(proposed, problems, c.temperature, (TRAINING, step, rounds), watch)  # 3
        groups += proposed
        rounds += 1
        with watch("teacher_wait_s"):
            sampler.observe(proposed)  # steps 5-6 (Alg. 2), of a Teacher as in `TeacherServer`
            proposed = sampler.more(groups, rounds)
    log(step, groups, student.generator.tokenizer.decode)
    with watch("train_s"):
        trained = sampler.train_on(groups)
        check_trained(trained, groups)
        update = student.update(trained, step)  # step 4: GRPO
    whole = join(groups)  # one for each problem, of all rounds
    row = {
        "step": step,
        **step_metrics(whole, trained, history),
        **update,
        **watch,
        "seconds": time.perf_counter() - began,
    }
    history.add(whole)
    # A sampler's own metrics cannot replace one of these.
    return row | {name: x for name, x in sampler.metrics().items() if name not in row}


def evaluate(step: int, actor: Actor, run: RunDir, console: Console, channel: Channel) -> None:
    """Compute and log greedy pass@1 on every validation problem (Table 5a): the share of rewards of
    1. A problem whose prompt is too long is wrong. All student ranks call it. Logs nothing if one
    of them is to stop."""
    began = time.perf_counter()
    c = actor.config
    problems = run.val_problems
    groups = [
        Group(i, size=1, prompt_ids=actor.encode(problems.question(i)))
        for i in range(len(problems))
    ]
    fitting = [group for group in groups if len(group.prompt_ids) <= c.max_prompt_tokens]
    # A part is a micro-batch for each rank; between parts a signal can stop the run.
    rows_of_rank = c.max_rollout_tokens // (c.max_prompt_tokens + c.max_completion_tokens)
    size = actor.layout.n_students * max(1, rows_of_rank)
    for done in range(0, len(fitting), size):
        console.report(f"evaluation, {done:,} of {len(groups):,} problems")
        channel.send("evaluating", step)  # restarts the teacher ranks' timeout
        if shutdown.stop_requested(actor.layout):
            return
        part = fitting[done : done + size]
        actor.rollout(part, problems, 0.0, (EVALUATION, step, 0), Stopwatch())
    channel.send("evaluating", step)  # the last part may have been long, too
    rows = [graded_row(group, actor.generator.tokenizer.decode) for group in groups]
    accuracy = sum(row["reward"] == 1 for row in rows) / len(rows)
    seconds = time.perf_counter() - began
    run.log_evaluation(step, rows, {"val_accuracy": accuracy, "eval_s": seconds})


# The two roles (Section 5.1, App. K.3)


def build_layout(config: Config) -> Layout:
    """Give the last --teacher_ranks ranks to the Teacher, the others to the student: 6-7 and 0-5 of
    8. Raises ValueError if no rank is left for a student."""
    world = launch().world
    n_students = world - config.teacher_ranks
    if n_students < 1:
        raise ValueError(f"--teacher_ranks {config.teacher_ranks}: there are {world} ranks")
    return Layout(config, (range(n_students), range(n_students, world)), group_of_role)


def group_of_role(roles: tuple[range, range], rank: int, timeout: timedelta) -> dist.ProcessGroup:
    """Make a process group for each role's weights and gradients, NCCL on GPUs, gloo on CPUs, and
    return that of this rank. Messages between the roles are CPU tensors over gloo."""
    _, teachers = roles
    # Every rank must make all groups.
    groups = [dist.new_group([*ranks], timeout) for ranks in roles if ranks]
    return groups[1] if rank in teachers else groups[0]


class TeacherClient(Sampler):
    """The students' sampler beside a Teacher ("Student Process (Client)", App. K.3): receive() and
    send(groups) are messages or, in one process, calls of a TeacherServer, where send learns."""

    def __init__(self, context: Context, receive: Callable, send: Callable):
        super().__init__(context)
        self.receive = receive
        self.send = send
        self._metrics: dict = {}  # the sampler's, when the latest proposals were made

    @classmethod
    def in_process(cls, server: TeacherServer) -> "TeacherClient":
        """Connect to a server in this process."""
        return cls(server.sampler.context, server.latest, server.answer)

    def propose(self, P):
        groups, self._metrics = self.receive()
        return groups

    def observe(self, groups):
        self.send(groups)

    def metrics(self):
        return self._metrics


def context_of(config: Config, problems: Problems, encode: PromptEncoder) -> Context:
    """Make the context of a sampler, without a Teacher."""
    limit = config.max_prompt_tokens
    return Context(problems, config, lambda i: len(encode(problems.question(i))) <= limit)


def build_sampler(config: Config, layout: Layout, problems: Problems) -> Sampler:
    """Build the sampler, with its Teacher if it uses one."""
    cls = find_sampler(config.sampler)
    context = context_of(config, problems, PromptEncoder.load(config))
    if cls.uses_teacher:
        context.teacher = Teacher(config, layout.device, layout.shard, layout.group)
    return construct(cls, context, config.sampler, config.sampler_args)


def train(config: Config, layout: Layout, run: RunDir, start: int, verifier: Verifier) -> bool:
    """Run the student ranks' main program. Returns False if a signal stopped it."""
    problems = run.problems
    student = Student.load(config, layout, verifier)
    models = {"student": student.trained_model}
    channel = Channel(layout)
    state: Sampler | TeacherServer | None = None  # the sampler's, in a checkpoint
    if layout.n_teachers:  # the sampler, its state and its Teacher are there
        context = context_of(config, problems, student.encode)
        sampler: Sampler = TeacherClient(context, channel.receive, partial(channel.send, "groups"))
    else:
        sampler = state = build_sampler(config, layout, problems)
        if sampler.teacher:
            models["teacher"] = sampler.teacher.trained_model
            state = TeacherServer(sampler, config.teacher_lag)
            sampler = TeacherClient.in_process(state)
    run.load(start, models, state)
    history = History(logged_groups(run.path, start), problems, config.column)
    student.generator.refresh(student.policy)
    console = Console(run, start, student.generator.ends)
    shutdown.stop_at_signals(layout)
    for step in range(start, config.steps + 1):
        if step > start:
            row = train_step(step, student, sampler, problems, partial(log_groups, run), history)
            run.log("metrics", [row])
            console.update(row)
        if run.evaluation_pending(step):
            evaluate(step, student, run, console, channel)
        stopped = shutdown.stop_requested(layout)
        if step > start and (stopped or is_due(step, config.checkpoint_every, config.steps)):
            channel.send("save", step)  # the teacher ranks write their part
            run.save(step, state, models)
        if stopped:
            break
    finished = not stopped
    if finished:
        run.export(models)
    channel.send("stop", finished)
    channel.wait()
    console.end(finished)
    return finished


def teach(config: Config, layout: Layout, run: RunDir, start: int) -> bool:
    """Run the teacher ranks' main program: answer and learn until the students stop."""
    sampler = build_sampler(config, layout, run.problems)
    models = {"teacher": sampler.teacher.trained_model}
    server = TeacherServer(sampler, config.teacher_lag)
    run.load(start, models, server)
    shutdown.stop_at_signals(layout)
    finished = server.run(Channel(layout), lambda step: run.save(step, server, models))
    if finished:
        run.export(models)
    return finished


def parse(argv: list[str] | None = None) -> Config:
    """Parse flags, which override the preset, which overrides the defaults; settle those that
    depend on the sampler. Flags that it does not use are ignored: compared runs share flags.
    Raises ValueError with one line."""
    c, of_preset, given = parse_flags(argv, __doc__)
    cls = sampler_class(c)
    if not cls.uses_teacher:
        c.teacher_model = ""
        c.teacher_ranks = 0
        if "steps" not in given:
            c.steps = baseline_steps(c.steps, of_preset.eval_every)
    elif c.teacher_ranks < 0:
        c.teacher_ranks = launch().world // 4  # Section 5.1: 2 of 8
    return c


def baseline_steps(steps: int, eval_every: int) -> int:
    """(App. D) Give a run without a Teacher, whose devices all train, 4/3 of the steps, up to the
    next evaluation of the preset: 26,800 for 20,000."""
    return math.ceil(steps * 4 / 3 / eval_every) * eval_every


def check(config: Config, run: RunDir) -> int:
    """Check models and prompts before anything is built. Returns the step to resume from. Raises
    ValueError or OSError with one line; until they pass nothing is written in --out."""
    tokens = config.max_prompt_tokens + config.max_completion_tokens
    check_model(config.model, tokens, config.activation_checkpointing)
    if find_sampler(config.sampler).uses_teacher:
        check_teacher(config.teacher_model, config.max_prompt_tokens, config.teacher_mode)
    encode = PromptEncoder.load(config)
    encode.check(run.problems)
    encode.check(run.val_problems)
    check_enough(context_of(config, run.problems, encode))
    return run.open()


def main(argv: list[str] | None = None) -> int:
    """Run the command; return its exit status, one of docs/troubleshooting.md's."""
    with shutdown.borrowed_process(), ExitStack() as stack:
        try:
            config = parse(argv)
            layout = build_layout(config)
            verifier = Verifier(workers=config.verify_workers, reward=config.reward)
            if not layout.is_teacher:  # workers must start before CUDA and the process groups exist
                verifier = stack.enter_context(verifier)
        except (ValueError, OSError) as error:
            return shutdown.reject(error)

        def body() -> int:
            run = stack.enter_context(RunDir(config, layout, file_of(config.sampler)))
            start = layout.on_rank_0(lambda: check(config, run))
            if layout.is_teacher:
                finished = teach(config, layout, run, start)
            else:
                finished = train(config, layout, run, start, verifier)
            return 0 if finished else 128 + signal.SIGTERM

        return shutdown.run_ranks(layout, config.timeout_minutes, body)


if __name__ == "__main__":
    sys.exit(main())
