"""Make `demo/` from nothing: graded problems and a tiny base model, in about five minutes.

A problem names a topic, starts at a three-digit number and applies words of that topic to it. Each
word stands for a rule. A solution writes, for each word, the rule and the number that it gives:

    Amber: Start at 473. Apply molo bami.     ->     473 molo roll 734 bami rise 845 \\boxed{845}

The base model is trained on *noisy* demonstrations: each word has its own rate of being read as its
rule, and is otherwise read as one wrong rule, its habit. So p(problem) is the product of its words'
rates. As in the paper few problems are mastered, some are within reach, and most are out of reach
for good: their demonstrations show only the habit. `python -m scripts.evaluate demo/model --preset
demo --data demo/val.jsonl --temperature 0.7 --k 1 16 --by topic` measures the base model.
"""

import itertools
import math
import random
from functools import reduce
from pathlib import Path
from typing import NamedTuple

import torch
from transformers import PreTrainedTokenizerFast

from plumbing.files import write_lines
from scripts.command import exit_on_error, make_parser
from studies.supervised import descend, make_olmo2, make_tokenizer_of

TEMPERATURE = 0.7  # the rates hold when sampling at this temperature
FOOTER = "Solution:"  # the student's prompt is the question, a blank line, the footer
TRAIN = 12_000  # problems
VALIDATION = 600
SEED = 0  # of rates and the model; problems have the next seed, demonstrations the one after it
# The base model, and its training.
SIZES = {
    "hidden_size": 96,
    "intermediate_size": 192,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}
BATCH_SIZE = 64
STEPS = 2000
ADAMW = {"lr": 6e-3, "betas": (0.9, 0.98), "weight_decay": 0.01}
WARMUP = 100

# A rule moves the digits (output j is input digit source[j]) or adds to each, counting 9, 1, 2 past
# nine. Digits are 1 to 9, so equal numbers are equal texts.
MOVES = {"roll": "120", "back": "201", "flip": "210", "swap": "102", "tail": "021"}
ADDS = {
    "rise": "111",
    "fall": "888",
    "leap": "444",
    "head": "300",
    "core": "050",
    "foot": "002",
    "ends": "606",
}
RULES = [*MOVES, *ADDS]
TOPICS = ("Amber", "Birch", "Cedar", "Delta", "Ember", "Fjord", "Grove", "Heath", "Ivory", "Jade")
SYLLABLES = [a + b for b in "aeiou" for a in "bdfglmnprstvz"]
WORDS_OF_TOPIC = 28
WORDS = [a + b for b in ("lo", "mi", "nu", "ra", "sev", "ta", "ko", "di") for a in SYLLABLES]

# The rates of a topic's words fall from the first to the last of these, evenly in log-odds.
MASTERED = (0.985, 0.985)
REACH = (0.8, 0.05)
OUT = (1e-12, 1e-12)
RATES = [MASTERED] + 2 * [REACH] + 7 * [OUT]  # of TOPICS


class Skill(NamedTuple):
    """What a word stands for: its rule, the rule it is misread as, the rate of reading it right."""

    rule: str
    habit: str
    rate: float


def make_skills() -> dict[str, dict[str, Skill]]:
    """The words of each topic, with their skills."""
    rng = random.Random(SEED)
    n = len(TOPICS) * WORDS_OF_TOPIC
    words = iter(rng.sample(WORDS[:n], n))
    fall = torch.linspace(0, 1, WORDS_OF_TOPIC, dtype=torch.float64)
    skills = {}
    for topic, ends in zip(TOPICS, RATES, strict=True):
        first, last = torch.tensor(ends, dtype=torch.float64).logit()
        rates = (first + (last - first) * fall).sigmoid()
        skills[topic] = {}
        for rate in rates.tolist():
            rule, habit = rng.sample(sorted(RULES), 2)
            skills[topic][next(words)] = Skill(rule, habit, rate)
    return skills


def apply_rule(state: str, rule: str) -> str:
    """The three-digit state after one of RULES."""
    if rule in MOVES:
        return "".join(state[int(source)] for source in MOVES[rule])
    result = ""
    for digit, add in zip(state, ADDS[rule], strict=True):
        total = int(digit) + int(add)
        result += str((total - 1) % 9 + 1)
    return result


