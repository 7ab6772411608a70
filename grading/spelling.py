r"""Canonical spelling of answers: one way to write each thing, in place of many.

`canonicalize` replaces CHARACTERS, applies the rules BEFORE_UNITS, removes units (units.py) and
applies the rules AFTER_UNITS, in the order written. A rule is a regular expression and its
replacement. Its key is an example, which tests/grading/test_spelling.py runs.
"""

import functools
import re
import unicodedata
from typing import NamedTuple

from grading.structure import plain
from grading.units import MARK, NOT_UNITS, SIGNS, Unit, mark_units, read_unit, split_units

CHARACTERS = str.maketrans("−⁻–‑·⋅÷⁄≡′。、٫٬~$", "----**//='.,.,  ") | dict.fromkeys(
    map(ord, SIGNS), " "
)
CHARACTERS |= str.maketrans(
    {"√": r"\sqrt ", "ℝ": r"\mathbb{R}", "∂": r"\partial ", "∇": r"\nabla "}
)
CHARACTERS |= str.maketrans({"→": r"\to ", "⇒": r"\to ", "⊕": r"\oplus ", "⊗": r"\otimes "})
CHARACTERS |= str.maketrans({"⊂": r"\subset ", "⊆": r"\subseteq ", "∥": r"\parallel "})
CHARACTERS |= str.maketrans({"⊥": r"\perp ", "△": r"\triangle ", "∠": r"\angle "})
CHARACTERS |= str.maketrans({"⌊": r"\lfloor ", "⌋": r"\rfloor ", "⌈": r"\lceil ", "⌉": r"\rceil "})
CHARACTERS |= str.maketrans({"∛": r"\sqrt[3] ", "∜": r"\sqrt[4] ", "Å": "Å"})
CHARACTERS |= str.maketrans("º˚", "°°")
# The Greek alphabet, as LaTeX commands. Capitals that look like Latin letters have none.
_SMALL = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho"
_SMALL += " varsigma sigma tau upsilon phi chi psi omega"
_CAPITALS = "Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega"
GREEK = {}
for _i, _letter in enumerate(_SMALL.split()):
    GREEK[ord("α") + _i] = rf"\{_letter} "
    if _letter.capitalize() in _CAPITALS.split(" "):
        GREEK[ord("Α") + _i] = rf"\{_letter.capitalize()} "
# LaTeX commands (without their backslash) and operators, each group after its canonical spelling.
# Relations, set operations and brackets become one character, so that texts can be split at them.
SYNONYMS = r"""
    ≤ le leq leqslant <=   ≥ ge geq geqslant >=   ≠ ne neq !=   = equiv   < lt   > gt   ≈ approx
    ± pm +/-   ∞ infty inf infinity   ° circ degree   ¬ not neg lnot   % %   ∈ in   ∪ cup bigcup
    ∩ cap bigcap   ∖ setminus backslash   ∉ notin   ∧ land wedge   ∨ lor vee   × times
    ⦃⦄ emptyset varnothing ∅   ⦃ { lbrace   ⦄ } rbrace   ( langle   ) rangle   | vert lvert rvert
    | mid   * cdot   / div   ^ **   : colon {:}   … ldots cdots dots
    … ...   \frac dfrac tfrac cfrac nicefrac sfrac   \binom dbinom tbinom   \pmod mod bmod
    \to rightarrow longrightarrow implies Rightarrow Longrightarrow
    \leftrightarrow iff Leftrightarrow Longleftrightarrow   Å AA   \triangle bigtriangleup
    \epsilon varepsilon   \phi varphi   \theta vartheta   \log_{10} lg   \overline bar
    \text textbf textit textrm textnormal mbox mathrm operatorname
"""
SPACES = ", ; : > ( ) [ ] quad qquad left right displaystyle textstyle limits"
FONTS = "! $ boldsymbol bm mathbf mathit mathsf mathcal large Large huge underline fbox bf"
ORNAMENTS = "therefore checkmark blacksquare qed"
GROUPS = [
    ("", f"{FONTS} {ORNAMENTS}"),
    (" ", SPACES),
    *re.findall(r"(\S+) (\S+(?: \S+)*)", SYNONYMS),
]
COMMANDS = {" ": " "} | {name: key for key, names in GROUPS for name in names.split()}
# Currencies before a number: "Rs. 500", "USD 5".
SIGN_OF_CODE = {
    "Rs": "₹",
    "INR": "₹",
    "US": r"\$",
    "USD": r"\$",
    "EUR": "€",
    "GBP": "£",
    "RMB": "¥",
}
_CODES = re.compile(
    rf"(?:\\text\w*\{{ ?)?(?<![a-zA-Z])({'|'.join(SIGN_OF_CODE)})\.? ?\}}? ?\\?\$? ?(?=[\d.])"
)


def _as_fraction(decimal: re.Match) -> str:
    integer, prefix, period = decimal.groups(default="")
    numerator = int(integer + prefix + period) - int("0" + integer + prefix)
    return rf"(\frac{{{numerator}}}{{{10 ** len(prefix) * (10 ** len(period) - 1)}}})"


