"""Models and problems to measure, and what steps of train.train_step cost: for bench.py and
gpu_check.py."""

import itertools
import random
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, AutoTokenizer

import grpo
import train
from benchmarks.roofline import HUB, SHAPES, model_config
from plumbing.distributed.channel import Channel, RemoteSampler, serve
from plumbing.distributed.layout import Layout
from plumbing.errors import InputError
from plumbing.files import write_lines
from plumbing.problems import Problems
from verify import Verdict, Verifier

TOKENIZER = str(Path(train.__file__).resolve().parent / "demo/model")


def save_random_model(
    shape: str, layers: int | None, seed: int, folder: Path, device="cpu", dtype=torch.float32
) -> None:
    """A causal LM of a named shape, or of a folder's config: random weights, the demo's tokenizer.

    They are drawn on `device`; saved as bf16 they take half of the disk.
    """
    tokenizer = AutoTokenizer.from_pretrained(TOKENIZER)
    changes = {name: getattr(tokenizer, name) for name in ("eos_token_id", "pad_token_id")}
    changes |= {"num_hidden_layers": layers, "layer_types": None} if layers else {}
    torch.manual_seed(seed)
    with torch.device(device):
        config = model_config(shape, bos_token_id=None, **changes)
        lm = AutoModelForCausalLM.from_config(config, dtype=dtype)
    lm.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def write_problems(path: Path, n: int, tokens: int, seed: int) -> None:
    """n different problems of tokens/2 to 3·tokens/2 words, each a token of the demo's."""
    rng = random.Random(seed)
    texts = (f"{i}{' balo' * rng.randint(tokens // 2, tokens * 3 // 2)}" for i in range(n))
    write_lines(path, [{"problem": text, "expected_answer": "1"} for text in texts])


def configure(shape: str, rest: list[str]) -> train.Config:
    """train.Config: the demo's limits, or for a larger shape those of its preset, with made-up
    instructions."""
    flags = ["--preset", "demo"]
    if shape not in ("demo", "10m"):
        if shape not in SHAPES and not (Path(shape) / "config.json").is_file():
            known = f"demo, {', '.join(SHAPES)}"
            raise InputError(f"--shape {shape}: choose from {known}, or give a model's folder")
        # App. M's are about 170 tokens; of these words each is one of the demo's.
        flags = ["--prompt_header", " balo" * 100, "--prompt_footer", " bami" * 70]
        flags += ["--preset", shape if shape in train.PRESETS else "qwen2.5-1.5b"]
    return train.parse([*flags, *rest])


def make_materials(config: train.Config, args, folder: Path, build: bool = True) -> None:
    """Points config at models and problems in `folder`, and builds them if asked to. The demo has
    its own."""
    if args.shape == "demo":
        return
    teacher = HUB.get(config.teacher_model) if args.shape in train.PRESETS else None
    for role, shape in {"model": args.shape, "teacher_model": teacher or args.shape}.items():
        path = folder / Path(shape).name
        setattr(config, role, str(path))
        if build and not path.exists():
            save_random_model(shape, None, config.seed, path)
    config.train_data = config.val_data = str(folder / "train.jsonl")
    if build:
        write_problems(folder / "train.jsonl", 4_000, args.question_tokens, config.seed)


def scripted_rewards(P: int, G: int, dead: float) -> list[float]:
    """P·G rewards, prompt-major: the first round(dead·P) groups earn 0, in the others every second
    row earns 1."""
    return [float(i >= round(dead * P) and g % 2) for i in range(P) for g in range(G)]


class Scripted:
    """A verifier that pays scripted_rewards, or where `dead` is None what a real one says, which is
    asked, if it is there, in either case."""

    dead: float | None = None

    def __init__(self, config: train.Config, layout: Layout, verifier: Verifier | None):
        self.config, self.layout, self.verifier = config, layout, verifier

    def grade(self, texts: list[str], *golds) -> list[Verdict]:
        verdicts = self.verifier.grade(texts, *golds) if self.verifier else []
        if self.dead is None:
            return verdicts
        rewards = scripted_rewards(self.config.prompts_per_step, self.config.group_size, self.dead)
        mine = rewards[self.layout.rank * len(texts) :][: len(texts)]
        return [Verdict(reward, "correct" if reward else "wrong") for reward in mine]

    def check_golds(self, golds: list[str], extras: list[dict], of) -> list[bool]:
        return [True] * len(golds)


@contextmanager
def ready(args, rest: list[str], reads: bool = True):
    """(config, layout, verifier or None) of this rank, connected, with its models and problems."""
    config = configure(args.shape, rest)
    layout = Layout(config)
    grades = reads and not layout.is_teacher
    grading = Verifier(workers=config.verify_workers) if grades else nullcontext()
    with grading as verifier, tempfile.TemporaryDirectory() as folder:
        layout.connect(config.timeout_minutes)
        make_materials(config, args, Path(layout.gather(folder)[0]), build=layout.rank == 0)
        layout.gather(None)
        yield config, layout, verifier
        layout.gather(None)  # the folder goes with rank 0
    dist.destroy_process_group()


def rows(config: train.Config, layout: Layout, verifier, shares: list) -> Iterator[dict]:
    """Takes a train_step when asked: its row of metrics.jsonl and, as "rows", what floors.floors
    asks for. Close it, so that the teacher ranks, which get no rows, come to their end.

    shares: of dead groups by script, for one step after the other, again and again; None where
    rewards are what the verifier says.
    """
    G, problems = config.group_size, Problems(config.train_data)
    sampler = train.build_sampler(config, layout, problems)
    if layout.is_teacher:
        serve(sampler, Channel(layout), save=None)
        return
    scripted, seen = Scripted(config, layout, verifier), []
    student = train.Student(config, layout, scripted)
    try:
        for step, scripted.dead in enumerate(itertools.cycle(shares), 1):
            cpu = time.process_time()
            reset_peak()
            row = train.train_step(step, student, sampler, problems, lambda *now: seen.append(now))
            mine = time.process_time() - cpu, peak_bytes() / 2**30
            most = map(max, zip(*layout.gather(mine, layout.group), strict=True))
            row["cpu_s"], row["peak_gib"] = most
            _, _, rollouts, _ = seen.pop()
            prompt_B, new_B = list(map(len, rollouts.prompt_ids)), rollouts.lengths().tolist()
            live_B = ~grpo.dead_groups(rollouts.rewards_P_G(G)).repeat_interleave(G)
            row["tokens_a_second"] = row["total_tokens"] / row["seconds"]
            yield row | {"rows": (prompt_B, new_B, live_B.nonzero()[:, 0].tolist())}
    finally:
        if isinstance(sampler, RemoteSampler):
            sampler.stop(finished=False)


def resident(name: str) -> int:
    """A line of /proc/self/status in bytes: VmRSS or VmHWM (Linux)."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) * 1024


def reset_peak() -> int:
    """Lets peak_bytes begin anew, and returns what is held now: allocated by torch on a GPU,
    resident on a CPU."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    Path("/proc/self/clear_refs").write_text("5")
    return resident("VmRSS")


def peak_bytes() -> int:
    """The most that was held since reset_peak."""
    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else resident("VmHWM")
