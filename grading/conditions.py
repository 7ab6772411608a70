r"""Conditions of answers: "x=k\pi,k∈\mathbb{Z}" states x=k\pi, and k∈\mathbb{Z} of the letter k."""

import re
from typing import NamedTuple

from grading.sets import simplify
from grading.structure import RELATIONS, plain, split, structure_of

# \mathbb{N} and \mathbf{Z} (bold), with what may follow: ^+, ^*, _0, _{\geq 0}.
_DOMAIN = re.compile(
    r"(?:\\mathbb ?)?\{?([NZQR𝐍𝐙𝐐𝐑])\}?(?:[_^]\{?(0|\+|\*|[≥>]0|\\(?:ge|gt) ?0)\}?)?"
)
MAX_CONDITIONS = 8
_BOUNDS = {"0": "≥0", "≥0": "≥0", ">0": ">0", "+": ">0", "*": ">0"}
_EVERYTHING = "(-∞,∞)"


class Condition(NamedTuple):
    """domain: "Z", "Q", "R", or "" if it is not stated. options: the bounds of the letter, one list
    for each convention."""

    letter: str
    domain: str
    options: list[list[str]]

    def regions(self, of_integers: bool) -> list[str]:
        """Return what the letter may be, as simplified sets."""
        bounds = self.options
        if of_integers:
            bounds = [[_integer_bound(bound) for bound in option] for option in bounds]
        everything = f"{self.letter}∈{_EVERYTHING}"
        return [simplify(",".join([*option, everything])) for option in bounds]


def _condition(relations: list[str], letter: str) -> Condition:
    r"""Read relations on a letter: "k∈\mathbb{N}" -> Z with k≥0 or k≥1."""
    domain, bounds, options = "", [], [[]]
    for relation in relations:
        members = relation.split("∈", 1)[-1]
        if members == _EVERYTHING:
            domain = domain or "R"
        elif match := _DOMAIN.fullmatch(members):
            domain = plain(match[1])
            if match[2]:
                bounds.append(letter + _BOUNDS[match[2]])
            elif domain == "N":  # some count from 0, some from 1
                options = [[f"{letter}≥0"], [f"{letter}≥1"]]
            domain = "Z" if domain == "N" else domain
        else:
            bounds.append(relation)
    return Condition(letter, domain, [bounds + option for option in options])


def _integer_bound(bound: str) -> str:
    """Write the bound of an integer with ≤ or ≥: "k>0" -> "k≥1"."""
    bound = re.sub(r">(-?\d+)$", lambda m: f"≥{int(m[1]) + 1}", bound)
    return re.sub(r"<(-?\d+)$", lambda m: f"≤{int(m[1]) - 1}", bound)


def rename_index(conditions: dict[str, Condition], text: str, gold: dict[str, Condition]) -> str:
    r"""Rename the only letter of a text that must be an integer to that of the gold: "n\pi,n∈Z"
    answers "k\pi,k∈Z"."""
    if not len(conditions) == len(gold) == 1:
        return text
    (old, condition), (new, gold_condition) = *conditions.items(), *gold.items()
    are_letters = len(old) == len(new) == 1 and new not in re.sub(r"\\[a-zA-Z]+", "", text)
    if not (are_letters and condition.domain == gold_condition.domain == "Z"):
        return text
    return re.sub(rf"\\[a-zA-Z]+|{old}", lambda m: new if m[0] == old else m[0], text)


def split_conditions(text: str) -> tuple[str, dict[str, Condition]]:
    r"""Return a statement and the conditions on its letters, which follow it. "x=5,x≥7" and
    "y>x,x>0" have none: they state x and y."""
    parts = split(text, ",;∧")
    if not RELATIONS & {*parts[-1]}:
        return text, {}
    for number in range(max(1, len(parts) - 2 * MAX_CONDITIONS), len(parts), 2):
        statement = "".join(parts[:number])
        if RELATIONS - {"="} & {*statement}:
            break
        if relations := _relations(parts[number + 1 :: 2], statement):
            conditions = {name: _condition(found, name) for name, found in relations.items()}
            return statement, conditions
    return text, {}


def _relations(parts: list[str], statement: str) -> dict[str, list[str]]:
    r"""Return the relations on each letter of a statement; {} if a part is none. "m,n∈\mathbb{Z}"
    is a relation on both."""
    relations: dict[str, list[str]] = {}
    stated = {structure_of(part).name for part in split(statement, ",;∧∨")[::2]}
    touching = re.sub(r"\\text\{[^{}]*\}|\\[a-zA-Z]+", "", statement)  # as c in cx,c∈Z
    touching = touching if RELATIONS & {*"".join(parts)} == {"∈"} else ""
    waiting: list[str] = []
    for part in parts:
        letter = part if part.isalpha() else structure_of(part).name
        is_free = letter in {*touching} or re.search(
            rf"(?<![a-zA-Z\\]){re.escape(letter)}(?![a-zA-Z])", statement
        )
        if not letter or not is_free or letter in stated:
            return {}
        waiting.append(letter)
        if RELATIONS - {"="} & {*part}:
            for name in waiting:
                relations.setdefault(name, []).append(part.replace(letter, name, 1))
            waiting = []
    return {} if waiting else relations
