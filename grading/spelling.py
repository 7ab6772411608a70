r"""Canonical spelling of answers: one way to write each thing, in place of many.

`canonicalize` replaces CHARACTERS, applies the rules BEFORE_UNITS, removes units and applies the
rules AFTER_UNITS, in the order written. A rule is a regular expression and its replacement. Its key
is an example, which tests/plumbing/test_spelling.py runs.
"""

import functools
import re
import unicodedata

from grading.structure import plain

CHARACTERS = str.maketrans("−⁻–‑·⋅÷≡~$€£¥₹", "----**/=      ")
CHARACTERS |= str.maketrans({"π": r"\pi ", "√": r"\sqrt ", "½": r"\frac12 ", "ℝ": r"\mathbb{R}"})
# LaTeX commands (without their backslash) and operators, each group after its canonical spelling.
# Relations, set operations and brackets become one character, so that texts can be split at them.
SYNONYMS = r"""
    ≤ le leq leqslant <=   ≥ ge geq geqslant >=   ≠ ne neq !=   = equiv   < lt   > gt   ≈ approx
    ± pm +/-   ∞ infty inf infinity   ° circ degree   ¬ not neg lnot   % %   ∈ in   ∪ cup bigcup
    ∩ cap bigcap   ∖ setminus backslash   ∉ notin   ∧ land wedge   ∨ lor vee   × times
    ⦃⦄ emptyset varnothing ∅   ⦃ { lbrace   ⦄ } rbrace   ( langle   ) rangle   | vert lvert rvert
    | mid   * cdot   / div   ^ **   : colon {:}   … ldots cdots dots
    … ...   \frac dfrac tfrac cfrac   \binom dbinom tbinom   \pmod mod bmod
    \epsilon varepsilon   \phi varphi   \theta vartheta   \log_{10} lg   \overline bar
    \text textbf textit textrm textnormal mbox mathrm operatorname
"""
SPACES = ", ; : > ( ) [ ] quad qquad left right displaystyle textstyle limits"
FONTS = "! $ boldsymbol bm mathbf mathit mathsf mathcal large Large huge underline fbox bf"
GROUPS = [("", FONTS), (" ", SPACES), *re.findall(r"(\S+) (\S+(?: \S+)*)", SYNONYMS)]
COMMANDS = {" ": " "} | {name: key for key, names in GROUPS for name in names.split()}

# Words that are not units: they change the number before them. So do numerals and most letters.
NOT_UNITS = """
    k K M B i e x pi alpha beta gamma delta theta lambda sigma omega phi infinity or and no not non
    is to than but wrong false negative repeating recurring binary plus minus times over root
    squared cubed factorial mod modulo log sin cos tan sine cosine tangent logarithm ish half
    halves third quarter fifth eighth ninth double twice dozen score hundred thousand bn mil lakh
    crore zero one two three four five six seven eight nine ten eleven twelve twenty thirty forty
    fifty sixty seventy eighty ninety
    """
NOT_UNITS = {word + ending for word in NOT_UNITS.split() for ending in ("", "s", "th")}
_NO_UNIT = re.compile(r"(?!mon)\w+ths|\w+(?:ie|lf)th|\w+(?:teen|illion)(?:s|th)?|[bdo-rtuyz]")
# Units that are compared (5 cm is not 5 m), each with its spellings. Other units are ignored.
UNITS = """
    mm,millimeter,millimetre cm,centimeter,centimetre m,meter,metre km,kilometer,kilometre
    in,inch,inche ft,foot,feet yd,yard mi,mile g,gram kg,kilogram s,sec,second min,minute h,hr,hour
    day week month year cent dollar,$ euro am pm degree,° radian,rad % c,celsius f,fahrenheit
    l,liter,litre ml,milliliter,millilitre mg,milligram lb,pound oz,ounce n,newton kn j,joule kj
    w,watt kw,kilowatt v,volt amp,ampere hz,hertz khz mhz ghz ev kev mev gev yuan
    """
