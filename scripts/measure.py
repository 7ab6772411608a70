"""One training step on something to measure, timed by part: what bench.py runs.

The model is the demo's, or has another's shape and random weights, the demo's tokenizer and made-up problems.
`Session.step` holds the lines of train.train, with DAPO's rounds, evaluation and files left out.
"""

import random
import tempfile
import time
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

import grpo
import train
from rollout import PromptEncoder
from sampler import InputError, Problems, RemoteSampler
from scripts.floors import SHAPES, TEACHERS, Machine, Shape, causal, sync
from verify import Verdict, Verifier

TOKENIZER = train.DEMO + "model"


def save_random_model(shape: str, layers: int | None, seed: int, folder: Path) -> None:
    """A causal LM of a named shape, or of the config in a folder, with random weights and the demo's tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(TOKENIZER)
    special = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    if shape in SHAPES:
        kind, *sizes = SHAPES[shape]
        names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
        names += ("num_key_value_heads", "head_dim", "vocab_size", "tie_word_embeddings")
        settings = {"model_type": kind, "max_position_embeddings": 32_768} | dict(zip(names, sizes, strict=True))
    else:
        settings = AutoConfig.from_pretrained(shape).to_dict()
    if layers:
        settings |= {"num_hidden_layers": layers, "layer_types": None}
    config = AutoConfig.for_model(**(settings | special))
    torch.manual_seed(seed)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def write_problems(path: Path, n: int, tokens: int, seed: int) -> None:
    """n different made-up problems of about tokens/2 to 3·tokens/2 words, each one token of the demo's."""
    rng = random.Random(seed)
    vocabulary = sorted(AutoTokenizer.from_pretrained(TOKENIZER).get_vocab())
    words = [word for word in vocabulary if word[0] == " " and word[1:].isalpha()]
    mean, text = sum(map(len, words)) / len(words), "".join(rng.choices(words, k=100_000))
    with path.open("w") as file:
        for i in range(n):
            start = rng.randrange(len(text) // 2)
            problem = text[start : start + int(mean * rng.uniform(tokens / 2, tokens * 3 / 2))]
            file.write(f'{{"problem": "{i}{problem}", "expected_answer": "{i % 997}"}}\n')


def configure(args, rest: list[str]) -> train.Config:
    """train.Config: the demo's, or for another shape its preset's limits and made-up header and footer."""
    if args.shape == "demo":
        return train.parse(["--preset", "demo", *rest])
    if args.shape not in SHAPES and not (Path(args.shape) / "config.json").is_file():
        raise InputError(f"--shape {args.shape}: choose from demo, {', '.join(SHAPES)}, or give a model's folder")
    preset = args.shape if args.shape in train.PRESETS else "qwen2.5-1.5b"
    # App. M's instructions are about 170 tokens; these words are a token each for the demo's tokenizer.
    instructions = ["--prompt_header", " balo" * 100, "--prompt_footer", " bami" * 70]
    return train.parse(["--preset", preset, *instructions, *rest])


def make_materials(config: train.Config, args, folder: Path, build: bool = True) -> None:
    """Points config at models and problems in `folder`, and builds them if asked to. The demo has its own."""
    if args.shape == "demo":
        return
    shapes = {"student": args.shape, "teacher": TEACHERS.get(args.shape, args.shape)}
    config.model, config.train_data = str(folder / "student"), str(folder / "train.jsonl")
    config.teacher_model = config.model if shapes["teacher"] == args.shape else str(folder / "teacher")
    if build:
        for path in {config.model, config.teacher_model}:
            save_random_model(shapes[Path(path).name], args.layers, args.seed, Path(path))
        write_problems(folder / "train.jsonl", 4_000, args.question_tokens, args.seed)


def scripted_rewards(P: int, G: int, dead: float) -> list[float]:
    """P·G rewards, prompt-major: the first round(dead·P) groups earn 0, in the others every second row earns 1."""
    return [float(i >= round(dead * P) and g % 2) for i in range(P) for g in range(G)]


class Scripted:
    """A Verifier whose rewards are given: an answer is the pair (gold, reward). With `verifier` it grades as well."""

    def __init__(self, verifier: Verifier | None = None):
        self.verifier = verifier

    def grade(self, texts: list[str], answers: list[tuple[str, float]]) -> list[Verdict]:
        """Verdicts of the rewards that came with the answers."""
        if self.verifier:
            self.verifier.grade(texts, [gold for gold, _ in answers])
        return [Verdict(reward, "correct" if reward else "wrong") for _, reward in answers]

    def check_golds(self, answers: list[tuple[str, float]]) -> list[bool]:
        """All good."""
        if self.verifier:
            self.verifier.check_golds([gold for gold, _ in answers])
        return [True] * len(answers)


class Counter:
    """Counts the token positions that a model is run on, padding included (replayed CUDA graphs are not seen)."""

    def __init__(self, lm):
        self.positions = 0
        lm.get_input_embeddings().register_forward_hook(self._count)

    def _count(self, module, inputs, output) -> None:
        self.positions += inputs[0].numel()


class Watch(train.Stopwatch):
    """A Stopwatch for any part, which waits for the GPU."""

    def __init__(self, device):
        super().__init__()
        self.device = device

    @contextmanager
    def __call__(self, part: str):
        self.setdefault(part, 0.0)
        sync(self.device)
        with super().__call__(part):
            yield
            sync(self.device)

    def method(self, thing, name: str, part: str) -> None:
        """From now on thing.name(...) is timed: for what update() does inside."""
        plain = getattr(thing, name)

        def timed(*arguments, **named):
            with self(part):
                return plain(*arguments, **named)

        setattr(thing, name, timed)


class Session:
    """What train.train holds, without a run's folder; on a teacher rank only the sampler."""

    def __init__(self, config: train.Config, layout: train.Layout, verifier, dead: float | None):
        self.config, self.layout, self.dead, self.steps = config, layout, dead, 0
        self.problems = Problems(config.train_data)
        if layout.is_teacher:
            encode = PromptEncoder.of(config, AutoTokenizer.from_pretrained(config.model))
            self.sampler = train.build_sampler(config, layout, self.problems, encode)
            return
        self.student = train.Student(config, layout, verifier)
        self.sampler = train.build_sampler(config, layout, self.problems, self.student.encode)
        self.shape = Shape.of(self.student.generator.lm.config)
        self.generated, self.trained = Counter(self.student.generator.lm), Counter(self.student.policy.lm)
        self.watch = Watch(layout.device)
        self.watch.method(self.student.optimizer, "step", "optimizer_s")
        self.watch.method(self.student.generator, "refresh", "refresh_s")

    def step(self, dead: float | None = None) -> dict:
        """One step. Seconds by part, counts, `rollouts` (all rows), and `ranks`: what each student rank counted."""
        c, P, G, watch = self.config, self.config.prompts_per_step, self.config.group_size, self.watch
        dead = self.dead if dead is None else dead
        watch.clear()
        self.generated.positions = self.trained.positions = 0
        self.steps += 1
        cpu = time.process_time()
        with watch("seconds"):
            with watch("propose_s"):
                selections = self.sampler.propose(P)
            with watch("encode_s"):
                asked = [(self.student.encode(self.problems.question(i)), i) for i in selections.index_N]
            prompts = [q for q, _ in asked for _ in range(G)]
            answers = [self.problems.answer(i) for _, i in asked for _ in range(G)]
            if dead is not None:
                answers = list(zip(answers, scripted_rewards(P, G, dead), strict=True))
            stream = (1, self.steps, 0)
            rollouts, rewards_B, statuses = self.student.rollout(prompts, answers, c.temperature, stream, watch)
            groups = train.Groups(selections, rollouts, rewards_B.reshape(P, G), statuses)
            with watch("observe_s"):
                self.sampler.observe(selections.index_N, groups.successes_P, G)
            with watch("train_s"):
                update = self.student.update(groups.rollouts, groups.rewards_P_G, c.learning_rate)
            metrics = groups.metrics() | update | self.sampler.metrics()
        row = {"cpu_s": time.process_time() - cpu, "rollouts": rollouts} | watch
        row["fwd_bwd_s"] = row["train_s"] - row["optimizer_s"] - row["refresh_s"]
        row["teacher_wait_s"] = row["propose_s"] + row["observe_s"]
        for name in ("total_tokens", "completion_tokens", "zero_variance", "teacher_learn_s", "teacher_predict_s"):
            row[name] = metrics.get(name, 0.0)
        dead_P = grpo.dead_groups(groups.rewards_P_G).tolist()
        row["live_rows"] = [i for i in range(P * G) if not dead_P[i // G]]
        mine = {"generated": self.generated.positions, "trained": self.trained.positions}
        mine |= {"peak": peak_bytes(), "cpu_s": row["cpu_s"]}
        row["ranks"] = [None] * self.layout.n_students
        dist.all_gather_object(row["ranks"], mine, group=self.layout.group)
        return row

    def floors(self, row: dict, machine: Machine) -> dict[str, float]:
        """Seconds of one student rank for an equal share of the step's work. The other parts have no floor."""
        n, G, s = self.layout.n_students, self.config.group_size, self.shape
        size = 2 if self.layout.device.type == "cuda" else 4
        prompts, new = ([len(ids) for ids in x] for x in (row["rollouts"].prompt_ids, row["rollouts"].completion_ids))
        decoded = sum(new) - len(new)  # the first token of a row comes from the prefill
        seen = sum(causal(t - 1, p) for p, t in zip(prompts, new, strict=True))
        prefill = s.forward_flops(sum(prompts[::G]), sum(map(causal, prompts[::G])), len(prompts[::G]))
        moved = s.decode_bytes(max(new) - 1, seen / n, size)
        whole = [prompts[b] + new[b] for b in row["live_rows"]]
        flops = s.train_flops(sum(whole), sum(map(causal, whole)), sum(new[b] for b in row["live_rows"]))
        return {
            "rollout_s": machine.floor(prefill / n) + machine.floor(s.forward_flops(decoded, seen, decoded) / n, moved),
            "fwd_bwd_s": machine.floor(flops / n),
            "optimizer_s": machine.floor(moved=s.adamw_bytes() / n),
            "refresh_s": machine.floor(moved=s.refresh_bytes(size)),
        }


@contextmanager
def session(args, rest: list[str], grades: bool = True):
    """A Session on this rank, started as train.main starts one; it must be left when the server has been stopped."""
    config = configure(args, rest)
    layout = train.Layout(config)
    workers = Verifier(workers=config.verify_workers) if grades and not layout.is_teacher else nullcontext()
    with workers as verifier, tempfile.TemporaryDirectory() as folder:
        layout.connect(config)
        shared = [folder]
        dist.broadcast_object_list(shared)
        make_materials(config, args, Path(shared[0]), build=layout.rank == 0)
        layout.gather(None)
        dead = args.dead if args.dead is not None or args.shape == "demo" else 0.6  # random weights earn nothing
        s = Session(config, layout, verifier if dead is None else Scripted(verifier), dead)
        yield s
        if isinstance(s.sampler, RemoteSampler):
            s.sampler.stop(finished=False)
        layout.gather(None)
    dist.destroy_process_group()


def resident(name: str, path: str = "/proc/self/status") -> int:
    """A line of /proc in bytes: VmRSS and VmHWM of status, Pss and Pss_Anon of smaps_rollup (Linux)."""
    line = next(line for line in Path(path).read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


def peak_bytes() -> int:
    """The most this process ever held: allocated by torch on a GPU, resident on a CPU."""
    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else resident("VmHWM")
