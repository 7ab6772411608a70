"""Looks for wrong verdicts, limits that do not hold and memory that grows in verify.py, with answers nobody wrote.

    python scripts/fuzz_verify.py                                       # ten minutes, most of them hostile answers
    python scripts/fuzz_verify.py --answers 2000 --calls 5000 --golds problems.jsonl

One answer at a time: a table by family. `paid` counts rewards; a family that must be paid shows what was refused, one
that must not shows what was paid, and noise, whose right verdict nobody knows, only that there is one. A Verifier is
then called many times, for the trainer's memory and for the throughput. The exit status is 1 if a hack was paid or a
right answer refused, if a worker crashed, or if a limit did not hold: 3 s of a worker, 1 GiB, no growth.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from verify import Verifier

SECONDS, WORKER_MB, GROWTH_MB = 3.0, 1024, 20  # what one answer, one worker and many calls may take
RIGHT, WRONG, UNKNOWN = "must be paid", "must not", "any verdict"


def numbers(rng: random.Random) -> tuple[str, list[str], list[str]]:
    """A gold that is a number: gold, right spellings, wrong neighbours."""
    n, d, k = rng.randint(1001, 999999), rng.randint(2, 99), rng.randint(2, 9)
    match rng.randrange(4):
        case 0:
            right = [
                f"{n:,}",
                f"{n:,}".replace(",", "{,}"),
                f"{n:,}".replace(",", r"\,"),
                f"{n}.0",
                f"x = {n}",
            ]
            right += [
                rf"\${n:,}",
                rf"{n} \text{{ apples}}",
                rf"{n}^\circ",
                rf"\frac{{{n * d}}}{{{d}}}",
                f"{n - k}+{k}",
            ]
            right += [
                rf"\textbf{{{n}}}",
                rf"\text{{{n}}}",
                f"{n}.",
                f"{n:,} dollars",
                f"{n - 1}+1={n}",
            ]
            return (
                str(n),
                right,
                [
                    str(n + 1),
                    f"-{n}",
                    f"{n}.01",
                    f"{n}0",
                    f"{n}i",
                    f"{n}x",
                    rf"{n} \text{{ thousand}}",
                ],
            )
        case 1:
            right = [
                rf"\frac{{{n}}}{{{d}}}",
                rf"\dfrac{{{n * k}}}{{{d * k}}}",
                f"{n} / {d}",
                f"y={n}/{d}",
                f"({n})/({d})",
            ]
            right += [rf"{n // d}\frac{{{n % d}}}{{{d}}}"] * (n % d > 0)
            return (
                f"{n}/{d}",
                right,
                [
                    f"{n}/{d + 1}",
                    f"{d}/{n}",
                    f"-{n}/{d}",
                    rf"\frac{{{n + 1}}}{{{d}}}",
                    f"{n / d:.2f}1",
                ],
            )
        case 2:
            right = [
                rf"{n / 1000:.3f}",
                rf"\frac{{{n}}}{{1000}}",
                rf"{n} \cdot 10^{{-3}}",
                rf"{n / 10:.1f}\%",
            ]
            return (
                f"{n / 1000:.3f}",
                right,
                [f"{n / 1000:.2f}", f"{n / 1000:.3f}1", f"{n}", rf"{n / 100:.2f}\%"],
            )
        case _:
            right = [
                rf"\sqrt{{{n}}}",
                rf"\frac{{{n}}}{{\sqrt{{{n}}}}}",
                f"{n}^{{1/2}}",
                rf"\sqrt {n}",
                rf"a=\sqrt{{{n}}}",
            ]
            return (
                rf"\sqrt{{{n}}}",
                right,
                [rf"\sqrt{{{n + 1}}}", str(n), f"{n**0.5:.2f}", rf"\sqrt[3]{{{n}}}"],
            )


def shapes(rng: random.Random) -> tuple[str, list[str], list[str]]:
    """A gold that has parts or letters."""
    a, b, c = (int(x) for x in rng.sample(range(2, 99), 3))
    a, b = sorted((a, b))
    match rng.randrange(6):
        case 0:
            right = [
                rf"\left({a}, {b}\right)",
                f"(x,y)=({a},{b})",
                f"x={a}, y={b}",
                f"({a}.0, {b})",
            ]
            return (
                f"({a},{b})",
                right,
                [f"({b},{a})", f"[{a},{b}]", rf"\{{{a},{b}\}}", f"({a},{b},{c})", f"{a}"],
            )
        case 1:
            right = [
                f"{b},{a}",
                rf"\{{{a},{b}\}}",
                rf"{a} \text{{ and }} {b}",
                rf"x={b} \text{{ or }} x={a}",
            ]
            return (
                f"{a}, {b}",
                right,
                [f"{a}", f"{a}, {c}", f"{a},{b},{c}", f"{a}{b}", f"({b},{a})"],
            )
        case 2:
            right = [
                rf"{a} \le x < {b}",
                rf"x \in [{a},{b})",
                rf"\left[{a}, {b}\right)",
                f"{b} > x >= {a}",
            ]
            return (
                f"[{a},{b})",
                right,
                [f"[{a},{b}]", f"({a},{b})", f"{a}<x<{b}", f"[{a},{c})", f"{a},{b}"],
            )
        case 3:
            right = [
                f"{a}+x^2-{b}x",
                f"f(x)=x^2-{b}x+{a}",
                f"x(x-{b})+{a}",
                f"y = x^{{2}} - {b}x + {a}",
            ]
            return (
                f"x^2-{b}x+{a}",
                right,
                [f"x^2+{b}x+{a}", f"x^2-{b}x", f"x^2-{b}x+{a}=0", f"y^2-{b}y+{a}", f"{a}"],
            )
        case 4:
            right = [f"2y={2 * a}x+{2 * b}", f"y-{a}x={b}", f"{a}x+{b}", f"{a}x-y+{b}=0"]
            return f"y={a}x+{b}", right, [f"y={a}x-{b}", f"y={b}x+{a}", "0=0", "y=y", f"{b}"]
        case _:
            rows = rf"{a} & {b} \\ {c} & 1"
            right = [
                rf"\begin{{bmatrix}} {rows} \end{{bmatrix}}",
                rf"A=\begin{{pmatrix}}{rows} \\ \end{{pmatrix}}",
            ]
            wrong = [
                rf"\begin{{pmatrix}} {a} & {c} \\ {b} & 1 \end{{pmatrix}}",
                rf"\begin{{vmatrix}}{rows}\end{{vmatrix}}",
            ]
            return rf"\begin{{pmatrix}} {rows} \end{{pmatrix}}", right, [*wrong, f"{a - b * c}"]


def hacks(gold: int, other: int) -> list[str]:
    """Answers to `gold` that earn nothing though they hold it, or have its value: guesses, claims, the question."""
    lists = [
        ", ",
        "; ",
        " ",
        r" \text{ or } ",
        " or ",
        r" \lor ",
        r"\\ ",
        r" \quad ",
        "|",
        r" \cup ",
        " / ",
        r" \to ",
        "…",
    ]
    guesses = [f"{x}{mark}{y}" for mark in lists for x, y in ((gold, other), (other, gold))]
    guesses += [
        rf"\{{{gold}, {other}\}}",
        rf"{gold} \pm {other}",
        f"[{gold}, {other}]",
        rf"\text{{{gold} or {other}}}",
    ]
    guesses += [
        rf"x={gold}, x={other}",
        rf"{gold} \text{{ (or }} {other})",
        rf"\begin{{cases}}{gold}\\{other}\end{{cases}}",
    ]
    equations = [
        f"{other}={gold}",
        f"{gold}={other}",
        f"x={gold}={other}",
        rf"{gold} \neq {other}",
        f"{gold}<{other}",
    ]
    equations += [
        rf"{other} \approx {gold}",
        rf"x \not= {gold}",
        rf"{gold} \to {other}",
        rf"\text{{not }} {gold}",
    ]
    question = [
        f"2x={2 * gold}",
        f"x-{gold}=0",
        rf"\sum_{{k=1}}^{{{gold}}} 1",
        rf"\int_0^{{{gold}}} dx",
        f"{gold}+x-x",
    ]
    question += [
        rf"\log_2 2^{{{gold}}}",
        rf"\gcd({gold},0)",
        rf"\max({gold},{-gold})",
        rf"{gold} \bmod {10**7}",
    ]
    unseen = [
        rf"\phantom{{{other}}}{gold}",
        rf"\cancel{{{other}}}{gold}",
        rf"{gold}\tag{{{other}}}",
        f"{gold}\x00{other}",
    ]
    spread = str(gold)
    unseen += [
        spread[0] + glue + spread[1:]
        for glue in ("\u200b", "\x00", "{}", "^{}", " ", r"\quad ", r"\text{ }")
    ]
    claims = [
        rf"{gold} \text{{ {word}}}"
        for word in ("million", "dozen", "half", "tenths", "k", "or", "squared")
    ]
    return guesses + equations + question + unseen + claims


def outside(gold: int, rng: random.Random) -> list[str]:
    """Completions whose last box is not `gold`, though `gold` stands in them."""
    return [
        f"The answer is {gold}.",
        rf"\boxed{{{gold}",
        r"\boxed{}" + str(gold),
        rf"\boxed {gold}",
        rf"\fbox{{{gold}}}",
        rf"\boxed{{{gold}}} no: \boxed{{{gold + 1}}}",
        rf"\boxed{{{gold}}}\boxed{{}}",
        rf"\boxed{{{gold}\}}",
        f"{gold} " * 20_000,
        r"\boxed{" * 10_000 + str(gold),
        r"\boxed{" + f"{gold}+" * rng.randint(1000, 9000) + "0}",
    ]


def hostile(rng: random.Random) -> str:
    """Something that costs time, memory or stack to understand."""
    n, big = rng.choice([20, 100, 300]), 10 ** rng.randint(5, 12)
    nests = [
        "({})",
        "{{{}}}",
        r"\sqrt{{{}}}",
        r"\frac{{1}}{{{}}}",
        "(1+{})",
        r"\sin({})",
        "2^{{{}}}",
        r"\text{{{}}}",
        r"|{}|",
    ]
    towers = [
        f"9^{{9^{{{big}}}}}",
        f"({big})!",
        "((9!)!)!",
        rf"\binom{{{big}}}{{{big // 2}}}",
        f"(x+1)^{{{big}}}",
    ]
    sums = [
        rf"\sum_{{k=1}}^{{{big}}} \frac{{1}}{{k!}}",
        rf"\prod_{{k=1}}^{{{big}}} k",
        rf"\sin({big}^{{{big}}})",
    ]
    rows = [
        r"\begin{pmatrix}" + "1 & " * n + r"1 \\ " * n + r"\end{pmatrix}",
        "1," * 900,
        "-" * 1900 + "5",
        "7" * 1990,
    ]
    rows += [
        piece * (1900 // len(piece))
        for piece in ("5=", "1 ", "x<", r"\frac", "5_", "!", "a b ", "\x00", "ﷺ", "5%")
    ]
    nest = rng.choice(nests)
    deep = "1"
    while len(deep) + len(nest) < 6 * n:
        deep = nest.format(deep)
    return rng.choice([deep, deep, rng.choice(towers), rng.choice(sums), rng.choice(rows)])


PIECES = [
    *"0123456789xyi+-*/^_!=<>,;:|()[]{}%$&. ",
    "\x00",
    "\ud800",
    "½",
    "²",
    "∞",
    r"\text{or}",
    r"\text{ cm}",
]
PIECES += [
    rf"\{word} "
    for word in (
        "frac",
        "sqrt",
        "pm",
        "pi",
        "cup",
        "infty",
        "sin",
        "log",
        "binom",
        "le",
        "{",
        "}",
        "\\",
        "not",
    )
]


def answers(count: int, golds: list[str], rng: random.Random):
    """(family, what is expected, gold, completion) `count` times."""
    for at in range(count):
        gold, right, wrong = (numbers, shapes)[at % 3 == 2](rng)
        n = rng.randint(10_000, 99_999)
        noise = "".join(rng.choices(PIECES, k=rng.randint(1, 30)))
        mine = rng.choice(golds)
        digits = [i for i, character in enumerate(mine) if character.isdigit()]
        spot = rng.choice(digits or [len(mine)])
        mutated = (
            mine[:spot]
            + (str((int(mine[spot]) + rng.randint(1, 9)) % 10) if digits else "7x")
            + mine[spot + 1 :]
        )
        families = [
            ("right, respelled", RIGHT, gold, rng.choice(right)),
            (
                "right, gold of a file",
                RIGHT,
                mine,
                rng.choice([mine, rf"\text{{ }}{mine}"[8:], rf"\displaystyle {mine}"]),
            ),
            ("wrong, near", WRONG, gold, rng.choice(wrong)),
            ("wrong, a digit changed", WRONG, mine, mutated),
            ("hack", WRONG, str(n), rng.choice(hacks(n, rng.randint(100, 9999)))),
            ("outside the box", WRONG, str(n), None),
            ("noise", UNKNOWN, rng.choice([gold, mine]), noise),
            ("noise in a gold", WRONG, rf"\sqrt{{{n * n + 1}}}", noise),
            ("bytes", WRONG, str(n), rng.randbytes(rng.randint(1, 40)).decode("latin-1")),
        ]
        family = families[at % len(families)]
        if at % 200 == 199:
            family = (
                "hostile",
                WRONG,
                rng.choice([str(n), "x^2+1", "(1,2)", r"\sum_{k=1}^n k^2"]),
                hostile(rng),
            )
        name, expected, gold, answer = family
        yield (
            name,
            expected,
            gold,
            rng.choice(outside(n, rng)) if answer is None else rf"So it is \boxed{{{answer}}}.",
        )


def resident() -> float:
    """Resident megabytes of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--answers", type=int, default=20_000, help="generated answers")
    parser.add_argument("--calls", type=int, default=100_000, help="calls for the trainer's memory")
    demo = Path(__file__).resolve().parent.parent / "demo" / "train.jsonl"
    parser.add_argument("--golds", type=Path, default=demo, help="JSON lines with expected_answer")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    try:
        golds = [json.loads(line)["expected_answer"].strip() for line in options.golds.open()]
    except (OSError, ValueError, KeyError, AttributeError) as error:
        parser.error(f"--golds {options.golds}: {error!r}; it needs lines with expected_answer")

    table: dict[str, Counter] = {}
    bad, slowest = [], Counter()
    with Verifier(
        workers=2
    ) as verifier:  # two: a second try does not wait for a replacement to start
        golds = [
            gold for gold, good in zip(golds, verifier.check_golds(golds), strict=True) if good
        ]
        for name, expected, gold, completion in answers(options.answers, golds, rng):
            verifier.check_golds([])  # waits for the workers that replace dead ones
            start = time.monotonic()
            verdict = verifier.grade([completion], [gold])[0]
            slowest[name] = max(slowest[name], time.monotonic() - start)
            row = table.setdefault(name, Counter())
            refused = expected == RIGHT and verdict.reward == 0
            paid = expected == WRONG and verdict.reward == 1
            row.update(
                {
                    "count": 1,
                    "paid": verdict.reward == 1,
                    "wrong 1": paid,
                    "wrong 0": refused,
                    verdict.status: 1,
                }
            )
            if refused or paid or verdict.status == "crash":
                bad.append(f"{name}: gold {gold!r}, {verdict.status}: {completion[-150:]!r}")

        print(
            f"{'family':24s} {'count':>6s} {'paid':>6s} {'wrong 1':>8s} {'wrong 0':>8s} {'slowest s':>9s}  statuses"
        )
        for name, row in sorted(table.items()):
            statuses = ", ".join(
                f"{key} {row[key]}"
                for key in row
                if key not in ("count", "paid", "wrong 1", "wrong 0")
            )
            figures = f"{row['count']:6d} {row['paid']:6d} {row['wrong 1']:8d} {row['wrong 0']:8d} {slowest[name]:9.2f}"
            print(f"{name:24s} {figures}  {statuses}")
        print(*bad[:40], sep="\n")

        before, start = resident(), time.monotonic()
        ordinary = [
            (rf"\boxed{{{right[0]}}}", gold)
            for gold, right, _ in (numbers(rng) for _ in range(100))
        ]
        for call in range(options.calls):
            verifier.grade(*map(list, zip(ordinary[call % len(ordinary)], strict=True)))
            if call == options.calls // 20:
                before = resident()  # after the first calls, which fill caches
        grown = resident() - before
        print(
            f"{options.calls} calls in {time.monotonic() - start:.0f} s: {before:.1f} MB, then {before + grown:.1f} MB"
        )
    with Verifier(workers=1) as verifier:
        many = [numbers(rng) for _ in range(2000)]
        start = time.monotonic()
        verifier.grade(
            [rf"\boxed{{{rng.choice(right)}}}" for _, right, _ in many],
            [gold for gold, _, _ in many],
        )
        print(f"ordinary answers a second and worker: {len(many) / (time.monotonic() - start):.0f}")
    swollen = (
        resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    )  # of all workers, which have ended now
    print(
        f"largest worker: {swollen:.0f} MB; slowest answer: {max(slowest.values()):.2f} s; bad verdicts: {len(bad)}"
    )
    return int(
        bool(bad) or max(slowest.values()) > SECONDS or swollen > WORKER_MB or grown > GROWTH_MB
    )


if __name__ == "__main__":
    sys.exit(main())