UNITS = {name: names for names in UNITS.split() for name in names.split(",")}

_TEXT = r"\\text ?\{ ?[A-Za-z](?:[A-Za-z/.* -]|\^(?:-?[123]|\{-?[123]\}))*\}"
_POWER = r"(?: ?\^ ?\{?-?[123]\}?)?"
_RATE = r"(?:[ckm]?m|mi|ft|k?g)/(?:hr?|s|sec|min|c?m)"
_WORDS = r"(?:\b(?:[a-z]{4,}|per|in|ft|sq|cu|[ckm]m|lbs?|min|sec|oz) ?)+"
# Units between a number and the end of a part: \text{...}, rates such as km/h, or words.
_UNIT = re.compile(
    rf"(?:(?<=[^ ,;=({{⦃]) *{_TEXT}{_POWER}(?: ?(?:[/*] ?)?{_TEXT}{_POWER})*"
    rf"|(?:(?<=[\d}}])|(?<=\\pi)) ?(?:{_RATE}|[ckm]m|kg|{_WORDS}){_POWER}"
    r"|(?:(?<=\d) |(?<=:\d\d))(?i:[ap]m))(?= *(?:$|[,;=≈)⦄∧∨]))"
)


def _as_fraction(decimal: re.Match) -> str:
    integer, prefix, period = decimal.groups(default="")
    numerator = int(integer + prefix + period) - int("0" + integer + prefix)
    return rf"(\frac{{{numerator}}}{{{10 ** len(prefix) * (10 ** len(period) - 1)}}})"


_BOLD = {65 + i: 0x1D400 + i for i in range(26)} | {97 + i: 0x1D41A + i for i in range(26)}
# {...} with two more levels of braces inside.
_GROUP = r"\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\}"
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
_DOMAINS = {"integer": r"\mathbb{Z}", "natural": r"\mathbb{N}", "whole": r"\mathbb{N}"}
_SIGNS = {"positive": ">0", "negative": "<0", "nonnegative": "≥0", "non-negative": "≥0"}
_DOMAINS |= {"rational": r"\mathbb{Q}", "real": "(-∞,∞)"}


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