def _derivative(match: re.Match) -> str:
    letters = re.sub(r"[^\da-zA-Z]", "", "".join(filter(None, match.groups())))
    return f"d_{{{letters}}}"


_BOLD = {65 + i: 0x1D400 + i for i in range(26)} | {97 + i: 0x1D41A + i for i in range(26)}
# {...} with two more levels of braces inside.
_GROUP = r"\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\}"
MAX_LENGTH = 3000  # of plain characters; one sign may become a command of ten
# What `_unwrap_braces` unwraps, where it is no argument of a command and no script.
MAX_NESTED_BRACES = 4
_NO_ARGUMENT = r"(?<![a-zA-Z}\]^_])(?:(?<!\d)|(?!\{ ?\d))"
_ATOM = r"\\[a-zA-Z]+|[a-zA-Z]'*|\d+|\([^(){}]*\)|\\text\{[a-zA-Z]+\}"
_SCRIPTS = rf"(?: ?[\^_] ?(?:\w|{_GROUP}))+"
# Square brackets that group: numbers, or a sum with round brackets in it or an exponent behind it.
_GROUPING = re.compile(
    r"(?<!\\sqrt)\[(?:(?=(?:[^\[\],;a-zA-Z\\]|\\(?:frac|sqrt|pi)(?![a-zA-Z]))+\])"
    r"|(?=[^\[\],;]*[-+])(?=[^\[\],;]*(?:\(|\]\^)))([^\[\],;]*)\]"
)
FUNCTION = r"(?:(?:arc)?(?:sin|cos|tan)|cot|sec|csc|log|ln)(?![a-zA-Z])"
# What letters of an answer may be, after it: "for all integers k", "where k is an integer",
# "(k∈\mathbb{Z})", "for 2≤x≤3".
_WORDS = (
    r"(?:\\text\{|\}|\\forall|[ ,(]|(?:for|where|with|if|when|all|any|some|every|each|is|are|an?|be"
    r"|arbitrary|real|integers?|natural|whole|rational|constants?|numbers?|(?:non-?)?negative"
    r"|positive)(?![a-zA-Z]))"
)
_CONDITION = (
    rf"(?<=[^ ,(])(?=[ ,(]*(?:\\text|\\forall|for|where|[(,]))((?:{_WORDS})++)"
    r"([\d.-]+ ?[<≤] ?)?((?:[a-zA-Z](?:_\w)? ?[,∧] ?){0,3}[a-zA-Z](?:_\w)?)"
    rf"(?![\w(^_*/+=-])((?:{_WORDS})*+) ?([∈∉<>≤≥≠][^=]*?)?( ?\))? ?$"
)
_NUMERALS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
_NUMERALS += ["eleven", "twelve"]
_BASES = {word: str(value) for value, word in enumerate(_NUMERALS)} | {"sixteen": "16"}
_SET_OPERATIONS = {"∩": "cap", "∪": "cup", "∖": "minus"}
_POWERS = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
# Words before an answer that do not change it: "\text{The answer is } 5".
_HEADING = (
    r"(?i:(?:so |thus |hence |therefore )?,? ?(?:the )?(?:final |correct )?"
    r"(?:answer|result|value|total|solution)s?(?:(?: is| are):?|:)"
    r"|there (?:is|are)(?: exactly)?|answer:)"
)
# Words of a label that change the number or leave it open: "at least = 5" is no 5.
_NO_EQUALITY = {"not", "or", "either", "least", "most", "than", "except", "half", "twice"}
# And words that may do so, or are units: such a label is not rewritten.
_NO_LABELS = NOT_UNITS | _NO_EQUALITY | {"less", "more", "fewer", "if", "in", "per", "by"}
# Labels that end with ":" must be known, as many change the number: "Loss: 5", "excluding: 5".
_LABEL = re.compile(
    r"(?i:(?:[a-z]+['’]s |total |minimum |maximum |min |max )?(?:ans|age|amount|area|average|center"
    r"|centre|cost|distance|domain|earnings|focus|height|length|maximum|mean|median|minimum|number"
    r"|perimeter|price|probability|product|profit|radius|range|revenue|slope|speed|sum|total"
    r"|value|vertex|volume|width)(?: of (?:solutions|ways))?)"
)


def _as_name(label: re.Match) -> str:
    r"""Write a label as a name: "\text{Profit (USD)} = 7" -> "\text{Profit}=7\text{ USD}"."""
    words, unit, sign, number = label.groups()
    is_name = _LABEL.fullmatch(words) if ":" in sign else True
    used = {*re.findall("[a-z]+", words.lower())}
    if _NO_EQUALITY & used:
        return label[0].replace("=", "")
    if not is_name or _NO_LABELS & used:
        return label[0]
    name = re.sub("[^a-zA-Z]", "", words)
    return rf"\text{{{name}}}=" + (rf"{number}\text{{ {unit}}}" if unit else "")


def _tidy_cases(cases: re.Match) -> str:
    """Remove what may be left out in a definition by cases: commas, "if", "for", "is"."""
    text = re.sub(r"[,.;]? ?& ?(?:\\text\{ ?(?:if|for|when) ?\})? ?", "&", cases[1])
    text = re.sub(r" ?[,.;]? ?(\\\\|$)", r"\1", text.strip())
    text = re.sub(r"\\text\{ ?is ([a-z]+)\}", r"\\text{\1}", text)
    return rf"\begin{{cases}}{text}\end{{cases}}"


