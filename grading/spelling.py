r"""Light spelling: one way to write each sign, command, fraction, number and unit.

Nothing here decides whether two answers are equal. A spelling that is not listed stays as it is,
and then the texts must be the same: a right answer may earn 0, a wrong one does not earn 1.
"""

import functools
import re
import unicodedata

from grading.units import is_unit

# Canonical spelling, then its LaTeX commands (without their backslash) and characters. Relations,
# set operations and brackets of sets become one character, so that texts can be split at them.
SYNONYMS = r"""
    ≤ le leq leqslant <= ⩽   ≥ ge geq geqslant >= ⩾   ≠ ne neq !=   = equiv ≡   < lt   > gt
    ≈ approx   ± pm +/-   ∞ infty inf infinity   ° circ degree º ˚   °C ℃   % %   … ldots cdots dots
    … ...
    ∈ in   ∉ notin   ∪ cup bigcup   ∩ cap bigcap   ∖ setminus backslash   ¬ neg lnot not
    ∧ land wedge   ∨ lor vee   ⦃⦄ emptyset varnothing ∅   ⦃ { lbrace   ⦄ } rbrace
    ( langle   ) rangle   | vert lvert rvert mid   ' ′ ’ prime   - − – ‑ ⁻   * cdot · ⋅   ^ **
    ÷ div   / ⁄   : colon   , 、   . 。   \times ×   \sqrt √   \sqrt[3] ∛   \triangle △   \angle ∠
    \to → rightarrow implies ⇒
    \mathbb{R} ℝ   \mathbb{Z} ℤ   \mathbb{N} ℕ   \mathbb{Q} ℚ   \mathbb{C} ℂ
    \frac dfrac tfrac cfrac   \binom dbinom tbinom   \pmod mod bmod   \overline bar
    \epsilon varepsilon ε   \phi varphi φ   \theta vartheta θ   \log_{10} lg   \alpha α   \beta β
    \gamma γ   \delta δ   \lambda λ   \mu μ µ   \pi π   \rho ρ   \sigma σ   \tau τ   \omega ω
    \Delta Δ   \Omega Ω   \lfloor ⌊   \rfloor ⌋   \lceil ⌈   \rceil ⌉
    \text textbf textit textrm textnormal textsf texttt textup emph mbox hbox mathrm operatorname
"""
FONTS = "! $ left right displaystyle textstyle limits boldsymbol bm mathbf mathit mathsf"
FONTS += " big Big bigl bigr Bigl Bigr large Large LARGE huge Huge normalsize mathtt fbox"
SPACES = "~ , ; : > ( ) [ ] quad qquad"
COMMANDS = dict.fromkeys(FONTS.split(), "") | dict.fromkeys([*SPACES.split(), " "], " ")
for _name, _others in re.findall(r"(\S+) (\S+(?: \S+)*)", SYNONYMS):
    COMMANDS |= dict.fromkeys(_others.split(), _name)
_COMMAND = re.compile(r"\\\\|\\([a-zA-Z]+|.)|[<>!]=|\+/-|\*\*|\.\.\.|[^\x00-\x7f]|[$~]")
_SCRIPTS = {"^": re.compile("[⁰¹²³⁴-⁹⁺⁻ⁿ]+"), "_": re.compile("[₀-₉]+")}
_SUM = r"\[(?=[^],]*[-+])(?:[^],[]|\[[^],[]*\])*\]"  # in brackets. [n/2] may be a floor
_GROUP = r"\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\}"  # with two more levels of braces inside
FUNCTION = r"\\(?:(?:arc)?(?:sin|cos|tan)|cot|sec|csc|log|ln)"
# Names that may lack their backslash. "sec" at the end is a second.
_FUNCTIONS = (
    r"arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|csc|log|ln|exp|sqrt|pi|sec(?!\.? ?\}?$)"
)
_CURRENCY = {r"\$": "dollar", "€": "euro", "£": "pound", "¥": "yuan", "₹": "rupee"}


def _plain_characters(text: str) -> str:
    r"""Replace characters of other scripts: "x²" -> "x^{2}", "５" -> "5"."""
    for sign, run in _SCRIPTS.items():
        text = run.sub(lambda m, s=sign: f"{s}{{{unicodedata.normalize('NFKC', m[0])}}}", text)
    spaces = {char: " " for char in {*text} if unicodedata.category(char)[0] in "CZ"}
    digits = {char: str(unicodedata.digit(char)) for char in {*text} if char.isdecimal()}
    return text.translate(str.maketrans(spaces | digits))  # 4<NUL>2 is not 42


