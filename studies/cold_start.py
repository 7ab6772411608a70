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

    python -m studies.cold_start MODEL --rows FILE.jsonl --prompt_footer Solution: --out models/mine

shows rows of your own: `problem`, and `solution`, a worked answer that ends with its box. Train
with the same --prompt_header and --prompt_footer.
"""

import itertools
import math
import random
import tempfile
from argparse import Namespace
from itertools import chain, islice
from pathlib import Path

import sympy
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from grpo import Completion
from plumbing.batches import collate
from plumbing.command_line import count, fraction, non_negative
from plumbing.config import Config
from plumbing.data.rows import read_rows
from plumbing.distributed.layout import device_type
from plumbing.errors import InputError, print_line
from plumbing.files import read_lines
from rollout import Generator, Policy, PromptEncoder, prompt_text
from scripts import reasoning_tasks
from scripts.command import exit_on_error, make_parser
from studies.supervised import descend, make_olmo2

NEW = "new"  # in the place of a model: make one
SIZES = {
    "hidden_size": 192,
    "intermediate_size": 512,
    "num_hidden_layers": 6,
    "num_attention_heads": 6,
    "max_position_embeddings": 256,
}
VOCABULARY = 1024
DATA = Path("data/reasoning-gym/train.jsonl")
EASY = 2  # levels that are shown
DEMONSTRATIONS = 960  # by default, of the training file's easy rows
PER_LEVEL = 4000  # problems generated for each easy level, for a new model
# Of these. prepare_data has another seed, but an easy level has so few problems (two-digit sums)
# that many are also in its validation data.
DATA_SEED = 7
WARMUP = 0.1  # of the steps

# The steps of each task's solution, from the library's metadata.


def solve(*expressions: str) -> str:
    """2 + 3 = 5. 4 * 5 = 20."""
    return " ".join(f"{each} = {sympy.sympify(each)}." for each in expressions)


def chain_sum(info: dict) -> str:
    """2 + 3 = 5. Easy levels have two terms."""
    return solve(info["expression"])


def sum_of_products(factors: list[tuple[int, int]]) -> str:
    """12 * 30 = 360. 12 * 4 = 48. 360 + 48 = 408."""
    steps = [f"{a} * {b}" for a, b in factors]
    if len(factors) > 1:
        results = [str(a * b) for a, b in factors]
        steps.append(" + ".join(results))
    return solve(*steps)


def products(info: dict) -> str:
    """12 * 34, by the digits of 34: sum_of_products."""
    a, b = info["expression"].split(" * ")
    parts = [digit.ljust(len(b) - i, "0") for i, digit in enumerate(b)]
    factors = [(int(a), int(part)) for part in parts]
    return sum_of_products(factors)


def simple_equations(info: dict) -> str:
    """5*b + 6 = 26: 5*b = 26 - 6 = 20. b = 20 / 5 = 4."""
    left, right = info["equation"].split(" = ")
    name = info["variable"]
    slope, constant = sympy.Poly(left, sympy.Symbol(name)).all_coeffs()
    product = int(right) - constant
    sign = "-" if constant > 0 else "+"
    first = f"{slope}*{name} = {right} {sign} {abs(constant)} = {product}."
    return f"{first} {name} = {product} / {slope} = {product / slope}."


def leg_counting(info: dict) -> str:
    """3 spiders, 2 hens: sum_of_products."""
    from reasoning_gym.arithmetic.leg_counting import ANIMALS

    factors = [(n, ANIMALS[animal]) for animal, n in info["animals"].items()]
    return sum_of_products(factors)


def fraction_simplification(info: dict) -> str:
    """9/30: 9 / 3 = 3. 30 / 3 = 10."""
    factor = info["reduction_factor"]
    top = info["numerator"]
    bottom = info["denominator"]
    return solve(f"{top} / {factor}", f"{bottom} / {factor}")


def lcm(info: dict) -> str:
    """12 and 8: 12 / 4 = 3. 3 * 8 = 24."""
    a, b = info["numbers"]
    shared = math.gcd(a, b)
    return solve(f"{a} / {shared}", f"{a // shared} * {b}")


def complex_arithmetic(info: dict) -> str:
    """-8 + -7 = -15. -2 + 5 = 3."""
    sign = info["operation"]
    parts = zip(info["num1"], info["num2"], strict=True)
    sums = [f"{a:g} {sign} {b:g}" for a, b in parts]
    return solve(*sums)


def number_filtering(info: dict) -> str:
    """14 yes, -49 yes, 52 no."""
    kept = info["result"]
    words = [f"{x} {'yes' if x in kept else 'no'}" for x in info["original_numbers"]]
    return ", ".join(words) + "."


def spell_backward(info: dict) -> str:
    """s u n. n u s."""
    forward = " ".join(info["word"])
    return f"{forward}. {forward[::-1]}."


def word_sequence_reversal(info: dict) -> str:
    """1 red, 2 blue, 3 green."""
    return ", ".join(f"{n} {word}" for n, word in enumerate(info["words"], start=1)) + "."


Demonstration = tuple[str, str]  # problem, completion
NO_BOX = (
    r"of {total} solutions {boxless} have no \boxed{{}}: the default reward gives such answers 0"
)
STEPS = {
    steps.__name__: steps
    for steps in (
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


def demonstrations(rows: list[dict], direct: float, rng: random.Random) -> list[Demonstration]:
    r"""Return (problem, completion) for each row of reasoning_tasks: its steps and \boxed{answer}.
    A share `direct` of them is without steps. A share of 0 draws no random number."""
    shown = []
    for row in rows:
        answer = rf" \boxed{{{row['expected_answer']}}}"
        is_direct = direct and rng.random() < direct
        if not is_direct:
            steps_of = STEPS[row["task"]]
            answer = f" {steps_of(row['extra_info'])}{answer}"
        shown.append((row["problem"], answer))
    return shown


def read_demonstrations(path: Path) -> list[Demonstration]:
    """Return (problem, completion) of each row of a file, from its `problem` and its `solution`.
    Raises InputError if there is no row, or one lacks one of the two, OSError."""
    with path.open("rb") as file:
        rows = read_rows(file, str(path), required=["problem", "solution"])
        shown = [(row["problem"], f" {row['solution'].strip()}") for _, row in rows]
    if not shown:
        raise InputError(f"{path}: has no rows")
    boxless = sum(r"\boxed{" not in solution for _, solution in shown)
    if boxless:
        print_line(NO_BOX.format(total=len(shown), boxless=boxless))
    return shown


def fit(
    policy: Policy, shown: list[Demonstration], config: Config, tokenizer, args: Namespace, rng
) -> None:
    """Minimise -log p of the completions' tokens and the end token; each demonstration is used once
    before any is used again. shown: (problem, completion) of each. config: of the prompts."""
    encode = PromptEncoder(config, tokenizer)
    rows = []
    for problem, text in shown:
        ids = [*tokenizer(text, add_special_tokens=False).input_ids, tokenizer.eos_token_id]
        completion = Completion(ids, logps=[0.0] * len(ids), finished=True)
        rows.append((encode(problem), completion))
    order = chain.from_iterable(rng.sample(rows, len(rows)) for _ in itertools.count())

    def loss() -> torch.Tensor:
        batch = collate(list(islice(order, args.batch)), policy.lm.device)
        logp_N, _ = policy(batch, 1.0)
        return -logp_N.mean()

    warmup = max(1, round(WARMUP * args.steps))
    descend(policy, loss, args.steps, warmup, lr=args.learning_rate, weight_decay=0.0)


def make_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """Train a byte-pair encoding in which no token has more than one digit."""
    tokenizer = Tokenizer(models.BPE())
    digits = pre_tokenizers.Split(Regex(r"\d"), "isolated")
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, bytes_])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<pad>", "<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")


def make_model(shown: list[Demonstration], config: Config, folder: str, seed: int) -> None:
    """Write an untrained model, whose tokenizer is made from the demonstrations."""
    tokenizer = make_tokenizer([prompt_text(config, problem) + text for problem, text in shown])
    tokenizer.save_pretrained(folder)
    make_olmo2(tokenizer, seed, **SIZES).save_pretrained(folder)


def choose_demonstrations(args: Namespace, rng: random.Random) -> list[Demonstration]:
    """Return the demonstrations that the command names: rows of one's own; for a new model,
    problems that are generated; otherwise easy rows of the training file. Raises InputError."""
    if args.rows and args.direct is not None:
        raise InputError("--direct: the rows of --rows are shown as they are")
    if args.demonstrations is not None and (args.rows or args.model == NEW):
        raise InputError("--demonstrations: with --rows, or for a new model, all rows are shown")
    if args.rows:
        return read_demonstrations(args.rows)
    if args.model == NEW:
        rows = reasoning_tasks.rows(DATA_SEED, PER_LEVEL, EASY)
        chosen = [row for row in rows if row["expected_answer"]]
    else:
        rows = [row for row in read_lines(DATA) if row["level"] <= EASY]
        if not rows:
            raise InputError(f"no {DATA}: run scripts.prepare_data --source reasoning-gym")
        number = args.demonstrations or DEMONSTRATIONS
        chosen = rng.sample(rows, min(number, len(rows)))
    return demonstrations(chosen, args.direct or 0.0, rng)


def run(args: Namespace) -> None:
    """Run the command. Raises ValueError or OSError."""
    args.out.mkdir(parents=True, exist_ok=True)  # before the work
    rng = random.Random(args.seed)
    config = Config(prompt_header=args.prompt_header, prompt_footer=args.prompt_footer)
    shown = choose_demonstrations(args, rng)
    with tempfile.TemporaryDirectory() as untrained:
        name = args.model
        if name == NEW:
            name = untrained
            make_model(shown, config, untrained, args.seed)
        device = torch.device(device_type(config.device))
        tokenizer = AutoTokenizer.from_pretrained(name)
        policy = Policy.load(name, device)
        policy.lm.set_attn_implementation("shared_prompts")  # flash-attn has no float32
        fit(policy, shown, config, tokenizer, args, rng)
        generator = Generator.load(name, device, tokenizer)
        generator.refresh(policy)
        generator.export(args.out)


def main(argv=None) -> None:
    parser = make_parser(__doc__, out="models/cold")
    add = parser.add_argument
    add("model", help="hub id or Hugging Face directory, or `new`")
    add("--rows", type=Path, help="rows of your own to show: problem, solution")
    add("--demonstrations", type=count, help=f"rows of easy levels ({DEMONSTRATIONS})")
    add("--steps", type=count, default=100, help="(%(default)s)")
    add("--batch", type=count, default=12, help="demonstrations a step (%(default)s)")
    add("--learning_rate", type=non_negative, default=1e-4, help="(%(default)s)")
    add("--direct", type=fraction, help="share without steps (0)")
    add("--prompt_header", default="", help="as in train.py (%(default)r)")
    add("--prompt_footer", default="Answer:", help="as in train.py (%(default)r)")
    add("--seed", type=int, default=0, help="of the demonstrations and their order (%(default)s)")
    with exit_on_error("cold_start"):
        run(parser.parse_args(argv))


if __name__ == "__main__":
    main()
