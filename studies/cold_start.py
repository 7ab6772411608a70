r"""A cold start: supervised training on demonstrations of reasoning-gym's easy levels.

    python -m studies.cold_start HuggingFaceTB/SmolLM2-135M-Instruct --steps 200 \
        --demonstrations 2214 --out models/steps
    python -m studies.cold_start models/steps --direct 0.65 --steps 20 --seed 1 \
        --out models/cold

A small model answers such problems at once, without steps, and is nearly always wrong. The first
command teaches it to show its steps: it then solves the easy levels, sometimes the next ones, and
never the hard ones. After the second, where 65% of the demonstrations have no steps, it shows them
in a fifth of its samples, at temperature 0.7. Which of the two ways pays is left to GRPO. The steps
are made from the library's metadata; prompts are those of `train.py --preset reasoning`.

    python -m studies.cold_start new --steps 1500 --batch 64 --learning_rate 2e-3 --out models/small

trains a model of 3 M parameters from nothing, on problems of its own. Its vocabulary is a byte-pair
encoding of them; each digit is a token.
"""

import random
import re
import sys
from argparse import Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable
from itertools import accumulate, pairwise
from math import gcd
from pathlib import Path

import sympy
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from tqdm import trange
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from grpo import Completion
from plumbing import command_line
from plumbing.batches import collate
from plumbing.config import Config
from plumbing.distributed.layout import compute_dtype, device_type
from plumbing.errors import InputError
from plumbing.files import read_lines
from rollout import Generator, Policy, PromptEncoder
from scripts import reasoning_tasks
from scripts.analysis import one_line
from studies.supervised import Descent, make_olmo2