_DOMAINS = {"integer": r"\mathbb{Z}", "natural": r"\mathbb{N}", "whole": r"\mathbb{N}"}
_SIGNS = {"positive": ">0", "negative": "<0", "nonnegative": "≥0", "non-negative": "≥0"}
_DOMAINS |= {"rational": r"\mathbb{Q}", "real": "(-∞,∞)"}


def _as_bounds(match: re.Match) -> str:
    """Write the numbers 0,1,2,… or 0,±1,±2,… of a letter as bounds; others, 1,3,5,…, are kept."""
    letter, first, *_ = match.groups()
    numbers = [int(number) for number in re.findall(r"\d", match[0])]
    if numbers != [*range(int(first), int(first) + len(numbers))]:
        return match[0]
    low = "" if "±" in match[0] else f",{letter}≥{first}"
    return rf",{letter}∈\mathbb{{Z}}{low}"


def _as_condition(match: re.Match) -> str:
    r"""Write a condition as relations on its letters: "k∈\mathbb{Z}", "k>0"."""
    before, low, letters, after, relation, end = match.groups(default="")
    words = {*re.findall("[a-z-]+", before + after)}
    names = re.findall(r"[a-zA-Z](?:_\w)?", letters)
    answer = re.findall("[a-zA-Z]", re.sub(r"\\[a-zA-Z]+", "", match.string[: match.start()]))
    is_stated = words - {"text", "a", "an", "is", "are", "be"} or relation
    if not is_stated or not {name[0] for name in names} <= {*answer}:  # 5 \text{b}
        return match[0]
    kinds = [f"∈{domain}" for word, domain in _DOMAINS.items() if words & {word, word + "s"}]
    kinds += [bound for word, bound in _SIGNS.items() if word in words]
    kinds += [relation + end * (before.count("(") == 0)] if relation else []
    return "".join(f",{low}{name}{kind}" for name in names for kind in kinds)


