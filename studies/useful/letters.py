r"""Make the letters task: puzzles in three families, and a tiny untrained model that spells them.

    python -m studies.useful.letters --out data/letters
    python -m studies.cold_start data/letters/untrained --rows data/letters/shown.jsonl \
        --prompt_footer Solution: --steps 900 --batch 96 --learning_rate 2e-3 \
        --out data/letters/model

The first command writes train.jsonl (24,000 rows), val.jsonl (400), shown.jsonl (60,000
demonstrations) and untrained/, of the demo's shape. The second makes the base model, in about three
minutes. Columns of a row are its `family` and its `size`, which tells how hard it is:

    reverse  Reverse: kexq            \boxed{qxek}         2 to 12 letters
    sort     Sort: k e x              \boxed{ekx}          2 to 12 letters
    mod      Mod 100: 12 + 90 * 07    02 14 \boxed{14}     1 to 6 operations, from left to right

The words of `reverse` do not tell its size; those of `sort` do. The base model has seen mostly
small sizes, so that uniform sampling finds about 5% of groups live; it answers about 20% of the
validation problems. `mod` is a trap: in GRPO many of its groups are live, because its answers are
now and then guessed, and its accuracy does not rise.

    python -m scripts.study studies/useful/choice.toml         # the first task of this plan
"""

import random
from collections.abc import Callable, Iterator
from itertools import islice

from plumbing.files import write_lines
from scripts.command import exit_on_error, make_parser
from studies.supervised import make_olmo2, make_tokenizer_of
from studies.toy_task import FOOTER, SIZES

LETTERS = "abcdefghijklmnopqrstuvwxyz"
SIZES_OF = {"reverse": range(2, 13), "sort": range(2, 13), "mod": range(1, 7)}
TRAIN = 24_000  # problems
VALIDATION = 400
DEMONSTRATIONS = 60_000


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


def demonstrations(count: int) -> list[dict]:
    """Return rows with the fields problem and solution, a right one."""
    drawn = draw(shown_weight, seed=2)
    rows = []
    for row, steps in islice(drawn, count):
        answer = rf"\boxed{{{row['expected_answer']}}}"
        solution = f"{steps} {answer}" if steps else answer
        rows.append({"problem": row["problem"], "solution": solution})
    return rows


def main():
    """Write the folder."""
    with exit_on_error("letters"):
        out = make_parser(__doc__, out="data/letters").parse_args().out
        training, validation = make_problems()
        write_lines(out / "train.jsonl", training)
        write_lines(out / "val.jsonl", validation)
        write_lines(out / "shown.jsonl", demonstrations(DEMONSTRATIONS))
        pieces = ["Reverse:", "Sort:", "Mod 100:", FOOTER, "\n\n", r"\boxed{", "}", *" +-*"]
        tokenizer = make_tokenizer_of([*pieces, *"0123456789", *LETTERS])
        tokenizer.save_pretrained(out / "untrained")
        make_olmo2(tokenizer, seed=0, **SIZES).save_pretrained(out / "untrained")


if __name__ == "__main__":
    main()
