"""Goldilocks RL, the main job:  torchrun --nproc_per_node 8 train.py

Read `train` first: it is the whole method in one loop (Figure 1 of the paper).

    propose (steps 1-2) -> rollout, verify (3) -> observe (5-6) -> advantages, loss, backward, AdamW (4) -> log

World 8 is 6 student ranks and 2 teacher ranks; `--sampler uniform` (the GRPO baseline) makes all 8 students; one
process alone runs the same loop with the teacher in-process. Every rank builds its process groups and device once,
in `Layout`, and passes them on: there is no module-level state.
"""

import argparse
import fcntl
import io
import json
import math
import os
import pickle
import shutil
import signal
import sys
import threading
import time
import traceback
import zlib
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, fields
from datetime import timedelta
from pathlib import Path

import datasets
import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import transformers
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.multiprocessing import _prctl_pr_set_pdeathsig
from tqdm import tqdm
from transformers import AutoTokenizer
from transformers.utils import logging as hf_logging

import grpo
import rollout
from plumbing.errors import InputError
from plumbing.mail import NonFiniteError, Prefetching, RemoteSampler, Wire
from plumbing.problems import Problems
from rollout import PROMPT_FOOTER, PROMPT_HEADER, Generator, Policy, PromptEncoder, Rollouts
from sampler import Context, Selections, find_sampler, outcome_metrics, sampler_file
from teacher import MODES, Teacher, check_teacher, serve
from verify import Verdict, Verifier

DEMO = str(Path(__file__).resolve().parent / "demo") + os.sep
DATA = "data/openmathreasoning"  # App. J; data/NAME is made by the profile NAME of prepare_data.py
MATH = "data/math"  # without MATH-500, which is its val.jsonl


# ----------------------------------------------------------------------------------------------------
# Configuration


def opt(default, meaning: str, choices=None, least=None, most=10**9):
    """A Config field: default, what it means (its unit, and where in the paper the default comes from), its range."""
    return field(
        default=default,
        metadata={"help": meaning, "choices": choices, "least": least, "most": most},
    )


@dataclass
class Config:
    """One field, one flag. The defaults are the paper's for Qwen2.5-1.5B; presets change them by model."""

    # fmt: off
    preset: str = opt("qwen2.5-1.5b", "named set of defaults; other flags override it")
    sampler: str = opt("goldilocks", "goldilocks, uniform (the GRPO baseline), a name in samplers/, or FILE.py:CLASS")
    steps: int = opt(20_000, "student updates (Table 6; without a teacher 4/3 of it, App. D)", least=1)
    seed: int = opt(0, "seed of every random stream", least=0)
    out: str = opt("", "run folder; the same one again continues the run [runs/PRESET-SAMPLER-seedSEED]")
    model: str = opt("Qwen/Qwen2.5-1.5B", "student: hub id or Hugging Face folder (Section 4.1)")
    teacher_model: str = opt("Qwen/Qwen2.5-1.5B", "teacher backbone: hub id or Hugging Face folder (Section 4.2)")
    train_data: str = opt(f"{DATA}/train.jsonl", "JSONL or Parquet: problem, expected_answer; made if missing")
    column: str = opt("", "of train_data: the problem's category (--sampler category) or pass rate (static)")
    val_data: str = opt(f"{DATA}/val.jsonl", "likewise, for evaluation; the default has 5,000 problems (App. J)")
    # Student
    prompts_per_step: int = opt(18, "prompts P; P x G = 288 completions is the global batch (App. K.1)", least=1)
    group_size: int = opt(16, "completions G a prompt (Table 5a)", least=2)
    per_device_batch_size: int = opt(4, "full-length rows a forward/backward; shorter rows, more (App. K.1)", least=1)
    max_rollout_tokens: int = opt(200_000, "tokens of key-value cache in one call of generate", least=1)
    learning_rate: float = opt(1e-5, "AdamW, student (Table 5a)", least=0, most=1)
    lr_schedule: str = opt("constant", "linear decays to 0 at the last step", ("constant", "linear"))
    max_grad_norm: float = opt(1.0, "longer gradients are scaled down to it; 0: never", least=0)
    max_prompt_tokens: int = opt(1024, "longer prompts are dropped and counted (Table 5a)", least=1)
    max_completion_tokens: int = opt(2048, "completions are cut there (Table 5a)", least=1)
    temperature: float = opt(0.7, "of sampling; evaluation is greedy (Table 5a)", least=1e-3)
    prompt_header: str = opt(PROMPT_HEADER, "text before the question (App. M)")
    prompt_footer: str = opt(PROMPT_FOOTER, "text after the question (App. M)")
    chat_template: bool = opt(False, "wrap the prompt in the tokenizer's chat template")
    loss: str = opt("grpo", "normaliser: by sequence, by group (Section 6), or none (the theorem's)", grpo.LOSSES)
    advantage_std: str = opt("population", "std in the advantage: over G, over G-1, or none (Section 2)", grpo.STDS)
    dead_rows: str = opt("in", "whether dead groups count in the loss's denominators", ("in", "out"))
    update_iterations: int = opt(1, "optimizer updates mu on each batch (Table 5a)", least=1)
    clip_low: float = opt(0.2, "the ratio is clipped below 1 - this (Section 6)", least=0, most=1)
    clip_high: float = opt(0.28, "the ratio is clipped above 1 + this (Section 6)", least=0)
    resample_rounds: int = opt(0, "extra rollout rounds to replace dead groups, as DAPO does (Section 6)", least=0)
    kl_coef: float = opt(0.0, "KL to the initial student; 0 loads no reference (Table 5a)", least=0)
    entropy_coef: float = opt(0.0, "entropy bonus beta; 0.0003 in the ablation (Eq. 4, Table 2)", least=0)
    activation_checkpointing: bool = opt(False, "recompute activations in backward: less memory, more time")
    # Teacher
    teacher_ranks: int = opt(-1, "ranks for it; -1: world//4, 2 of 8 (Section 5.1); 0: in the student ranks", least=-1)
    candidates: int = opt(8, "pool K_candidate scored for each prompt (Alg. 1, Table 5b)", least=1)
    epsilon: float = opt(0.2, "share of prompts chosen uniformly from the pool (Alg. 1, Table 5b)", least=0, most=1)
    teacher_learning_rate: float = opt(1e-6, "AdamW, teacher (Table 5b)", least=0, most=1)
    teacher_batch_size: int = opt(8, "questions a teacher rank (Table 5b)", least=1)
    teacher_epochs: int = opt(4, "E_teacher over the buffer at each update (Alg. 2, Table 5b)", least=1)
    teacher_update_every: int = opt(4, "M_update: outcomes between updates (Alg. 2, Table 5b)", least=1)
    replay_capacity: int = opt(64, "N_replay: latest outcomes kept (Alg. 2, Table 5b)", least=1)
    teacher_mode: str = opt("full", "what is pooled and trained: ablations (App. L)", MODES)
    teacher_lag: int = opt(1, "1: propose, then learn from the last step, overlapped (App. K.3); 0: reversed", (0, 1))
    # The run
    eval_every: int = opt(200, "steps between greedy evaluations (Table 5a)", least=1)
    checkpoint_every: int = opt(0, "steps between checkpoints; 0: at evaluations", least=0)
    keep: int = opt(2, "checkpoints kept", least=1)
    verify_workers: int = opt(4, "processes a student rank grades answers with", least=1)
    timeout_minutes: float = opt(60, "longest wait of one rank for another; an evaluation is one", least=0.01, most=1e5)
    # fmt: on


