r"""One spelling for each thing: `read` turns what people write in a box into the few forms
that verify.py compares, by the rules of one table, each with an example of what it does."""

import functools
import re
import unicodedata

CHARACTERS = str.maketrans(
    {"−": "-", "–": "-", "‑": "-", "×": "*", "·": "*", "÷": "/", "~": " "}
    | {"π": r"\pi ", "√": r"\sqrt ", "½": r"\frac12 "}
    | dict.fromkeys("$€£", " ")
    | {digit: f"^{unicodedata.digit(digit)}" for digit in "⁰¹²³⁴⁵⁶⁷⁸⁹"}
    | {digit: f"_{unicodedata.digit(digit)}" for digit in "₀₁₂₃₄₅₆₇₈₉"}
)
# One character for each relation, set operation and bracket, so that texts can be cut at them.
SYNONYMS = {
    "≤": "le leq leqslant <=",
    "≥": "ge geq geqslant >=",
    "≠": "ne neq !=",
    "<": "lt",
    ">": "gt",
    "∈": "in",
    "∪": "cup",
    "±": "pm",
    "∞": "infty",
    "≈": "approx",
    "°": "circ degree",
    "¬": "not neg lnot",
    "⦃⦄": "emptyset varnothing ∅",
    "⦃": "{ lbrace",
    "⦄": "} rbrace",
    "(": "langle",
    ")": "rangle",
    "|": "vert lvert rvert",
    "%": "%",
    "*": "cdot times",
    "/": "div",
    "^": "**",
    ":": "colon",
    ",": "lor land vee wedge",
    "…": "ldots cdots dots ...",
    r"\frac": "dfrac tfrac cfrac",
    r"\binom": "dbinom tbinom",
    r"\text": "textbf textit textrm textnormal mbox mathrm mathbf operatorname",
    " ": ", ; : > ( ) quad qquad left right big Big bigl bigr displaystyle",
    "": "! $ boldsymbol bm mathit mathsf underline fbox bf",
}
COMMANDS = {name: spelling for spelling, names in SYNONYMS.items() for name in names.split()}
COMMANDS[" "] = " "  # backslash, space

# Words that change what the number before them claims; others behind it are taken for a unit.
CLAIMS = """
    k K M B i e x pi alpha beta gamma delta theta lambda sigma omega phi infinity or and no not
    non is to than but wrong false negative plus minus times over root squared cubed factorial
    mod modulo log sin cos tan sine cosine tangent logarithm ish half halves third quarter
    fourth fifth sixth seventh eighth ninth tenth hundredth thousandth double twice dozen score
    hundred thousand million billion trillion bn mil lakh crore zero one two three four five six
    seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen
    nineteen twenty thirty forty fifty sixty seventy eighty ninety
    """
CLAIMS = {form for word in CLAIMS.split() for form in (word, word + "s")}
# 5 cm is not 5 m: units that are told apart, each with its spellings.
SIZES = """
    mm,millimeter,millimetre cm,centimeter,centimetre m,meter,metre km,kilometer,kilometre
    in,inch,inche ft,foot,feet yd,yard mi,mile g,gram kg,kilogram s,sec,second min,minute h,hr,hour
    day week month year cent dollar,$ €,euro £ am pm degree,° radian,rad %
    """
SIZES = {name: names for names in SIZES.split() for name in names.split(",")}
POWERS = {"sq": "2", "cu": "3"}

_TEXT = r"\\text ?\{ ?[A-Za-z](?:[A-Za-z/. -]|\^(?:-?[123]|\{-?[123]\}))*\}"
_POWER = r"(?: ?\^ ?\{?-?[123]\}?)?"
_RATE = r"(?:[ckm]?m|mi|ft|k?g)/(?:hr?|s|sec|min|c?m)"
# What stands behind a number and before the end of a part.
_UNIT = re.compile(
    rf"(?:(?<=[^ ,;=({{⦃]) *{_TEXT}{_POWER}(?: ?[/*]? ?{_TEXT}{_POWER})*"
    rf"|(?:(?<=[\d}}])|(?<=\\pi)) ?(?:{_RATE}|[ckm]m|kg|(?:\b(?:[a-z]{{4,}}|per|in) ?)+){_POWER}"
    r"|(?:(?<=\d) |(?<=:\d\d))(?i:[ap]m))(?= *(?:$|[,;=≈)⦄]))"
)


def _claims(word: str) -> bool:
    parts = re.fullmatch(r"(?!mon)\w+ths|\w+(?:teen|ie|lf)th", word.lower())
    return bool(parts or {word, word.lower()} & CLAIMS)