CHARACTER_RULES = {
    r"5 μm -> 5\text{um}": (r"(?<=\d) ?μ([mgslLFAVWC])(?![a-zA-Z])", r"\\text{u\1}"),
    r"\text{ μm} -> \text{ um}": (r"(\{ ?)μ(?=[a-zA-Z])", r"\1u"),
    r"5 kΩ -> 5\text{kohm}": (r"(?<=\d) ?([kM]?)Ω(?!\w)", r"\\text{\1ohm}"),
    r"\text{ kΩ} -> \text{ kohm}": (r"(\{ ?[kM]?)Ω(?=\})", r"\1ohm"),
    "0.3̅ -> 0.\\overline{3}": (
        "(?:\\d[\u0305\u0307])+",
        lambda digits: rf"\overline{{{digits[0][::2]}}}",
    ),
}
BEFORE_UNITS = {
    r"{\color{blue} 5} -> { 5}": (r"\\(?:text)?color ?\{[a-zA-Z]+\}", ""),
    r"\hspace{1cm}5 ->  5": (r"\\[hv]space\*? ?\{[^{}]*\}", " "),
    r"{n \choose 2} -> \binom{n}{2}": (
        r"\{ ?([^{}]*?) ?\\choose(?![a-zA-Z]) ?([^{}]*?) ?\}",
        r"\\binom{\1}{\2}",
    ),
    r"{3 \over 4} -> \frac{3}{4}": (
        r"\{ ?([^{}]*?) ?\\over(?![a-zA-Z]) ?([^{}]*?) ?\}",
        r"\\frac{\1}{\2}",
    ),
    r"3\over4 -> \frac{3}{4}": (  # all of the text: \over divides all before it by all behind it
        r"^ ?(-?) ?(\d+) ?\\over(?![a-zA-Z]) ?(\d+) ?$",
        r"\1\\frac{\2}{\3}",
    ),
    r"1{,}234\,567 -> 1234567": (r"(?<=\d)(?:\{,\}|,? ?\\!|\\[,; ]) ?(?=\d{3}(?!\d))", ""),
    "9 a.m. -> 9 am": (r"\b([apAP])\. ?([mM])\b\.?", r"\1\2"),
    r"1 \\[4pt] 2 -> 1 \\ 2": (r"\\\\ ?\[[\d.]+ ?\w\w\]", r"\\\\"),
    r"\mathbb{R} -> (-∞,∞)": (r"\\math(?:bb|bf) ?\{?R\}?(?![\w^])", "(-∞,∞)"),
    "all reals -> (-∞,∞)": (r"(?i)^(?:\\text\{)? ?all real(?: number)?s ?\}?$", "(-∞,∞)"),
    r"\text{arctg} x -> \text{\arctan} x": (  # but tg may be a product
        r"(?<![a-zA-Z\\])(?:\\|(?<=xt\{)|(?<=rm\{)|(?<=me\{)|(?=arc)"
        r"|(?=c?tg (?:[xyz](?![a-z])|\\(?:alpha|beta|theta|phi|varphi)(?![a-z]))))"
        r"(arc)?(c)?tg(?![a-zA-Z])",
        lambda m: rf"\{m[1] or ''}{'cot' if m[2] else 'tan'}",
    ),
    r"pi -> \pi": (
        r"(?<![a-zA-Z\\])(sqrt|pi|exp|(?:arc)?(?:sin|cos|tan|cot)|sinh|cosh|tanh|csc|ln|log"
        r"|inf[inty]*)(?![a-z])",
        r"\\\1",
    ),
    r"\text{sec} x -> \text{\sec} x": (  # but 5 sec may be seconds
        r"(?<![a-zA-Z\\])sec(?=\}?(?:\^ ?\{?2\}?)?(?:[ ,(]|\\,)*\\?(?:alpha|theta|[a-z])(?![a-z]))",
        r"\\sec",
    ),
    "5!=120 -> 5! =120": (r"(?<=[\d)])!=(?=\d)", "! ="),
    r"\bigl( ->  (": (r"\\[bB]igg?[lr]?(?![a-zA-Z])", " "),
    r"\mathbf{A}\bm x -> 𝐀𝐱": (
        r"\\(?:mathbf|boldsymbol|bm) ?(?:\{ ?([A-Za-z]) ?\}|([A-Za-z])(?![a-zA-Z]))",
        lambda m: (m[1] or m[2]).translate(_BOLD),
    ),
    r"f \circ g -> f∘g": (r"(?<=[a-zA-Z)]) ?(?:\\circ|∘) ?(?=[a-zA-Z(\\])", "∘"),
    r"\left\{x \geq \dfrac{1}{2}\right\} ->  ⦃x ≥ \frac{1}{2} ⦄": (
        r"\\\\|\\([a-zA-Z]+|.)|[<>!]=|\+/-|\*\*|∅|\.\.\.|\{:\}",
        lambda command: COMMANDS.get(command[1] or command[0], command[0]),
    ),
    "a  b -> a b": (r" +", " "),
    "12. -> 12": (r"\\+ ?$|(?<=[\w)\]}%°!⦄∞]) ?[.,;](?=(?: ?\})? ?$)", ""),
    r"30^{\prime} -> 30'": (
        r"\^ ?(\{)?((?: ?\\prime)+) ?(?(1)\})",
        lambda m: "'" * m[2].count("p"),
    ),
    r"\text { and } -> \text{and}": (r"\\text ?\{ ?([^{}]*?) ?\}", r"\\text{\1}"),
    r"\text{an ellipse} -> \text{ellipse}": (
        r"^ ?(\\text\{)(?:[Aa]n|[Tt]he|a(?! and\b)) (?=[a-zA-Z]{3})",
        r"\1",
    ),
    "no real solution exists -> ⦃⦄": (
        r"(?i)^ ?(?:\\text\{)?(?:(?:there (?:is|are) )?no (?:real |integer )?solutions?"
        r"(?: exists?)?|(?:the )?empty set)\}? ?$",
        "⦃⦄",
    ),
    r"\text{does not exist} -> \text{DNE}": (
        r"(?i)^ ?(?:\\text\{)?(?:(?:the )?limit )?(?:does not exist|dne)\}? ?$",
        r"\\text{DNE}",
    ),
    "= 5 -> 5": (r"^ ?(?:=|:|\\to(?![a-zA-Z])) ?(?=[^=:])", ""),
    r"\text{The answer is} 5 -> 5": (rf"^ ?\\text\{{{_HEADING}\}} ?(?=[-\\(\[⦃\d$])", ""),
    r"\text{The answer is 5 cm} -> \text{5 cm}": (
        rf"^ ?\\text\{{{_HEADING} ?(-?\d[^{{}}]*)\}} ?$",
        r"\\text{\1}",
    ),
    "The answer is 5 -> 5": (rf"^ ?{_HEADING} ?(?=[-\\(\[⦃\d$])", ""),
    r"\text{Ann's profit:} 7 -> \text{Annsprofit}=7": (
        r"^ ?\\text\{([a-zA-Z][a-zA-Z'’ -]{2,}?)(?: \(([a-zA-Z]+)\))?( ?:\} ?|\} ?[:=] ?)"
        r"(?=[-(\[⦃\d]|\\(?!text))(?(2)([\d.,]+) ?$)",
        _as_name,
    ),
    r"5 (\text{cm}) -> 5 \text{cm}": (
        r"(?<=\d) ?\( ?(\\text\{(?:[ckm]?m|k?g|mg|s|h|min|m?L)(?:\^\{?[23]\}?)?\}) ?\) ?$",
        r" \1",
    ),
    r"⦃\begin{array}{ll}x&y\end{array} . -> \begin{cases}x&y\end{cases}": (
        r"⦃ ?\\begin\{array\}\{[lcr ]*\}((?:(?!\\end).)*)\\end\{array\} ?\.?",
        r"\\begin{cases}\1\\end{cases}",
    ),
    r"\begin{aligned}x&=3\\y&=2\end{aligned} -> \begin{aligned}x=3\\y=2\end{aligned}": (
        r"(?<=\\begin\{aligned\})(?: ?[a-zA-Z](?:_\{?\w\}?)? ?& ?=[^&=]+?(?:\\\\|(?= ?\\end)))+"
        r"(?= ?\\end\{aligned\} ?$)",
        lambda rows: rows[0].replace("&", ""),
    ),
    r"\begin{cases}x,& \text{if} x>0.\end{cases} -> \begin{cases}x&x>0\end{cases}": (
        r"\\begin\{cases\}((?:(?!\\end|\\begin|&).)*&(?:(?!\\end|\\begin).)*)\\end\{cases\}",
        _tidy_cases,
    ),
    r"\frac{1}{6} (≈ 0.167) -> \frac{1}{6}≈0.167": (
        r"(?<=[\w}]) ?(?:\\text\{ ?)?\( ?(?:\\text\{ ?)?(≈|or|about|approx(?:\.|imately)?) ?\}? ?"
        r"(-?\d*\.\d+) ?(?:\\text\{)?[})]{1,2} ?$",
        lambda m: ("=" if m[1] == "or" else "≈") + m[2],
    ),
    r"\text{five} -> 5": (
        rf"(?i)^ ?(\\text\{{)? ?({'|'.join(_NUMERALS)}) ?(?(1)\}}) ?$",
        lambda m: str(_NUMERALS.index(m[2].lower())),
    ),
    r"1.5 \text{million dollars} -> 1.5*10^{6}\text{ dollars}": (
        rf"(?<=\d) ?(\\text\{{ ?)?({'|'.join(_POWERS)})(?![a-z])(?(1)([^{{}}]*)\}})",
        lambda m: f"*10^{{{_POWERS[m[2]]}}}" + (rf"\text{{{m[3]}}}" if m[3] else ""),
    ),
    r"101_{\text{base} 2} -> 101_{2}": (
        r"_ ?(\{ ?)?\\text\{(?:base ?)?(\} ?)?"
        rf"({'|'.join(_BASES)}|\d\d?)(?(2)|\}})(?(1) ?\}})",
        lambda m: f"_{{{_BASES.get(m[3], m[3])}}}",
    ),
    "x≈7 -> x=7": (r"^ ?((?:[a-zA-Z](?:_\w)?)?) ?≈(?=[^≈]*$)", lambda m: m[1] and f"{m[1]}="),
    "{5^{2}} -> 5^{2}": (rf"^ ?(?={_GROUP} ?$)\{{(.*)\}} ?$", r"\1"),
    r"[\begin{array}{cc}1\\\end{array}] -> \begin{matrix}1\end{matrix}": (
        r"[(\[]? ?(?:\\\\ ?)?\\(begin|end)\{(?:(?:[pbB]|small)?matrix|array)\}"
        r"(?:\{[lcr| ]*\})? ?[)\]]?",
        r"\\\1{matrix}",
    ),
    r"\begin{cases}x=2\\y=3\end{cases} -> x=2,y=3": (
        r"^ ?\\begin\{(?:cases|aligned)\}([^&]*?)(?:\\\\)? ?\\end\{(?:cases|aligned)\} ?$",
        lambda m: re.sub(r",? ?\\\\", ",", m[1]),
    ),
    r"\text{Monday and Tuesday} -> \text{Monday}∧\text{Tuesday}": (
        r"^ ?(\\text\{)? ?((?(1)[^{}\d]|[a-zA-Z ])+?),? (and|or) "
        r"((?(1)[^{}\d]|[a-zA-Z ])+)(?(1)\}) ?$",
        lambda m: rf"\text{{{m[2]}}}" + ("∧" if m[3] == "and" else "∨") + rf"\text{{{m[4]}}}",
    ),
    r"3 \text{cm and} 5 -> 3 \text{cm}∧ 5": (
        r"(\\text\{[^{}]*[^{} ]) (and|or)\}",
        lambda m: m[1] + "}" + ("∧" if m[2] == "and" else "∨"),
    ),
    r"1, 2 \text{and} 3 -> 1, 2∧ 3": (
        r",? ?(?:\\text\{(and|or)\}|(?<![a-zA-Z{ ]) ?(and|or)(?![a-zA-Z])"
        r"|(?<=[a-z]) (and|or) (?=\d))",
        lambda word: "∧" if "and" in word[0] else "∨",
    ),
    r"k\pi \text{for all integers} k -> k\pi,k∈\mathbb{Z}": (_CONDITION, _as_condition),
    r"(mod 4) -> \pmod{4}": (r"\(? ?(?:\\text\{mod\}|\\?p?mod) ?(\d+) ?\)?", r"\\pmod{\1}"),
    r"5 \text{per cent} -> 5%": (
        r" ?(\\text\{)?(?<![a-zA-Z])(?:per ?cent(?:age)?|pct)\b(?(1)\})",
        "%",
    ),
    r"1.2 x 10^{-5} -> 1.2*10^{-5}": (r"(?<=\d) ?[xX] ?(?=10 ?\^)", "*"),
    r"0.\dot{1}2\dot{3} -> 0.\overline{123}": (
        r"\\dot ?\{?(\d)\}?(?:(\d*)\\dot ?\{?(\d)\}?)?",
        r"\\overline{\1\2\3}",
    ),
    r"0.1(6) -> 0.1\overline{6}": (
        r"(?<![^ =(,;])(-? ?\d*\.\d*)\((\d+)\)(?= ?(?:$|[,;=)]))",
        r"\1\\overline{\2}",
    ),
    r"20\text{ °C} -> 20\text{degC}": (r"\\text\{ ?° ?([CF])\}", r"\\text{deg\1}"),
    r"20^{° }\text{C} -> 20\text{degC}": (
        r"(?:\^ ?)?(?:\{ ?)?° ?\}? ?(\\text\{)?([CF])(?![a-zA-Z])(?(1)\})",
        r"\\text{deg\2}",
    ),
    r"5 \mu\text{m} -> 5 \text{um}": (r"\\mu ?\\text\{([a-zA-Z]+)\}", r"\\text{u\1}"),
    r"\frac{\text{kg}}{\text{m}^3} -> \text{kg/m}^3": (
        r"\\frac ?\{\\text\{([^{}]*)\}\} ?\{\\text\{([^{}]*)\}( ?\^ ?\{?\d\}?)?\}",
        r"\\text{\1/\2}\3",
    ),
    r"\sqrt {x} -> \sqrt{x}": (r"(\\(?:frac|sqrt|binom|text|overline|vec|hat)) (?=\{)", r"\1"),
    r"\frac{1} {2} -> \frac{1}{2}": (rf"(\\(?:frac|binom){_GROUP}) (?=\{{)", r"\1"),
    r"d\omega/dt -> \frac{d\omega}{dt}": (
        r"(?<![a-zA-Z\\}])(d|\\partial ?)(\\[a-zA-Z]+ ?|[a-zA-Z])"
        r"/\1(\\[a-zA-Z]+ ?|[a-zA-Z])(?![a-zA-Z])",
        r"\\frac{\1\2}{\1\3}",
    ),
    r"5 \mu F -> 5\text{uF}": (r"(?<=\d) ?\\mu ?([mgslLFAVWC])(?![a-zA-Z])", r"\\text{u\1}"),
    r"4 k\Omega -> 4\text{kohm}": (
        r"(?<=\d) ?(?:\\text\{ ?)?([kM]?)\}? ?\\Omega ?\}?$",
        r"\\text{\1ohm}",
    ),
    r"5 \frac{m}{s^2} -> 5\text{m/s^2}": (
        r"(?<=\d) ?\\frac ?\{ ?([ck]?m|mi|k?g) ?\}\{ ?(h|s|min|[ck]?m) ?(\^ ?\{?\d\}?)? ?\}",
        r"\\text{\1/\2\3}",
    ),
    r"\text{5 cm} -> 5\text{cm}": (
        r"\\text\{(-?[\d.,:/]+(?: ?%)?) ?([a-zA-Z][^{}\d]*)\}",
        r"\1\\text{\2}",
    ),
    r"12^{\text{th}} -> 12": (r"(?<=\d) ?\^? ?(\{ ?)?\\text\{(?:st|nd|rd|th)\}(?(1) ?\})", ""),
    "21st -> 21": (r"(?:(?<=\d)(\^\{)?th(?(1)\})|(?<=1)st|(?<=2)nd|(?<=3)rd)(?![a-zA-Z])", ""),
}
AFTER_UNITS = {
    r"\text{\pi} ->  \pi ": (r"\\text\{((?:[^{}a-zA-Z]|\\[a-zA-Z]++|\{[^{}]*\})*)\}", r" \1 "),
    r"\text{(B)} ->  (B) ": (r"\\text\{(\(?[A-Za-z]\)?|[A-Z]{2,4})\}", r" \1 "),
    "x= 1 234.5 -> x=1234.5": (  # but 1 234/567 is a mixed number
        r"(?:^|=) ?-?[1-9]\d{0,2}( |(,))\d{3}(?:\1\d{3})*"
        rf"(?=(?:\.\d+|(?(2)/\d+))?(?:[ %]|{MARK})*$)",
        lambda number: re.sub("[ ,]", "", number[0]),
    ),
    "50,000-1=49,999 -> 50000-1=49999": (  # but (1,234) is a pair
        r"^(?=.+=)(?!.*\([\d,]+\))(?:[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?(?![\d.,])"
        rf"|\d+(?:\.\d+)?(?![\d.,])|[-+*/×()= ]|{MARK})++$",
        lambda chain: chain[0].replace(",", ""),
    ),
    r"11 5/6 -> 11\frac{5}{6}": (r"(?<![\d.,])(\d+) (\d+) ?/ ?(\d+)(?![\d.])", r"\1\\frac{\2}{\3}"),
    r"\frac12 -> \frac{1}2": (r"\\(frac|binom)(?: ?(\d|\\pi)| ([a-zA-Z])) ?", r"\\\1{\2\3}"),
    r"\frac{1}2 -> \frac{1}{2}": (rf"(\\(?:frac|binom){_GROUP}) ?([^\W_]|\\pi)", r"\1{\2}"),
    "10^-5 -> 10^{-5}": (r"\^-(\d*\.?\d+|[a-zA-Z](?![a-zA-Z]))", r"^{-\1}"),
    r"\sqrt\frac{1}{2} -> \sqrt{\frac{1}{2}}": (
        rf"\\sqrt ?(\\frac{_GROUP}{_GROUP})",
        r"\\sqrt{\1}",
    ),
    r"\sqrt2 -> \sqrt{2}": (r"\\sqrt(\[\d+])? ?(\d+|\w|\\pi)", r"\\sqrt\1{\2}"),
    r"v_{\text{max}} -> v_{max}": (r"_(\{)?\\text\{(\w+)\}(?(1)\})", r"_{\2}"),
    r"x^\frac{1}{2} -> x^{\frac{1}{2}}": (
        rf"([\^_]) ?(-?\\(?:(?:frac|binom){_GROUP}{_GROUP}|sqrt(?:\[\d+\])?{_GROUP}|text{_GROUP}))",
        r"\1{\2}",
    ),
    r"\frac{d\omega}{dt} -> d_{omegat}": (
        r"\\frac\{ ?d ?(\^\{?\d\}?)? ?(\\?[a-zA-Z]+) ?\}\{ ?d ?([a-zA-Z])(?:\^\{?\d\}?)? ?\}",
        _derivative,
    ),
    "52_8 -> 52_{8}": (r"(?<=\d) ?_ ?(?:(\d+)|\{ ?\(?(\d+)\)? ?\})|_ ?(\w)", r"_{\1\2\3}"),
    # A mixed number is a sum; the parser of values would take it for a product.
    r"1\frac{3}{4} -> (1+\frac{3}{4})": (r"(?<![\d.,}^_])(\d+) ?(\\frac{\d+}{\d+})", r"(\1+\2)"),
    r"1.\overline6 -> (\frac{15}{9})": (r"(\d*)\.(\d*)\\overline ?{?(\d+)}?(?! ?\d)", _as_fraction),
    # Two numbers side by side are not a product. The "?" makes the text unparsable.
    "5 6 -> 5?6": (r"(?<=[\d.]) +(?=[\d.])|(?<=\d)\{(?=\d)|(?<![a-zA-Z}\]^_])\{(?=\d+\}\d)", "?"),
    "n!^2 -> (n!)^2": (r"(\d+|[a-zA-Z]|\([^()]*\))!(?=\^)", r"(\1!)"),
    r"\ln x*\ln y -> \ln( x)*\ln y": (  # the parser would take it for \ln(x*\ln y)
        rf"(\\{FUNCTION}(?:[_^](?:\w|{_GROUP}))*)"
        rf"((?:[^-+*/(){{}}\\|,;=<>≤≥≠≈]|\\(?!{FUNCTION})[a-zA-Z]++|{_GROUP})++)(?=\*|/\\{FUNCTION})",
        r"\1(\2)",
    ),
    r"2  \pi  r + 1 -> 2\pi r+1": (r"(\\[a-zA-Z]+ ) *(?=[a-zA-Z])| ", r"\1"),
    "(1,+∞) -> (1,∞)": (r"(?<![^=(\[,;])\+", ""),
    "x=y=z=1 -> x=1,y=1,z=1": (
        r"(?<![^,=])([a-z])=(?=(?:[a-z]=){1,5}(?![a-z]\b)([^=,]{1,99})(?:$|,))",
        r"\1=\2,",
    ),
    "A∩B=⦃2⦄ -> A_{capB}=⦃2⦄": (  # a name, which may be left out but not replaced
        r"^\(?([A-Z])([∩∪∖])([A-Z])\)?=(?=[⦃(\[])",
        lambda m: f"{m[1]}_{{{_SET_OPERATIONS[m[2]]}{m[3]}}}=",
    ),
    r"2k+1(k=0,1,2,…) -> 2k+1,k∈\mathbb{Z},k≥0": (
        r"(?<=[^,(])[,(]{1,2}([a-zA-Z])=([01])(,±?\d){1,4},?…\)?$",
        _as_bounds,
    ),
    r"\vec a -> \vec{a}": (r"\\vec ([a-zA-Z])", r"\\vec{\1}"),
    "2𝐢-3𝐣 -> 2i-3j": (  # but 𝐀𝐁 is not 𝐁𝐀
        r"^(?!.*[𝐀-𝐳](?:[_^](?:\w|\\top ?|\{[^{}]*\})|['*×(])*[𝐀-𝐳]).*[𝐀-𝐳].*$",
        lambda text: plain(text[0]),
    ),
    # Products of vectors: the others have one sign.
    "2×3 -> 2*3": (
        r"^(?!.*(?:[𝐀-𝐳]|\\(?:vec|nabla|hat|over[a-z]+)(?![a-z])|[A-Z]['}]*×|×[A-Z])).*×.*$",
        lambda text: text[0].replace("×", "*"),
    ),
}


