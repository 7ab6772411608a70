"""verify.py: what is paid, what is not, and what becomes of workers that hang, swell or die."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import verify
from verify import Verdict, Verifier, extract_boxed

# gold, content of the box
RIGHT = [
    ("12", "12"),
    ("0.5", r"\frac{1}{2}"),
    ("1234567", "1,234,567"),
    ("1234567", r"1\,234\,567"),
    ("50", r"50\%"),
    (r"50\%", "0.5"),
    ("7", r"7 \text{ apples}"),
    ("7", r"7\text{ km}^2"),
    ("45", r"45^{\circ}"),
    ("7/4", r"1\frac{3}{4}"),
    ("2/3", "0.666667"),
    ("8", "3+5"),
    ("8", "3+5=8"),
    ("8", r"2^3"),
    ("24", "4!"),
    ("10", r"\binom{5}{2}"),
    ("2,3", r"3 \text{ or } 2"),
    ("2,3", r"x=2 \text{ or } x=3"),
    ("2,3", r"\{3,2\}"),
    ("5", r"\{5\}"),
    ("12", "12 cm"),
    (r"(-\infty,0) \cup (0,\infty)", r"\mathbb{R} \setminus \{0\}"),
    (r"\pm 4", r"4, -4"),
    ("(1,2)", r"\left(1, 2\right)"),
    ("[1,2)", r"1 \le x < 2"),
    ("x > 3", r"(3, \infty)"),
    ("x > 3", "3 < x"),
    (r"(-\infty, 0) \cup (1, \infty)", r"x < 0 \text{ or } x > 1"),
    (r"\text{(B)}", "B"),
    (r"\text{red}", "Red"),
    ("x^2-1", "(x-1)(x+1)"),
    ("x^2-1", "f(x)=(x-1)(x+1)"),
    (r"\frac{\pi}{4}", r"\pi/4"),
    (r"2\ln 2", r"\ln 4"),
    (r"\sqrt{8}", r"2\sqrt{2} \approx 2.83"),
    ("y=2x+1", "2x-y+1=0"),
    (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{bmatrix} 1 \\ 2 \end{bmatrix}"),
    ("3:4", "3 : 4"),
    ("x+y < 3", "-2x-2y > -6"),
    ("x+y=3", "6-2x=2y"),
    (r"\mathbb{R}", r"(-\infty, \infty)"),
    ("x=3, y=4", "y=4, x=3"),
    (r"\frac{n(n+1)}{2}", r"\frac{n^2+n}{2}"),
    # dress: bold, colour, braces, full stops, stray spaces
    ("5", r"\boldsymbol{5}"),
    ("5", r"\color{red}{5}"),
    ("1/2", r"\mathbf{\frac12}"),
    ("5", "5€"),
    ("90", r"90^\circ."),
    (r"\text{yes}", r"\text{Yes.}"),
    ("10", r"10 \; \text{people}"),
    ("5", "5 apples"),
    ("5", "5 cm^2"),
    ("36", r"36 \text{ m/s}"),
    ("5", r"\text{5 cm}"),
    (r"864 \mbox{ inches}^2", "864 square inches"),
    # numbers
    ("1000000", "1 000 000"),
    ("x=1234", "x = 1,234"),
    ("1/3", r"0.\overline{3}"),
    (r"0.1\overline{6}", "1/6"),
    ("3/4", r"{3 \over 4}"),
    (r"1-\frac1e", "1 - 1/e"),
    (r"\frac{\sqrt{3}}{2}", r"\frac{\sqrt{3}}2"),
    (r"\sqrt[3]{2}", r"\sqrt[3]2"),
    ("120", r"\dbinom{10}{3}"),
    (r"\frac{2}{3}", "2:3"),
    # a subscript is what stands there, not what follows it
    ("52_8", "52_{8}"),
    (r"\log_2 3", r"\log_{2}(3)"),
    (r"\log_2 3", r"\frac{\ln 3}{\ln 2}"),
    # names
    ("7", "m+n=7"),
    ("(1,2)", "y=2, x=1"),
    (r"x \in [-2,7]", r"-2 \le x \le 7"),
    ("x=y+1", "y=x-1"),
    # matrices and sets
    (
        r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}",
        r"\left(\begin{array}{c} 1 \\[4pt] 2 \end{array}\right)",
    ),
    (r"\emptyset", r"\varnothing"),
    (r"3 \pmod 5", r"3 \pmod{5}"),
]
WRONG = [
    # several answers in one box
    ("5", "5, 6"),
    ("5", r"5 \text{ or } 6"),
    ("5", "5 or 6"),
    ("5", r"\{5, 6\}"),
    ("5", r"4 \quad 5"),
    ("5", r"5 \\ 6"),
    ("5", r"5 \lor 6"),
    ("5", r"5 \vee 6"),
    ("5", r"x = 4, x = 5"),
    ("5", r"5 \text{ (or } 6)"),
    ("5", r"5 \text{ or six}"),
    ("5", r"5 \pm 0, 6"),
    ("5", "5; 6"),
    ("5", "5 | 6"),
    ("5", r"5 \to 6"),
    ("11", "5 6"),  # math-verify adds them up
    ("30", "5 6"),
    ("15", "7(8)"),  # and these
    ("2,3", "2,3,4"),
    ("2,3", "2"),
    ("2,3", r"\{2,3\} \cup \{4\}"),
    # the question again
    ("x=5", "2x+3=13"),
    ("5", "2x+3=13"),
    ("13", "2x+3=13"),
    ("x > 3", "2x+1 > 7"),
    ("10", r"\sum_{k=1}^{4} k"),
    ("1", r"\int_0^1 2x\,dx"),
    ("3", r"\log_2 8"),
    ("-2", r"\begin{vmatrix} 1 & 2 \\ 3 & 4 \end{vmatrix}"),
    ("2", r"\gcd(4,6)"),
    ("1", r"7 \bmod 3"),
    ("x^2", r"\frac{d}{dx} \frac{x^3}{3}"),
    (r"x=\frac{1}{2}", "2x+3=4"),
    ("x=2i", "ix+3=1"),
    ("x+y=3", "A=x+y=3"),
    ("x > 3", "x = x > 3"),
    ("\\emptyset", ","),
    # false equations
    ("5", "4=5"),
    ("5", "5=4"),
    ("5", "1=2=5"),
    ("5", "x=4=5"),
    ("5", r"4 \approx 5"),
    ("5", r"\neq 5"),
    ("5", r"\text{not } 5"),
    ("5", "5 > 4"),
    ("5", "x > 5"),
    ("x+y=3", "0=0"),
    ("x^2+y^2=-1", "1=2"),
    ("x+y=3", "x+y=3=4"),
    ("x+y < 3", "x+y > 3"),
    ("x+y < 3", "-x-y < -3"),
    # precision
    ("0.0000001", "0"),
    ("0", "0.0000001"),
    ("5", "5.0000001"),
    ("1/3", "0.33"),
    ("0.3", "1/3"),
    (r"\pi", "3.14"),
    (r"\frac{1}{3^{80}}", r"\frac{1}{3^{81}}"),
    ("10^{100}", "10^{100}+1"),
    # forms
    ("A", "a"),
    ("x", "X"),
    ("5", "5i"),
    ("5", r"5\text{ million}"),
    ("2", "2h"),
    ("54", "204_5"),
    ("3", "1 5/2"),
    ("(1,2)", "(2,1)"),
    ("(1,2)", r"\{1,2\}"),
    ("[1,2]", "(1,2)"),
    ("[1,2]", "1,2"),
    (r"\text{red}", r"\text{red or blue}"),
    (r"\text{red}", r"\text{reed}"),
    ("B", "A, B, C, D"),
    ("42", "4\x002"),
    ("42", "4\u200b2"),
    ("5", r"\phantom{4}5"),
    ("5", "?"),
    ("5", "{}"),
    # what stands behind a number may be a factor, a claim, another unit, or another answer
    ("2m", "2"),
    ("5 xyz", "5"),
    ("5", "5 theta"),
    ("10", r"10 \text{ tenths}"),
    ("10", r"10 \text{ k}"),
    ("10", r"10 \text{ lakh}"),
    ("5", r"\text{5 or x}"),
    (r"5 \text{ cm}", r"5 \text{ m}"),
    (r"15 \mbox{ cm}^2", r"15 \text{ cm}"),
    (r"3{:}30 \text{ p.m.}", r"3{:}30 \text{ a.m.}"),
    (r"\text{red}", r"\text{red} \text{ blue}"),
    ("B", r"B \text{ C}"),
    # letters that cancel are the question
    ("0", "x-x"),
    ("1", r"\frac{x}{x}"),
    # only names of sums of letters are no claim
    ("x+y=5", "5"),
    ("5", "a+b=6"),
    ("5", "2a+b=5"),
    ("(1,2)", "y=1, x=2"),
    ("5", r"\not= 5"),
    ("x=y+1", "y=x+1"),
    # spellings that look alike
    (r"\frac{1}{23}", r"\frac123"),
    ("25", "2₅"),
    ("5.6", "5. 6"),
    ("2100", "2, 100"),
    ("x_{12}", "x_12"),
    (r"\log_2 3", r"\log_{23}"),
    ("0.3", r"0.\overline{3}"),
    (r"0.\overline{12}", r"0.1\overline{2}"),
    ("30", r"\underline{5}6"),
    (r"\emptyset", r"\{\emptyset\}"),
    (r"\mathbb{R}", r"\mathbb{R}^2"),
    ("5", "5%%"),
]
HOSTILE = [
    "9^{9^{9^{9^{9}}}}",
    "2^{2^{2^{2^{2^{2}}}}}",
    "(10^9)!",
    "((9!)!)!",
    r"\binom{10^9}{5\cdot 10^8}",
    r"\sum_{k=1}^{10^{12}} \frac{1}{k!}",
    r"\begin{pmatrix}" + "1&" * 400 + r"1\end{pmatrix}",
    "(" * 900 + "5" + ")" * 900,
    "{" * 900 + "5" + "}" * 900,
    r"\sqrt{" * 200 + "5" + "}" * 200,
    r"\frac{1}{" * 200 + "5" + "}" * 200,
    "-" * 1500 + "5",
    "5" * 1900,
    "x" * 1900,
    "1," * 900 + "1",
    "(x+1)^{100000}",
    r"\sin(10^{10^{10}})",
    "".join(map(chr, range(1, 32))),
    "\udcff\ud800",
    r"\left" * 300,
    "1 " * 990,
    "5 " + "aaaa " * 390,
]


def box(answer: str) -> str:
    return rf"We compute and find \boxed{{{answer}}}."


@pytest.fixture(scope="module")
def verifier():
    with Verifier(workers=1) as running:
        yield running


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"\boxed{1} then \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1\}}", r"\{1\}"),
        (r"\boxed {5}", "5"),
        (r"\boxed{3 \boxed{4}}", "4"),
        ("no box: 5", None),
        (r"\boxed{}", None),
        (r"\boxed{ }", None),
        (r"\boxed{1} and \boxed{2", None),
        (r"\boxed{1\}", None),
        (r"\boxed 5", None),
        (r"\boxed{5} in a \boxed", "5"),
        (r"\boxed" * 20_000, None),
        ("{" * 100_000 + r"\boxed{7}" + "}" * 100_000, "7"),
    ],
)
def test_extract_boxed(text, content):
    assert extract_boxed(text) == content


def test_right_answers_are_paid(verifier):
    verdicts = verifier.grade([box(answer) for _, answer in RIGHT], [gold for gold, _ in RIGHT])
    assert [
        case
        for case, verdict in zip(RIGHT, verdicts, strict=True)
        if verdict != Verdict(1.0, "correct")
    ] == []


def test_wrong_answers_and_guesses_are_not_paid(verifier):
    verdicts = verifier.grade([box(answer) for _, answer in WRONG], [gold for gold, _ in WRONG])
    assert [
        case
        for case, verdict in zip(WRONG, verdicts, strict=True)
        if verdict != Verdict(0.0, "wrong")
    ] == []


def test_only_the_box_counts(verifier):
    long = r"\boxed{" + "1+" * 1500 + "1}"
    completions = [
        "The answer is 5.",
        r"\boxed{5} no, \boxed{6}",
        r"\boxed{5",
        r"\boxed{}",
        long,
        "5 " * 50_000 + box("5"),
    ]
    verdicts = verifier.grade(completions, ["5"] * len(completions))
    assert [v.status for v in verdicts] == [
        "no_box",
        "wrong",
        "no_box",
        "no_box",
        "too_long",
        "correct",
    ]
    assert [v.reward for v in verdicts] == [0, 0, 0, 0, 0, 1]


def test_hostile_answers_earn_nothing_and_break_nothing():
    with Verifier(workers=2, cpu_seconds=0.5) as verifier:
        verdicts = verifier.grade(
            [box(h) for h in HOSTILE] + [box("5")], ["3"] * len(HOSTILE) + ["5"]
        )
    assert {v.reward for v in verdicts[:-1]} == {0.0}
    assert verdicts[-1].status == "correct"


def test_check_golds(verifier):
    good = [
        "5",
        r"\frac{1}{2}",
        r"\text{red}",
        "(1,2)",
        "x^2+1",
        r"\begin{pmatrix}1\\2\end{pmatrix}",
        "x>2",
        "A",
        "2,3",
    ]
    bad = ["", " ", r"\frac{1}{", "1+", "}", r"\frac{1}{0}", "?", "5" * 3000]
    assert verifier.check_golds(good) == [True] * len(good)
    assert verifier.check_golds(bad) == [False] * len(bad)


def test_check_gold_alone():
    assert verify.check_gold("7") is True


def test_order_and_worker_count_do_not_matter(verifier):
    cases = RIGHT + WRONG
    expected = verifier.grade([box(a) for _, a in cases], [g for g, _ in cases])
    order = list(range(len(cases)))
    random.Random(0).shuffle(order)
    with Verifier(workers=3) as three:
        shuffled = three.grade([box(cases[i][1]) for i in order], [cases[i][0] for i in order])
    assert [expected[i] for i in order] == shuffled


def test_hang_is_cut_by_cpu_time_and_the_next_sample_is_graded():
    # 25 nested pairs of brackets that cannot be simplified away take the parser exponential time.
    deep = "(1+" * 25 + "1" + ")" * 25
    with Verifier(workers=1, cpu_seconds=0.2) as verifier:
        verdicts = verifier.grade([box(deep), box("5")], ["5", "5"])
    assert verdicts == [Verdict(0.0, "timeout"), Verdict(1.0, "correct")]


def stub(tmp_path: Path, monkeypatch, body: str) -> None:
    """Lets workers run a copy of verify.py in which `compare` is `body`."""
    source = Path(verify.__file__).read_text()
    head, main = source.split('if __name__ == "__main__":')
    copy = tmp_path / "verify.py"
    copy.write_text(
        f'{head}\n\ndef compare(gold, answer, trusting=True):\n{body}\n\nif __name__ == "__main__":{main}'
    )
    monkeypatch.setattr(verify, "__file__", str(copy))


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("    while gold == 'bad': pass", "timeout"),
        ("    return gold != 'bad' or bytearray(1 << 34)", "memory"),
        ("    return gold != 'bad' or os.abort()", "memory"),
        ("    return gold != 'bad' or os.kill(os.getpid(), 11)", "crash"),
        ("    return gold != 'bad' or os._exit(9)", "crash"),
        ("    if gold == 'bad': raise KeyError", "crash"),
    ],
)
def test_each_death_has_its_status(tmp_path, monkeypatch, body, status):
    stub(tmp_path, monkeypatch, body + "\n    return True")
    with Verifier(workers=1, cpu_seconds=0.2) as verifier:
        verdicts = verifier.grade([box("1"), box("1"), box("1")], ["ok", "bad", "ok"])
    assert [v.status for v in verdicts] == ["correct", status, "correct"]


def test_a_worker_that_only_sleeps_is_killed_at_the_wall_limit(tmp_path, monkeypatch):
    stub(tmp_path, monkeypatch, "    time.sleep(99 if gold == 'bad' else 0)\n    return True")
    with Verifier(workers=1, wall_seconds=0.5) as verifier:
        assert [v.status for v in verifier.grade([box("1")] * 2, ["bad", "ok"])] == [
            "timeout",
            "correct",
        ]


def test_no_answer_holds_a_worker_longer_than_the_wall_limit(tmp_path, monkeypatch):
    """Each of the two tries has half of it."""
    note = tmp_path / "tries"
    body = f"    if gold == 'bad':\n        open({str(note)!r}, 'a').write('x')\n        time.sleep(0.6)\n"
    stub(tmp_path, monkeypatch, body + "    return True")
    with Verifier(workers=1, wall_seconds=1.0) as verifier:
        assert verifier.grade([box("1")], ["bad"]) == [Verdict(0.0, "timeout")]
    assert note.read_text() == "xx"


def test_a_replacement_starts_while_the_caller_goes_on():
    deep = "(1+" * 25 + "1" + ")" * 25
    with Verifier(workers=2, cpu_seconds=0.2) as verifier:
        assert verifier.grade([box(deep)], ["5"]) == [Verdict(0.0, "timeout")]
        assert verifier.grade([box("5")] * 4, ["5"] * 4) == [Verdict(1.0, "correct")] * 4
        verifier.check_golds([])  # waits for it
        assert len(verifier.pool) == 2 and not verifier.busy


def test_a_crash_is_tried_once_more(tmp_path, monkeypatch):
    flag = tmp_path / "crashed"
    body = f"    if gold == 'bad' and not os.path.exists({str(flag)!r}):\n        open({str(flag)!r}, 'w').close()\n"
    stub(
        tmp_path,
        monkeypatch,
        body + "        os.abort() if False else os._exit(9)\n    return True",
    )
    with Verifier(workers=1) as verifier:
        assert verifier.grade([box("1")], ["bad"]) == [Verdict(1.0, "correct")]


def test_killed_workers_are_replaced():
    with Verifier(workers=2) as verifier:
        for worker in list(verifier.pool):
            os.kill(worker.pid, signal.SIGKILL)
        assert verifier.grade([box("5")] * 4, ["5"] * 4) == [Verdict(1.0, "correct")] * 4
        assert len(verifier.pool) == 2


def test_a_worker_that_is_killed_while_it_starts_is_replaced():
    with Verifier(workers=1) as verifier:
        for _ in range(2):
            verifier._end(verifier.pool[0])
            verifier._start()
            os.kill(verifier.pool[0].pid, signal.SIGKILL)
            assert verifier.grade([box("5")], ["5"]) == [Verdict(1.0, "correct")]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_workers_end_with_a_parent_that_is_killed():
    program = (
        "import json, os, signal, verify\n"
        "v = verify.Verifier(workers=2).__enter__()\n"
        "print(json.dumps([w.pid for w in v.pool]), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    folder = Path(verify.__file__).parent
    pids = json.loads(
        subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True).stdout
    )
    deadline = time.monotonic() + 20
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(pids) == 2 and not any(map(alive, pids))


def test_bad_use():
    with pytest.raises(ValueError, match="workers is 0"):
        Verifier(workers=0)
    with pytest.raises(RuntimeError, match="not running"):
        Verifier().grade([box("1")], ["1"])
    with Verifier(workers=1) as verifier:
        assert verifier.grade([], []) == []
        with pytest.raises(ValueError, match="1 completions for 2 golds"):
            verifier.grade([box("1")], ["1", "2"])


def test_a_worker_that_cannot_start_is_reported(tmp_path, monkeypatch):
    (tmp_path / "verify.py").write_text("raise SystemExit(7)")
    monkeypatch.setattr(verify, "__file__", str(tmp_path / "verify.py"))
    with pytest.raises(RuntimeError, match="did not start: exit status 7"), Verifier(workers=1):
        pass


def test_no_torch_in_the_worker():
    code = "import sys, verify; verify.compare('1', '2'); sys.exit('torch' in sys.modules or 'train' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], cwd=Path(verify.__file__).parent).returncode
        == 0
    )


COMMANDS = re.findall(
    r"\\(?:\w+|.)", r"\frac\sqrt\pm\pi\cup\left\right\infty\sin\log\binom\approx\le\{\}\\"
)
EXTRAS = [".5", r"\text{or}", r"\text{ cm}", r"\begin{pmatrix}", r"\end{pmatrix}", "\x00"]
PIECES = st.sampled_from([*"0123456789xyi+-*/^!=<>,;:|()[]{}%$& ", *COMMANDS, *EXTRAS])


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.lists(PIECES, max_size=12).map("".join), min_size=8, max_size=8),
    st.integers(1000, 9999),
)
def test_fuzz_no_soup_is_worth_a_gold_it_does_not_hold(verifier, soups, number):
    """Random pieces of LaTeX get a verdict, never a crash, and none is equal to an irrational gold."""
    gold = rf"\sqrt{{{number * number + 1}}}"
    verdicts = verifier.grade([box(soup) for soup in soups], [gold] * len(soups))
    assert all(v.reward == 0.0 and v.status in ("wrong", "no_box", "timeout") for v in verdicts)


@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(st.integers(-(10**6), 10**6), st.integers(1, 10**4))
def test_fuzz_fractions_equal_themselves_and_not_their_neighbours(verifier, top, bottom):
    spellings = [
        f"{top}/{bottom}",
        rf"\frac{{{top}}}{{{bottom}}}",
        rf"x = \dfrac{{{3 * top}}}{{{3 * bottom}}}",
    ]
    neighbours = [
        f"{top + 1}/{bottom}",
        f"{top}, {top + 1}/{bottom}",
        rf"\frac{{{top}}}{{{bottom}}} \text{{ or }} 0",
    ]
    verdicts = verifier.grade([box(a) for a in spellings + neighbours], [f"{top}/{bottom}"] * 6)
    assert [v.reward for v in verdicts] == [1, 1, 1, 0, 0, 0]
