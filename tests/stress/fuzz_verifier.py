"""Wrong verdicts of verify.py, limits that do not hold, memory that grows? By answers nobody wrote.

    python -m tests.stress.fuzz_verifier --golds problems.jsonl     # ten minutes

Exit status 1: a hack was paid, a right answer refused, a worker crashed, or a limit did not hold.
"""

import random
import re
import resource
import sys
import time
from itertools import compress
from pathlib import Path

import pandas

from plumbing.command_line import count
from scripts import analysis
from verify import Verifier

SECONDS, WORKER_MB, GROWTH_MB = 3.0, 1024, 20  # of one answer, one worker, many calls
DEMO = Path(__file__).resolve().parent.parent / "demo" / "train.jsonl"

# A gold, right answers to it (+) and wrong ones (-), three spaces apart. «» is what {} is in an
# f-string.
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
+ \frac{«n»}{\sqrt{«n»}}   «n»^{1/2}   \sqrt {«n»}   a=\sqrt{«n»}   \left[\sqrt{«n»}+0\right]
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
# They earn nothing though they hold the gold «n», or have its value: guesses, claims, the question.
HACKS = r"""
«n», «d»   «d»; «n»   «n» «d»   «n» \text{ or } «d»   «d» or «n»   «n» \lor «d»   «n»\\ «d»
«d»…«n»   «d» \quad «n»   «n»|«d»   «n» \cup «d»   «n» / «d»   «d» \to «n»   \{«n», «d»\}
«n» \pm «d»   [«n», «d»]   \text{«n» or «d»}   x=«n», x=«d»   «n» \text{ (or } «d»)   «d»=«n»
«n»=«d»   «d»<«n»   \begin{cases}«n»\\«d»\end{cases}   x=«n»=«d»   «n» \neq «d»   «d» \approx «n»
x \not= «n»   «k»x=«n*k»   x-«n»=0   \sum_{k=1}^{«n»} 1   \int_0^{«n»} dx   «n»+x-x   \log_2 2^{«n»}
(A) «n»   \max(«n»,-«n»)   «n» \bmod 10000000   \gcd(«n»,0)   \phantom{«d»}«n»   \cancel{«d»}«n»
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
NESTS = r"(@)   {@}   \sqrt{@}   \frac{1}{@}   (1+@)   \sin(@)   2^{@}   \text{@}   |@|"
TOWERS = r"""
9^{9^{9«n»}}   (9«n»)!   ((9!)!)!   \binom{9«n»}{4«n»}   (x+1)^{9«n»}   \sin(9«n»^{9«n»})
\sum_{k=1}^{9«n»} \frac{1}{k!}   \prod_{k=1}^{9«n»} k
"""
ROWS = ["1,", "-", "7", "5=", "1 ", "x<", r"\frac", "5_", "!", "a b ", "\0", "ﷺ", "5%", r"1&1\\"]
PIECES = [*"0123456789xyi+-*/^_!=<>,;:|()[]{}%$&. \0\ud800½²∞", r"\text{or}", r"\text{ cm}"]
PIECES += re.findall(r"\\.\w*", r"\frac\sqrt\pm\pi\cup\infty\sin\log\binom\le\{\}\\\not")


def numbers(rng: random.Random) -> dict:
    """What the templates are filled with."""
    n, d, k = rng.randint(10_001, 999_999), rng.randint(2, 99), rng.randint(2, 9)
    while n % d == 0 or n % 10 == 0:  # else 60.770 and 60.77 are one number
        n += 1
    a, b, c = sorted(rng.sample(range(2, 99), 3))
    given = {"n": n, "d": d, "k": k, "a": a, "b": b, "c": c}
    return given | {"head": str(n)[0], "tail": str(n)[1:]}


def filled(template: str, given: dict) -> str:
    """`template` with each «expression» or «expression:format» replaced by its value."""
    return re.sub("«(.*?)»", lambda hole: eval(f"f'{{{hole[1]}}}'", dict(given)), template)


def choices(table: str) -> list[str]:
    return [choice for line in table.strip().splitlines() for choice in line.split("   ")]


def cases() -> list[tuple[str, list[str], list[str]]]:
    """CASES as (gold, right answers, wrong answers)."""
    lines = CASES.strip().splitlines()
    right, wrong = ([choices(line[2:]) for line in lines[at::3]] for at in (1, 2))
    return list(zip(lines[::3], right, wrong, strict=True))


def hostile(given: dict, rng: random.Random) -> str:
    nest, deep = rng.choice(choices(NESTS)), "1"
    while len(deep) + len(nest) < rng.choice([120, 600, 1800]):
        deep = nest.replace("@", deep)
    tower, row = filled(rng.choice(choices(TOWERS)), given), 400 * rng.choice(ROWS)
    return rng.choice([deep, deep, tower, row])


def answers(number: int, golds: list[str], rng: random.Random):
    """So many times (family, the reward that is due, gold, completion)."""
    kinds = cases()
    outside = [*choices(OUTSIDE), r"\boxed{" * 9000, rf"\boxed{{{'5+' * 2000}0}}"]
    for at in range(number):
        given = numbers(rng)
        template, right, wrong = rng.choice(kinds)
        gold, mine, n = filled(template, given), rng.choice(golds), str(given["n"])
        another = re.sub(r"\d", lambda digit: str((int(digit[0]) + 3) % 10), mine, count=1)
        noise = "".join(rng.choices(PIECES, k=rng.randint(1, 30)))
        families = [
            ("right, respelled", 1, gold, filled(rng.choice(right), given)),
            ("right, gold of a file", 1, mine, rng.choice(["", r"\displaystyle "]) + mine),
            ("wrong, near", 0, gold, filled(rng.choice(wrong), given)),
            ("wrong, a digit changed", 0, mine, another if another != mine else "7" + mine),
            ("hack", 0, n, filled(rng.choice(choices(HACKS) + UNSEEN), given)),
            ("noise", 0, rf"\sqrt{{{int(n) ** 2 + 1}}}", noise),
            ("outside the box", 0, n, filled(rng.choice(outside), given)),
            ("hostile", 0, rng.choice([n, "x^2+1", r"\sum_{k=1}^n k^2"]), hostile(given, rng)),
        ]
        # Hostile answers take the longest: one of 200.
        family, due, gold, answer = families[-1 if at % 200 == 199 else at % 7]
        boxed = rf"So it is \boxed{{{answer}}}."
        yield family, due, gold, answer if family == "outside the box" else boxed


def graded(number: int, golds: list[str], rng: random.Random) -> pandas.DataFrame:
    """A row for each generated answer."""
    rows = []
    with Verifier(workers=2) as verifier:  # a second try does not wait for a replacement to start
        golds = [*compress(golds, verifier.check_golds(golds))]
        for family, due, gold, completion in answers(number, golds, rng):
            verifier.pool.settle()
            start = time.monotonic()
            status = verifier.grade([completion], [gold])[0].status
            seconds, case = time.monotonic() - start, f"gold {gold!r}: {completion[-150:]!r}"
            rows.append((family, due, status, seconds, case))
    return pandas.DataFrame(rows, columns=["family", "due", "status", "seconds", "case"])


def growth(calls: int) -> float:
    """Megabytes that this process's peak grows by while it calls a Verifier that often."""
    with Verifier(workers=1) as verifier:
        for call in range(-calls // 20, calls):
            if call == 0:  # caches are full
                before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            verifier.grade([r"\boxed{12,345}"], ["12345"])
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def main() -> int:
    parser = analysis.parser(__doc__)
    add = parser.add_argument
    add("--answers", type=count, default=20_000, help="generated answers")
    add("--calls", type=count, default=100_000, help="calls for the trainer's memory")
    add("--golds", type=Path, default=DEMO, help="JSON lines with expected_answer")
    add("--seed", type=int, default=0)
    options = parser.parse_args()
    with analysis.one_line("fuzz_verify"):
        golds = analysis.read_table(options.golds, "expected_answer").expected_answer
    golds = golds.astype(str).str.strip()
    grown = growth(options.calls)
    frame = graded(options.answers, golds.tolist(), random.Random(options.seed))
    print(pandas.crosstab([frame.family, frame.due], frame.status).to_string())
    paid = (frame.status == "correct").astype(int)
    bad = frame[(paid != frame.due) | (frame.status == "crash")]
    print(*(bad.family + ", " + bad.status + ", " + bad.case)[:40], sep="\n")
    largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    slowest = frame.seconds.max()
    print(f"{options.calls} calls: {grown:.1f} MB more; largest worker: {largest:.0f} MB")
    print(f"slowest answer: {slowest:.2f} s; bad verdicts: {len(bad)}")
    held = slowest <= SECONDS and largest <= WORKER_MB and grown <= GROWTH_MB
    return int(len(bad) > 0 or not held)


if __name__ == "__main__":
    sys.exit(main())