class Spelling(NamedTuple):
    """text: canonical, without units. units: of each part of the text. base: "8" of 52_8, or ""."""

    text: str
    units: tuple[Unit, ...]
    base: str


def _unescape(text: str) -> str:
    r"""Undo a second escaping, as of a JSON file: "\\frac{1}{2}" -> "\frac{1}{2}". Then every
    backslash is double, while "1\\2" in a matrix stands beside a single one, \begin."""
    runs = re.findall(r"(\\+)(\w+|.|$)", text)
    is_doubled = all(len(run) % 2 == 0 for run, _ in runs)
    is_command = any(len(name) > 1 or name in [*"{}%$,!;"] for _, name in runs)
    return text.replace("\\\\", "\\") if is_doubled and is_command else text


def _plain_characters(text: str) -> str:
    r"""Replace characters: "2¼" -> "2\frac{1}{4}", "x²" -> "x^{2}", "ω" -> "\omega "."""
    quotient = re.compile("[¼-¾⅐-⅞]")
    text = quotient.sub(lambda m: unicodedata.normalize("NFKC", rf"\frac⦃{m[0]}⦄"), text)
    text = re.sub("⦃(.+?)⁄(.+?)⦄", r"{\1}{\2}", text)
    text = re.sub("([²³¹⁰-ⁿᴬ-ᵡ]+)", r"^{\1}", re.sub("([₀-ₜᵢ-ᵥ]+)", r"_{\1}", text))
    text = unicodedata.normalize("NFKC", text.translate(CHARACTERS))
    for pattern, replacement in CHARACTER_RULES.values():
        text = re.sub(pattern, replacement, text)
    text = text.translate(GREEK)
    digits = {char: str(unicodedata.digit(char)) for char in {*text} if char.isdecimal()}
    # An invisible character becomes a space, so that 4<NUL>2 is not 42.
    spaces = {char: " " for char in {*text} if unicodedata.category(char)[0] == "C"}
    return text.translate(str.maketrans(digits | spaces))


