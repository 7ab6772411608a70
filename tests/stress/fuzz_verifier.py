"""Stress test of verify.py: grade generated answers, and measure time and memory.

    python -m tests.stress.fuzz_verifier     # ten minutes

Exit status 1: a bad verdict, a crashed worker, or a limit on time or memory that did not hold.
"""

import argparse
import random
import re
import resource
import sys
import time
from collections import Counter
from functools import cache

from verify import Verifier

SECONDS, WORKER_MB = 3.0, 1024  # limits: for an answer, and of the size of a worker

# A gold, right answers (+) and wrong ones (-), three spaces apart; «» are an f-string's braces.
CASES = r"""
«n»
+ «n:,»   «n//1000»{,}«n%1000:03d»   «n//1000»\,«n%1000:03d»   \$«n:,»   «n».0   «n».
- «n+1»   -«n»   «n».01   «n»0
«n»
+ x = «n»   «n:,» dollars   «n» km/h   «n» \text{ apples}   «n»^\circ   \textbf{«n»}   \text{«n»}
- «n»i   «n»x   «n» \text{ thousand}
«n»
+ \frac{«n*d»}{«d»}   «n-k»+«k»   «n-k»+«k»=«n»
- «n-k»\binom{«k»}{1}
«n»/«d»
+ \frac{«n»}{«d»}   \dfrac{«n*k»}{«d*k»}   y=«n» / «d»   («n»)/(«d»)   «n//d»\frac{«n%d»}{«d»}
- «n»/«d+1»   «d»/«n»   -«n»/«d»   \frac{«n+1»}{«d»}   «n/d:.2f»1   («n//d»)\frac{«n%d»}{«d»}
«n»e-3
+ «n/1000:.3f»   «n» \cdot 10^{-3}   \frac{«n»}{1000}   «n/10:.1f»\%
- «n»e-4   «n»e   -3+«n»e   «n»   «n/1000:.3f»1   «n/10:.1f»   «n/10:.1f» \text{ million}
\sqrt{«n»}
+ \frac{«n»}{\sqrt{«n»}}   «n»^{1/2}   \sqrt {«n»}   a=\sqrt{«n»}
- \sqrt{«n+1»}   «n»   «n**0.5:.2f»   \sqrt[3]{«n»}
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
+ «k»y=«a*k»x+«b*k»   y-«a»x=«b»   «a»x+«b»   «a»x-y+«b»=0
- y=«a»x-«b»   y=«b»x+«a»   0=0   y=y   «b»
\begin{pmatrix} «a» & «b» \\ «c» & 1 \end{pmatrix}
+ \begin{bmatrix} «a» & «b» \\ «c» & 1 \end{bmatrix}   A=\begin{matrix}«a»&«b»\\«c»&1\end{matrix}
- \begin{pmatrix} «a» & «c» \\ «b» & 1 \end{pmatrix}   \begin{vmatrix}«a»&«b»\\«c»&1\end{vmatrix}
"""
# Answers that contain the gold «n» or have its value, but must earn 0: guesses, claims, questions.
HACKS = r"""
«n», «d»   «d»; «n»   «n» «d»   «n» \text{ or } «d»   «d» or «n»   «n» \lor «d»   «n»\\ «d»
«d»…«n»   «d» \quad «n»   «n»|«d»   «n» \cup «d»   «n» / «d»   «d» \to «n»   \{«n», «d»\}
«n» \pm «d»   [«n», «d»]   \text{«n» or «d»}   x=«n», x=«d»   «n» \text{ (or } «d»)   «d»=«n»
«n»=«d»   «d»<«n»   \begin{cases}«n»\\«d»\end{cases}   x=«n»=«d»   «n» \neq «d»   «d» \approx «n»
x \not= «n»   «k»x=«n*k»   x-«n»=0   \sum_{k=1}^{«n»} 1   \int_0^{«n»} dx   «n»+x-x   \log_2 2^{«n»}
\max(«n»,-«n»)   \gcd(«n»,0)   \phantom{«d»}«n»   \cancel{«d»}«n»
\text{not } «n»   «n»\tag{«d»}   «n» \text{ million}   «n» \text{ dozen}   «n» \text{ tenths}
«head»{}«tail»   «head»^{}«tail»   «head» «tail»   «head»\quad «tail»   «head»\text{ }«tail»
«head»«chr(8203)»«tail»   «head»«chr(0)»«tail»   «n»«chr(0)»«d»
"""
# Completions that contain «n», but not as their last box.
OUTSIDE = r"""
The answer is «n».   \boxed{«n»   \boxed{}«n»   \boxed «n»   \fbox{«n»}   \boxed{«n»}\boxed{}
\boxed{«n»} no: \boxed{«n+1»}   \boxed{«n»\}
"""
# Answers that take much time, memory or stack to parse. A nest is repeated inside itself, at @.
NESTS = r"(@)   {@}   \sqrt{@}   \frac{1}{@}   (1+@)   \sin(@)   2^{@}   \text{@}   |@|"
TOWERS = r"""
9^{9^{9«n»}}   (9«n»)!   ((9!)!)!   \binom{9«n»}{4«n»}   (x+1)^{9«n»}   \sin(9«n»^{9«n»})
\sum_{k=1}^{9«n»} \frac{1}{k!}   \prod_{k=1}^{9«n»} k
"""
ROWS = ["1,", "-", "7", "5=", "1 ", "x<", r"\frac", "5_", "!", "a b ", "\0", "ﷺ", "5%", r"1&1\\"]
PIECES = [*"0123456789xyi+-*/^_!=<>,;:|()[]{}%$&. \0\ud800½²∞", r"\text{or}", r"\text{ cm}"]
PIECES += re.findall(r"\\.\w*", r"\frac\sqrt\pm\pi\cup\infty\sin\log\binom\le\{\}\\\not")