def _repeating(decimal: re.Match) -> str:
    whole, start, again = decimal.groups(default="")
    top = int(whole + start + again) - int("0" + whole + start)
    return rf"(\frac{{{top}}}{{{10 ** len(start) * (10 ** len(again) - 1)}}})"


def _closed_up(number: re.Match) -> str:
    return re.sub("[ ,]", "", number[0])


_GROUP = r"\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}"
_MATRIX = r"\{(?:(?:[pbB]|small)?matrix|array)\}"

# Example: pattern, replacement.
BEFORE_UNITS = {
    r"1{,}234\,567 -> 1234567": (r"(?<=\d)(?:\{,\}|,? ?\\!|\\[,; ]) ?(?=\d{3}(?!\d))", ""),
    "3{:}30 -> 3:30": (r"\{:\}", ":"),
    "9 a.m. -> 9 am": (r"\b([apAP])\. ?([mM])\b\.?", r"\1\2"),
    "12. -> 12": (r"\\+ ?$|(?<=[\w)\]}%°]) ?\.(?=(?: ?\})? ?$)", ""),
    r"1 \\[4pt] 2 -> 1 \\ 2": (r"\\\\ ?\[[\d.]+ ?\w\w\]", r"\\\\"),
    r"\mathbb{R} -> (-∞,∞)": (r"\\mathbb ?\{?R\}?(?![\w^])", "(-∞,∞)"),
    r"\color{red}{5} -> {5}": (r"^ ?\\(?:text)?color ?\{\w+\}", ""),
    r"\left\{x \geq \dfrac{1}{2}\right\} ->  ⦃x ≥ \frac{1}{2} ⦄": (
        r"\\\\|\\([a-zA-Z]+|.)|[<>!]=|\*\*|∅|\.\.\.",
        lambda command: COMMANDS.get(command[1] or command[0], command[0]),
    ),
    "a  b -> a b": (r" +", " "),
    r"\text { and } -> \text{and}": (r"\\text ?\{ ?([^{}]*?) ?\}", r"\\text{\1}"),
    r"{3\over 4} -> \frac{3}{4}": (r"\{([^{}]*)\\over ([^{}]*)\}", r"\\frac{\1}{\2}"),
    "{5^{2}} -> 5^{2}": (rf"^ ?{_GROUP} ?$", r"\1"),
    r"[\begin{array}{cc}1 -> \begin{matrix}1": (
        rf"[(\[]? ?\\begin{_MATRIX}(?:\{{[lcr| ]*\}})?",
        r"\\begin{matrix}",
    ),
    r"1\\\end{pmatrix} -> 1\end{matrix}": (rf"(?:\\\\ ?)?\\end{_MATRIX} ?[)\]]?", r"\\end{matrix}"),
    r"1, 2 \text{and} 3 -> 1, 2, 3": (
        r",? ?(?:\\text\{(?:and|or)\}|(?<![a-zA-Z{ ]) ?(?:and|or)(?![a-zA-Z]))",
        ",",
    ),
    r"5 \text{percent} -> 5%": (r" ?(\\text\{)?\b(?:percent(?:age)?|pct)\b(?(1)\})", "%"),
    r"\text{5 cm} -> 5\text{cm}": (r"\\text\{(-?[\d.,/]+) ?([a-zA-Z][^{}\d]*)\}", r"\1\\text{\2}"),
    r"12^{\text{th}} -> 12": (r"(?<=\d) ?\^? ?(\{ ?)?\\text\{(?:st|nd|rd|th)\}(?(1) ?\})", ""),
    "21st -> 21": (r"(?:(?<=\d)(\^\{)?th(?(1)\})|(?<=1)st|(?<=2)nd|(?<=3)rd)(?![a-zA-Z])", ""),
    "60 mph -> 60 mi/h": (r"\bmph\b", "mi/h"),
}
AFTER_UNITS = {
    "90^{°} -> 90 ": (r"\^ ?\{? ?° ?\}?|°", " "),
    r"\text{\frac{1}{2}} -> \frac{1}{2}": (
        r"^ ?\\text ?\{((?:[^{}a-zA-Z]|\\[a-zA-Z]+|\{[^{}]*\})+)\} ?$",
        r"\1",
    ),
    r"\text{(B)} ->  (B) ": (r"\\text\{([-+]?[\d./]+|\(?[A-Za-z]\)?)\}", r" \1 "),
    "-1 234.5 -> -1234.5": (r"^ ?-?\d{1,3}(?: \d{3})+(?=(?:\.\d+)? ?$)", _closed_up),
    "x= 1,234.5 -> x=1234.5": (r"(?:^|=) ?-?\d{1,3}(?:,\d{3})+(?=(?:\.\d+)?[ %]*$)", _closed_up),
    r"11 5/6 -> 11\frac{5}{6}": (r"(?<![\d.,])(\d+) (\d+) ?/ ?(\d+)(?![\d.])", r"\1\\frac{\2}{\3}"),
    r"\frac12 -> \frac{1}2": (r"\\frac(?: ?(\d|\\pi)| ([a-zA-Z])) ?", r"\\frac{\1\2}"),
    r"\frac{1}2 -> \frac{1}{2}": (rf"(\\frac{_GROUP}) ?([^\W_]|\\pi)", r"\1{\3}"),
    r"\sqrt 13 -> \sqrt{13}": (r"\\sqrt ?(?:(\d+)|\(([^()]*)\))", r"\\sqrt{\1\2}"),
    r"\sqrt[3]2 -> \sqrt[3]{2}": (r"\\sqrt ?(\[\d+\]) ?(\d)", r"\\sqrt\1{\2}"),
    r"3 \pmod 5 -> 3 \pmod{5}": (r"\\pmod ?(\d+)", r"\\pmod{\1}"),
    "52_8 -> 52_{8}": (r"(?<=\d) ?_ ?(?:(\d+)|\{ ?\(?(\d+)\)? ?\})|_ ?(\w)", r"_{\1\2\3}"),
    # This is no product, and the parser is told so.
    r"1\frac{3}{4} -> (1+\frac{3}{4})": (
        r"(?<![\d.,}^_])(\d+) ?\\frac\{(\d+)\}\{(\d+)\}",
        r"(\1+\\frac{\2}{\3})",
    ),
    r".1\overline{6} -> (\frac{15}{90})": (
        r"(\d*)\.(\d*)\\(?:overline|bar) ?\{(\d+)\}",
        _repeating,
    ),
    # Two numbers side by side are none either.
    "5 6 -> 5?6": (r"(?<=[\d.]) +(?=[\d.])|(?<=\d)\{(?=\d)", "?"),
    "{5}6 -> ?5}6": (r"(?<![a-zA-Z}\]^_])\{(?=\d+\}\d)", "?"),
    r"2 \pi r + 1 -> 2\pi r+1": (r"(\\[a-zA-Z]+ (?=[a-zA-Z]))| ", r"\1"),
    "(1,+∞) -> (1,∞)": (r"(?<![^=(\[,])\+", ""),
    # A set without one of its points is a union.
    r"(0,9)\setminus⦃4⦄ -> (0,4)∪(4,9)": (
        r"([(\[])([^,]*),([^,]*)([)\]])\\setminus⦃([^,⦄]*)⦄",
        r"\1\2,\5)∪(\5,\3\4",
    ),
}