PAPER_4B = {"teacher_model": "Qwen/Qwen3-1.7B", "per_device_batch_size": 3}
OLMO = "allenai/OLMo-2-0425-1B"
PRESETS: dict[str, dict] = {
    "qwen2.5-1.5b": {},
    "olmo2-1b": {"model": OLMO, "teacher_model": OLMO},
    "qwen3-4b": {"model": "Qwen/Qwen3-4B", "steps": 8_000, **PAPER_4B},
    "phi-4-mini": {"model": "microsoft/Phi-4-mini-instruct", "steps": 10_000, **PAPER_4B},
    # One card of 24 GB: student and teacher keep 12 bytes a parameter each, the generator's copy 2:
    # 15.5 GB; 22.5 GB at the worst moment (README, Hardware). A frozen or LoRA teacher would leave
    # room, but falls back to the baseline (App. L). 64 updates of the teacher a step: the paper's 72.
    # Rate: the paper's by the root of the batches, 1e-5 √(128/288), rounded down. No problem twice.
    "one-gpu": {
        "model": "Qwen/Qwen3-0.6B-Base",
        "teacher_model": "Qwen/Qwen3-0.6B-Base",
        "train_data": f"{MATH}/train.jsonl",
        "val_data": f"{MATH}/val.jsonl",
        "teacher_ranks": 0,
        "prompts_per_step": 8,
        "max_prompt_tokens": 512,
        "max_completion_tokens": 512,
        "max_rollout_tokens": 40_000,
        "activation_checkpointing": True,
        "learning_rate": 6e-6,
        "teacher_batch_size": 2,
        "teacher_epochs": 2,
        "teacher_update_every": 8,
        "steps": 400,
        "eval_every": 25,
        "checkpoint_every": 100,  # 14 GB each
        "keep": 1,
    },
    # The embedded miniature (scripts/make_demo.py). One teacher rank of 16 stands for the paper's two of 8.
    "demo": {
        "model": DEMO + "model",
        "teacher_model": DEMO + "model",
        "train_data": DEMO + "train.jsonl",
        "val_data": DEMO + "val.jsonl",
        "prompt_header": "",
        "prompt_footer": "Solution:",
        "max_prompt_tokens": 32,
        "max_completion_tokens": 64,
        "steps": 90,
        "eval_every": 10,
        "learning_rate": 2e-4,
        "teacher_learning_rate": 3e-4,
        "teacher_batch_size": 16,
        "per_device_batch_size": 64,
        "verify_workers": 1,
    },
}
# What may differ when a run is continued; anything else would make it another experiment. The second set is
# Run.facts as well: with these the run goes on, but rounding or the split of random streams changes.
FREE = {
    "out",
    "steps",
    "eval_every",
    "checkpoint_every",
    "keep",
    "timeout_minutes",
    "verify_workers",
    "teacher_ranks",
}
INEXACT = {"world_size", "student_ranks", "device", "torch", "transformers"}
INEXACT |= {"per_device_batch_size", "max_rollout_tokens", "activation_checkpointing"}


def parse(argv: list[str] | None = None) -> Config:
    """Command line -> Config: the preset's values, then the flags given. Raises ValueError with one line."""

    class Parser(argparse.ArgumentParser):
        def error(self, message):
            raise ValueError(f"{message} (see --help)")

    parser = Parser(
        description="Goldilocks RL: GRPO with a teacher that picks the problems.",
        allow_abbrev=False,
    )
    for f in fields(Config):
        shown = "" if f.default in ("", PROMPT_HEADER, PROMPT_FOOTER) else f" [{f.default}]"
        meaning = f"{f.metadata['help']}{shown}".replace("%", "%%")
        kwargs = {"default": None, "help": meaning, "choices": f.metadata["choices"]}
        if f.type is bool:
            kwargs = {"default": None, "help": meaning, "action": argparse.BooleanOptionalAction}
        else:
            kwargs |= {
                "type": f.type,
                "metavar": None if f.metadata["choices"] else f.type.__name__.upper(),
            }
        parser.add_argument(f"--{f.name}", **kwargs)
    given = {k: v for k, v in vars(parser.parse_args(argv)).items() if v is not None}
    preset = given.get("preset", Config.preset)
    if preset not in PRESETS:
        raise ValueError(f"--preset {preset}: choose from {', '.join(PRESETS)}")
    config = Config(**(PRESETS[preset] | given))
    for f in fields(config):
        value, low, high = getattr(config, f.name), f.metadata["least"], f.metadata["most"]
        if low is not None and not low <= value <= high:
            raise ValueError(f"--{f.name} {value}: must be in [{low}, {high}]")
    cls = find_sampler(config.sampler)
    for name in ("candidates", "epsilon", "column"):
        if name in given and name not in cls.flags:
            raise ValueError(f"--{name}: the sampler {config.sampler} does not use it")
    if "column" in cls.flags and not config.column:
        raise ValueError(
            f"--sampler {config.sampler} needs --column, the name of a column of the training data"
        )
    if not cls.uses_teacher:
        if ignored := [
            name for name in given if name.startswith("teacher_") or name == "replay_capacity"
        ]:
            raise ValueError(f"--{ignored[0]}: the sampler {config.sampler} has no teacher")
        if (
            "steps" not in given
        ):  # equal device time: 4/3 of the steps, to the next evaluation (App. D, Table 6)
            config.steps = math.ceil(config.steps * 4 / 3 / config.eval_every) * config.eval_every
    config.checkpoint_every = config.checkpoint_every or config.eval_every
    name = config.sampler.rpartition(":")[2].lower()
    config.out = config.out or f"runs/{config.preset}-{name}-seed{config.seed}"
    return config


class Fault(RuntimeError):
    """The run cannot go on for a reason outside it (a full disk, copies that differ); its checkpoints are intact."""