BEFORE_UNITS = {
    r"1{,}234\,567 -> 1234567": (r"(?<=\d)(?:\{,\}|,? ?\\!|\\[,; ]) ?(?=\d{3}(?!\d))", ""),
    "9 a.m. -> 9 am": (r"\b([apAP])\. ?([mM])\b\.?", r"\1\2"),
    r"1 \\[4pt] 2 -> 1 \\ 2": (r"\\\\ ?\[[\d.]+ ?\w\w\]", r"\\\\"),
    r"\mathbb{R} -> (-∞,∞)": (r"\\math(?:bb|bf) ?\{?R\}?(?![\w^])", "(-∞,∞)"),
    "all reals -> (-∞,∞)": (r"(?i)^(?:\\text\{)? ?all real(?: number)?s ?\}?$", "(-∞,∞)"),
    r"pi -> \pi": (r"(?<![a-zA-Z\\])(sqrt|pi|exp|sin|cos|tan|ln|log|inf[inty]*)(?![a-z])", r"\\\1"),
    r"\color{red}{5} -> {5}": (r"^ ?\\(?:boxed|(?:text)?color ?\{\w+\})", ""),
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
    "12. -> 12": (r"\\+ ?$|(?<=[\w)\]}%°!⦄∞]) ?[.,](?=(?: ?\})? ?$)", ""),
    r"\text { and } -> \text{and}": (r"\\text ?\{ ?([^{}]*?) ?\}", r"\\text{\1}"),
    "no solutions -> ⦃⦄": (r"(?i)^ ?(?:\\text\{)?no solutions?\}? ?$", "⦃⦄"),
    r"{n \choose 2} -> \binom{n}{2}": (r"\{([^{}]*?) ?\\choose ([^{}]*)\}", r"\\binom{\1}{\2}"),
    "x≈7 -> x=7": (r"^ ?((?:[a-zA-Z](?:_\w)?)?) ?≈(?=[^≈]*$)", lambda m: m[1] and f"{m[1]}="),
    r"{3\over 4} -> \frac{3}{4}": (r"\{([^{}]*)\\over ([^{}]*)\}", r"\\frac{\1}{\2}"),
    "{5^{2}} -> 5^{2}": (rf"^ ?(?={_GROUP} ?$)\{{(.*)\}} ?$", r"\1"),
    r"[\begin{array}{cc}1\\\end{array}] -> \begin{matrix}1\end{matrix}": (
        r"[(\[]? ?(?:\\\\ ?)?\\(begin|end)\{(?:(?:[pbB]|small)?matrix|array)\}"
        r"(?:\{[lcr| ]*\})? ?[)\]]?",
        r"\\\1{matrix}",
    ),
    r"1, 2 \text{and} 3 -> 1, 2∧ 3": (
        r",? ?(?:\\text\{(and|or)\}|(?<![a-zA-Z{ ]) ?(and|or)(?![a-zA-Z]))",
        lambda word: "∧" if "and" in word[0] else "∨",
    ),
    r"k\pi \text{for all integers} k -> k\pi,k∈\mathbb{Z}": (_CONDITION, _as_condition),
    r"(mod 4) -> \pmod{4}": (r"\(? ?(?:\\text\{mod\}|\\?p?mod) ?(\d+) ?\)?", r"\\pmod{\1}"),
    r"5 \text{percent} -> 5%": (r" ?(\\text\{)?\b(?:percent(?:age)?|pct)\b(?(1)\})", "%"),
    r"\text{5 cm} -> 5\text{cm}": (r"\\text\{(-?[\d.,:/]+) ?([a-zA-Z][^{}\d]*)\}", r"\1\\text{\2}"),
    r"12^{\text{th}} -> 12": (r"(?<=\d) ?\^? ?(\{ ?)?\\text\{(?:st|nd|rd|th)\}(?(1) ?\})", ""),
    "21st -> 21": (r"(?:(?<=\d)(\^\{)?th(?(1)\})|(?<=1)st|(?<=2)nd|(?<=3)rd)(?![a-zA-Z])", ""),
    "60 mph -> 60 mi/h": (r"\bmph\b", "mi/h"),
}
AFTER_UNITS = {
    r"{v}=2 -> v=2": (r"(?<![\w}\]^_ ])\{([a-zA-Z]|\d+)\}(?!\d)", r"\1"),
    "90^{°} -> 90 ": (r"\^ ?\{ ?° ?\}|\^? ?°", " "),
    r"\text{\pi} ->  \pi ": (r"\\text\{((?:[^{}a-zA-Z]|\\[a-zA-Z]++|\{[^{}]*\})*)\}", r" \1 "),
    r"\text{(B)} ->  (B) ": (r"\\text\{(\(?[A-Za-z]\)?|[A-Z]{2,4})\}", r" \1 "),
    "x= 1 234.5 -> x=1234.5": (  # but 1 234/567 is a mixed number
        r"(?:^|=) ?-?[1-9]\d{0,2}( |(,))\d{3}(?:\1\d{3})*(?=(?:\.\d+|(?(2)/\d+))?[ %]*$)",
        lambda number: re.sub("[ ,]", "", number[0]),
    ),
    r"11 5/6 -> 11\frac{5}{6}": (r"(?<![\d.,])(\d+) (\d+) ?/ ?(\d+)(?![\d.])", r"\1\\frac{\2}{\3}"),
    r"\frac12 -> \frac{1}2": (r"\\(frac|binom)(?: ?(\d|\\pi)| ([a-zA-Z])) ?", r"\\\1{\2\3}"),
    r"\frac{1}2 -> \frac{1}{2}": (rf"(\\(?:frac|binom){_GROUP}) ?([^\W_]|\\pi)", r"\1{\2}"),
    "10^-5 -> 10^{-5}": (r"\^-(\d*\.?\d+|[a-zA-Z](?![a-zA-Z]))", r"^{-\1}"),
    r"\sqrt2 -> \sqrt{2}": (r"\\sqrt(\[\d+])? ?(?:(\d+|\w|\\pi)|\(([^()]*)\))", r"\\sqrt\1{\2\3}"),
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
    r"2 \pi r + 1 -> 2\pi r+1": (r"(\\[a-zA-Z]+ (?=[a-zA-Z]))| ", r"\1"),
    "(1,+∞) -> (1,∞)": (r"(?<![^=(\[,;])\+", ""),
    "x=y=z=1 -> x=1,y=1,z=1": (r"(?<![^,=])([a-z])=(?=(?:[a-z]=)+(?![a-z]\b)([^=,]+))", r"\1=\2,"),
    r"\vec a -> \vec{a}": (r"\\vec ([a-zA-Z])", r"\\vec{\1}"),
    r"dy/dx -> \frac{dy}{dx}": (
        r"(?<![a-zA-Z])d(\\[a-z]+ ?|[a-zA-Z])/d(\\[a-z]+ ?|[a-zA-Z])(?![a-zA-Z])",
        r"\\frac{d\1}{d\2}",
    ),
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


@functools.lru_cache(maxsize=1024)  # the completions of a group share their gold
def canonicalize(text: str) -> tuple[str, frozenset[tuple[str, str]]]:
    """Return the canonical spelling of `text` without units, and the units with their powers:
    "5 m^2" and "5 square meters" both give ("5", {("m,meter,metre", "2")})."""
    units = {(UNITS["$"], "1")} if r"\$" in text or text.count("$") % 2 else set()
    text = re.sub("([²³¹⁰-ⁿᴬ-ᵡ]+)", r"^{\1}", re.sub("([₀-ₜᵢ-ᵥ]+)", r"_{\1}", text))
    text = unicodedata.normalize("NFKC", text.translate(CHARACTERS))
    # An invisible character becomes a space, so that 4<NUL>2 is not 42.
    text = "".join(" " if unicodedata.category(char)[0] == "C" else char for char in text)
    for pattern, replacement in BEFORE_UNITS.values():
        text = re.sub(pattern, replacement, text)

    def remove_unit(match: re.Match) -> str:
        words = {*re.findall("[A-Za-z]+", match[0]), *re.findall("[a-z]+", match[0].lower())}
        number = re.search(r"[\d%]|\\pi", text[: match.start()])
        if not number or words & NOT_UNITS or any(map(_NO_UNIT.fullmatch, words)):
            return match[0]
        per = r"(?:(/|\b(?:per|an?|each)\b)[^a-z]*?(?:\\text ?\{ ?)?)?"
        name_and_power = r"(?<![a-z\\])(?:(sq|cu)[a-z]*(?:\. ?| ))?([a-z]+)(?:\W{0,2}\^\{?(-?\d))?"
        for sign, prefix, name, power in re.findall(per + name_and_power, match[0].lower()):
            singular = name if name in UNITS or len(name) < 3 else name.removesuffix("s")
            if singular in UNITS:
                power = power or {"sq": "2", "cu": "3"}.get(prefix, "1")
                units.add((UNITS[singular], "-" * bool(sign) + power))
        return ""

    units |= {(UNITS[mark], "1") for mark in "%°" if mark in text}
    text = _UNIT.sub(remove_unit, text)
    for pattern, replacement in AFTER_UNITS.values():
        text = re.sub(pattern, replacement, text)
    if numeral := re.fullmatch(r"([^=]*=)?(\()?(\d+)(?(2)\))_\{(\d+)\}", text):  # acts as a unit
        text, units = (numeral[1] or "") + numeral[3], units | {("base", numeral[4])}
    return text, frozenset(units)