def _closing(text: str, start: int) -> int:
    """Return where the round bracket that opens before `start` is closed, or -1."""
    depth = 1
    for bracket in re.compile(r"[()]").finditer(text, start):
        depth += 1 if bracket[0] == "(" else -1
        if depth == 0:
            return bracket.start()
    return -1


def _brace_scripts(text: str) -> str:
    r"""Replace round brackets of exponents, indices and roots: "2^(1/4)" -> "2^{1/4}"."""
    position = 0
    while script := re.compile(r"([\^_]|\\sqrt(?:\[\d+\])?) ?\(").search(text, position):
        position, end = script.end(), _closing(text, script.end())
        if end >= 0:
            start = script.end(1)
            text = f"{text[:start]}{{{text[position:end]}}}{text[end + 1 :]}"
            position = start + 1
    return text


def _unwrap_braces(text: str) -> str:
    r"""Remove braces that group an atom and its scripts: "{{a}_{n}}" -> "a_{n}"."""
    for _ in range(MAX_NESTED_BRACES):
        unwrapped = re.sub(rf"{_NO_ARGUMENT}\{{ ?({_ATOM}) ?\}}(?![a-zA-Z\d])", r"\1", text)
        unwrapped = re.sub(
            rf"{_NO_ARGUMENT}\{{ ?((?:{_ATOM}) ?{_SCRIPTS})\}}"
            r"(?! ?[\^_!])(?:(?<=\}\})|(?! ?[a-zA-Z\d]))",
            r"\1",
            unwrapped,
        )
        if unwrapped == text:
            break
        text = unwrapped
    return text


