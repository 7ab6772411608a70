"""verify.py: which answers earn 1, which golds can be verified, custom rewards.

Generated and hostile answers are in tests/stress/test_fuzz_verifier.py.
"""

import random
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import verify
from plumbing.errors import InputError
from tests.helpers.models import ROOT
from tests.stress import fuzz_verifier
from verify import Verdict, Verifier, extract_boxed


def table(text: str) -> list[tuple[str, str]]:
    """(gold, answer) for each line of a gold and answers to it, three spaces apart."""
    rows = [line.split("   ") for line in text.strip().splitlines()]
    return [(gold, answer) for gold, *answers in rows for answer in answers]


RIGHT = table(r"""
12   12   12 cm   12^{\mathrm{th}}   12th   12^{th}   12^\text{th}   4\binom{3}{2}   (3)(4)
0.5   \frac{1}{2}   .5
50   50\%
50\%   0.5
7   7 \text{ apples}   7\text{ km}^2   m+n=7
2/3   0.666667   .666667   2:3
-7/3   \frac{-7}{3}   x = -\dfrac{21}{9}
10   \binom{5}{2}   10 \; \text{people}
5   \{5\}   \boldsymbol{5}   \color{red}{5}   5€   5 apples   5 cm^2   \text{5 cm}
5   5\ \text{kg} \cdot \text{m}/\text{s}^2   5\ \mathrm{m\,s^{-1}}   5\ \mathrm{m} \mathrm{s}^{-1}
5   5~\text{cm}   5 \text{ months}
(-\infty,0) \cup (0,\infty)   \mathbb{R} \setminus \{0\}
\pm 4   4, -4
x > 3   (3, \infty)   3 < x
(-\infty, 0) \cup (1, \infty)   x < 0 \text{ or } x > 1
\frac{\pi}{4}   \pi/4
\sqrt{8}   2\sqrt{2} \approx 2.83
\begin{pmatrix} 1 \\ 2 \end{pmatrix}   \left(\begin{array}{c} 1 \\[4pt] 2 \end{array}\right)
x+y < 3   -2x-2y > -6
x=3, y=4   y=4, x=3
no   no   No   \text{No.}
36   36 \text{ m/s}   36 km/h   36 \text{ km}/\text{h}
864 \mbox{ inches}^2   864 square inches
0.1\overline{6}   1/6
\log_2 3   \log_{2}(3)   \frac{\ln 3}{\ln 2}
1e-5   0.00001   10^{-5}   1 \times 10^{-5}   1E-5
2e - 1   2e-1
xy   yx   x \cdot y
14   2[3+4]
D   (D) (2,0)   \text{(D)}   \textbf{(D)}\ 12   \text{(D)}\ 12   D. 5   D) 5   D: 5
\text{(D)}   \text{D. red}
9:30 a.m.   9:30 AM
9.8   9.8 \text{ m/s}^2   9.8 m/s^2   9.8\,\text{m/s^2}
60 mph   60 \text{ miles per hour}   60 miles per hour
\frac{1}{\Delta}   \Delta^{-1}
\frac{\binom{3}{2}\binom{4}{2}}{\binom{7}{4}}   \frac{18}{35}
1   (2)\frac{1}{2}   \frac{4}{2}\frac{1}{2}
\$25   25 dollars
25 km   $25$ km
90^\circ   90 degrees
\$12 \text{ per hour}   12
x^2 \frac{3}{4}   \frac{3x^2}{4}
7/2   3 1/2
""")
WRONG = table(r"""
5   5 \text{ or six}   1=2=5   5 > 4   x > 5   5.0000001   ?   {}   5 theta   a+b=6   2a+b=5
5   5%%   5x/y   5 \text{ third}   5 hundred
11   5 6   2[3+4]
30   5 6   \underline{5}6
15   7(8)   (7)(8)
2,3   \{2,3\} \cup \{4\}
x=5   2x+3=13
13   2x+3=13   12th
x > 3   2x+1 > 7   x = x > 3
10   10 \text{ k}   10 \text{ lakh}   10 twelfths   10 \text{ twentieth}
3   1 5/2
-2   \begin{vmatrix} 1 & 2 \\ 3 & 4 \end{vmatrix}
2   2h
x^2   \frac{d}{dx} \frac{x^3}{3}
x+y=3   A=x+y=3   0=0   x+y=3=4
\emptyset   ,   \{\emptyset\}
x+y < 3   x+y > 3   -x-y < -3
0.0000001   0
0.3   1/3   0.\overline{3}
\pi   3.14
\frac{1}{3^{80}}   \frac{1}{3^{81}}
A   a
\text{red}   \text{red or blue}   \text{reed}   \text{red} \text{ blue}
B   A, B, C, D   B \text{ C}
5 \text{ cm}   5 \text{ m}
15 \mbox{ cm}^2   15 \text{ cm}
3{:}30 \text{ p.m.}   3{:}30 \text{ a.m.}
x+y=5   5
\frac{1}{23}   \frac123
25   2₅
2100   2, 100
x_{12}   x_12
0.\overline{12}   0.1\overline{2}
\mathbb{R}   \mathbb{R}^2
1e-5   -5+e   e-5   0.0001   0
no   on   \text{yes}
x   [x]
[x]   x
7   [3,4]   4\binom{3}{2}   (3)(4)
12   12^{th}+1   12^{t}
2st   2
D   (E) (2,0)   (D) or (E)   (D), (E)   (D) E   (A) (D)   (D)+1   (D) - 5   (D)/2
(2,0)   (D) (2,0)
36 km/h   36 \text{ m/s}   36 km/s
\Delta   \delta   D
9   \binom{3}{2}\binom{4}{2}
8 \text{ minutes}   8 \%
\$25   25 km   25 \text{ km}
30^\circ   30 \text{ radians}
""")
NUMBERS = fuzz_verifier.draw_numbers(random.Random(0))
FUZZ = [(gold, answer, 1) for gold, right, _ in fuzz_verifier.cases() for answer in right]
FUZZ += [(gold, answer, 0) for gold, _, wrong in fuzz_verifier.cases() for answer in wrong]
FUZZ += [("«n»", hack, 0) for hack in fuzz_verifier.choices(fuzz_verifier.HACKS)]
for gold, answer, expected in FUZZ:
    case = fuzz_verifier.fill(gold, NUMBERS), fuzz_verifier.fill(answer, NUMBERS)
    (RIGHT if expected else WRONG).append(case)
