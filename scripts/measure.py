"""Something to measure, and a probe that stands in for a training run's files: what bench.py runs.

The model is the demo's, or has another's shape and random weights, the demo's tokenizer and made-up problems. The
loop that is measured is train.train itself.
"""

import itertools
import random
import tempfile
import time
from collections import Counter
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, AutoTokenizer

import grpo
import train
from sampler import InputError
from scripts.floors import SHAPES, TEACHERS, Machine, Shape, model_config
from verify import Verdict, Verifier

TOKENIZER = train.DEMO + "model"
UNREAD = SimpleNamespace(  # a Verifier that reads nothing, at no cost
    grade=lambda texts, golds: [Verdict(0.0, "wrong")] * len(texts),
    check_golds=lambda golds: [True] * len(golds),
)


def save_random_model(
    shape: str, layers: int | None, seed: int, folder: Path, device="cpu", dtype=torch.float32
) -> None:
    """A causal LM of a named shape, or of a folder's config: random weights, the demo's tokenizer.

    They are drawn on `device`; saved as bf16 they take half of the disk.
    """
    tokenizer = AutoTokenizer.from_pretrained(TOKENIZER)
    changes = {
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    if layers:
        changes |= {"num_hidden_layers": layers, "layer_types": None}
    torch.manual_seed(seed)
    with torch.device(device):
        lm = AutoModelForCausalLM.from_config(model_config(shape, **changes), dtype=dtype)
    lm.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def write_problems(path: Path, n: int, tokens: int, seed: int) -> None:
    """n different made-up problems of tokens/2 to 3·tokens/2 words, each one token of the demo's."""
    rng = random.Random(seed)
    vocabulary = sorted(AutoTokenizer.from_pretrained(TOKENIZER).get_vocab())
    words = rng.choices(
        [word for word in vocabulary if word[0] == " " and word[1:].isalpha()], k=100_000
    )
    with path.open("w") as file:
        for i in range(n):
            start = rng.randrange(len(words) // 2)
            problem = "".join(words[start : start + rng.randint(tokens // 2, tokens * 3 // 2)])
            file.write(f'{{"problem": "{i}{problem}", "expected_answer": "{i % 997}"}}\n')


def configure(args, rest: list[str]) -> train.Config:
    """train.Config: the demo's limits, or for a larger shape those of its preset and a made-up
    header and footer."""
    flags = ["--preset", "demo"]
    if args.shape not in ("demo", "10m"):
        if args.shape not in SHAPES and not (Path(args.shape) / "config.json").is_file():
            raise InputError(
                f"--shape {args.shape}: choose from demo, {', '.join(SHAPES)}, or give a model's folder"
            )
        # App. M's instructions are about 170 tokens; these words are a token each for the demo's tokenizer.
        flags = ["--prompt_header", " balo" * 100, "--prompt_footer", " bami" * 70]
        flags += ["--preset", args.shape if args.shape in train.PRESETS else "qwen2.5-1.5b"]
    return train.parse([*flags, *rest, "--seed", str(args.seed)])


def make_materials(config: train.Config, args, folder: Path, build: bool = True) -> None:
    """Points config at models and problems in `folder`, and builds them if asked to. The demo has its own."""
    if args.shape == "demo":
        return
    for role, shape in {
        "model": args.shape,
        "teacher_model": TEACHERS.get(args.shape, args.shape),
    }.items():
        path = folder / Path(shape).name
        setattr(config, role, str(path))
        if build and not path.exists():
            save_random_model(shape, args.layers, args.seed, path)
    config.train_data = config.val_data = str(folder / "train.jsonl")
    if build:
        write_problems(folder / "train.jsonl", 4_000, args.question_tokens, args.seed)


def scripted_rewards(P: int, G: int, dead: float) -> list[float]:
    """P·G rewards, prompt-major: the first round(dead·P) groups earn 0, in the others every second row earns 1."""
    return [float(i >= round(dead * P) and g % 2) for i in range(P) for g in range(G)]


class Probe:
    """What train.train takes for a Run: it writes no files, makes a row of each step and ends the run after n.

    shares: of dead groups by scripted rewards, for one step after the other, again and again; None where rewards are
    what the verifier says. after(rows) is called after each step.
    """

    def __init__(
        self, config: train.Config, layout: train.Layout, n: int, shares: list[float | None], after
    ):
        self.config, self.layout, self.n, self.shares, self.after = (
            config,
            layout,
            n,
            itertools.cycle(shares),
            after,
        )
        self.rows: list[dict] = []
        self.parts: Counter = (
            Counter()
        )  # seconds by part where train.Stopwatch does not tell, and positions
        # From step 1, as train.train evaluates before it and at the last one.
        config.steps = config.eval_every = config.checkpoint_every = n + 2

    def resume(self, step: int, sampler, student: train.Student | None = None) -> None:
        """Attaches itself to what was built."""
        reset_peak()
        self.cpu = time.process_time()
        if student is None:
            return
        self.shape, graded = Shape(student.policy.lm.config), student.rollout

        def rollout(*arguments):
            rollouts, rewards_B, statuses = graded(*arguments)
            if (dead := next(self.shares)) is not None:
                rewards_B = torch.tensor(
                    scripted_rewards(self.config.prompts_per_step, self.config.group_size, dead)
                )
            return rollouts, rewards_B, statuses

        student.rollout = rollout
        count = student.policy.lm.get_input_embeddings().register_forward_hook
        count(lambda module, inputs, output: self.parts.update(positions=inputs[0].numel()))
        optimizer, generator = student.optimizer, student.generator
        for thing, name in (
            (sampler, "propose"),
            (sampler, "observe"),
            (optimizer, "step"),
            (generator, "refresh"),
        ):
            setattr(thing, name, self.clock(name)(getattr(thing, name)))

    @contextmanager
    def clock(self, part: str):
        """Adds the seconds until what was started on a GPU is done."""
        wait = torch.cuda.synchronize if torch.cuda.is_available() else int
        wait()
        start = time.perf_counter()
        yield
        wait()
        self.parts[part] += time.perf_counter() - start

    def log(self, metrics: dict, groups: train.Groups, tokenizer) -> None:
        """A row: seconds by part, and what bench.py prints. `rows` is for floors.floors."""
        mine = self.parts["positions"], time.process_time() - self.cpu, peak_bytes()
        trained, cpu, peak = zip(*self.layout.gather(mine, self.layout.group), strict=True)
        dead_B = grpo.dead_groups(groups.rewards_P_G).repeat_interleave(self.config.group_size)
        live = (~dead_B).nonzero()[:, 0].tolist()
        tokens_B, new_B = groups.rollouts.total_tokens(), groups.rollouts.lengths().tolist()
        row = {
            "fwd_bwd_s": metrics["train_s"] - self.parts["step"] - self.parts["refresh"],
            "tokens_a_second": sum(tokens_B) / metrics["seconds"],
            "live_rows": len(live),
            "position_ms": 1000 * metrics["rollout_s"] / max(new_B),
            "padding": 1 - sum(tokens_B[b] for b in live) / sum(trained),
            "imbalance": max(trained) * len(trained) / sum(trained) - 1
            if len(live) >= 48
            else None,
            "teacher_wait": metrics["teacher_wait_s"] / metrics["seconds"],
            "cpu_s": max(cpu),
            "peak_gib": max(peak) / 2**30,
            "rows": (list(map(len, groups.rollouts.prompt_ids)), new_B, live),
        }
        self.rows.append(metrics | self.parts | row)
        self.after(self.rows)
        if len(self.rows) == self.n:
            self.layout.request_stop()  # as after SIGTERM: no model is exported
        self.parts, self.cpu = Counter(), time.process_time()

    def nothing(self, *_) -> None: ...

    owes_evaluation = complete = show_plan = save = show_result = nothing


def run(
    args, rest: list[str], n: int, shares: list[float | None], after=len, reads: bool = True
) -> Probe:
    """n steps of train.train on this rank; see Probe, which is returned.

    `reads`: the verifier grades, and rank 0 finds what the machine can do; else rewards have to be scripted.
    """
    config = configure(args, rest)
    layout, cuda = train.Layout(config), torch.cuda.is_available()
    workers = (
        Verifier(workers=config.verify_workers)
        if reads and not layout.is_teacher
        else nullcontext(UNREAD)
    )
    with workers as verifier, tempfile.TemporaryDirectory() as folder:
        layout.connect(config)
        make_materials(config, args, Path(layout.gather(folder)[0]), build=layout.rank == 0)
        probe = Probe(config, layout, n, shares, after)
        probe.machine = Machine.measure(cuda) if reads and layout.rank == 0 else None
        layout.gather(None)  # the others wait for both
        if layout.is_teacher:
            train.run_teacher(config, layout, probe, 1)
        else:
            train.train(config, layout, probe, 1, verifier)
        # A waiting rank uses no processor: this is what a role would need with processors of its own.
        probe.teacher_cpu = max(
            layout.gather(layout.is_teacher and time.process_time() - probe.cpu)
        )
    dist.destroy_process_group()
    return probe


def resident(name: str, path: str = "/proc/self/status") -> int:
    """A line of /proc in bytes: VmRSS and VmHWM of status, Pss and Pss_Anon of smaps_rollup (Linux)."""
    line = next(line for line in Path(path).read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


def reset_peak() -> int:
    """Lets peak_bytes begin anew, and returns what is held now: allocated by torch on a GPU, resident on a CPU."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    Path("/proc/self/clear_refs").write_text("5")
    return resident("VmRSS")


def peak_bytes() -> int:
    """The most that was held since reset_peak."""
    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else resident("VmHWM")