FORMAT = {"prompt_header": "", "prompt_footer": "Answer:"}  # of the prompts
NEW = "new"  # in the place of a model: make one
SIZES = {"hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 6}
SIZES |= {"num_attention_heads": 6, "max_position_embeddings": 256}
VOCABULARY = 1024
PER_LEVEL = 4000  # problems generated for each easy level, for a new model
# Of these. prepare_data has another seed, but an easy level has so few problems (two-digit sums)
# that many are also in its validation data.
DATA_SEED = 7
WARMUP = 0.1  # of the steps; then the learning rate falls to 0 in a line


def chain_sum(answer: str, info: dict) -> str:
    """2 + 3 = 5. 5 - 1 = 4."""
    first, *rest = re.findall(r"[+-] \d+|\d+", info["expression"])
    totals = accumulate([int(first), *(int(term.replace(" ", "")) for term in rest)])
    lines = zip(rest, pairwise(totals), strict=True)
    return " ".join(f"{old} {term} = {new}." for term, (old, new) in lines)


def products(answer: str, info: dict) -> str:
    """12 * 34: 12 * 30 = 360. 12 * 4 = 48. 360 + 48 = 408."""
    a, b = info["expression"].split(" * ")
    places = range(len(b) - 1, -1, -1)
    parts = [int(digit) * 10**place for digit, place in zip(b, places, strict=True)]
    lines = [f"{a} * {part} = {int(a) * part}." for part in parts]
    if len(parts) > 1:
        terms = " + ".join(str(int(a) * part) for part in parts)
        lines.append(f"{terms} = {answer}.")
    return " ".join(lines)


def simple_equations(answer: str, info: dict) -> str:
    """5*b + 6 = 26: 5*b = 26 - 6 = 20. b = 20 / 5 = 4."""
    left, right = info["equation"].split(" = ")
    name = info["variable"]
    slope, constant = sympy.Poly(sympy.sympify(left), sympy.Symbol(name)).all_coeffs()
    product = int(right) - constant
    sign = "-" if constant > 0 else "+"
    first = f"{slope}*{name} = {right} {sign} {abs(constant)} = {product}."
    return f"{first} {name} = {product} / {slope} = {answer}."


def leg_counting(answer: str, info: dict) -> str:
    """3 spiders: 3 * 8 = 24. 2 hens: 2 * 2 = 4. 24 + 4 = 28."""
    from reasoning_gym.arithmetic.leg_counting import ANIMALS

    counts = list(info["animals"].items())
    legs = [n * ANIMALS[animal] for animal, n in counts]
    lines = [f"{n} * {ANIMALS[animal]} = {n * ANIMALS[animal]}." for animal, n in counts]
    if len(legs) > 1:
        lines.append(f"{' + '.join(map(str, legs))} = {answer}.")
    return " ".join(lines)


def fraction_simplification(answer: str, info: dict) -> str:
    """9/30: 9 / 3 = 3. 30 / 3 = 10."""
    factor = info["reduction_factor"]
    top, bottom = info["numerator"], info["denominator"]
    return f"{top} / {factor} = {top // factor}. {bottom} / {factor} = {bottom // factor}."


def lcm(answer: str, info: dict) -> str:
    """12 and 8: 12 / 4 = 3. 3 * 8 = 24."""
    a, b = info["numbers"]
    shared = gcd(a, b)
    return f"{a} / {shared} = {a // shared}. {a // shared} * {b} = {answer}."


def complex_arithmetic(answer: str, info: dict) -> str:
    """-8 + -7 = -15. -2 + 5 = 3."""
    sign = info["operation"]
    parts = zip(info["num1"], info["num2"], info["result"], strict=True)
    return " ".join(f"{a:g} {sign} {b:g} = {total:g}." for a, b, total in parts)


def number_filtering(answer: str, info: dict) -> str:
    """14 yes, -49 yes, 52 no."""
    kept = info["result"]
    words = [f"{x} {'yes' if x in kept else 'no'}" for x in info["original_numbers"]]
    return ", ".join(words) + "."


def spell_backward(answer: str, info: dict) -> str:
    """s u n. n u s."""
    return f"{' '.join(info['word'])}. {' '.join(answer)}."


def word_sequence_reversal(answer: str, info: dict) -> str:
    """1 red, 2 blue, 3 green."""
    return ", ".join(f"{n} {word}" for n, word in enumerate(info["words"], start=1)) + "."


STEPS: dict[str, Callable[[str, dict], str]] = {
    function.__name__: function
    for function in (
        chain_sum,
        products,
        simple_equations,
        leg_counting,
        fraction_simplification,
        lcm,
        complex_arithmetic,
        number_filtering,
        spell_backward,
        word_sequence_reversal,
    )
}


def demonstration(row: dict, direct: bool = False) -> str:
    r"""Return the completion for a row of reasoning_tasks: its steps, unless `direct`, and
    \boxed{answer}."""
    answer = row["expected_answer"]
    steps = "" if direct else f" {STEPS[row['task']](answer, row['extra_info'])}"
    return rf"{steps} \boxed{{{answer}}}"


def demonstrations(rows: list[dict], direct: float, rng: random.Random) -> list[tuple[str, str]]:
    """Return (problem, completion) for each row; a share `direct` of them is without steps. A share
    of 0 draws no random number."""
    shown = []
    for row in rows:
        is_direct = direct > 0 and rng.random() < direct
        shown.append((row["problem"], demonstration(row, is_direct)))
    return shown


def supervised_rows(
    shown: list[tuple[str, str]], config: Config, tokenizer, stop_id: int
) -> list[tuple]:
    """Return (prompt_ids, Completion) for each demonstration, which ends in the stop token."""
    encode = PromptEncoder(config, tokenizer)
    encoded = []
    for problem, text in shown:
        ids = [*tokenizer(text, add_special_tokens=False).input_ids, stop_id]
        completion = Completion(ids, logps=[0.0] * len(ids), finished=True)
        encoded.append((encode(problem), completion))
    return encoded


def fit(policy: Policy, rows: list[tuple], steps: int, batch: int, rate: float, rng) -> None:
    """Minimise -log p of the demonstrations' tokens; each is used once before any is used again."""
    optimizer = torch.optim.AdamW(policy.parameters(), lr=rate, weight_decay=0.0)
    descent = Descent(optimizer, steps, warmup=max(1, round(WARMUP * steps)))
    order = []
    for _ in (bar := trange(steps, unit=" steps")):
        while len(order) < batch:
            order += rng.sample(range(len(rows)), len(rows))
        chosen, order = order[:batch], order[batch:]
        logp_N, _ = policy(collate([rows[i] for i in chosen], policy.lm.device), 1.0)
        loss = -logp_N.mean()
        descent.step(loss)
        bar.set_postfix(loss=f"{loss.item():.3f}", refresh=False)


def arguments(argv: list[str] | None) -> Namespace:
    """Parse the command line. Raises ValueError, in one line."""
    parser = command_line.Parser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("model", type=command_line.user_path, help="hub id or Hugging Face directory, or `new`")
    add("--out", type=command_line.user_path, required=True, help="directory of the new model")
    data = "data/reasoning-gym/train.jsonl"
    add(
        "--data",
        type=command_line.user_path,
        default=data,
        help="rows of prepare_data [%(default)s]",
    )
    add("--easy", type=command_line.count, default=2, help="levels that are shown [%(default)s]")
    help = "demonstrations, drawn from the easy levels [%(default)s]"
    add("--demonstrations", type=command_line.count, default=960, help=help)
    add("--steps", type=command_line.count, default=100, help="[%(default)s]")
    add("--batch", type=command_line.count, default=12, help="demonstrations a step [%(default)s]")
    add("--learning_rate", type=command_line.non_negative, default=1e-4, help="[%(default)s]")
    help = "share of the demonstrations that give the answer without steps [%(default)s]"
    add("--direct", type=command_line.fraction, default=0.0, help=help)
    add("--seed", type=int, default=0, help="of the demonstrations and their order [%(default)s]")
    return parser.parse_args(argv)


def easy_rows(path: Path, easy: int) -> list[dict]:
    """Read the rows of levels up to `easy`. Raises InputError if there are none."""
    if not path.is_file():
        raise InputError(
            f"--data {path}: no such file: run python -m scripts.prepare_data "
            "--source reasoning-gym"
        )
    rows = read_lines(path)
    if any(not {"task", "level", "extra_info"} <= row.keys() for row in rows):
        raise InputError(f"--data {path}: rows must have task, level and extra_info")
    chosen = [row for row in rows if row["level"] <= easy]
    if not chosen:
        raise InputError(f"--data {path}: no row has a level of at most {easy}")
    return chosen


def make_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """Train a byte-pair encoding in which no token has more than one digit."""
    tokenizer = Tokenizer(models.BPE())
    digits = pre_tokenizers.Split(Regex(r"\d"), "isolated")
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, bytes_])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<pad>", "<eos>"]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=special, initial_alphabet=alphabet
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")