DEEP = "(1+" * 25 + "1" + ")" * 25  # takes the parser exponential time
CORRECT, TIMEOUT = Verdict(1.0, "correct"), Verdict(0.0, "timeout")


def box(answer: str) -> str:
    return rf"We compute and find \boxed{{{answer}}}."


def grade(verifier: Verifier, cases: list[tuple[str, str]]) -> list[Verdict]:
    return verifier.grade([box(answer) for _, answer in cases], [gold for gold, _ in cases])


PATIENT = {"cpu_seconds": 5.0, "wall_seconds": 60.0}  # for slow machines


@pytest.fixture(scope="module")
def verifier():
    with Verifier(workers=1, **PATIENT) as running:
        yield running


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        ("2", [r"\boxed{1} then \boxed{2}"]),
        (r"\frac{1}{2}", [r"\boxed{\frac{1}{2}}"]),
        (r"\{1\}", [r"\boxed{\{1\}}"]),
        ("5", [r"\boxed {5}", r"\boxed{5} in a \boxed"]),
        ("4", [r"\boxed{3 \boxed{4}}"]),
        ("7", ["{" * 100_000 + r"\boxed{7}" + "}" * 100_000]),
        (None, ["5", r"\boxed{}", r"\boxed{ }", r"\boxed{1\}", r"\boxed 5", r"\boxed" * 20_000]),
        (None, [r"\boxed{1} and \boxed{2"]),
    ],
)
def test_extract_boxed_returns_the_last_closed_box(content, texts):
    assert [extract_boxed(text) for text in texts] == [content] * len(texts)


@pytest.mark.parametrize(("cases", "expected"), [(RIGHT, CORRECT), (WRONG, Verdict(0.0, "wrong"))])
def test_right_answers_earn_1_and_wrong_ones_and_guesses_0(verifier, cases, expected):
    verdicts = zip(cases, grade(verifier, cases), strict=True)
    assert [case for case, verdict in verdicts if verdict != expected] == []


def test_only_the_box_counts(verifier):
    long = box("1+" * 1500 + "1")
    completions = ["The answer is 5.", r"\boxed{5} no, \boxed{6}", long, "5 " * 50_000 + box("5")]
    verdicts = verifier.grade(completions, ["5"] * 4)
    assert [v.status for v in verdicts] == ["no_box", "wrong", "too_long", "correct"]
    assert [v.reward for v in verdicts] == [0, 0, 0, 1]


def test_a_gold_is_valid_if_it_is_understood_and_equivalent_to_itself(verifier):
    good = [gold for gold, _ in RIGHT]
    bad = ["", " ", r"\frac{1}{", "1+", "}", r"\frac{1}{0}", "?", "5" * 3000]
    assert verifier.check_golds(good) == [True] * len(good)
    assert verifier.check_golds(bad) == [False] * len(bad)
    assert verify.check_gold("7") is True


