"""Make `demo/` from nothing: graded problems and a tiny base model, in about five minutes.

A problem names a topic, starts at a three-digit number and applies words of that topic to it. Each
word stands for a rule. A solution writes, for each word, the rule and the number that it gives:

    Amber: Start at 473. Apply molo bami.     ->     473 molo roll 734 bami rise 845 \\boxed{845}

The base model is trained on *noisy* demonstrations: each word has its own rate of being read as its
rule, and is otherwise read as one wrong rule, its habit. So p(problem) is the product of its words'
rates. As in the paper few problems are mastered, some are within reach, and most are out of reach
for good: their demonstrations show only the habit. `python -m scripts.evaluate demo/model --preset
demo --data demo/val.jsonl --samples 16 --temperature 0.7 --by topic` measures the base model.
"""

import math
import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from tqdm import trange
from transformers import Olmo2ForCausalLM, PreTrainedTokenizerFast

from plumbing.command_line import file_path
from plumbing.files import write_lines
from scripts import analysis
from studies.supervised import Descent, make_olmo2
from verify import extract_boxed

TEMPERATURE = 0.7  # the rates hold when sampling at this temperature
FOOTER = "Solution:"  # the student's prompt is the question, a blank line, the footer
TRAIN, VALIDATION = 12_000, 600
BATCH_SIZE, LEARNING_RATE, WARMUP = 64, 6e-3, 100  # of the base model's training

# A rule moves the digits (output j is input digit source[j]) or adds to each, counting 9, 1, 2 past
# nine. Digits are 1 to 9, so equal numbers are equal texts.
MOVES = {"roll": "120", "back": "201", "flip": "210", "swap": "102", "tail": "021"}
ADDS = {"rise": "111", "fall": "888", "leap": "444"}
ADDS |= {"head": "300", "core": "050", "foot": "002", "ends": "606"}
RULES = [*MOVES, *ADDS]
TOPICS = ("Amber", "Birch", "Cedar", "Delta", "Ember", "Fjord", "Grove", "Heath", "Ivory", "Jade")
SYLLABLES = [a + b for b in "aeiou" for a in "bdfglmnprstvz"]
WORDS = [a + b for b in ("lo", "mi", "nu", "ra", "sev", "ta", "ko", "di") for a in SYLLABLES]

MASTERED, REACH, OUT = (0.985, 0.985), (0.8, 0.05), (1e-12, 1e-12)


@dataclass(frozen=True)
class Task:
    """Settings of a toy task. Each topic has an entry (first, last) in `rates`: the rates of its
    words fall from first to last, evenly in log-odds."""

    rates: tuple = (MASTERED, *2 * [REACH], *7 * [OUT])
    words: int = 28  # a topic
    lost: int = 0  # n: in a topic within reach every n-th word is out of reach
    lengths: tuple = (1, 2, 3)  # words in a problem: one of these
    named: bool = True
    steps: int = 2000  # of the base model's training


TASKS = {
    "demo": Task(),
    "topic not named": Task(named=False),
    # Five topics within reach, but every other word of theirs is out of reach.
    "half of the words": Task(rates=(MASTERED, *5 * [REACH], *4 * [OUT]), lost=2),
    "hard chains": Task(rates=(MASTERED, *4 * [(0.95, 0.1)], *5 * [OUT]), lengths=(3, 4, 5)),
    "all within reach": Task(rates=(MASTERED, *9 * [REACH])),
}


class Skill(NamedTuple):
    """A word: its topic, its rule, the rule it is misread as, and the rate of reading it right."""

    topic: str
    rule: str
    habit: str
    rate: float


def make_skills(task: Task, seed: int) -> dict[str, Skill]:
    """The words of the task, topic by topic."""
    rng, skills, n = random.Random(seed), {}, len(task.rates) * task.words
    words = iter(rng.sample(WORDS[:n], n))
    for topic, ends in zip(TOPICS, task.rates, strict=False):
        first, last = torch.tensor(ends, dtype=torch.float64).logit()
        fall = torch.linspace(0, 1, task.words, dtype=torch.float64)
        for i, rate in enumerate((first + (last - first) * fall).sigmoid().tolist()):
            if task.lost and ends == REACH and i % task.lost == 0:
                rate = OUT[0]
            skills[next(words)] = Skill(topic, *rng.sample(sorted(RULES), 2), rate)
    return skills


def apply_rule(rule: str, state: str) -> str:
    """The three-digit state after one of RULES."""
    if rule in MOVES:
        return "".join(state[int(source)] for source in MOVES[rule])
    digits = zip(map(int, state), map(int, ADDS[rule]), strict=True)
    return "".join(str((digit - 1 + add) % 9 + 1) for digit, add in digits)


def solution(state: str, words: list[str], rules: list[str]) -> str:
    """The solution that reads words[i] as rules[i]."""
    text = f" {state}"
    for word, rule in zip(words, rules, strict=True):
        state = apply_rule(rule, state)
        text += f" {word} {rule} {state}"
    return rf"{text} \boxed{{{state}}}"


def errors_can_cancel(state: str, words: list[str], skills: dict[str, Skill]) -> bool:
    """Whether wrong habits can still end at the right answer: then p is not the plain product."""
    right, wrong = state, set()
    for _, rule, habit, _ in (skills[w] for w in words):
        wrong = {apply_rule(r, s) for s in wrong for r in (rule, habit)}
        wrong.add(apply_rule(habit, right))
        right = apply_rule(rule, right)
    return right in wrong