def load(args: Namespace, shown: list[tuple[str, str]]) -> tuple[Policy, PreTrainedTokenizerFast]:
    """Load the model, or make a new one whose tokenizer is made from the demonstrations."""
    if args.model != NEW:
        device = torch.device(device_type(Config.device))
        return Policy.load(args.model, device), AutoTokenizer.from_pretrained(args.model)
    footer = FORMAT["prompt_footer"]
    tokenizer = make_tokenizer([f"{problem}\n\n{footer}{text}" for problem, text in shown])
    return Policy(make_olmo2(tokenizer, args.seed, **SIZES)), tokenizer


def main(argv: list[str] | None = None) -> None:
    with one_line("cold_start", ValueError):
        args = arguments(argv)
        rng = random.Random(args.seed)
        if args.model == NEW:
            of_all_levels = reasoning_tasks.rows(DATA_SEED, PER_LEVEL, args.easy)
            chosen = [row for row in of_all_levels if row["expected_answer"]]
        else:
            easy = easy_rows(Path(args.data), args.easy)
            if args.demonstrations > len(easy):
                note = f"note: {args.data} has {len(easy)} easy problems: all are shown"
                print(note, file=sys.stderr)
            chosen = rng.sample(easy, min(args.demonstrations, len(easy)))
        Path(args.out).mkdir(parents=True, exist_ok=True)  # before the work
        shown = demonstrations(chosen, args.direct, rng)
        policy, tokenizer = load(args, shown)
        # Not flash-attn, which has no float32: nothing here computes in bf16.
        policy.lm.set_attn_implementation("shared_prompts")
        config = Config(model=args.model, **FORMAT)
        rows = supervised_rows(shown, config, tokenizer, tokenizer.eos_token_id)
        fit(policy, rows, args.steps, args.batch, args.learning_rate, rng)
        if args.model == NEW:
            tokenizer.save_pretrained(args.out)
            policy.lm.save_pretrained(args.out)
        else:
            device = policy.lm.device
            dtype = compute_dtype(config, device)
            generator = Generator.load(args.model, device, tokenizer, dtype)
            generator.refresh(policy)
            generator.export(Path(args.out))


if __name__ == "__main__":
    main()
