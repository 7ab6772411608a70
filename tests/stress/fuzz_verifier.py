"""Stress test of verify.py: grade generated answers, and measure the time.

    python -m tests.stress.fuzz_verifier     # ten minutes

Exit status 1: a bad verdict, a crashed worker, or an answer that took too long.
"""

import argparse
import random
import re
import sys
import time
from collections import Counter

from verify import Verifier

SECONDS = 3.0  # limit for an answer

# A gold, right answers (+) and wrong ones (-), three spaces apart; «» are an f-string's braces.
CASES = r"""
«n»
+ «n:,»   «n//1000»{,}«n%1000:03d»   «n//1000»\,«n%1000:03d»   \$«n:,»   «n».0   «n».
- «n+1»   -«n»   «n».01   «n»0
«n»
+ x = «n»   «n:,» dollars   «n» km/h   «n» \text{ apples}   «n»^\circ   \textbf{«n»}   \text{«n»}
- «n»i   «n»x   «n» \text{ thousand}
«n»
+ \frac{«n*d»}{«d»}   «n-k»+«k»=«n»   «n*k»\div «k»=«n»
- «n-k»\binom{«k»}{1}   «n-k»+«k»   «n*k»\div «k»   \sqrt{«n*n»}   \binom{«n»}{1}   «n»\cdot 1
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


FAMILIES = ("right", "wrong", "hack", "noise", "outside the box", "hostile")


def draw_numbers(rng: random.Random) -> dict:
    """Return values for the names in the templates."""
    n = rng.randint(10_001, 999_999)
    d = rng.randint(2, 99)
    k = rng.randint(2, 9)
    while n % d == 0 or n % 10 == 0:  # else "«n/1000:.3f»" may end in a zero
        n += 1
    a, b, c = sorted(rng.sample(range(2, 99), 3))
    head, *tail = str(n)
    return {"n": n, "d": d, "k": k, "a": a, "b": b, "c": c, "head": head, "tail": "".join(tail)}


def fill(template: str, numbers: dict) -> str:
    """Replace each «expression» or «expression:format» in the template by its value."""
    return re.sub("«(.*?)»", lambda hole: eval(f"f'{{{hole[1]}}}'", dict(numbers)), template)


def choices(table: str) -> list[str]:
    return [choice for line in table.strip().splitlines() for choice in line.split("   ")]


def cases() -> list[tuple[str, str, str]]:
    """Return CASES as (gold, right answers, wrong answers)."""
    return re.findall(r"(.+)\n\+ (.+)\n- (.+)", CASES)


def hostile(numbers: dict, rng: random.Random) -> str:
    nest = rng.choice(choices(NESTS))
    nested = "1"
    while len(nested) + len(nest) < rng.choice([120, 600, 1800]):
        nested = nest.replace("@", nested)
    tower = fill(rng.choice(choices(TOWERS)), numbers)
    return rng.choice([nested, nested, tower, 400 * rng.choice(ROWS)])


def draw(family: str, rng: random.Random) -> tuple[str, str]:
    """Return a gold and a completion of one of FAMILIES."""
    numbers = draw_numbers(rng)
    gold = str(numbers["n"])
    if family == "outside the box":
        outside = [*choices(OUTSIDE), r"\boxed{" * 9000, rf"\boxed{{{'5+' * 2000}0}}"]
        return gold, fill(rng.choice(outside), numbers)
    if family == "hack":
        answer = fill(rng.choice(choices(HACKS)), numbers)
    elif family == "noise":
        gold = rf"\sqrt{{{numbers['n'] ** 2 + 1}}}"
        answer = "".join(rng.choices(PIECES, k=rng.randint(1, 30)))
    elif family == "hostile":
        gold = rng.choice([gold, "x^2+1", r"\sum_{k=1}^n k^2"])
        answer = hostile(numbers, rng)
    else:
        template, *answers = rng.choice(cases())
        gold = fill(template, numbers)
        answer = fill(rng.choice(choices(answers[family == "wrong"])), numbers)
    return gold, rf"So \boxed{{{answer}}}."


def main(argv: list[str] | None = None) -> int:
    """Grade generated answers; print bad verdicts, how often each status was given, and the longest
    time. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--answers", type=int, default=20_000, help="generated answers")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    rng = random.Random(options.seed)
    statuses = Counter()
    bad = 0
    slowest = 0.0
    with Verifier(workers=1) as verifier:
        for i in range(options.answers):
            # Hostile answers take the longest: one of 200.
            family = "hostile" if i % 200 == 199 else FAMILIES[i % 5]
            gold, completion = draw(family, rng)
            start = time.monotonic()
            [verdict] = verifier.grade([completion], [gold])
            slowest = max(slowest, time.monotonic() - start)
            statuses[f"{family}: {verdict.status}"] += 1
            is_wrong = (verdict.status == "correct") != (family == "right")
            if is_wrong or verdict.status == "crash":
                bad += 1
                end = ascii(completion[-150:])  # some have half a surrogate pair
                print(f"{family}: {verdict.status} for {gold}: {end}")
    for name, count in sorted(statuses.items()):
        print(f"{name} {count}")
    print(f"slowest answer: {slowest:.2f} s")
    print(f"bad verdicts: {bad}")
    return int(bad > 0 or slowest > SECONDS)


if __name__ == "__main__":
    sys.exit(main())
