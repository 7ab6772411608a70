r"""What a completion without a \boxed{} most likely meant as its answer: for the lenient score.

The reward never reads this. Guessing an answer out of prose is right often enough to tell "cannot
solve it" from "has not learned the box", and wrong often enough to be gamed.
"""

import re

# Dollars inside a line by pandoc's rule, so that "$5 and $6" is money: no space just inside them,
# and no digit after the second.
FORMULA = re.compile(
    r"\$\$(.+?)\$\$|\\\[(.+?)\\\]|\\\((.+?)\\\)|(?<![\\$])\$(?=\S)([^$]+?)(?<=[^\s\\])\$(?!\d)",
    re.S,
)
# "### Final Answer", too.
SAID = re.compile(r"\banswer(?:\s+is|\s*[:=]|\W*\n)[\s:*]*", re.IGNORECASE)
SENTENCE = re.compile(r".*?(?=\n|[.!?](?:\s|$)|$)")
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:,\d{3})*(?:\.\d+)?(?:/\d+)?")
WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")


def last_answer(text: str) -> str | None:
    r"""The last number or formula of a text, to be graded as if in a box; None without one.

    The first of these that there is:
    1. after the last "answer is" or "answer:", the formula there, else the rest of the sentence;
    2. the last formula ($...$, $$...$$, \(...\), \[...\]), or the rest of the sentence after the
       last "=" that is in no formula, whichever comes later;
    3. the last number.
    Where there is an "=", the answer is what stands to the right of the last one. Of a sentence in
    words with a number in it, it is the first number: "12 apples" says 12.
    """
    formulas = list(FORMULA.finditer(text))
    for said in list(SAID.finditer(text))[-1:]:
        sentence = SENTENCE.match(text, said.end())
        inside = [f for f in formulas if sentence.start() <= f.start() <= sentence.end()]
        if answer := _right_side(_inside(inside[0])) if inside else _of_sentence(sentence[0]):
            return answer
    equals = text.rfind("=", formulas[-1].end() if formulas else 0)
    if equals >= 0 and (answer := _of_sentence(SENTENCE.match(text, equals + 1)[0])):
        return answer
    if formulas:
        return _right_side(_inside(formulas[-1])) or None
    return (NUMBER.findall(text) or [None])[-1]


def _inside(formula: re.Match) -> str:
    """A formula without what marks it as one."""
    return next(group for group in formula.groups() if group is not None)


def _right_side(formula: str) -> str:
    """What is right of the last "=" that is in no bracket, without punctuation around it."""
    depth, start = 0, 0
    for at, character in enumerate(formula):
        depth += (character in "{([") - (character in "})]")
        if character == "=" and depth == 0:
            start = at + 1
    right = formula[start:]
    if r"\begin{" not in right:  # else the lines are those of a matrix
        right = re.split(r"\\\\|\\end\{", right)[0]
    return right.strip(" \n\t.,;:*&")


def _of_sentence(sentence: str) -> str:
    """The answer in what is left of a sentence."""
    right = _right_side(sentence)
    number = NUMBER.search(right)
    return number[0] if number and WORD.search(right) else right