@functools.lru_cache(maxsize=1024)  # the completions of a group share their gold
def read(text: str) -> tuple[str, frozenset]:
    """One spelling of `text`, and the units in it with their powers: "5 cm^2" and "5 square cm" are
    both ("5", {("cm,centimeter,centimetre", "2")})."""
    units = {(SIZES["$"], "1")} if r"\$" in text or text.count("$") % 2 else set()
    text = unicodedata.normalize("NFKC", text.translate(CHARACTERS))
    # An unseen character must not glue what it separates: 4<NUL>2 is not 42.
    text = "".join(" " if unicodedata.category(one)[0] == "C" else one for one in text)
    for pattern, replacement in BEFORE_UNITS.values():
        text = re.sub(pattern, replacement, text)

    def without(unit: re.Match) -> str:
        words = re.findall("[A-Za-z]+", unit[0])
        number = re.search(r"[\d%]|\\pi", text[: unit.start()])
        if not number or any(map(_claims, words)):
            return unit[0]
        found = r"(?<![a-zA-Z\\])(?:(sq|cu)[a-z]* )?([a-zA-Z]+)(?:\W{0,2}\^\W?(\d))?"
        for shape, name, power in re.findall(found, unit[0]):
            name = name.lower()
            one = name if name in SIZES or len(name) < 3 else name.removesuffix("s")
            if one in SIZES:
                units.add((SIZES[one], power or POWERS.get(shape, "1")))
        return ""

    units |= {(SIZES[mark], "1") for mark in "%°" if mark in text}
    text = _UNIT.sub(without, text)
    for pattern, replacement in AFTER_UNITS.values():
        text = re.sub(pattern, replacement, text)
    return text, frozenset(units)
