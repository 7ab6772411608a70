r"""Units of answers. A unit may be left out, but neither replaced nor cut: "5 cm" answers "5", but
not "5 m" or "5 cm/s"."""

import re

# Words behind a number that are no unit, because they change it or leave it open.
_NO_UNITS = """
    or and not no is to than but wrong false negative repeating recurring binary plus minus times
    over root squared cubed mod modulo half halves third quarter fifth eighth ninth double doubled
    twice tripled dozen score hundred thousand bn mil mill mio mn bil lakh crore gross grand zero
    one two three four five six seven eight nine ten eleven twelve twenty thirty forty fifty sixty
    seventy eighty ninety least most if for where less more fewer except hex octal inverse added
    reciprocal factorial sine cosine tangent logarithm opposite conjugate complement excluded
    rejected incorrect mistaken approximately about infinity pi theta alpha beta gamma delta january
    february march april june july august september october november december hundert tausend
    dutzend docena douzaine mille mila cien permille hexadecimal ternary phi psi chi rho tau eta
    sigma omega lambda kappa epsilon zeta iota halved tripled quadrupled triple quadruple quintuple
    sextuple googol myriad kilo mega giga tera milli micro nano hexa trill reversed rounded below
    above owed loss deficit decrease never perhaps otherwise halving thrice off basis etc approx
    """
_NO_UNITS = {word + ending for word in _NO_UNITS.split() for ending in ("", "s", "th")}
_NO_UNIT = re.compile(
    r"(?!mon)\w+ths?|\w+(?:teens?|illi?on\w*|illiard\w*)|[a-z]*(?:sin|cos|tan|log)x?"
    r"|[abcxyz]{3,}"  # letters of a product, also xyzt and uvwx, which no word has side by side:
    r"|\w*(?:(?<![ao])xy(?!l)|(?<!l)yz|xz|zx|v[wx]|wx|(?<!s)q(?!u))\w*"
)
_ALPHABET = "abcdefghijklmnopqrstuvwxyz"
# Spellings of one unit. Its first name is compared. Only these may have fewer than three letters.
_NAMES = """
    mm,millimeter,millimetre cm,centimeter,centimetre m,meter,metre km,kilometer,kilometre in,inch
    ft,foot,feet yd,yard mi,mile g,gram kg,kilogram mg,milligram lb,pound oz,ounce ms s,sec,second
    min,minute h,hr,hour degree,deg L,l,liter,litre ml,milliliter,millilitre N,newton
    J,joule W,watt kw,kilowatt V,volt A,amp hz,hertz pa,pascal mol,mole dollar,usd euro,eur
    year,yr yuan,rmb rupee,rs,inr cent square,sq cubic,cu am,a.m pm,p.m /,per mph pct
    """
_NAMES = {name: names.split(",")[0] for names in _NAMES.split() for name in names.split(",")}
_POWERS = {"2": "sq(?:uare)?", "3": "cu(?:bic)?"}  # "square meters" is m^2
_LINKS = {"a", "an", "of", "in", "to", "the"}
_UNIT = re.compile(r"(?<=[^=(\[⦃])((?:[/*]?\\text\{[^{}\\]+\}(?:\^\{?-?\d\}?)?)+)$")


def _name(word: str) -> str:
    """Return the name of a unit: "Inches" -> "in". Single letters keep their case."""
    is_mega = re.fullmatch("M(?:[gm]|Pa|eV)", word)  # not milli
    word = word.lower().strip(".") if len(word) > 1 and not is_mega else word
    singular = word.removesuffix("s")
    for stem in (word, singular, word.removesuffix("es")):
        if stem in _NAMES:
            return _NAMES[stem]
    return singular if len(word) > 2 else word


def is_unit(phrase: str, space: str = " ") -> bool:
    """Whether words behind a number are a unit. Without a space only known units are: 5xyz may be
    a product."""
    words = phrase.replace("/", " / ").split()
    for word in words:
        is_word = space and re.fullmatch(r"(?=.*[aeiouyAEIOU])[^\W\d]{3,}\.?", word)
        if not (is_word or word in _LINKS or _name(word) in _NAMES):
            return False
        letters = word.lower()
        if letters in _NO_UNITS or _NO_UNIT.fullmatch(letters):
            return False
        if len(letters) > 2 and letters in _ALPHABET:  # mnop
            return False
    return bool(words) and words[0] not in _LINKS - {"in"}


def split_unit(text: str) -> tuple[str, str]:
    r"""Return a canonical text without the unit behind it, and the unit: "5\text{sq meters}" gives
    "5" and "square m". Words that are no unit stay in the text."""
    match = _UNIT.search(text)
    if not match or not re.search(r"\d|\\pi", text[: match.start()]):
        return text, ""
    phrase = re.sub(r"\\text|[{}*]", " ", match[0])
    for power, pattern in _POWERS.items():
        phrase = re.sub(rf"\b{pattern}\.? (\w+)", rf"\1 ^{power}", phrase)
    if not is_unit(re.sub(r"\^ *-?\d", " ", phrase)):
        return text, ""
    words = phrase.replace("/", " / ").replace("^", " ").split()
    return text[: match.start()], " ".join(map(_name, words))