def draw(rng: random.Random, task: Task, skills: dict[str, Skill]) -> tuple[str, str, list[str]]:
    """A random problem: (text, state, words)."""
    topics = sorted({skill.topic for skill in skills.values()})
    while True:
        topic, length = rng.choice(topics), rng.choice(task.lengths)
        words = rng.sample([word for word, skill in skills.items() if skill.topic == topic], length)
        state = "".join(rng.choices("123456789", k=3))
        if not errors_can_cancel(state, words, skills):
            rng.random()  # the demo's problems were made with another draw here
            prefix = f"{topic}: " if task.named else ""
            return f"{prefix}Start at {state}. Apply {' '.join(words)}.", state, words


def make_problems(count: int, task: Task, skills: dict[str, Skill], seed: int) -> list[dict]:
    """`count` distinct problems as rows of a data file; difficulty is -log2 p, in bits."""
    rng, rows = random.Random(seed + 1), {}
    while len(rows) < count:
        problem, state, words = draw(rng, task, skills)
        answer = extract_boxed(solution(state, words, [skills[w].rule for w in words]))
        p = math.prod(skills[w].rate for w in words)  # of one completion at TEMPERATURE, by design
        rows[problem] = {
            "problem": problem,
            "expected_answer": answer,
            "topic": skills[words[0]].topic,
            "length": len(words),
            "difficulty": round(-math.log2(p), 2),
        }
    return list(rows.values())


def make_tokenizer(skills: dict[str, Skill]) -> PreTrainedTokenizerFast:
    """One token a topic, a word, a rule, a digit; decoding gives the text back exactly."""
    pieces = ["Start at", ". Apply", ".", "\n\n", FOOTER, " ", r" \boxed{", "}", *"0123456789"]
    pieces += [f" {w}" for w in (*RULES, *sorted(skills))] + [f"{topic}: " for topic in TOPICS]
    vocabulary = {piece: i for i, piece in enumerate(["<pad>", "<eos>", "<unk>", *pieces])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    pattern = "|".join(re.escape(piece) for piece in sorted(pieces, key=len, reverse=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    names = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    names |= {"padding_side": "left", "clean_up_tokenization_spaces": False}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=128, **names)


def make_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> Olmo2ForCausalLM:
    """A fresh tiny OLMo-2 in float32."""
    sizes = {"hidden_size": 96, "intermediate_size": 192, "num_hidden_layers": 3}
    sizes |= {"num_attention_heads": 4, "max_position_embeddings": 128}
    return make_olmo2(tokenizer, seed, **sizes)


def demonstration(rng: random.Random, task: Task, skills: dict[str, Skill]) -> str:
    """Prompt, noisy solution and EOS. Sampling at T takes odds to odds^(1/T), so the rates of the
    demonstrations have odds^T."""
    problem, state, words = draw(rng, task, skills)
    rules = []
    for word in words:
        _, rule, habit, rate = skills[word]
        odds = (rate / (1 - rate)) ** TEMPERATURE
        right = rng.random() < odds / (1 + odds)
        rules.append(rule if right else habit)
    return f"{problem}\n\n{FOOTER}{solution(state, words, rules)}<eos>"


def train_base(model, tokenizer, task: Task, skills: dict[str, Skill], seed: int) -> None:
    """Supervised training on fresh noisy demonstrations; the loss is on the completion alone."""
    rng, steps = random.Random(seed + 2), task.steps
    footer = tokenizer.convert_tokens_to_ids(FOOTER)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.01
    )
    descent = Descent(optimizer, steps, WARMUP)
    for _ in (bar := trange(steps, desc="base model", unit=" steps")):
        texts = [demonstration(rng, task, skills) for _ in range(BATCH_SIZE)]
        # Padded on the right: under causal attention no earlier token sees it. No mask is needed.
        batch = tokenizer(texts, padding=True, padding_side="right", return_tensors="pt")
        tokens = batch.input_ids  # (B, T)
        in_completion = (tokens == footer).cumsum(1).bool() & (tokens != footer)
        labels = tokens.masked_fill(~in_completion | (tokens == tokenizer.pad_token_id), -100)
        loss = model(input_ids=tokens, labels=labels).loss
        descent.step(loss)
        bar.set_postfix(loss=f"{loss.item():.4f}", refresh=False)


def make(task: Task, out: Path, seed: int) -> None:
    """Write train.jsonl, val.jsonl and model/."""
    skills = make_skills(task, seed)
    rows = make_problems(TRAIN + VALIDATION, task, skills, seed)
    write_lines(out / "train.jsonl", rows[VALIDATION:])
    write_lines(out / "val.jsonl", rows[:VALIDATION])
    tokenizer = make_tokenizer(skills)
    model = make_model(tokenizer, seed)
    train_base(model, tokenizer, task, skills, seed)
    model.save_pretrained(out / "model")
    tokenizer.save_pretrained(out / "model")


def main():
    """Make a folder."""
    parser = analysis.parser(__doc__)
    add = parser.add_argument
    add("--task", choices=TASKS, default="demo", help="[%(default)s]")
    add("--out", type=file_path, default=Path("demo"), help="folder to write [%(default)s]")
    add("--seed", type=int, default=0, help="of rates, problems and training [%(default)s]")
    args = parser.parse_args()
    torch.set_num_threads(1)  # sums in one order, whatever the machine's cores
    with analysis.one_line("toy_task"):
        make(TASKS[args.task], args.out, args.seed)


if __name__ == "__main__":
    main()
