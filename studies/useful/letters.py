r"""Make the letters task: puzzles in three families and a tiny base model, in about six minutes.

    python -m studies.useful.letters --out data/letters

writes train.jsonl (24,000 rows), val.jsonl (400) and model/, of the demo's shape. Columns of a row
are its `family` and its `size`, which tells how hard it is:

    reverse  Reverse: kexq            \boxed{qxek}         2 to 12 letters
    sort     Sort: k e x              \boxed{ekx}          2 to 12 letters
    mod      Mod 100: 12 + 90 * 07    02 14 \boxed{14}     1 to 6 operations, from left to right

The words of `reverse` do not tell its size; those of `sort` do. The base model has seen mostly
small sizes, so that uniform sampling finds about 5% of groups live; it answers about 18% of the
validation problems. `mod` is a trap: in GRPO many of its groups are live, because its answers are
now and then guessed, and its accuracy does not rise.

    python -m scripts.study studies/useful/choice.toml         # the first task of this plan
"""

import random
from collections.abc import Callable, Iterator

import torch

from plumbing.files import write_lines
from scripts.command import exit_on_error, make_parser
from studies.supervised import completion_loss, descend, make_olmo2, make_tokenizer_of
from studies.toy_task import FOOTER, SIZES

LETTERS = "abcdefghijklmnopqrstuvwxyz"
SIZES_OF = {"reverse": range(2, 13), "sort": range(2, 13), "mod": range(1, 7)}
TRAIN = 24_000  # problems
VALIDATION = 400
DEMONSTRATIONS = 60_000
BATCH_SIZE = 96
STEPS = 1500
ADAMW = {"lr": 2e-3, "weight_decay": 0.01}
WARMUP = 100


def make_puzzle(family: str, size: int, rng: random.Random) -> tuple[str, str, str]:
    """Return a puzzle's problem, its answer, and the steps to it, "" if it has none."""
    if family == "mod":
        return make_chain(size, rng)
    letters = rng.sample(LETTERS, size)
    if family == "reverse":
        return f"Reverse: {''.join(letters)}", "".join(reversed(letters)), ""
    return f"Sort: {' '.join(letters)}", "".join(sorted(letters)), ""


def make_chain(size: int, rng: random.Random) -> tuple[str, str, str]:
    """Return a puzzle of `mod`."""
    value = rng.randrange(100)
    problem = f"Mod 100: {value:02d}"
    steps = []
    for _ in range(size):
        operation = rng.choice("+-*")
        number = rng.randrange(100)
        results = {"+": value + number, "-": value - number, "*": value * number}
        value = results[operation] % 100
        problem += f" {operation} {number:02d}"
        steps.append(f"{value:02d}")
    return problem, steps[-1], " ".join(steps)


def draw(weight: Callable[[str, int], float], seed: int) -> Iterator[tuple[dict, str]]:
    """Yield puzzles whose family and size are drawn in proportion to weight(family, size): the row
    of a data file, and the steps. Some are repeated."""
    rng = random.Random(seed)
    kinds = [(family, size) for family, sizes in SIZES_OF.items() for size in sizes]
    weights = [weight(family, size) for family, size in kinds]
    while True:
        [(family, size)] = rng.choices(kinds, weights)
        problem, answer, steps = make_puzzle(family, size, rng)
        row = {"problem": problem, "expected_answer": answer, "family": family, "size": size}
        yield row, steps


def shown_weight(family: str, size: int) -> float:
    """In demonstrations: six sizes, each 0.45 times as often as the one before."""
    larger = size - SIZES_OF[family][0]
    return 0.45**larger if larger <= 5 else 0


def training_weight(family: str, size: int) -> float:
    """In the training set: mostly sizes that the base model never solves, and little of `mod`."""
    if family == "mod":
        return 0.05 / 6
    return 0.475 * (0.016 if size <= 8 else 0.2)


def validation_weight(family: str, size: int) -> float:
    """In the validation set: the sizes that a user would care about."""
    if family == "mod":
        return 0.2 / 6
    return 0.4 / 7 if size >= 6 else 0


def make_problems() -> tuple[list[dict], list[dict]]:
    """Return distinct training problems and distinct validation problems, none of them in both."""
    validation = distinct(validation_weight, VALIDATION, seed=3, excluded=set())
    held_out = {row["problem"] for row in validation}
    return distinct(training_weight, TRAIN, seed=1, excluded=held_out), validation


def distinct(weight, count: int, seed: int, excluded: set[str]) -> list[dict]:
    """Return the rows of the first `count` distinct puzzles that are not excluded."""
    rows = {}
    for row, _ in draw(weight, seed):
        if row["problem"] not in excluded:
            rows[row["problem"]] = row
        if len(rows) == count:
            break
    return list(rows.values())


def demonstrations(count: int) -> list[str]:
    """Return prompts with right solutions and <eos>."""
    drawn = draw(shown_weight, seed=2)
    texts = []
    for _ in range(count):
        row, steps = next(drawn)
        solution = f"{steps} " if steps else ""
        answer = rf"{solution}\boxed{{{row['expected_answer']}}}<eos>"
        texts.append(f"{row['problem']}\n\n{FOOTER} {answer}")
    return texts


def main():
    """Write the folder."""
    out = make_parser(__doc__, out="data/letters").parse_args().out
    with exit_on_error("letters"):
        torch.set_num_threads(1)  # sums in one order, whatever the machine's cores
        training, validation = make_problems()
        write_lines(out / "train.jsonl", training)
        write_lines(out / "val.jsonl", validation)
        pieces = ["Reverse:", "Sort:", "Mod 100:", FOOTER, "\n\n", r"\boxed{", "}", *" +-*"]
        tokenizer = make_tokenizer_of([*pieces, *"0123456789", *LETTERS])
        model = make_olmo2(tokenizer, seed=0, **SIZES)
        texts = demonstrations(DEMONSTRATIONS)
        rng = random.Random(0)

        def loss() -> torch.Tensor:
            shown = rng.choices(texts, k=BATCH_SIZE)
            return completion_loss(model, tokenizer, shown, FOOTER)

        descend(model, loss, STEPS, WARMUP, **ADAMW)
        model.save_pretrained(out / "model")
        tokenizer.save_pretrained(out / "model")


if __name__ == "__main__":
    main()
