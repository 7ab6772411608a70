r"""Readings of a text that the other text decides: the letter of a choice, and letters as units."""

import re

from grading.spelling import Spelling, canonicalize

# The letter of a choice and then its content: "(D) (2,0)", "\text{(D)} 5", "B. A circle". No match
# where the letter may be part of an expression or one of several: "(D)-5", "(D), (E)".
_LETTER = r"(?<![a-zA-Z\\])[A-J](?![a-zA-Z])"
_WORD = r"(?:A|I)(?= (?!or |and )[a-z]{2})|(?:I|I and I+|I only)(?=[}. ]*$)"  # A circle, I only
_CHOICE = re.compile(
    r"(?:\\(?:text|math)\w*\{)? ?\(?([A-J])(?:[).:]| -(?= ))(?:[\s~}]|\\[ ,;:]|\\q?quad)+"
    rf"(?!.*(?!{_WORD}){_LETTER})(?:-\S|[^\s=<>+*/^_,;-])"
)
_ANSWER_IS = re.compile(  # "Answer: G", "\text{The answer is G}", "Option (G)"
    r"(?i:(?:\\text\w*\{)? ?(?:the )?(?:(?:final|correct) )?(?:answer|option|choice)(?: is|:)*) ?"
    r"(?:\\text\w*\{)? ?(\(?[A-J]\)?)[}. ]*"
)
_LETTERS = re.compile(r"\(?[A-J]\)?(?:(?:[,;、& ]|\\ |and)*\(?[A-J]\)?)+")
_FONT = re.compile(r"\\(?:text\w*|math(?:rm|bf|it)|mbox) ?\{([^{}]*)\}|\{\\rm ([^{}]*)\}")
# Spaces that do not separate numbers, and the braces of a^{2}.
_SETTING = re.compile(r"(?<![\d.,])[ ~]+|[ ~]+(?![\d.~ ])|(?<=[\^_])\{(\w)\}(?!\w)")
_LETTER_UNIT = re.compile(
    r"(?<=[\d}]) ?(MW|[kKcm]?[mgsJWVAN]|[hLlCFt])((?:\^\{?[23]\}?|[²³])?)(?![a-zA-Z\d^_(=*+-])"
)


def _choice(text: str, other: str) -> str:
    """Return the letter of a choice if `other` is only a letter, else its content: "B. A circle"
    is B beside "B", and "A circle" beside "a circle"."""
    choice = _CHOICE.match(text)
    if re.fullmatch(r"\(?[A-J]\)?", canonicalize(other).text):
        choice = choice or _ANSWER_IS.fullmatch(text)
        return choice[1] if choice else text
    has_content = choice and not re.search(" -|:", choice[0])  # B - 5 is a difference, B: 5 a label
    return _content(text, choice) if has_content else text


def _content(text: str, choice: re.Match) -> str:
    content = re.sub(r"^[).:~ ]*(?:- )?[~ ]*", "", text[choice.end(1) :])
    if content.count("}") > content.count("{"):  # "\text{(B) } 5", "\text{B. A circle}"
        content = content.replace("}", "", 1)
    return content


def read_choices(gold: str, answer: str) -> tuple[str, str]:
    """Return what is to be compared: letters if one text has no more, contents if letters agree:
    "B. A circle" and "(B) A circle" give "A circle" twice."""
    choices = _CHOICE.match(gold), _CHOICE.match(answer)
    if not all(choices):
        return _choice(gold, answer), _choice(answer, gold)
    if choices[0][1] != choices[1][1]:
        return choices[0][1], choices[1][1]
    return _content(gold, choices[0]), _content(answer, choices[1])


def _letters(text: str) -> list[str]:
    r"""Return the letters of several choices: "C, A", "\text{A and C}" and "AC" give A, C."""
    content = _FONT.sub(lambda font: font[1] or font[2] or "", text).strip(" .$")
    return sorted(re.findall("[A-J]", content)) if _LETTERS.fullmatch(content) else []


def are_same_letters(gold: str, answer: str) -> bool:
    """Whether two texts name the same choices, one of them in a list: "ABD" and "A, B, D"."""
    letters = _letters(gold)
    is_list = re.search("[,;、]|and", gold + answer)
    return bool(
        is_list and letters and len({*letters}) == len(letters) and letters == _letters(answer)
    )


def unset(text: str) -> str:
    r"""Return a text without fonts and spaces: "8 \text{ A}" and "8A" give "8A"."""
    text = re.sub(r"\\[,;: !]", " ", _FONT.sub(lambda font: font[1] or font[2] or "", text))
    return _SETTING.sub(r"\1", text).rstrip(".")


def with_letter_units(text: str, other: Spelling) -> str:
    r"""Read letters as units if the other text has the same: "5 m" beside "5 \text{ m}"."""
    units = {unit for unit in other.units if unit}

    def as_unit(match: re.Match) -> str:
        unit = rf"\text{{ {match[1]}}}{match[2]}"
        return unit if canonicalize(f"1{unit}").units[0] in units else match[0]

    return _LETTER_UNIT.sub(as_unit, text) if units else text
