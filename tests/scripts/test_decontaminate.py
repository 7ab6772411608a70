"""decontaminate: copies that must be found, and problems that only resemble one."""

from scripts.decontaminate import CONTAINS, SAME, Evaluation

JANET = (
    "Janet’s ducks lay 16 eggs per day. She eats three for breakfast every morning and bakes "
    "muffins for her friends every day with four. How many are left?"
)
ENDING = (
    "The answer can be written as $\\frac{m}{n}$, where $m$ and $n$ are relatively prime positive "
    "integers. Find $m+n$."
)
DICE = "Two fair dice are thrown, and then the larger one is thrown fifteen times more, until "
DICE += "it shows what the smaller has shown before. What is the chance of that? " + ENDING
SHORT = "Solve $x^2 = 81$."  # solve x ^ 2 = 81: no run of 8
COPIES = {
    "exact": JANET,
    "in capitals, other spaces": "\n " + JANET.upper().replace(" ", "\u00a0\n"),
    "other punctuation": JANET.replace(".", "!").replace("’", "'"),
    "numbers as digits": JANET.replace("three", "3").replace("four", "4"),
    "LaTeX for the looks": DICE.replace("\\frac", "\\dfrac").replace("$m+n$", "\\(m \\,+\\, n\\)"),
    "a short one": "solve x^2=81",
}
CONTAINED = {
    "with an introduction": "Here is problem 7, with some words before it. " + JANET,
    "with more to do": JANET + " And how many are left after 30 days, if a fox eats 2?",
    "with another name": JANET.replace("Janet’s", "Maria’s"),
    "a word left out": JANET.replace("for her friends ", "for friends "),
}
KEPT = {
    "a number changed": JANET.replace("16", "18"),
    "a number word changed": JANET.replace("three", "five"),
    "two numbers exchanged": JANET.replace("three", "4").replace("four", "3"),
    "changed inside a longer text": "Read this carefully. " + JANET.replace("16", "17"),
    "the same ending and numbers": "Two boys draw one of 15 balls. Who wins? " + ENDING,
    "another sign": "Solve $-x^2 = 81$.",
    "a short one inside another": "Draw a graph of f first. " + SHORT,
    "nothing": "",
}


def test_copies_are_found_and_other_problems_are_kept():
    evaluation = Evaluation()
    for problem in (JANET, DICE, SHORT):
        evaluation.add(problem, "a file")
    for variants, expected in ((COPIES, SAME), (CONTAINED, CONTAINS), (KEPT, None)):
        for name, text in variants.items():
            assert (evaluation.find(text) or [None])[0] == expected, name