class Layout:
    """Who is who: ranks [0, n_students) are students, the rest teachers. Groups and the device are built here."""

    def __init__(self, config: Config):
        self.world, self.rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
        self.n_teachers = config.teacher_ranks
        if self.n_teachers < 0:
            self.n_teachers = self.world // 4 if find_sampler(config.sampler).uses_teacher else 0
        self.n_students = self.world - self.n_teachers
        B = config.prompts_per_step * config.group_size
        if self.n_students < 1:
            raise ValueError(
                f"--teacher_ranks {self.n_teachers} of {self.world} ranks leaves no student: at most {self.world - 1}"
            )
        if B % self.n_students:
            works = [n for n in range(1, 65) if B % n == 0]
            raise ValueError(
                f"{config.prompts_per_step} prompts x {config.group_size} = {B} completions cannot be shared equally "
                f"by {self.n_students} student ranks: use {', '.join(map(str, works))} (see --teacher_ranks), "
                f"or other --prompts_per_step or --group_size; --per_device_batch_size need not divide "
                f"anything: it is how many full-length rows of its share a rank takes at a time"
            )
        self.is_teacher = self.rank >= self.n_students
        self.device = self.pick_device()

    def pick_device(self) -> torch.device:
        """A GPU of this machine, if it has any. Those of one role must have one each; a student and
        a teacher may share one. Raises ValueError where there are too few."""
        if not torch.cuda.is_available():
            return torch.device("cpu")
        devices = torch.cuda.device_count()
        local = int(os.environ.get("LOCAL_RANK", 0))
        here = range(int(os.environ.get("LOCAL_WORLD_SIZE", 1)))
        students = sum(self.rank - local + i < self.n_students for i in here)
        for role, n in (("student", students), ("teacher", len(here) - students)):
            if n > devices:
                raise ValueError(
                    f"{n} {role} ranks on a machine with {devices} GPU{'s' * (devices > 1)}: NCCL "
                    f"wants one each; start fewer with --nproc_per_node, or see --teacher_ranks"
                )
        return torch.device("cuda", local % devices)

    def connect(self, config: Config) -> None:
        """Joins the other ranks and builds this role's group and mesh."""
        cuda = self.device.type == "cuda"
        # Control messages are CPU tensors over gloo, weights and gradients go over NCCL.
        backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"
        timeout = timedelta(minutes=config.timeout_minutes)
        if (
            "RANK" in os.environ
        ):  # torchrun's store is there before its ranks are; if not, torchrun has died since
            store = next(dist.rendezvous("env://", timeout=timedelta(minutes=1)))[0]
            store.set_timeout(timeout)
            # A life after `torchrun --max-restarts` must not find the addresses of the last one.
            store = dist.PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)
        else:
            store = dist.HashStore()
        self.store = store
        dist.init_process_group(
            backend, timeout=timeout, store=store, rank=self.rank, world_size=self.world
        )
        if cuda:
            torch.cuda.set_device(self.device)
        students, teachers = range(self.n_students), range(self.n_students, self.world)
        groups = [
            dist.new_group(list(ranks), timeout=timeout) for ranks in (students, teachers) if ranks
        ]
        self.group = groups[self.is_teacher]
        self.mesh = DeviceMesh.from_group(self.group, self.device.type)

    def shard(self, model: nn.Module, float32=()) -> None:
        """FSDP2 over this role's ranks: float32 masters, bf16 compute and float32 reduction on GPUs.

        Each decoder layer is a unit, the rest (embedding, norm, head) another. Modules in `float32` compute in it.
        """
        layers = next(
            m for m in model.modules() if isinstance(m, nn.ModuleList)
        )  # the outermost list: decoder layers
        exact = MixedPrecisionPolicy()
        mixed = (
            MixedPrecisionPolicy(torch.bfloat16, torch.float32)
            if self.device.type == "cuda"
            else exact
        )
        for module, policy in [(m, exact) for m in float32] + [
            (m, mixed) for m in [*layers, model]
        ]:
            fully_shard(module, mesh=self.mesh, mp_policy=policy, reshard_after_forward=False)

    def stop_at_sigterm(self) -> None:
        """From now on SIGTERM at any rank, teachers included, only calls request_stop: a rank that
        acted alone would leave the others waiting. A thread does it, as Python runs no handler in
        a rank that waits for another."""
        seen, signals = os.pipe()
        os.set_blocking(signals, False)
        signal.set_wakeup_fd(signals)
        signal.signal(signal.SIGTERM, lambda *_: None)

        def watch() -> None:
            while os.read(seen, 1)[0] != signal.SIGTERM:
                pass
            with suppress(dist.DistError):  # torchrun has died, and there is nobody to tell
                self.request_stop()

        threading.Thread(target=watch, daemon=True).start()

    def request_stop(self) -> None:
        """Leaves a note for the students, who look for it after a step and amid an evaluation."""
        self.store.set("stop", "")

    def stopping(self) -> bool:
        """Whether a rank has requested it: the same answer on all student ranks, which all ask."""
        return self.gather(self.rank == 0 and self.store.check(["stop"]), self.group)[0]

    def gather(self, mine, group=None) -> list:
        """What every rank of the group (default: all ranks) brings, in the order of ranks. Also a barrier."""
        parts = [mine] * dist.get_world_size(group)
        if (
            len(parts) > 1
        ):  # alone: gloo's thread would start OpenMP threads of its own, and then none of them spins
            dist.all_gather_object(parts, mine, group=group)
        return parts

    def agree(self, **copies) -> None:
        """Raises Fault unless all ranks that bring a value under the same name bring the same value."""
        parts = self.gather(copies)
        for name in {name for part in parts for name in part}:
            held = {rank: part[name] for rank, part in enumerate(parts) if name in part}
            first = min(held)
            if other := [rank for rank, value in held.items() if value != held[first]]:
                what = f"{held[first]!r} and {held[other[0]]!r}"
                raise Fault(f"{name}: ranks {first} and {other[0]} hold copies that differ: {what}")


# ----------------------------------------------------------------------------------------------------
# Student


