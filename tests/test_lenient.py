"""lenient.last_answer: what a reader, too, would take for the answer of a completion without a
box."""

import pytest

from scripts.lenient import last_answer

EXAMPLES = {
    # 1. after "answer is" or "answer:"
    "So the answer is 42.": "42",
    "The answer is $\\frac{3}{4}$. I used $x = 9$.": "\\frac{3}{4}",  # whatever follows it
    "The answer is 3. No: the answer is 5.": "5",
    "Answer: 12 apples, as 3 * 4 says": "12",
    "**Answer:** -2.5": "-2.5",
    "the answer is the number 7, then.": "7",
    "The answer is x = 1/3.": "1/3",
    "The answer is 2x + 1.": "2x + 1",
    "The answer is $18.": "$18",  # money, which the verifier reads as 18
    "The answer is 1,250.5 dollars": "1,250.5",
    "The answer is east.": "east",
    "The answer is:\n\\[\n x = \\sqrt{2}\n\\]": "\\sqrt{2}",
    "We get $x = 40$.\n\n### Final Answer\n42": "42",
    # 2. the last formula, or the last "=" outside formulas
    "First $a = 3$, and so \\(b = 4\\).": "4",
    "Hence $$3 + 5 = 8.$$ Done.": "8",
    "Thus $5$ of them, so 5 * 2 = 10 eggs.": "10",
    "5 * 2 = 10, thus $11$": "11",
    "It is $(3, \\frac{\\pi}{2})$.": "(3, \\frac{\\pi}{2})",
    "$\\sum_{k=1}^n k$": "\\sum_{k=1}^n k",  # an "=" in brackets is none
    "\\[\\begin{aligned} x &= 2 + 3 \\\\ &= 5 \\end{aligned}\\]": "5",
    "$$\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}$$": "\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}",
    # 3. the last number
    "There are 3 boxes of 4, which makes 12 in all.": "12",
    "It costs $5 and then $6 more": "6",
    "Version v2 is not a number, but 1.5 is": "1.5",
    "There are 12 in the unfinished \\boxed{12": "12",
    # none
    "I do not know.": None,
    "": None,
    "$$": None,
}


@pytest.mark.parametrize("text", EXAMPLES)
def test_the_last_answer_of_a_text(text):
    assert last_answer(text) == EXAMPLES[text]


def test_long_texts_take_no_time():
    """Half-open marks by the thousand: a pattern that tries them all again would take minutes."""
    for mark in ("$", "$$ ", "\\[", "\\( ", "answer is ", "= ", "{", "1,", "1/"):
        last_answer(mark * 3000)