def draw_numbers(rng: random.Random) -> dict:
    """Return values for the names in the templates."""
    n, d, k = rng.randint(10_001, 999_999), rng.randint(2, 99), rng.randint(2, 9)
    while n % d == 0 or n % 10 == 0:  # else "«n/1000:.3f»" may end in a zero
        n += 1
    a, b, c = sorted(rng.sample(range(2, 99), 3))
    return {"n": n, "d": d, "k": k, "a": a, "b": b, "c": c, "head": str(n)[0], "tail": str(n)[1:]}


def fill(template: str, numbers: dict) -> str:
    """Replace each «expression» or «expression:format» in the template by its value."""
    return re.sub("«(.*?)»", lambda hole: eval(f"f'{{{hole[1]}}}'", dict(numbers)), template)


def choices(table: str) -> list[str]:
    return [choice for line in table.strip().splitlines() for choice in line.split("   ")]


@cache
def cases() -> list[tuple[str, list[str], list[str]]]:
    """Return CASES as (gold, right answers, wrong answers)."""
    lines = CASES.strip().splitlines()
    right, wrong = ([choices(line[2:]) for line in lines[first::3]] for first in (1, 2))
    return list(zip(lines[::3], right, wrong, strict=True))


def hostile(numbers: dict, rng: random.Random) -> str:
    nest, nested = rng.choice(choices(NESTS)), "1"
    while len(nested) + len(nest) < rng.choice([120, 600, 1800]):
        nested = nest.replace("@", nested)
    tower, row = fill(rng.choice(choices(TOWERS)), numbers), 400 * rng.choice(ROWS)
    return rng.choice([nested, nested, tower, row])


def one_of_each_family(rng: random.Random) -> list[tuple[str, int, str, str]]:
    """Return (family, expected reward, gold, answer) for each family."""
    numbers = draw_numbers(rng)
    n = str(numbers["n"])
    template, right, wrong = rng.choice(cases())
    gold = fill(template, numbers)
    noise = "".join(rng.choices(PIECES, k=rng.randint(1, 30)))
    outside_box = [*choices(OUTSIDE), r"\boxed{" * 9000, rf"\boxed{{{'5+' * 2000}0}}"]
    return [
        ("right", 1, gold, fill(rng.choice(right), numbers)),
        ("wrong", 0, gold, fill(rng.choice(wrong), numbers)),
        ("hack", 0, n, fill(rng.choice(choices(HACKS)), numbers)),
        ("noise", 0, rf"\sqrt{{{int(n) ** 2 + 1}}}", noise),
        ("outside the box", 0, n, fill(rng.choice(outside_box), numbers)),
        ("hostile", 0, rng.choice([n, "x^2+1", r"\sum_{k=1}^n k^2"]), hostile(numbers, rng)),
    ]


def grade(number: int, rng: random.Random) -> list[tuple[str, int, str, float, str]]:
    """Grade so many generated answers. Return family, expected reward, status, seconds, case."""
    rows = []
    # With two workers a second attempt need not wait for a new one.
    with Verifier(workers=2) as verifier:
        for i in range(number):
            # Hostile answers take the longest: one of 200.
            place = -1 if i % 200 == 199 else i % 5
            family, expected, gold, answer = one_of_each_family(rng)[place]
            completion = answer if family == "outside the box" else rf"So \boxed{{{answer}}}."
            verifier.pool.start()
            start = time.monotonic()
            [verdict] = verifier.grade([completion], [gold])
            case = f"gold {gold!r}: {completion[-150:]!r}"
            rows.append((family, expected, verdict.status, time.monotonic() - start, case))
    return rows


def holds(rows: list[tuple[str, int, str, float, str]]) -> bool:
    """Print the statuses, bad verdicts, and time and memory used; return whether all is well."""
    for (family, status), count in sorted(Counter((row[0], row[2]) for row in rows).items()):
        print(f"{family}: {count} {status}")
    bad = [row for row in rows if (row[2] == "correct") != row[1] or row[2] == "crash"]
    for family, _, status, _, case in bad[:40]:
        print(f"{family}, {status}, {case}")
    worker_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    slowest = max(row[3] for row in rows)
    print(f"largest worker: {worker_mb:.0f} MB; slowest answer: {slowest:.2f} s")
    print(f"bad verdicts: {len(bad)}")
    return not bad and worker_mb <= WORKER_MB and slowest <= SECONDS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--answers", type=int, default=20_000, help="generated answers")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    return int(not holds(grade(options.answers, random.Random(options.seed))))


if __name__ == "__main__":
    sys.exit(main())
