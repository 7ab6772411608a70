"""plumbing/grading/structure.py: names, kinds and parts of canonical texts."""

from plumbing.grading.structure import split, structure_of


def test_structures():
    structures = {
        "⦃5⦄": ("", "value", ["5"]),  # a collection of one part is that part
        "⦃⦄": ("", "set", []),
        "1±2": ("", "list", ["1+2", "1+-2"]),
        "⦃1,2⦄∪(3,4)": ("", "set", ["1", "2", "(3,4)"]),
        "(1)(2)": ("", "value", ["(1)(2)"]),
        "x∈[1,2)": ("x", "[)", ["1", "2"]),
        "x=1=y": ("x", "=", ["1", "y"]),
        "3>x≥1": ("x", "[)", ["1", "3"]),
        "-x<3": ("x", "()", ["-(3)", "∞"]),
        r"\begin{matrix}1&2\\3&4\end{matrix}": ("", "matrix [2, 2]", ["1", "2", "3", "4"]),
    }
    assert {text: structure_of(text) for text in structures} == structures


def test_split_does_not_split_inside_brackets():
    assert split("a=(b=c)<[d<e)", "=<") == ["a", "=", "(b=c)", "<", "[d<e)"]