def _command(match: re.Match) -> str:
    """Return the canonical spelling of a command, operator or character."""
    name = COMMANDS.get(match[1] or match[0], match[0])
    # A command stays apart from the letter behind it.
    return name + " " if re.fullmatch(r"\\[a-zA-Z]+", name) and match[0] != name else name


# What a rule does, as an example, and the rule: a pattern and its replacement.
BEFORE_COMMANDS = {
    "（1，2） -> (1,2)": ("[！-～𝟎-𝟿]", lambda char: unicodedata.normalize("NFKC", char[0])),
    r"½ -> \frac{1}{2}": (
        "[¼-¾⅐-⅞]",
        lambda char: rf"\frac{{{unicodedata.normalize('NFKC', char[0]).replace('⁄', '}{')}}}",
    ),
    "**18** -> 18": (r"^ ?(?:\*\*([^*]+)\*\*|(?:\\text\{)?[\"“]([^\"“”]+)[\"”]\}?) ?$", r"\1\2"),
    r"k\in\mathbf{Z} -> k\in\mathbb{Z}": (r"(\\in|∈) ?\\mathbf", r"\1\\mathbb"),
    # Escaped twice, as in a JSON file: then every backslash is double.
    r"\\frac{1}{2} -> \frac{1}{2}": (
        r"^(?:[^\\]|\\\\)+$",
        lambda text: text[0].replace("\\\\", "\\"),
    ),
    r"1{,}234\,567 -> 1234567": (r"(?<=\d)(?:\{,\}|,? ?\\!|\\[,; ]) ?(?=\d{3}(?!\d))", ""),
    "12 345 -> 12345": (  # if it is all of the text
        r"^([^\d^_]*[1-9]\d{0,2})((?: \d{3})+)(?=\D*$)",
        lambda text: text[1] + text[2].replace(" ", ""),
    ),
    r"\text{\$5.00} -> \$5.00": (r"\\text(?:bf)? ?\{ ?((?:\\\$|[€£¥₹]) ?[\d.,]*)\}", r"\1"),
    r"\$12/day -> 12\text{dollar}/day": (
        r"(\\\$|[€£¥₹]) ?([\d.,]*\d)",
        lambda money: rf"{money[2]}\text{{{_CURRENCY[money[1]]}}}",
    ),
    r"5€ -> 5\text{euro}": (r"[€£¥₹]", lambda sign: rf"\text{{{_CURRENCY[sign[0]]}}}"),
    # Bold letters may be matrices or vectors, whose order counts.
    r"\mathbf{A}\bm x -> \vec{A}\vec{x}": (
        r"\\(?:mathbf|boldsymbol|bm) ?"
        r"(?:\{ ?([A-Za-z](?:_\{?\w\}?)?|\\[a-z]+|(?:[^{}]|\{\w+\})*(?:\\times|×)"
        r"(?:[^{}]|\{\w+\})*) ?\}|([A-Za-z])(?![a-zA-Z]))",
        r"\\vec{\1\2}",
    ),
}
RULES = {
    r"\text { cm } -> \text{cm}": (r"\\text ?\{ ?([^{}]*?)\.? ?\}", r"\\text{\1}"),
    r"\frac {1} {2} -> \frac{1}{2}": (r"(?<=[}a-z]) (?=\{)", ""),
    r"x≈2.57 -> x=2.57": (
        r"^ ?([a-zA-Z]?) ?≈ ?(?=-?\d*\.\d+\.? ?(?:\\text\{[^{}]*\})?$)",
        r"\1=",
    ),
    r"= 12. -> 12": (r"^ ?(?:=|\\(?:therefore|to|Rightarrow)(?![a-z])) ?|(?:[.,;]|\\\\)? ?$", ""),
    r"\text{The answer is:} 5 -> 5": (
        r"(?:^ ?(?:\\text\{(?=[a-zA-Z: ]+\}))?|(?<=^\\text\{))"
        r"(?:[Tt]he )?(?:[Ff]inal )?(?:[aA]nswer|(?:[Tt]otal|[Rr]esult)(?= is|:))(?: is)?:?\}? ?"
        r"(?=[-\\(\[⦃\d])",
        "",
    ),
    r"-infinity -> -∞": (r"(?<![a-zA-Z\\])inf(?:ini)?(?:ty)?(?![a-z])", "∞"),
    r"\text{Area} = 58 -> Area=58": (
        r"^ ?\\text\{([^{}]+)\} ?= ?",
        lambda words: words[1] + "=" if is_unit(words[1]) else words[0],
    ),
    r"x=\text{13} -> x=13": (
        r"(?:^|(?<=[=,;(])|(?<== )) ?(?:(?:\\text\{)?\(([A-J])\)\}?|\\text\{"
        r"(?!(?!gcd|lcm)(?=[^{}]*[a-z])[a-zA-Z ]{3,}\} ?=)([^{}]*)\})(?=$|[,;)=])",  # not half=13
        lambda text: text[1] or text[2],
    ),
    r"\pmod 7 -> \pmod{7}": (
        r"(\()?(?:\\pmod|\\text\{(\()?mod\}|(?<![a-zA-Z\\])mod(?![a-z]))"
        r" ?(\{)?(\w+)(?(3)\})(?(2)\))(?(1)\))",
        r"\\pmod{\4}",
    ),
    r"\text{e}^x -> e^x": (r"\\text\{([ei])\}", r"\1"),
    r"{{10}^2} -> {10}^2": (rf"^ ?\{{((?:[^{{}}]|{_GROUP})*)\}} ?$", r"\1"),
    r"2\times{10}^{6} -> 2\times 10^{6}": (r"(\\times|\*) ?\{10\}(?=\^)", r"\1 10"),
    r"1\\[4pt]2 -> 1\\2": (r"\\\\ ?\[-?[\d.]+ ?[a-z]{2}\]", r"\\\\"),
    r"\mathbb Z -> \mathbb{Z}": (r"\\mathbb ?([A-Z])(?![a-z])", r"\\mathbb{\1}"),
    r"{S}_{n} -> S_{n}": (
        r"(?<![a-zA-Z\]}^_])\{ ?([a-zA-Z]'*|\\[a-z]+ ?|:) ?\}|(?<![a-zA-Z])\{(\w)\}(?=_)",
        r"\1\2",
    ),
    r"pi/2 -> \pi/2": (rf"(?<![a-zA-Z\\{{])({_FUNCTIONS})(?![a-z])", r"\\\1"),
    r"\text{sin}x -> \sin x": (rf"\\text\{{({_FUNCTIONS})\}}", r"\\\1 "),
    # Fractions, roots and exponents in braces.
    r"\frac12 -> \frac{1}2": (r"\\(frac|binom) ?([\da-zA-Z]|\\pi ?(?![a-zA-Z]))", r"\\\1{\2}"),
    r"\frac{1}2 -> \frac{1}{2}": (rf"\\(frac|binom)({_GROUP}) ?([\da-zA-Z])", r"\\\1\2{\3}"),
    r"\sqrt2 -> \sqrt{2}": (r"\\sqrt ?(\[\d+\])? ?(\d+|[a-zA-Z]|\\pi)", r"\\sqrt\1{\2}"),
    r"\sqrt(2+x) -> \sqrt{2+x}": (r"\\sqrt ?\(([^()]*)\)", r"\\sqrt{\1}"),
    r"2^(1/4) -> 2^{1/4}": (r"\^ ?\(([^(){}]*)\)", r"^{\1}"),
    r"x^\frac{1}{2} -> x^{\frac{1}{2}}": (rf"(\^|\\sqrt) ?(\\frac{_GROUP}{_GROUP})", r"\1{\2}"),
    r"x_1 -> x_{1}": (r"_ ?(\w)", r"_{\1}"),
    r"{x_{1}}+2 -> x_{1}+2": (r"(?<![a-zA-Z\]}^_\d])\{([^{}]+[\^_]\{\w+\})\}", r"\1"),
    r"10^-5 -> 10^{-5}": (r"\^ ?(-\d+(?!\.)|\d(?!\d))", r"^{\1}"),
    r"(-1)^n 2^n -> (-1)^n*2^n": (
        r"(\^(?:[a-zA-Z]|\{[^{}]*[a-zA-Z]\})|(?<![\\a-zA-Z_])[a-z](?= ?\d+\^\{?[^{}]*[a-z]))"
        r" ?(?=\d+\^)",
        r"\1*",
    ),
    # Functions.
    r"\tan^{-1}x -> \arctan x": (r"\\(sin|cos|tan) ?\^\{-1\}", r"\\arc\1 "),
    r"\sin^{2}2x -> \sin^{2}(2x)": (
        rf"({FUNCTION}[_^]\{{\w+\}}) ?(\d+(?:[a-zA-Z]|\\[a-z]+)?)(?= ?$| ?[-+=,)}}])",
        r"\1(\2)",
    ),
    r"\ln x*y -> \ln(x)*y": (
        rf"({FUNCTION}(?:[_^]\{{\w+\}})*) ?([a-zA-Z]|\d+|\\[a-z]+)(?= ?\*)",
        r"\1(\2)",
    ),
    r"\sin 20° -> \sin(20\pi/180)": (
        r"(\\(?:sin|cos|tan|cot|sec|csc)(?:\^\{2\})?) ?(\()?([\d.]+)\^?(\{)?°(?(4)\})(?(2)\))",
        r"\1(\3\\pi/180)",
    ),
    # Numbers. Two side by side are neither a product nor one number: "?" is not understood.
    r"1,234.5 m -> 1234.5 m": (  # if it is all of the text, and no pair
        r"^([^=,]*=)?[^\d,(\[{]*[1-9]\d{0,2}(?:,\d{3})+(?!\d|,)[^,]*$",
        lambda text: re.sub(r"(?<=\d),(?=\d{3})", "", text[0]),
    ),
    r"2 3/4 -> 2\frac{3}{4}": (r"(?<![\d.,/])(\d+) (\d+) ?/ ?(\d+)(?![\d.])", r"\1\\frac{\2}{\3}"),
    r"2\frac{3}{4} -> \frac{11}{4}": (
        r"(?<![\d.,}^_])(\d{1,99}) ?\\frac\{(\d{1,99})\}\{(\d{1,99})\}",
        lambda m: rf"\frac{{{int(m[1]) * int(m[3]) + int(m[2])}}}{{{m[3]}}}",
    ),
    r"1.2 x 10^{5} -> 1.2*10^{5}": (r"(?<=\d) ?(?:[xX]|\\times) ?(?=10 ?\^)", "*"),
    r"2\times 3 -> 2*3": (  # products of vectors stay
        r"^(?!.*\\(?:vec|nabla|hat|overline)).*\\times.*$",
        lambda text: re.sub(r"\\times ?", "*", text[0]),
    ),
    r"5 6 -> 5?6": (r"(?<=[\d.]) +(?=[\d.])|(?<=\d)\{(?=\d)", "?"),
    "4.5e6 -> 4.5*10^{6}": (r"^(-?\d+\.?\d*)[eE]\+?(-?\d{1,3})$", r"\1*10^{\2}"),
    # Units: \text{} around words, so that a unit is what stands in \text{} behind a number.
    r"20°\text{C} -> 20\text{celsius}": (
        r"(?:\^ ?)?(?:\{ ?)?° ?\}? ?(\\text\{)?([CF])(?(1)\})",
        lambda m: r"\text{celsius}" if m[2] == "C" else r"\text{fahrenheit}",
    ),
    r"\text{m^{3}/s^{2}} -> \text{m}^{3}\text{/s}^{2}": (
        r"\\text\{[^{}^]+\^(?:[^{}]|\{-?\d\})*\}",
        lambda unit: re.sub(r"\^\{?(-?\d)\}?", r"}^{\1}\\text{", unit[0]).replace(r"\text{}", ""),
    ),
    r"90^{°} -> 90\text{degree}": (r"(?:\^ ?)?(\{ ?)?°(?(1) ?\})", r"\\text{degree}"),
    r"5 square cm -> 5 \text{square cm}": (
        r"(?:(?<=[\d}])|(?<=\\pi))( ?)((?:/ ?)?[a-zA-Z]{2,}\.?(?:[ /]+[a-zA-Z]+\.?)*|k?m/s|k?m/h)"
        r"(?=(?:\^ ?\{?\d\}?)?(?:$|[],;)⦄∧∨]))",
        lambda words: rf" \text{{{words[2]}}}" if is_unit(words[2], words[1]) else words[0],
    ),
    r"5 \text{percent} -> 5%": (r" ?\\text\{(?:percent(?:age)?|per cent|pct|%)\}", "%"),
    r"0.1\overline{6} -> \frac{15}{90}": (  # 10 times it less it, over 9, for one digit
        r"(?<![\w.}^])(\d{0,99})\.(\d{0,99})\\overline ?\{(\d{1,99})\}"
        r"(?= ?(?:$|[-+,;)%}=]|\\text))",
        lambda m: (
            rf"\frac{{{int(m[1] + m[2] + m[3]) - int('0' + m[1] + m[2])}}}"
            rf"{{{'9' * len(m[3])}{'0' * len(m[2])}}}"
        ),
    ),
    # Words that link answers.
    r"1, 2 \text{and} 3 -> 1, 2∧3": (r",? ?(?:\\text\{and\}|(?<![a-zA-Z])and(?![a-zA-Z])) ?", "∧"),
    r"x=1 \text{or} x=2 -> x=1∨x=2": (
        r",? ?(?:\\text\{or\}|(?<![a-zA-Z])or(?![a-zA-Z])) ?",
        "∨",
    ),
    "1, 2∨3 -> 1∨ 2∨3": (  # but not in brackets
        r"^[^∨,;∧(\[⦃]+(?:,[^∨,;∧(\[⦃]+)+∨[^∨,;∧(\[⦃]+$",
        lambda text: text[0].replace(",", "∨"),
    ),
    # Matrices and sets.
    r"\begin{cases}x=3\\y=5\end{cases} -> x=3,y=5": (
        r"^ ?\\begin\{cases\} ?(\w ?=[^&=]+?),? ?\\\\ ?(\w ?=[^&=]+?)\.? ?\\end\{cases\}$",
        r"\1,\2",
    ),
    r"\begin{array}{cc}1\end{array} -> \begin{matrix}1\end{matrix}": (
        r"[(\[]? ?\\(begin|end)\{(?:array|[pb]?matrix)\}(?:\{[lcr| ]*\})? ?[)\]]?",
        r"\\\1{matrix}",
    ),
    r"\mathbb{R} -> (-∞,∞)": (r"\\math(?:bb|bf) ?\{?R\}?(?![\w^])", "(-∞,∞)"),
    r"x\text{ for } k∈\mathbb{Z} -> x,k∈\mathbb{Z}": (
        r",? ?\\text\{ ?(?:where|for|with) ?\} ?(?=\w ?∈)",
        ",",
    ),
    r"x(k∈\mathbb{Z}) -> x,k∈\mathbb{Z}": (r",? ?\((\w ?∈ ?\\math\w+ ?\{\w\})\)$", r",\1"),
    r"2  \pi  r + 1 -> 2\pi r+1": (r"(\\text\{[^{}]*\}|\\[a-zA-Z]+ (?= *[a-zA-Z]))| ", r"\1"),
    r"(90\text{cm}) -> 90\text{cm}": (r"^\(([^(),]*\d\\text\{[^{}]*\}[^(),]*)\)$", r"\1"),
    r"(1,+∞) -> (1,∞)": (r"(?<![^=(\[,;])\+", ""),
    "⦃x∈(-∞,∞)|x>2⦄ -> x>2": (
        r"^(?:\w[=∈])?⦃([a-zA-Z])(?:∈\(-∞,∞\))?[|:](?=[^⦃⦄]*\1)([^⦃⦄]*)⦄$",
        r"\2",
    ),
    "2[3+[x-5]] -> 2(3+(x-5))": (
        rf"(?<=[\d)}}*]){_SUM}|{_SUM}(?=\^)",
        lambda text: text[0].translate({91: "(", 93: ")"}),
    ),
    "(x,y)=(1,2) -> x=1,y=2": (  # (m,b)=(1,2) may be any (1,2)
        r"^\((?=[xyz],[xyz]|[ab],[ab]|[mn],[mn]|[pq],[pq])(\w),(\w)\)=\(([^(),]+),([^(),]+)\)$",
        r"\1=\3,\2=\4",
    ),
    "(x,y,z)=(1,2,3) -> x=1,y=2,z=3": (
        r"^\(([xyzabcpqr]),([xyzabcpqr]),([xyzabcpqr])\)=\(([^(),]+),([^(),]+),([^(),]+)\)$",
        r"\1=\4,\2=\5,\3=\6",
    ),
    "x≠2 -> x∈(-∞,∞)∖⦃2⦄": (
        r"^([a-z])≠([^,=≠<>∧∨]*\d[^,=≠<>∧∨]*)$",
        r"\1∈(-∞,∞)∖⦃\2⦄",
    ),
    "⦃±1⦄ -> ⦃-1,1⦄": (r"⦃±([^,⦃⦄]+)⦄", r"⦃-\1,\1⦄"),
    "(1,4)∖⦃2,3⦄ -> (1,2)∪(2,3)∪(3,4)": (
        r"([(\[][^()]+),([^()]+[)\]])[∖-]⦃([^⦃⦄]+)⦄",
        lambda text: ",".join([text[1], re.sub("[^,]+", r"\g<0>)∪(\g<0>", text[3]), text[2]]),
    ),
}


@functools.lru_cache(maxsize=1024)  # the completions of a group share their reference answer
def canonicalize(text: str) -> str:
    """Return the canonical spelling of an answer."""
    text = _plain_characters(text)
    for pattern, replacement in BEFORE_COMMANDS.values():
        text = re.sub(pattern, replacement, text)
    text = _COMMAND.sub(_command, text)
    text = re.sub(r" +", " ", text)
    for pattern, replacement in RULES.values():
        text = re.sub(pattern, replacement, text)
    return text
