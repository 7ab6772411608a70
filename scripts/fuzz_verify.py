"""Looks for wrong verdicts, limits that do not hold and memory that grows in verify.py, with
answers nobody wrote.

    python -m scripts.fuzz_verify                       # ten minutes, most of them hostile answers
    python -m scripts.fuzz_verify --answers 2000 --calls 5000 --golds problems.jsonl

One answer at a time, then a table by family; noise has no right verdict, only there must be one.
Exit status 1: a hack was paid, a right answer refused, a worker crashed, or a limit did not hold.
"""

import argparse
import json
import random
import re
import resource
import sys
import time
from pathlib import Path

import pandas

from verify import Verifier

SECONDS, WORKER_MB, GROWTH_MB = 3.0, 1024, 20  # of one answer, one worker, many calls
DEMO = Path(__file__).resolve().parent.parent / "demo" / "train.jsonl"

# A gold, right answers to it (+) and wrong ones (-), three spaces apart; «name» is filled in.
CASES = r"""
«n»
+ «n,»   «n{,}»   «n\,»   «n».0   x = «n»   \$«n,»   «n» \text{ apples}   «n»^\circ   «n-k»+«k»
+ \frac{«nd»}{«d»}   \textbf{«n»}   \text{«n»}   «n».   «n,» dollars   «n-k»+«k»=«n»   «n» km/h
- «n+1»   -«n»   «n».01   «n»0   «n»i   «n»x   «n» \text{ thousand}   «n-k»\binom{«k»}{1}
«n»/«d»
+ \frac{«n»}{«d»}   \dfrac{«nk»}{«dk»}   y=«n» / «d»   («n»)/(«d»)   «whole»\frac{«rest»}{«d»}
- «n»/«d+1»   «d»/«n»   -«n»/«d»   \frac{«n+1»}{«d»}   «n/d cut»1   («whole»)\frac{«rest»}{«d»}
«n»e-3
+ «n/1000»   «n» \cdot 10^{-3}   \frac{«n»}{1000}   «n/10»\%
- «n»e-4   «n»e   -3+«n»e   «n»   «n/1000»1   «n/10»   «n/10» \text{ million}
\sqrt{«n»}
+ \frac{«n»}{\sqrt{«n»}}   «n»^{1/2}   \sqrt {«n»}   a=\sqrt{«n»}   \left[\sqrt{«n»}+0\right]
- \sqrt{«n+1»}   «n»   «root cut»   \sqrt[3]{«n»}
(«a»,«b»)
+ \left(«a», «b»\right)   (x,y)=(«a»,«b»)   x=«a», y=«b»   («a».0, «b»)
- («b»,«a»)   [«a»,«b»]   \{«a»,«b»\}   («a»,«b»,«c»)   «a»
«a», «b»
+ «b»,«a»   \{«a»,«b»\}   «a» \text{ and } «b»   x=«b» \text{ or } x=«a»
- «a»   «a», «c»   «a»,«b»,«c»   «a»«b»   («b»,«a»)
[«a»,«b»)
+ «a» \le x < «b»   x \in [«a»,«b»)   \left[«a», «b»\right)   «b» > x >= «a»
- [«a»,«b»]   («a»,«b»)   «a»<x<«b»   [«a»,«c»)   «a»,«b»
x^2-«b»x+«a»
+ «a»+x^2-«b»x   f(x)=x^2-«b»x+«a»   x(x-«b»)+«a»   y = x^{2} - «b»x + «a»
- x^2+«b»x+«a»   x^2-«b»x   x^2-«b»x+«a»=0   y^2-«b»y+«a»   «a»
y=«a»x+«b»
+ «k»y=«ak»x+«bk»   y-«a»x=«b»   «a»x+«b»   «a»x-y+«b»=0
- y=«a»x-«b»   y=«b»x+«a»   0=0   y=y   «b»
\begin{pmatrix} «a» & «b» \\ «c» & 1 \end{pmatrix}
+ \begin{bmatrix} «a» & «b» \\ «c» & 1 \end{bmatrix}   A=\begin{matrix}«a»&«b»\\«c»&1\end{matrix}
- \begin{pmatrix} «a» & «c» \\ «b» & 1 \end{pmatrix}   \begin{vmatrix}«a»&«b»\\«c»&1\end{vmatrix}
"""
# They earn nothing though they hold the gold «n», or have its value: guesses, claims, the question.
HACKS = r"""
«n», «d»   «d»; «n»   «n» «d»   «n» \text{ or } «d»   «d» or «n»   «n» \lor «d»   «n»\\ «d»   «d»…«n»
«d» \quad «n»   «n»|«d»   «n» \cup «d»   «n» / «d»   «d» \to «n»   \{«n», «d»\}   «n» \pm «d»
[«n», «d»]   \text{«n» or «d»}   x=«n», x=«d»   «n» \text{ (or } «d»)   «d»=«n»   «n»=«d»   «d»<«n»
\begin{cases}«n»\\«d»\end{cases}   x=«n»=«d»   «n» \neq «d»   «d» \approx «n»   x \not= «n»
«k»x=«nk»   x-«n»=0   \sum_{k=1}^{«n»} 1   \int_0^{«n»} dx   «n»+x-x   \log_2 2^{«n»}   (A) «n»
\max(«n»,-«n»)   «n» \bmod 10000000   \gcd(«n»,0)   \phantom{«d»}«n»   \cancel{«d»}«n»
\text{not } «n»   «n»\tag{«d»}   «n» \text{ million}   «n» \text{ dozen}   «n» \text{ tenths}
«head»{}«tail»   «head»^{}«tail»   «head» «tail»   «head»\quad «tail»   «head»\text{ }«tail»
"""
UNSEEN = ["«head»\u200b«tail»", "«head»\0«tail»", "«n»\0«d»"]
# Completions whose last box is not «n», though it stands in them.
OUTSIDE = r"""
The answer is «n».   \boxed{«n»   \boxed{}«n»   \boxed «n»   \fbox{«n»}   \boxed{«n»}\boxed{}
\boxed{«n»} no: \boxed{«n+1»}   \boxed{«n»\}
"""
# They cost time, memory or stack to understand. Each nest is put into itself until it is deep.
NESTS = r"""
(@)   {@}   \sqrt{@}   \frac{1}{@}   (1+@)   \sin(@)   2^{@}   \text{@}   |@|
"""
TOWERS = r"""
9^{9^{9«n»}}   (9«n»)!   ((9!)!)!   \binom{9«n»}{4«n»}   (x+1)^{9«n»}   \sin(9«n»^{9«n»})
\sum_{k=1}^{9«n»} \frac{1}{k!}   \prod_{k=1}^{9«n»} k
"""
ROWS = ["1,", "-", "7", "5=", "1 ", "x<", r"\frac", "5_", "!", "a b ", "\0", "ﷺ", "5%", r"1&1\\"]
PIECES = [*"0123456789xyi+-*/^_!=<>,;:|()[]{}%$&. \0\ud800½²∞", r"\text{or}", r"\text{ cm}"]
PIECES += re.findall(r"\\.\w*", r"\frac\sqrt\pm\pi\cup\infty\sin\log\binom\le\{\}\\\not")