def _group_brackets(text: str) -> str:
    """Replace square brackets that group: "2[3+[4+5]]" -> "2(3+(4+5))", "[(x-a)^2+1]", "[x+1]^2".
    [x+1] alone may be the integer part of x+1, and [0,1] is an interval."""
    for _ in range(MAX_NESTED_BRACES):
        grouped = _GROUPING.sub(r"(\1)", text)
        if grouped == text:
            break
        text = grouped
    return text


def _currency(text: str) -> Unit:
    """Return the unit of the currency signs in a text; one "$" of a pair encloses mathematics."""
    signs = {sign for sign in SIGNS if sign in text}
    if r"\$" in text or text.count("$") % 2:
        signs.add("$")
    return frozenset().union(*map(read_unit, signs))


@functools.lru_cache(maxsize=1024)  # the completions of a group share their gold
def canonicalize(text: str) -> Spelling:
    """Return the canonical spelling of `text`, and its units: "5 m^2" and "5 square meters" both
    give "5" and {("m", 2)}."""
    text = _CODES.sub(lambda code: SIGN_OF_CODE[code[1]], _unescape(text))
    currency = _currency(text)
    text = _plain_characters(text)
    if len(text) > MAX_LENGTH:
        return Spelling(text, (frozenset(),), "")
    for pattern, replacement in BEFORE_UNITS.values():
        text = re.sub(pattern, replacement, text)
    text, units = mark_units(_unwrap_braces(_brace_scripts(text)))
    for pattern, replacement in AFTER_UNITS.values():
        text = re.sub(pattern, replacement, text)
    text, parts = split_units(_group_brackets(text), units)
    numeral = re.fullmatch(r"([^=]*=)?(\()?(\d+)(?(2)\))_\{(\d+)\}", text)
    if numeral:  # 52_8: the base may be left out, as a unit
        text = (numeral[1] or "") + numeral[3]
    parts = tuple(part | currency for part in parts)
    return Spelling(text, parts, numeral[4] if numeral else "")