def draw(rng: random.Random, skills, named: bool) -> tuple[dict, str, dict[str, Skill]]:
    """A random problem: its row of a data file, the state at which it starts, and its words with
    their skills. The row's difficulty is -log2 p, in bits, with p of one completion at TEMPERATURE,
    by design. named: whether the problem names its topic."""
    while True:
        topic = rng.choice(sorted(skills))
        of_topic = skills[topic]
        length = rng.choice((1, 2, 3))
        words = {word: of_topic[word] for word in rng.sample([*of_topic], length)}
        state = "".join(rng.choices("123456789", k=3))
        readings = itertools.product(*((skill.rule, skill.habit) for skill in words.values()))
        answer, *wrong = [reduce(apply_rule, rules, state) for rules in readings]
        if answer not in wrong:  # else errors can cancel, and p is not the plain product of rates
            break
    rng.random()  # the demo's problems were made with another draw here
    prefix = f"{topic}: " if named else ""
    p = math.prod(skill.rate for skill in words.values())
    row = {
        "problem": f"{prefix}Start at {state}. Apply {' '.join(words)}.",
        "expected_answer": answer,
        "topic": topic,
        "length": length,
        "difficulty": round(-math.log2(p), 2),
    }
    return row, state, words


def make_problems(count: int, skills, seed: int = SEED, named: bool = True) -> list[dict]:
    """`count` distinct problems as rows of a data file."""
    rng = random.Random(seed + 1)
    rows = {}
    while len(rows) < count:
        row, _, _ = draw(rng, skills, named)
        rows[row["problem"]] = row
    return list(rows.values())


def make_tokenizer(skills) -> PreTrainedTokenizerFast:
    """One token a topic, a word, a rule, a digit; decoding gives the text back exactly."""
    pieces = ["Start at", ". Apply", ".", "\n\n", FOOTER, " ", r" \boxed{", "}", *"0123456789"]
    words = sorted(word for of_topic in skills.values() for word in of_topic)
    pieces += [f" {word}" for word in (*RULES, *words)]
    pieces += [f"{topic}: " for topic in TOPICS]
    return make_tokenizer_of(pieces)


def demonstration(rng: random.Random, skills, named: bool) -> str:
    """Prompt, noisy solution and EOS. Sampling at T takes odds to odds^(1/T), so the rates of the
    demonstrations have odds^T."""
    row, state, words = draw(rng, skills, named)
    text = f"{row['problem']}\n\n{FOOTER} {state}"
    for word, (rule, habit, rate) in words.items():
        odds = (rate / (1 - rate)) ** TEMPERATURE
        reading = rule if rng.random() < odds / (1 + odds) else habit
        state = apply_rule(state, reading)
        text += f" {word} {reading} {state}"
    return rf"{text} \boxed{{{state}}}<eos>"


def completion_loss(model, tokenizer, texts: list[str]) -> torch.Tensor:
    """Compute the mean -log p of the tokens of completions, a scalar. texts: demonstrations, each a
    prompt that ends with FOOTER, one token, and a completion that ends with <eos>."""
    # Padded on the right: under causal attention no earlier token sees it. No mask is needed.
    batch = tokenizer(texts, padding=True, padding_side="right", return_tensors="pt")
    tokens = batch.input_ids  # (B, T)
    is_footer = tokens == tokenizer.convert_tokens_to_ids(FOOTER)
    is_prompt = is_footer.cumsum(1) == 0
    is_pad = tokens == tokenizer.pad_token_id
    labels = tokens.masked_fill(is_prompt | is_footer | is_pad, -100)
    return model(input_ids=tokens, labels=labels).loss


def train_base(model, tokenizer, skills, named: bool) -> None:
    """Supervised training on fresh noisy demonstrations; the loss is on the completion alone."""
    rng = random.Random(SEED + 2)

    def loss() -> torch.Tensor:
        texts = [demonstration(rng, skills, named) for _ in range(BATCH_SIZE)]
        return completion_loss(model, tokenizer, texts)

    descend(model, loss, STEPS, WARMUP, **ADAMW)


def make(out: Path, named: bool = True) -> None:
    """Write train.jsonl, val.jsonl and model/. named: whether problems name their topic."""
    torch.set_num_threads(1)  # sums in one order, whatever the machine's cores
    skills = make_skills()
    rows = make_problems(TRAIN + VALIDATION, skills, named=named)
    write_lines(out / "train.jsonl", rows[VALIDATION:])
    write_lines(out / "val.jsonl", rows[:VALIDATION])
    tokenizer = make_tokenizer(skills)
    model = make_olmo2(tokenizer, SEED, **SIZES)
    train_base(model, tokenizer, skills, named)
    model.save_pretrained(out / "model")
    tokenizer.save_pretrained(out / "model")


def main():
    """Make a folder."""
    with exit_on_error("toy_task"):
        args = make_parser(__doc__, out="demo").parse_args()
        make(args.out)


if __name__ == "__main__":
    main()