def names(rng: random.Random) -> dict[str, str]:
    """What the templates are filled with, by the name that stands between « and »."""
    n, d, k = rng.randint(10_001, 999_999), rng.randint(2, 99), rng.randint(2, 9)
    while n % d == 0 or n % 10 == 0:  # else 60.770 and 60.77 are one number
        n += 1
    a, b, c = sorted(rng.sample(range(2, 99), 3))
    numbers = {"n": n, "d": d, "k": k, "a": a, "b": b, "c": c, "n+1": n + 1, "d+1": d + 1}
    numbers |= {"n-k": n - k, "nd": n * d, "nk": n * k, "dk": d * k, "ak": a * k, "bk": b * k}
    numbers |= {"whole": n // d, "rest": n % d, "head": str(n)[0], "tail": str(n)[1:]}
    decimals = {"n/1000": (n / 1000, 3), "n/10": (n / 10, 1)}
    decimals |= {"n/d cut": (n / d, 2), "root cut": (n**0.5, 2)}
    numbers |= {name: f"{number:.{places}f}" for name, (number, places) in decimals.items()}
    numbers |= {f"n{comma}": f"{n:,}".replace(",", comma) for comma in (",", "{,}", r"\,")}
    return {name: str(number) for name, number in numbers.items()}


def filled(template: str, given: dict[str, str]) -> str:
    return re.sub("«(.*?)»", lambda name: given[name[1]], template)


def choices(table: str) -> list[str]:
    return [choice for line in table.strip().splitlines() for choice in line.split("   ")]


def cases() -> list[tuple[str, list[str], list[str]]]:
    """CASES as (gold, right answers, wrong answers)."""
    found = []
    for line in CASES.strip().splitlines():
        if line[:2] in ("+ ", "- "):
            found[-1]["+-".index(line[0]) + 1].extend(choices(line[2:]))
        else:
            found.append((line, [], []))
    return found


def hostile(given: dict[str, str], rng: random.Random) -> str:
    nest, deep = rng.choice(choices(NESTS)), "1"
    while len(deep) + len(nest) < rng.choice([120, 600, 1800]):
        deep = nest.replace("@", deep)
    tower, row = filled(rng.choice(choices(TOWERS)), given), 400 * rng.choice(ROWS)
    return rng.choice([deep, deep, tower, row])


def mutated(gold: str, rng: random.Random) -> str:
    """With another first digit, or a factor where it has none."""
    change = rng.randint(1, 9)
    new = re.sub(r"\d", lambda digit: str((int(digit[0]) + change) % 10), gold, count=1)
    return new if new != gold else "7" + gold


def answers(count: int, golds: list[str], rng: random.Random):
    """`count` times (family, the reward that is due or None, gold, completion)."""
    kinds = cases()
    for at in range(count):
        given = names(rng)
        template, right, wrong = rng.choice(kinds)
        gold, mine, n = filled(template, given), rng.choice(golds), given["n"]
        noise = "".join(rng.choices(PIECES, k=rng.randint(1, 30)))
        irrational = rf"\sqrt{{{int(n) ** 2 + 1}}}"
        families = [
            ("right, respelled", 1, gold, filled(rng.choice(right), given)),
            ("right, gold of a file", 1, mine, rng.choice(["", r"\displaystyle "]) + mine),
            ("wrong, near", 0, gold, filled(rng.choice(wrong), given)),
            ("wrong, a digit changed", 0, mine, mutated(mine, rng)),
            ("hack", 0, n, filled(rng.choice(choices(HACKS) + UNSEEN), given)),
            ("outside the box", 0, n, None),
            ("noise", None, rng.choice([gold, mine]), noise),
            ("noise in a gold", 0, irrational, noise),
            ("bytes", 0, n, rng.randbytes(rng.randint(1, 40)).decode("latin-1")),
        ]
        family, due, gold, answer = families[at % len(families)]
        completion = rf"So it is \boxed{{{answer}}}."
        if answer is None:
            long = [f"{n} " * 20_000, r"\boxed{" * 9000 + n, rf"\boxed{{{f'{n}+' * 2000}0}}"]
            completion = filled(rng.choice(choices(OUTSIDE) + long), given)
        if at % 200 == 199:
            family, due, gold = "hostile", 0, rng.choice([n, "x^2+1", r"\sum_{k=1}^n k^2"])
            completion = rf"\boxed{{{hostile(given, rng)}}}"
        yield family, due, gold, completion


def resident() -> float:
    """Resident megabytes of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def graded(count: int, golds: list[str], rng: random.Random) -> pandas.DataFrame:
    """A row for each generated answer."""
    rows = []
    with Verifier(workers=2) as verifier:  # a second try does not wait for a replacement to start
        verified = zip(golds, verifier.check_golds(golds), strict=True)
        golds = [gold for gold, good in verified if good]
        for family, due, gold, completion in answers(count, golds, rng):
            verifier.pool.settle()
            start = time.monotonic()
            verdict = verifier.grade([completion], [gold])[0]
            row = {"family": family, "due": due, "paid": verdict.reward, "status": verdict.status}
            row |= {"seconds": time.monotonic() - start}
            rows.append(row | {"case": f"gold {gold!r}: {completion[-150:]!r}"})
    frame = pandas.DataFrame(rows)
    frame["wrong 1"] = (frame.due == 0) & (frame.paid == 1)
    frame["wrong 0"] = (frame.due == 1) & (frame.paid == 0)
    return frame


def growth(calls: int, rng: random.Random) -> float:
    """Megabytes that this process grows by while it calls a Verifier that often."""
    number, right, _ = cases()[0]
    given = names(rng)
    call = [rf"\boxed{{{filled(right[0], given)}}}"], [filled(number, given)]
    with Verifier(workers=1) as verifier:
        for _ in range(calls // 20):
            verifier.grade(*call)  # fills caches
        before, start = resident(), time.monotonic()
        for _ in range(calls):
            verifier.grade(*call)
    after, seconds = resident(), time.monotonic() - start
    print(f"{calls} calls in {seconds:.0f} s: {before:.1f} MB, then {after:.1f} MB")
    return after - before


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--answers", type=int, default=20_000, help="generated answers")
    parser.add_argument("--calls", type=int, default=100_000, help="calls for the trainer's memory")
    parser.add_argument("--golds", type=Path, default=DEMO, help="JSON lines with expected_answer")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    try:
        golds = [json.loads(line)["expected_answer"].strip() for line in options.golds.open()]
    except (OSError, ValueError, KeyError, AttributeError) as error:
        parser.error(f"--golds {options.golds}: {error!r}; it needs lines with expected_answer")

    frame = graded(options.answers, golds, rng)
    families = frame.groupby("family")
    table = families[["paid", "wrong 1", "wrong 0"]].sum().astype(int)
    table.insert(0, "count", families.size())
    table["slowest s"] = families.seconds.max().round(2)
    print(table.join(pandas.crosstab(frame.family, frame.status)).to_string())
    bad = frame[frame["wrong 1"] | frame["wrong 0"] | (frame.status == "crash")]
    print(*(bad.family + ", " + bad.status + ", " + bad.case)[:40], sep="\n")
    grown, slowest = growth(options.calls, rng), frame.seconds.max()
    # of all workers, which have ended now
    largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"largest worker: {largest:.0f} MB; slowest answer: {slowest:.2f} s")
    print(f"bad verdicts: {len(bad)}")
    held = slowest <= SECONDS and largest <= WORKER_MB and grown <= GROWTH_MB
    return int(len(bad) > 0 or not held)


if __name__ == "__main__":
    sys.exit(main())