class Student:
    """The policy, and what one student rank does with it: roll out, grade and train its share of a step."""

    def __init__(self, config: Config, layout: Layout, verifier: Verifier):
        self.config, self.layout, self.verifier = config, layout, verifier
        self.tokenizer = AutoTokenizer.from_pretrained(config.model)
        self.encode = PromptEncoder.of(config, self.tokenizer)
        self.good: dict[
            str, bool
        ] = {}  # gold -> whether it can be verified; one that cannot is never rewarded
        self.policy = Policy(config.model, layout.device)
        self.generator = Generator(config.model, layout.device, self.tokenizer)
        self.reference = None
        if config.kl_coef:
            self.reference = Policy(config.model, layout.device).requires_grad_(False)
            layout.shard(self.reference)
        if config.activation_checkpointing:
            lm = (
                self.policy.lm
            )  # older transformers know the second name only, newer ones warn at it
            enable = (
                getattr(lm, "activation_checkpointing_enable", None)
                or lm.gradient_checkpointing_enable
            )
            enable({"use_reentrant": False})
        self.policy.train(
            config.activation_checkpointing
        )  # it works in train mode only; there is no dropout
        layout.shard(self.policy)
        parameters = self.policy.parameters()
        self.optimizer = torch.optim.AdamW(
            parameters, lr=config.learning_rate, weight_decay=0.0, fused=True
        )

    def rollout(
        self,
        prompts: list,
        answers: list[str],
        temperature: float,
        stream: tuple,
        watch: "Stopwatch",
    ):
        """One graded completion for each prompt (token ids): this rank does a contiguous share, every rank gets all.

        `stream` names the random stream (with seed and row). Returns (Rollouts, rewards (B,) float32, statuses).
        """
        c, n, r = self.config, self.layout.n_students, self.layout.rank
        mine = slice(len(prompts) * r // n, len(prompts) * (r + 1) // n)
        with watch("rollout_s"):
            words = np.random.SeedSequence([c.seed, 2, *stream]).generate_state(1, np.uint64)
            seed = int(words[0])
            rollouts = self.generator.generate(
                prompts[mine],
                temperature,
                c.max_completion_tokens,
                seed,
                c.max_rollout_tokens,
                mine.start,
            )
        with watch("verify_s"):
            texts = [
                self.tokenizer.decode(ids, skip_special_tokens=True)
                for ids in rollouts.completion_ids
            ]
            verdicts = self.verifier.grade(texts, answers[mine])
            new = [
                gold for gold in dict.fromkeys(answers[mine]) if gold not in self.good
            ]  # each is checked once
            self.good |= zip(new, self.verifier.check_golds(new), strict=True)
            verdicts = [
                v if self.good[a] else Verdict(0.0, "bad_gold")
                for v, a in zip(verdicts, answers[mine], strict=True)
            ]
        with watch("gather_s"):  # here the ranks that were fast wait for the slowest
            graded = [(v.reward, v.status) for v in verdicts]
            row = (rollouts.completion_ids, rollouts.finished, rollouts.logps, graded)
            parts = self.layout.gather(row, self.layout.group)
        ids, finished, logps, graded = (
            [row for part in parts for row in part[column]] for column in range(4)
        )
        rewards_B = torch.tensor([reward for reward, _ in graded], dtype=torch.float32)
        return Rollouts(prompts, ids, finished, logps), rewards_B, [status for _, status in graded]

    def update(
        self, rollouts: Rollouts, rewards_P_G: torch.Tensor, learning_rate: float
    ) -> dict[str, float | None]:
        """Advantages, loss, backward, clip, AdamW on one batch, which every rank knows whole. Returns metrics."""
        c, n, rank = self.config, self.layout.n_students, self.layout.rank
        advantage_P_G = grpo.group_advantages(rewards_P_G, c.advantage_std)
        if c.dead_rows == "out":
            advantage_P_G = grpo.leave_out_dead_groups(advantage_P_G)
        advantage_B = advantage_P_G.flatten()
        weight_B = grpo.row_weights(rollouts.lengths().reshape(rewards_P_G.shape), c.loss).flatten()
        # Rows with advantage 0 have no gradient unless KL or entropy gives them one: they are not forwarded.
        live = (
            list(range(len(rollouts)))
            if c.kl_coef or c.entropy_coef
            else advantage_B.nonzero()[:, 0].tolist()
        )
        budget = c.per_device_batch_size * (c.max_prompt_tokens + c.max_completion_tokens)
        pad_id, device, packed = self.tokenizer.pad_token_id, self.layout.device, self.policy.packed
        micro_batches, idle = rollout.micro_batches(
            rollouts, live, rank, n, budget, pad_id, device, packed
        )
        if idle:
            weight_B = torch.zeros_like(weight_B)
        coefficients = {
            name: getattr(c, name) for name in ("clip_low", "clip_high", "kl_coef", "entropy_coef")
        }
        for param_group in self.optimizer.param_groups:
            param_group["lr"] = learning_rate

        old_logps, ref_logps, norms = [], [], []
        mine = torch.zeros(
            6, dtype=torch.float64
        )  # sums over this rank's tokens: loss, 1, entropy, clipped, kl, gap
        for iteration in range(c.update_iterations):
            for i, (rows_N, *inputs) in enumerate(micro_batches):
                last = (
                    i == len(micro_batches) - 1
                )  # ranks may hold different numbers of them: all meet at the last
                self.policy.set_requires_gradient_sync(last)
                self.policy.set_reshard_after_backward(last)
                logp_N, entropy_N = self.policy(*inputs, c.temperature)
                if (
                    iteration == 0
                ):  # the policy has not moved yet: no second forward for the old log-probs
                    old_logps.append(logp_N.detach())
                    with torch.no_grad():
                        reference = self.reference and self.reference(*inputs, c.temperature)[0]
                    ref_logps.append(reference)
                advantage_N, weight_N = advantage_B[rows_N].to(logp_N), weight_B[rows_N].to(logp_N)
                tokens = {"ref_logp_N": ref_logps[i], "entropy_N": entropy_N}
                loss, stats = grpo.policy_loss(
                    logp_N, old_logps[i], advantage_N, weight_N, **tokens, **coefficients
                )
                (loss * n).backward()  # FSDP averages over ranks; the loss is a sum over them
                gap = (old_logps[i].cpu() - rollouts.logps_of(rows_N)).abs().sum()
                counts = (
                    loss,
                    torch.tensor(len(rows_N)),
                    entropy_N.sum(),
                    stats["clipped"],
                    stats["kl"],
                    gap,
                )
                if not idle:
                    mine += torch.stack([x.detach().double().cpu() for x in counts])
            sums = mine.clone()
            dist.all_reduce(sums, group=self.layout.group)
            norm = nn.utils.clip_grad_norm_(
                self.policy.parameters(), c.max_grad_norm or math.inf
            ).full_tensor()
            norms.append(norm.item())
            if not (norm.isfinite() and sums.isfinite().all()):
                rows_N, logp_N = (
                    torch.cat([batch[0] for batch in micro_batches]),
                    torch.cat(old_logps).cpu(),
                )
                odd = self.layout.gather(rows_N[~logp_N.isfinite()].tolist(), self.layout.group)
                odd = {b for part in odd for b in part}
                rows = [
                    {"row": b, "finite_logp": b not in odd, "advantage": advantage_B[b].item()}
                    | {
                        "prompt_ids": rollouts.prompt_ids[b],
                        "completion_ids": rollouts.completion_ids[b],
                    }
                    for b in live
                ]
                raise NonFiniteError(
                    f"gradient norm {norms[-1]}, loss {sums[0].item()}: no update was made", rows
                )
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.generator.refresh(self.policy)
        loss, tokens, entropy, clipped, kl, gap = sums.tolist()
        return {
            "grad_norm": sum(norms) / len(norms),
            "loss": loss / c.update_iterations,
            "entropy": entropy / tokens if tokens else None,
            "clip_fraction": clipped / tokens if tokens else None,
            "kl": kl / tokens if tokens and c.kl_coef else None,
            "logp_gap": gap / tokens
            if tokens
            else None,  # between generator and policy, which differ in bf16 on GPUs
            "forwarded_rows": len(live),
            "learning_rate": learning_rate,
        }

    def evaluate(
        self, problems: Problems, step: int, folder: Path, watch: "Stopwatch"
    ) -> dict[str, float]:
        """Greedy pass@1 on every validation problem (Table 5a), spread over the ranks: val_accuracy.
        Verdicts go to evals/. Of an evaluation that is asked to stop nothing is kept: {}."""
        c, n = self.config, self.layout.n_students
        with watch("eval_s"):
            prompts = [self.encode(problems.question(i)) for i in range(len(problems))]
            fits = [i for i, prompt in enumerate(prompts) if len(prompt) <= c.max_prompt_tokens]
            overlong = set(range(len(prompts))) - set(fits)
            rows = [(i, 0.0, "overlong_prompt", 0) for i in overlong]  # they count as wrong
            # A micro-batch of each rank at a time.
            longest = max((len(prompts[i]) for i in fits), default=0) + c.max_completion_tokens
            at_once = n * max(1, c.max_rollout_tokens // longest)
            for part in (fits[i : i + at_once] for i in range(0, len(fits), at_once)):
                if self.layout.stopping():
                    return {}
                order = [i for r in range(n) for i in part[r::n]]  # neighbours are often alike
                asked, answers = [prompts[i] for i in order], [problems.answer(i) for i in order]
                graded = self.rollout(asked, answers, 0.0, (0, step), Stopwatch())
                rollouts, rewards_B, statuses = graded
                columns = (order, rewards_B.tolist(), statuses, rollouts.lengths().tolist())
                rows += zip(*columns, strict=True)
        if self.layout.rank == 0:
            names = ("problem", "reward", "status", "tokens")
            lines = [dict(zip(names, row, strict=True)) for row in sorted(rows)]
            write_lines(folder / "evals" / f"step_{step}.jsonl", lines)
        return {"val_accuracy": sum(row[1] for row in rows) / len(rows)}


# ----------------------------------------------------------------------------------------------------
# The loop


def train(config: Config, layout: Layout, run: "Run", start: int, verifier: Verifier) -> bool:
    """The student ranks' main program: the whole method in one loop. Returns False where SIGTERM ended it."""
    c, P, G = config, config.prompts_per_step, config.group_size
    problems, val_problems = Problems(c.train_data), Problems(c.val_data)
    student = Student(c, layout, verifier)
    sampler = build_sampler(c, layout, problems, student.encode)
    run.resume(start, sampler, student)
    run.show_plan(start, student, len(problems), len(val_problems))
    layout.stop_at_sigterm()
    stop = False
    if layout.gather(run.owes_evaluation(start), layout.group)[0]:
        found = student.evaluate(val_problems, start, run.folder, watch := Stopwatch())
        run.complete(start, found, watch)
        stop = not found
    finished = start == c.steps and not stop

    bar = tqdm(
        range(start + 1, c.steps + 1),
        initial=start,
        total=c.steps,
        unit="step",
        disable=layout.rank > 0,
    )
    for step in bar:
        if stop:
            break
        began, watch, tried = time.perf_counter(), Stopwatch(), None
        for extra in range(1 + c.resample_rounds):  # one round, unless DAPO replaces dead groups
            # Steps 1-2: the sampler proposes P problems (Alg. 1).
            with watch("teacher_wait_s"):
                selections = sampler.propose(P)
            # Step 3: G completions of each, and their verified rewards.
            asked = [
                (student.encode(problems.question(i)), problems.answer(i))
                for i in selections.index_N
            ]
            prompts, answers = (
                [q for q, _ in asked for _ in range(G)],
                [a for _, a in asked for _ in range(G)],
            )
            rollouts, rewards_B, statuses = student.rollout(
                prompts, answers, c.temperature, (1, step, extra), watch
            )
            groups = Groups(selections, rollouts, rewards_B.reshape(P, G), statuses)
            # Steps 5-6: the teacher hears of the outcomes, and learns (Alg. 2) while the student goes on.
            with watch("teacher_wait_s"):
                sampler.observe(selections.index_N, groups.successes_P, G)
            tried = groups if tried is None else tried + groups
            if (~grpo.dead_groups(tried.rewards_P_G)).sum() >= P:
                break
        # Step 4: GRPO on one batch of P groups.
        with watch("train_s"), named(batch := tried.live_first(P), step):
            learning_rate = c.learning_rate * (
                1 - (step - 1) / c.steps if c.lr_schedule == "linear" else 1
            )
            update = student.update(batch.rollouts, batch.rewards_P_G, learning_rate)

        metrics = {"step": step} | tried.metrics() | update | sampler.metrics()
        metrics["seconds"] = time.perf_counter() - began
        if step % c.eval_every == 0 or step == c.steps:
            metrics |= student.evaluate(val_problems, step, run.folder, watch)
        run.log(metrics | watch, tried, student.tokenizer)
        tokens_a_second = metrics["total_tokens"] / metrics["seconds"]
        bar.set_postfix_str(
            f"reward {metrics['reward_mean']:.2f}, dead {metrics['zero_variance']:.0%}, {tokens_a_second:,.0f} tok/s"
        )
        finished = step == c.steps and "val_accuracy" in metrics
        stop = not finished and layout.stopping()
        if finished or stop or step % c.checkpoint_every == 0:
            run.save(step, sampler, student)

    if finished and layout.rank == 0:
        student.generator.export(run.folder / "student")
    if isinstance(sampler, RemoteSampler):
        sampler.stop(finished)
    elif finished and (teacher := getattr(sampler, "teacher", None)):
        teacher.export(run.folder / "teacher")
    run.show_result(finished)
    return finished


@contextmanager
def named(batch: "Groups", step: int):
    """Says of the rows of a NonFiniteError which step and problem they come from."""
    try:
        yield
    except NonFiniteError as error:
        problems = batch.selections.index_N.repeat(batch.rewards_P_G.shape[1]).tolist()
        rows = [{"step": step, "problem": problems[row["row"]]} | row for row in error.rows]
        raise NonFiniteError(f"step {step}: {error}", rows) from error


def run_teacher(config: Config, layout: Layout, run: "Run", start: int) -> bool:
    """The teacher ranks' main program: answer and learn until the students stop, then export."""
    encode = PromptEncoder.of(
        config, AutoTokenizer.from_pretrained(config.model)
    )  # the student's limit says what fits
    sampler = build_sampler(config, layout, Problems(config.train_data), encode)
    run.resume(start, sampler)
    layout.stop_at_sigterm()
    finished = serve(
        sampler, wire_of(config, layout), layout.group, lambda step: run.save(step, sampler)
    )
    if finished:
        sampler.teacher.export(run.folder / "teacher")
    return finished


def build_sampler(config: Config, layout: Layout, problems: Problems, encode: PromptEncoder):
    """The sampler as this rank meets it: a client on student ranks with a teacher elsewhere, else the real one."""
    if layout.n_teachers and not layout.is_teacher:
        return RemoteSampler(wire_of(config, layout), layout.group)

    def fits(index: int) -> bool:
        return len(encode(problems.question(index))) <= config.max_prompt_tokens

    cls = find_sampler(config.sampler)
    if not cls.uses_teacher:
        return cls(Context(problems, config, fits))
    teacher = Teacher(
        config, layout.device, layout.shard, layout.group, rollout.attention_for(layout.device)
    )
    sampler = cls(Context(problems, config, fits, teacher))
    return Prefetching(sampler, config.prompts_per_step, config.teacher_lag)


def wire_of(config: Config, layout: Layout) -> Wire:
    """The message sizes that both sides agree on. Rank 0 speaks for the students, the first teacher for the rest."""
    return Wire(config.prompts_per_step, config.candidates, 0, layout.n_students)


@dataclass
class Groups:
    """Proposed problems with their outcomes: rewards (P, G) and P*G rows, prompt-major."""

    selections: Selections
    rollouts: Rollouts
    rewards_P_G: torch.Tensor
    statuses: list[str]

    def __add__(self, other: "Groups") -> "Groups":
        rewards_P_G = torch.cat([self.rewards_P_G, other.rewards_P_G])
        selections, rollouts = self.selections + other.selections, self.rollouts + other.rollouts
        return Groups(selections, rollouts, rewards_P_G, self.statuses + other.statuses)

    @property
    def successes_P(self) -> np.ndarray:
        return self.rewards_P_G.sum(dim=1).long().numpy()

    def live_first(self, P: int) -> "Groups":
        """P groups to train on, in order: all there are, or of more (DAPO) live ones before dead ones."""
        dead, G = grpo.dead_groups(self.rewards_P_G).tolist(), self.rewards_P_G.shape[1]
        keep = sorted(sorted(range(len(dead)), key=lambda i: dead[i])[:P])
        rows = [i * G + g for i in keep for g in range(G)]
        return Groups(
            self.selections.take(keep),
            self.rollouts.take(rows),
            self.rewards_P_G[keep],
            [self.statuses[b] for b in rows],
        )

    def metrics(self) -> dict:
        """What the rollouts looked like. Groups that DAPO discards are in it: they are compute too."""
        broken = sum(s in ("too_long", "timeout", "memory", "crash") for s in self.statuses)
        return outcome_metrics(self.selections, self.successes_P, self.rewards_P_G.shape[1]) | {
            "truncated": 1 - sum(self.rollouts.finished) / len(self.rollouts),
            "no_box": self.statuses.count("no_box") / len(self.statuses),
            "bad_gold": self.statuses.count("bad_gold") / len(self.statuses),
            "verify_failures": broken / len(self.statuses),
            "completion_tokens": int(self.rollouts.lengths().sum()),
            "total_tokens": sum(self.rollouts.total_tokens()),
        }


class Stopwatch(dict):
    """Seconds by part of a step: `with watch("train_s"): ...` adds to watch["train_s"]."""

    PARTS = ("rollout_s", "verify_s", "gather_s", "train_s", "teacher_wait_s", "eval_s")

    def __init__(self):
        super().__init__(dict.fromkeys(self.PARTS, 0.0))

    @contextmanager
    def __call__(self, part: str):
        start = time.perf_counter()
        yield
        self[part] += time.perf_counter() - start


# ----------------------------------------------------------------------------------------------------
# The run's folder


class Run:
    """config.json, metrics.jsonl, selections.jsonl, samples.jsonl, evals/ and checkpoints/ of one run.

    Rank 0 writes; checkpoints are written by all ranks under a temporary name, renamed when everything is on disk.
    Killed at any moment, the same command goes on from the newest checkpoint as if nothing had happened.
    """

    LOGS = ("metrics.jsonl", "selections.jsonl", "samples.jsonl")

    def __init__(self, config: Config, layout: Layout):
        self.config, self.layout, self.folder = config, layout, Path(config.out)

    def facts(self) -> dict:
        """What a run's numbers depend on, its settings first; kept in config.json, and the same on all ranks."""
        c, n = self.config, self.layout
        facts = asdict(c) | {
            "world_size": n.world,
            "student_ranks": n.n_students,
            "device": n.device.type,
        }
        facts |= {"torch": torch.__version__, "transformers": transformers.__version__}
        if os.environ.get("LOCAL_RANK", "0") == "0":  # one rank of each machine reads the files
            facts |= {
                f"{name}_crc32": digest(Path(getattr(c, name)))[1]
                for name in ("train_data", "val_data")
            }
            file = sampler_file(c.sampler)
            facts["sampler_crc32"] = file and digest(file)[1]
        return facts

    def check(self) -> int:
        """The step to continue from, 0 for a fresh start. Raises InputError where the folder holds something else, or
        a run that this one cannot continue."""
        path = self.folder / "config.json"
        if not path.exists():
            if self.folder.is_file():
                raise InputError(f"--out {self.folder} is a file; choose a folder")
            if self.folder.exists() and {p.name for p in self.folder.iterdir()} - {"config.tmp"}:
                raise InputError(
                    f"--out {self.folder}: the folder is not empty and holds no run; choose another"
                )
            return 0
        try:
            old, new = dict(json.loads(path.read_text())), self.facts()
        except (ValueError, TypeError) as error:
            raise InputError(
                f"{path} is damaged ({error}): put it back, or choose another --out"
            ) from error
        free = FREE - (
            {"steps"} if self.config.lr_schedule == "linear" else set()
        )  # its rate depends on them
        differ = {
            k: f"{k} {old.get(k)!r} there, {new[k]!r} here"
            for k in new
            if old.get(k) != new[k] and k not in free
        }
        if other := [text for k, text in differ.items() if k not in INEXACT]:
            raise InputError(
                f"--out {self.folder} belongs to another configuration: {'; '.join(other)}"
            )
        step = self.newest()
        if step > self.config.steps:
            raise InputError(
                f"--steps {self.config.steps}: the run in {self.folder} is at step {step} already"
            )
        logs = {name: read_lines(self.folder / name, torn=True) for name in self.LOGS}
        for name, rows in logs.items():
            if not all(isinstance(row, dict) and isinstance(row.get("step"), int) for row in rows):
                raise InputError(
                    f"{self.folder / name} is damaged: put it back, or choose another --out"
                )
        logged = [row["step"] for row in logs["metrics.jsonl"]]
        if step and logged[: step + 1] != list(range(step + 1)):
            raise InputError(
                f"{self.folder}/metrics.jsonl lacks a step before {step}: put it back, or choose another --out"
            )
        if step:
            self.sampler_state(step)
        if step and differ:
            print(
                f"note: {'; '.join(differ.values())}: the run goes on, but not bit for bit",
                flush=True,
            )
        return step

    def lock(self) -> None:
        """Makes the folder and keeps a second job out of it, until this process ends. Raises InputError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.locked = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(self.locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(
                f"--out {self.folder}: another job is writing there; end it, or choose another"
            ) from error
        except OSError as error:  # not every network file system has locks
            print(
                f"note: {self.folder} cannot be locked ({error.strerror}): start no second job there",
                flush=True,
            )

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, in order."""
        return sorted(
            int(p.name.removeprefix("step_")) for p in self.folder.glob("checkpoints/step_*[0-9]")
        )

    def checkpoint(self, step: int) -> Path:
        return self.folder / "checkpoints" / f"step_{step}"

    def newest(self) -> int:
        """The newest checkpoint that is intact; 0 if there is none at all. Raises InputError if all are damaged."""
        for step in reversed(self.steps()):
            folder = self.checkpoint(step)
            try:
                manifest = dict(json.loads((folder / "manifest.json").read_text()))
                damaged = [
                    name for name, expected in manifest.items() if digest(folder / name) != expected
                ]
            except (OSError, ValueError, TypeError) as error:
                damaged = [str(error)]
            if not damaged:
                return step
            print(
                f"warning: checkpoint {folder} is damaged ({damaged[0]}): going back to the one before it",
                flush=True,
            )
        if self.steps():
            raise InputError(
                f"--out {self.folder}: no checkpoint there is intact; to start again choose another"
            )
        return 0

    def sampler_state(self, step: int) -> dict:
        """What checkpoint `step` has of the sampler. Raises InputError where it is more than data."""
        try:
            return torch.load(self.checkpoint(step) / "sampler.pt", weights_only=True)
        except (pickle.UnpicklingError, RuntimeError) as error:
            why = f"cannot be loaded ({rollout.first_lines(error)}): delete it to go on from the one before it"
            raise InputError(f"checkpoint {self.checkpoint(step)} {why}") from error

    def load(self, step: int, sampler, student: Student | None = None) -> None:
        """Checkpoint `step` into what this rank holds; 0 leaves it as it starts."""
        for name, model, optimizer, state in shards(sampler, student) if step else ():
            dcp.load(
                state, checkpoint_id=self.checkpoint(step) / name, process_group=self.layout.group
            )
            set_state_dict(
                model,
                optimizer,
                model_state_dict=state["model"],
                optim_state_dict=state["optimizer"],
            )
        if step and not isinstance(sampler, RemoteSampler):
            sampler.load_state_dict(self.sampler_state(step))
        if student is not None:
            student.generator.refresh(student.policy)

    def resume(self, step: int, sampler, student: Student | None = None) -> None:
        """Loads checkpoint `step`, and forgets what came after it."""
        self.load(step, sampler, student)
        if self.layout.rank == 0:
            write_whole(self.folder / "config.json", json.dumps(self.facts(), indent=1) + "\n")
            for name in self.LOGS:
                rows = read_lines(self.folder / name, torn=True)
                write_lines(
                    self.folder / name, [row for row in rows if step and row["step"] <= step]
                )
            for later in (n for n in self.steps() if n > step):  # damaged
                self.discard(later)
            for unfinished in self.folder.glob("checkpoints/*.tmp"):
                shutil.rmtree(unfinished)

    def save(self, step: int, sampler, student: Student | None = None) -> None:
        """Writes checkpoints/step_N: student/ and teacher/ (sharded), sampler.pt and manifest.json. All ranks call it.

        Raises Fault on all of them where it cannot be written, or where copies that should be the same differ.
        """
        final, n = self.checkpoint(step), self.layout
        temporary = final.with_suffix(".tmp")
        copies = self.facts()
        if student is not None:
            copies["weights for generation"] = student.generator.checksum()
        if remote := isinstance(sampler, RemoteSampler):
            sampler.save(step)  # the teacher ranks run this same function
        else:
            torch.save(sampler.state_dict(), state := io.BytesIO())
            copies["state of the sampler"] = zlib.crc32(state.getbuffer())
        n.agree(**copies)
        manifest, failed = {}, None
        try:
            for name, _, _, shard in shards(sampler, student):
                dcp.save(shard, checkpoint_id=temporary / name, process_group=n.group)
                if dist.get_rank(n.group) == 0:
                    manifest |= {
                        f"{name}/{p.name}": digest(p) for p in sorted((temporary / name).iterdir())
                    }
            if not remote and dist.get_rank(n.group) == 0:
                (temporary / "sampler.pt").write_bytes(state.getbuffer())
                sync(temporary / "sampler.pt")
                manifest["sampler.pt"] = digest(temporary / "sampler.pt")
        except (OSError, dcp.CheckpointException) as error:
            failed = str(error).strip().splitlines()[-1]
        parts = n.gather((manifest, failed))  # nobody goes on before everything is on disk
        if failures := [failed for _, failed in parts if failed]:
            if n.rank == 0:
                shutil.rmtree(
                    temporary, ignore_errors=True
                )  # what it holds is of no use, and the disk may be full
            raise Fault(
                f"checkpoint {final} cannot be written: {failures[0]}; the one before it is intact"
            )
        if n.rank == 0:
            manifest = {name: value for manifest, _ in parts for name, value in manifest.items()}
            write_whole(temporary / "manifest.json", json.dumps(manifest, indent=1) + "\n")
            for path in (temporary, *(self.folder / name for name in self.LOGS)):
                sync(path)
            temporary.rename(final)
            sync(final.parent)
            for old in self.steps()[: -self.config.keep]:
                self.discard(old)

    def discard(self, step: int) -> None:
        """Deletes a checkpoint, which is one until the moment that it is none."""
        shutil.rmtree(self.checkpoint(step).rename(self.checkpoint(step).with_suffix(".tmp")))

    def failed(self, error: Exception) -> int:
        """Says what ended the run and returns the exit status for it: a line for what is ours, once
        where all ranks know of it; for anything else, whole, on each rank that it happened to. Of a
        lost connection one rank speaks, and none where another has said why it ended."""
        message, speaks = str(error), dist.get_rank(self.layout.group) == 0
        status = {InputError: 2, NonFiniteError: 3}.get(type(error), 4)
        if isinstance(error, Fault):
            speaks = self.layout.rank == 0  # all ranks know of it
        elif isinstance(error, OSError):
            speaks = True
        elif isinstance(error, NonFiniteError):
            message += (
                f"; the {len(error.rows)} rows behind it are in {self.folder}/nonfinite.jsonl"
            )
        elif is_lost(error):
            what = message.rpartition("] ")[2].partition(". ")[0]
            message = f"a rank died, or was waited for {self.config.timeout_minutes} minutes "
            message += f"({what}); the same command goes on from the newest checkpoint"
        elif not isinstance(error, InputError):
            speaks, status = True, 1
        if status == 1:  # first of all: the store may be hard to reach
            role = "teacher" if self.layout.is_teacher else "student"
            print(f"error on rank {self.layout.rank} ({role}):", file=sys.stderr)
            traceback.print_exception(error)
            sys.stderr.flush()
        with suppress(dist.DistError):  # without torchrun the store is gone with rank 0
            if speaks and self.layout.store.add("said", 1) > 1 and is_lost(error):
                speaks = False
        if speaks and isinstance(error, NonFiniteError):
            write_lines(self.folder / "nonfinite.jsonl", error.rows)
        if speaks and status > 1:
            say(message)
        return status

    def log(self, metrics: dict, groups: Groups | None = None, tokenizer=None) -> None:
        """One step into metrics.jsonl, selections.jsonl and, at evaluations, samples.jsonl."""
        if self.layout.rank:
            return
        step = metrics["step"]
        write_lines(self.folder / "metrics.jsonl", [metrics], "a")
        if groups is None:
            return
        P, G = groups.rewards_P_G.shape
        lines = groups.selections.lines(step, groups.successes_P, G)
        write_lines(self.folder / "selections.jsonl", lines, "a")
        if step == 1 or step % self.config.eval_every == 0:
            prompts, completions = groups.rollouts.prompt_ids, groups.rollouts.completion_ids
            for i in range(min(3, P)):  # the first completion of three problems, to look at
                sample = {
                    "step": step,
                    "problem": lines[i]["chosen"],
                    "status": groups.statuses[i * G],
                }
                sample["prompt"] = tokenizer.decode(prompts[i * G])
                sample["completion"] = tokenizer.decode(completions[i * G])
                write_lines(self.folder / "samples.jsonl", [sample], "a")

    def owes_evaluation(self, step: int) -> bool:
        """Whether `step` is one to evaluate at and has not been: it is the first, SIGTERM came, or
        the run goes on with another --eval_every or --steps."""
        if step % self.config.eval_every and step < self.config.steps:
            return False
        rows = read_lines(self.folder / "metrics.jsonl", torn=True)
        return not any(row["step"] == step and "val_accuracy" in row for row in rows)

    def complete(self, step: int, found: dict, watch: Stopwatch) -> None:
        """Adds an evaluation to what metrics.jsonl has of its last step, or of step 0, which is not
        trained."""
        if self.layout.rank:
            return
        rows = read_lines(self.folder / "metrics.jsonl") or [{"step": step}]
        rows[-1] = watch | rows[-1] | found | {"eval_s": watch["eval_s"]}
        write_lines(self.folder / "metrics.jsonl", rows)

    def show_plan(self, start: int, student: Student, n_train: int, n_val: int) -> None:
        """What is about to happen, on one screen."""
        c, n, teacher = self.config, self.layout, find_sampler(self.config.sampler).uses_teacher
        if n.rank:
            return
        B, parameters = (
            c.prompts_per_step * c.group_size,
            sum(p.numel() for p in student.policy.parameters()),
        )
        ranks = f"{n.n_students} student" + (f" + {n.n_teachers} teacher" if n.n_teachers else "")
        print(
            f"Goldilocks RL: preset {c.preset}, sampler {c.sampler}, loss {c.loss}, seed {c.seed}\n"
            f"  ranks    {n.world} = {ranks}, {n.device.type}\n"
            f"  batch    {c.prompts_per_step} prompts x {c.group_size} = {B}, {B // n.n_students} a student rank\n"
            f"  student  {c.model}, {parameters / 1e6:,.2f} M parameters\n"
            f"  teacher  {c.teacher_model if teacher else 'none'}\n"
            f"  data     {n_train:,} problems, {n_val:,} for validation\n"
            f"  steps    {start} to {c.steps}, evaluated every {c.eval_every}, saved every {c.checkpoint_every}\n"
            f"  output   {self.folder}",
            flush=True,
        )

    def show_result(self, finished: bool) -> None:
        """Accuracy before and after, and where to look."""
        if self.layout.rank:
            return
        if not finished:
            print("stopped by SIGTERM: the same command continues")
            return
        rows = read_lines(self.folder / "metrics.jsonl")
        first, *later = [row["val_accuracy"] for row in rows if "val_accuracy" in row]
        last_five = later[-5:] or [first]
        print(
            f"validation accuracy: {first:.1%} before, {last_five[-1]:.1%} after, "
            f"{sum(last_five) / len(last_five):.1%} mean of the last {len(last_five)} evaluations\n"
            f"next: python scripts/plot.py {self.folder}; or read samples.jsonl and metrics.jsonl there"
        )


def is_lost(error: Exception) -> bool:
    """Whether it says that another rank, or torchrun's store, cannot be reached any more. gloo
    raises no class of its own, and NCCL one for everything."""
    if isinstance(error, dist.DistNetworkError | dist.DistStoreError):
        return True
    text = str(error)
    if isinstance(error, dist.DistBackendError):
        return "remote process" in text
    return type(error) is RuntimeError and ("/gloo/" in text or "pair closure" in text)


def shards(sampler, student: Student | None):
    """(name, model, optimizer, their sharded state) of everything this rank holds a shard of."""
    held = []
    if student is not None:
        held.append(("student", student.policy, student.optimizer))
    if teacher := getattr(sampler, "teacher", None):
        held.append(("teacher", teacher.model, teacher.optimizer))
    for name, model, optimizer in held:
        fresh = not optimizer.state
        model_state, optimizer_state = get_state_dict(model, optimizer)
        if (
            fresh
        ):  # get_state_dict takes a step of zeros to fill an optimizer that has taken none: undo it
            optimizer.state.clear()
        yield name, model, optimizer, {"model": model_state, "optimizer": optimizer_state}


def read_lines(path: Path, torn: bool = False) -> list[dict]:
    """The rows of a JSON-lines file; [] where there is none. torn: a last line cut by a crash is left out."""
    lines, rows = path.read_text().splitlines() if path.exists() else [], []
    for number, line in enumerate(lines, 1):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            if not (torn and number == len(lines)):
                raise InputError(f"{path}, line {number}: damaged ({error})") from error
    return rows


def plain(value):
    """The value as JSON has it: NaN and infinities become null."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [plain(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_lines(path: Path, rows: list[dict], mode: str = "w") -> None:
    """Rows as JSON lines. A whole file ("w") appears at once or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(plain(row)) + "\n" for row in rows)
    if mode == "a":
        with path.open("a") as file:
            file.write(text)
    else:
        write_whole(path, text)


def write_whole(path: Path, text: str) -> None:
    """Writes a file that appears at once, with all of its text, or not at all."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text)
    sync(temporary)
    temporary.replace(path)


def sync(path: Path) -> None:
    """Returns when a file, or the list of files in a folder, would survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def digest(path: Path) -> list[int]:
    """Size in bytes and CRC-32 of a file: enough to notice damage, or another file."""
    crc = 0
    with path.open("rb") as file:
        while block := file.read(1 << 24):
            crc = zlib.crc32(block, crc)
    return [path.stat().st_size, crc]


# ----------------------------------------------------------------------------------------------------
# Start


def check_inputs(config: Config, run: Run) -> int:
    """Everything that can be wrong before the first step, looked at by rank 0. Raises ValueError or OSError.

    Returns the step to continue from. Nothing is written before all is well.
    """
    uses_teacher = find_sampler(config.sampler).uses_teacher
    rollout.check_model(config.model, config.max_prompt_tokens + config.max_completion_tokens)
    if uses_teacher:
        check_teacher(config.teacher_model, config.max_prompt_tokens)
    encode = PromptEncoder.of(config, AutoTokenizer.from_pretrained(config.model))
    if (least := len(encode(""))) >= config.max_prompt_tokens:
        raise InputError(
            f"--max_prompt_tokens {config.max_prompt_tokens}: a prompt takes {least} tokens already without a question"
        )
    if missing := [p for p in (config.train_data, config.val_data) if not Path(p).exists()]:
        from scripts.prepare_data import prepare_missing

        prepare_missing(missing)  # a path like DATA says from what; others stay missing
    problems = Problems(config.train_data)
    if config.column:
        problems.column(config.column)
    need = config.prompts_per_step * (config.candidates if uses_teacher else 1)
    if len(problems) < need:
        raise InputError(
            f"{config.train_data} has {len(problems)} problems, and one step draws {need}"
        )
    Problems(config.val_data)
    try:
        step = run.check()
        run.lock()
    except OSError as error:
        raise InputError(
            f"--out {run.folder} cannot be used ({error.strerror}): choose another"
        ) from error
    return step


def say(error: object) -> None:
    """What ended the run, in one line."""
    print("error:", " ".join(str(error).splitlines()), file=sys.stderr, flush=True)


def main(argv: list[str] | None = None) -> int:
    """Returns the exit status: 0 finished, 143 stopped by SIGTERM and saved; with a line on stderr
    from one rank 2 bad input, 3 a loss or gradient that is not finite, 4 a fault (full disk, lost
    rank); 1 any other error, shown whole by the rank that it happened to."""
    rank = int(os.environ.get("RANK", 0))
    if "TORCHELASTIC_RUN_ID" in os.environ:
        _prctl_pr_set_pdeathsig(
            signal.SIGKILL
        )  # a rank without its torchrun would go on writing into the run's folder
    os.environ.setdefault(
        "FLASH_ATTENTION_DETERMINISTIC", "1"
    )  # else its backward adds in no fixed order
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(
        datasets.logging.CRITICAL
    )  # what it says of an error, the error says as well
    try:
        config = parse(argv)
        layout = Layout(config)
    except ValueError as error:
        if rank:
            time.sleep(10)  # rank 0 says the same, and torchrun ends the others of its machine
        if os.environ.get("LOCAL_RANK", "0") == "0":
            say(error)
        return 2
    # Worker processes start before CUDA and the process groups exist.
    grading = nullcontext() if layout.is_teacher else Verifier(workers=config.verify_workers)
    with grading as verifier:
        layout.connect(config)
        run = Run(config, layout)
        try:
            found = [None, 0]  # what is wrong, and the step to continue from
            if rank == 0:
                try:
                    found[1] = check_inputs(config, run)
                except (ValueError, OSError) as error:
                    say(error)
                    found[0] = str(error)
            dist.broadcast_object_list(found)
            problem, start = found
            if problem is not None:
                return 2
            layout.agree(**run.facts())
            if layout.is_teacher:
                finished = run_teacher(config, layout, run, start)
            else:
                finished = train(config, layout, run, start, verifier)
            layout.gather(None)
        except Exception as error:  # whatever it is: this rank has to say it
            return run.failed(error)
    dist.destroy_process_group()
    return 0 if finished else 128 + signal.SIGTERM


if __name__ == "__main__":
    sys.exit(main())