def test_verdicts_do_not_depend_on_order_or_number_of_workers(verifier):
    cases = RIGHT + WRONG
    expected = dict(zip(cases, grade(verifier, cases), strict=True))
    random.Random(0).shuffle(cases)
    with Verifier(workers=3, **PATIENT) as three:
        assert dict(zip(cases, grade(three, cases), strict=True)) == expected


def test_a_comparison_that_takes_too_long_is_a_timeout_and_the_next_is_graded():
    with Verifier(workers=2, cpu_seconds=0.2) as verifier:
        assert grade(verifier, [("5", DEEP), ("5", "5")]) == [TIMEOUT, CORRECT]


def test_wrong_calls(verifier):
    assert verifier.grade([], []) == []
    with pytest.raises(ValueError, match="1 completions, 2 golds"):
        verifier.grade([box("5")], ["5", "6"])
    with pytest.raises(RuntimeError, match="not running"):
        Verifier().grade([box("5")], ["5"])
    with pytest.raises(ValueError, match="workers 0: must be at least 1"):
        Verifier(workers=0)


def test_workers_do_not_import_torch():
    code = "import sys, verify; verify.compare('1', '2'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def reward_file(folder: Path, body: str, name: str = "compute_score") -> str:
    """Write a custom reward that executes `body`, then returns 1."""
    path = folder / "custom.py"
    head = f"def {name}(data_source, solution_str, ground_truth, extra_info=None):\n"
    body = textwrap.indent(textwrap.dedent(body), "    ")
    path.write_text(f"import sys\n{head}{body}\n    return 1\n")
    return str(path)


def test_a_custom_reward_gets_what_verl_passes_and_needs_no_box(tmp_path):
    body = """
        right = solution_str == f"{data_source} {extra_info['unit']} {ground_truth}"
        return {"score": float(right), "other": 0.5} if data_source == "a" else right
        """
    path = reward_file(tmp_path, body, name="mine")
    extras = [{"data_source": source, "extra_info": {"unit": "km"}} for source in "aabb"]
    with Verifier(workers=2, reward=f"{path}:mine") as verifier:
        verdicts = verifier.grade(["a km 5", "a km 6", "b km 5", "b m 5"], ["5"] * 4, extras)
    assert [v.status for v in verdicts] == ["correct", "wrong", "correct", "wrong"]
    body = "return data_source == '' and extra_info is None"
    with Verifier(workers=1, reward=reward_file(tmp_path, body)) as verifier:
        assert verifier.grade(["5"], ["5"]) == [CORRECT]


@pytest.mark.parametrize(("body", "status"), [("[0] * 10**11", "memory"), ("sys.exit()", "crash")])
def test_a_custom_reward_may_run_out_of_memory_or_exit(tmp_path, body, status):
    with Verifier(workers=1, reward=reward_file(tmp_path, body)) as verifier:
        assert verifier.grade(["1"], ["1"]) == [Verdict(0.0, status)]


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("return 0.5", "returned 0.5; it must return 0 or 1"),
        ("return None", "returned None"),
        ("return {'reward': 1}", "raised KeyError: 'score'"),
        (r"raise ValueError('two\nlines')", "raised ValueError: two lines; it must"),
    ],
)
def test_a_custom_reward_that_fails_is_an_error_of_one_line(tmp_path, body, problem):
    reward = reward_file(tmp_path, body)
    message = rf"\A--reward {reward}: it {problem}.*\Z"
    with Verifier(1, reward=reward) as verifier, pytest.raises(InputError, match=message):
        verifier.grade(["1"], ["1"])


def test_a_custom_reward_that_gives_no_gold_1_is_an_error(tmp_path):
    """It must give 1 to one of the first 16 of a data set, in any number of calls."""
    reward = reward_file(tmp_path, "if ground_truth == 'bad': return 0")
    message = r"boxed{bad} does not earn 1, nor any other gold"
    with Verifier(workers=1, reward=reward) as verifier:
        assert verifier.check_golds(["bad"] * 15) == [False] * 15
        with pytest.raises(InputError, match=message):
            verifier.check_golds(["bad"])
    with Verifier(workers=1, reward=reward) as verifier:
        assert verifier.check_golds(["good"], dataset="val") == [True]
        assert verifier.check_golds(["bad"] * 64, dataset="val") == [False] * 64
        with pytest.raises(InputError, match=message):
            verifier.check_golds(["bad"] * 16, dataset="train")
