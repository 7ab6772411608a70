r"""Guess the answer that a text means, where it is not simply an answer.

`last_answer` reads prose without a \boxed{}; `unwrap` takes a plain answer out of a reference
answer such as "#### 72", "The answer is 72." or '["34"]'.
"""

import ast
import re

# Dollars inside a line by pandoc's rule, so that "$5 and $6" is money: no space just inside them,
# and no digit after the second.
FORMULA = r"\$\$(.+?)\$\$|\\\[(.+?)\\\]|\\\((.+?)\\\)"
FORMULA = re.compile(FORMULA + r"|(?<![\\$])\$(?=\S)([^$]+?)(?<=[^\s\\])\$(?!\d)", re.S)
# Also a heading such as "### Final Answer".
ANSWER = re.compile(r"\banswer(?:\s+is|\s*[:=]|\W*\n)[\s:*]*", re.IGNORECASE)
SENTENCE = re.compile(r".*?(?=\n|[.!?](?:\s|$)|$)")
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:,\d{3})*(?:\.\d+)?(?:/\d+)?")
WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
ANY_WORD = re.compile(r"[A-Za-z][A-Za-z'’-]*")
WORDS = re.compile(rf"{ANY_WORD.pattern}(?:[\s,]+{ANY_WORD.pattern})*")
BRACKETS = re.compile(r"\[[^\[\]]*\]")

MARK = re.compile(r"#+\s*([^#]*?)\s*\Z")
LABEL = re.compile(r"[A-Za-z][.:)] ")
BOX = re.compile(r"\\boxed\s*\{(.*)\}", re.S)
TAG = re.compile(r"<(\w+)>(.*?)</\1>", re.S)
QUOTED = re.compile(r"""(\*\*|[`"'“‘])((?:(?!\1).)+)(?:\1|[”’])\Z""", re.S)
TEXT = re.compile(r"\\(?:text|mbox|mathrm)\w*\s*\{[^{}]*\}")
FUNCTIONS = "sqrt root sin cos tan cot sec csc arcsin arccos arctan log ln exp pi inf infinity"
FUNCTIONS += " infty mod gcd lcm min max lim det deg"
PROSE_WORDS = 5  # so many words are a sentence, whatever numbers it has
MAX_TEXT = 20_000  # characters of a text that is read


def last_answer(text: str) -> str:
    r"""Guess the answer that a text without a box means; "" if there is none.

    After the last "answer is" or "answer:" it is the first formula ($...$, $$...$$, \(...\), or
    \[...\]) in the rest of the sentence. Without a formula it is that rest, or the first number in
    it if it has words: "12 apples" means 12. If no such phrase gives an answer, it is the text's
    last formula, else its last number.
    """
    formulas = [(f.start(), right_side(f[f.lastindex])) for f in FORMULA.finditer(text)]
    for phrase in list(ANSWER.finditer(text))[-1:]:
        sentence = SENTENCE.match(text, phrase.end())
        inside = [formula for at, formula in formulas if phrase.end() <= at <= sentence.end()]
        rest = right_side(sentence[0])
        number = NUMBER.search(rest) if WORD.search(rest) else None
        if answer := (*inside, number[0] if number else rest)[0]:
            return answer
    return ([formula for _, formula in formulas] or NUMBER.findall(text) or [""])[-1]


def last_answer_like(gold: str, text: str) -> str:
    """Guess the answer that a text without a box means, of the kind of a reference answer: of words
    alone, as many of the text's last words, unless it has a formula or "answer is"; of a list in
    brackets, the last one; else `last_answer`."""
    lists = BRACKETS.findall(text)
    if BRACKETS.fullmatch(gold) and lists:
        return lists[-1]
    words = list(ANY_WORD.finditer(text))
    is_marked = ANSWER.search(text) or FORMULA.search(text)
    if not WORDS.fullmatch(gold) or is_marked or not words:
        return last_answer(text)
    count = len(ANY_WORD.findall(gold))
    return text[words[-count:][0].start() : words[-1].end()]


def right_side(formula: str) -> str:
    """The part after the last "=" that is not in brackets, without punctuation around it."""
    right = re.split(r"=(?![^{(\[]*[})\]])", formula)[-1]
    if r"\begin{" not in right:  # else the lines are those of a matrix
        right = re.split(r"\\\\|\\end\{", right)[0]
    return right.strip(" \n\t.,;:*&")


def unwrap(answer: str) -> tuple[str, bool]:
    """Return what a student would write for a reference answer, and whether the answer is marked as
    one: by "####", "=", "answer is", a box, a tag, quotes, or the brackets of a list of texts.

    Without a mark it is the only number, or the guess of a sentence, beside words that are no
    function: "Total: 72", and wrongly "Room 12". Returns the answer itself where it is plain.
    """
    text = answer.strip()[-MAX_TEXT:]
    if (bare := text.strip("=→⇒:;,. ")) != text:
        return unwrap(bare)[0], True
    for inner in (_literal(text), _match(MARK, text), _match(BOX, text), _match(TAG, text)):
        if inner:
            return unwrap(inner)[0], True
    if match := QUOTED.match(text):
        return unwrap(match[2])[0], True
    if ANSWER.search(text):
        return last_answer(text), True
    words = {word.casefold() for word in WORD.findall(TEXT.sub("", text))}.difference(
        FUNCTIONS.split()
    )
    is_label = words or LABEL.match(text)
    if len(words) >= PROSE_WORDS or (is_label and len(re.findall(r"\d+", text)) == 1):
        return last_answer(text) or text, False
    return text, False


def _match(pattern: re.Pattern, text: str) -> str:
    """The last group of a pattern's last match, "" without one."""
    matches = list(pattern.finditer(text))
    return matches[-1][matches[-1].re.groups].strip() if matches else ""


def _literal(text: str) -> str:
    """The texts in a list, dict or text of JSON or Python; else "": [1,2] is a vector."""
    if text[:1] not in "[{\"'":
        return ""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return ""
    if isinstance(value, dict):
        value = [*value.values()]
    items = value if isinstance(value, list) else [value]
    is_list = len(items) == 1 or all(isinstance(item, str) for item in items)
    simple = all(isinstance(item, str | int | float) for item in items)
    return ", ".join(map(str, items)) if is_list and simple else ""
