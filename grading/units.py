r"""Units of answers: found after a number, replaced by marks, and compared.

`mark_units` replaces "7 \text{ apples}", "5 km/h", "12dollars" or "5厘米" by the number and a mark,
one private-use character. `split_units` removes the marks and returns the units of each part.
A unit is a set of names with powers: "5 m/s^2" gives {("m", 1), ("s", -2)}.
"""

import re
from collections import Counter

Unit = frozenset[tuple[str, int]]

# Words that are not units: they change the number before them. So do numerals and most letters.
NOT_UNITS = """
    k K M B i e x pi alpha beta gamma delta theta lambda sigma omega phi infinity or and no not non
    is to than but wrong false negative repeating recurring binary plus minus times over root
    squared cubed factorial mod modulo log sin cos tan sine cosine tangent logarithm ish half
    halves third quarter fifth eighth ninth double twice dozen score hundred thousand bn mil lakh
    crore zero one two three four five six seven eight nine ten eleven twelve twenty thirty forty
    fifty sixty seventy eighty ninety hundert tausend dutzend mille mila cien docena
    least most
    january february march april june july august september october november december
    """
NOT_UNITS = {word + ending for word in NOT_UNITS.split() for ending in ("", "s", "th")}
# Those that only do so alone: "5 doubled", but 5 doubled points.
_NO_UNITS_ALONE = """
    squared cubed doubled tripled added mill mio mn bil grand gross hex octal inverse reciprocal
    opposite conjugate complement excluded rejected incorrect
    """
_NO_UNITS_ALONE = {*_NO_UNITS_ALONE.split()}
NOT_UNITS |= _NO_UNITS_ALONE
_NO_UNIT = re.compile(
    r"(?!mon)\w+ths|\w+(?:ie|lf)th|\w+(?:teen|illi?[oó]n|illiarde?)(?:s|th|es|en)?|[bdo-rtuyz]"
    r"|(?!logs|costs?|tanks?)(?:arc)?(?:sin|cos|tan|cot|csc|log|sqrt|exp|ln)[a-z]{0,2}"
)
# Numerals and negations of other scripts: 5万 is 50,000, but 5千米 is 5 km.
_FOREIGN_NUMERAL = re.compile(
    "[一二三四五六七八九十百万萬亿億兆零两兩半倍折不非错没无或백만억조반]|千(?![米克瓦])"
    "|тыс|млн|млрд|миллион|миллиард|десят|сот|полов|трет|четверт|раз|(?:^|[^а-я])(?:не|или)"
    "|लाख|करोड़|हज़ार|हजार|सौ|दर्जन|ألف|آلاف|مليون|مئة|مائة"
)
# Units of measurement, each with its spellings. They are compared whole: 5 m is not 5 m/s.
MEASURES = """
    mm,millimeter,millimetre,毫米,мм cm,centimeter,centimetre,厘米,см m,meter,metre,米,м
    km,kilometer,kilometre,公里,千米,км in,inch ft,foot,feet yd,yard mi,mile g,gram,克,г
    kg,kilogram,kilo,公斤,千克,кг mg,milligram t,ton,tonne lb,lbs,pound,£ oz,ounce
    ms,millisecond us,microsecond ns,nanosecond db,decibel kelvin
    s,sec,second,秒,с min,minute,分钟,мин h,hr,hour,小时,ч day week month year,yr am pm
    degree,deg radian,rad l,liter,litre,升,л ml,milliliter,millilitre,毫升,мл gal,gallon qt,quart
    n,newton kn j,joule kj kwh w,watt kw,kilowatt MW,megawatt MJ,megajoule v,volt a,amp,ampere
    hz,hertz khz mhz ghz ev kev mev gev pa,pascal kpa MPa,megapascal mol,mole cal,calorie kcal
    ohm Mohm,megaohm kohm,kiloohm um,micrometer,micron nm,nanometer å,angstrom ha,hectare acre %
    """
# Things that are counted and currencies: an answer may leave out words, as in 12 dollars per hour.
COUNTED = """
    $,dollar,usd €,euro,eur yuan,rmb,cny,¥,元,yen,円 ₹,rupee,rs,inr ₽,ruble,руб cent,¢
    degC,celsius degF,fahrenheit unit person,people man,men woman,women child,children die,dice
    mouse,mice tooth,teeth
    """
_NAMES = {name: names.split(",")[0] for names in COUNTED.split() for name in names.split(",")}
_NAMES |= {name: names.split(",")[0] for names in MEASURES.split() for name in names.split(",")}
_MEASURES = {names.split(",")[0] for names in MEASURES.split()}
SIGNS = "€£¥₹₽¢"
_RATES = {"mph": "mi/h", "kph": "km/h", "kmph": "km/h", "rpm": "revolution/min"}
_IGNORED = {"of", "the", "and", "for", "total", "exactly", "about", "approximately", "in"}
_PER = {"/", "per", "a", "an", "each", "every"}
_FACTORS = {"sq": 2, "square": 2, "squared": 2, "cu": 3, "cubic": 3, "cubed": 3}

PART_ENDS = ",;∧∨"
MARK = "[\ue000-\uf8ff]"
_LETTER = "[a-zA-Z\u00c0-\u024f\u0400-\u1cff\u1e00-\u1eff\u3040-\ud7ff]"  # of all scripts, no Greek
_FOREIGN_LETTER = _LETTER.replace("a-zA-Z", "")
_TEXT = rf"\\text ?\{{ ?(?:/ ?)?{_LETTER}(?:{_LETTER}|[/.* -]|\^(?:-?[123]|\{{-?[123]\}}))*\}}"
_POWER = r"(?: ?\^ ?\{?-?[123]\}?)?"
_TEXTS = rf"{_TEXT}{_POWER}(?: ?(?:[/*] ?)?{_TEXT}{_POWER})*"
_RATE = r"(?:[ckm]?m|mi|ft|k?g)/(?:hr?|s|sec|min|c?m)"
_SHORT = (
    "per|cup|in|ft|sq|cu|[ckm]m|kg|lbs?|mins?|secs?|oz|hrs?|days?|yds?|gal|tons?|men|yen|won|mph|kph"
    "|tbsp|tsp|sqft|pcs|pkts|mtrs"
    "|dl|k?Hz|[MG]Hz|k[JN]|kWh|[kM]Pa|[MG]eV|k?cal|mol|rpm|deg|USD|EUR|RMB|CNY|[Rr]s|INR|dB"
)
_WORD = rf"(?:[A-Za-z\u00c0-\u024f][a-z\u00df-\u024f]{{3,}}|{_SHORT})(?![a-zA-Z])\.?"
_WORDS = (
    rf"(?:/ ?| ?[a-z]{{3}} )?{_WORD}(?:(?: ?/ ?| ){_WORD}| [a-z]{{1,3}}(?= {_WORD})| per [a-z]+)*"
)
_FOREIGN = rf"{_FOREIGN_LETTER}{_LETTER}*(?:[ ./]+{_LETTER}+)*"
# Units between a number and the end of a part: \text{...}, rates such as km/h, or words. In a
# compound quantity such as 5 ft 3 in, a number follows.
_UNIT = re.compile(
    rf"(?:(?<=[^ ,;=({{⦃]) *(?:/ ?)?{_TEXTS}(?: {_WORDS})?"
    rf"|(?:(?<=[\d}}%])|(?<=\\pi)) ?(?:{_RATE}|{_FOREIGN}|{_WORDS}){_POWER}"
    r"|(?<=%) ?[a-z]{3,}|(?<=\d) ?m[lL]|(?<=\d\d\d) (?:nm|mg)"  # 2mg may be a product
    r"|(?:(?<=\d) |(?<=:\d\d))(?i:[ap]m))(?= *(?:$|[],;=≈<>≤≥)⦄∧∨\d]))"
)
_DEGREE = re.compile(r"\^ ?\{ ?° ?\}|\^? ?°")
_TOKEN = re.compile(rf"{_LETTER}+|/|\^ ?\{{?-?\d|[%${SIGNS}]")


def _name(word: str) -> str:
    """Return the name of a unit: "feet" -> "ft", "Boxes" -> "box", "MW" -> "MW"."""
    if word in _NAMES:
        return _NAMES[word]
    word = word.lower()
    stems = [word, word.removesuffix("s"), word.removesuffix("es")]
    for stem in stems:
        if stem in _NAMES:
            return _NAMES[stem]
    if len(word) < 3:
        return word
    word = re.sub(r"(?<=x|z)es$|(?<=[cs]h)es$|(?<=ss)es$", "", word)
    return re.sub(r"ies$", "y", word).rstrip("s")


def read_unit(phrase: str) -> Unit:
    r"""Return the unit that a phrase names: "\text{ meters per second squared}" -> m, s^-2."""
    for name, meaning in _RATES.items():
        phrase = re.sub(rf"\b{name}\b", meaning, phrase)
    powers, last = Counter(), ""
    change, sign, factor = 0, 1, 1
    for i, token in enumerate(_TOKEN.findall(phrase.replace(r"\text", ""))):
        word = token.lower()
        if token[0] == "^":
            powers[last] += change * (int(token.lstrip("^ {")) - 1)
        elif word in ("squared", "cubed"):
            powers[last] += change * (_FACTORS[word] - 1)
        elif word in _FACTORS:
            factor = _FACTORS[word]
        elif token in _PER:  # but "A" is the ampere
            sign = -1
        elif word not in _IGNORED or (word == "in" and (i == 0 or sign < 0 or factor > 1)):
            last = _name(token)
            change = sign * factor
            powers[last] += change
            sign, factor = 1, 1
    if powers.keys() & {"degC", "degF"}:  # 20°C, and 20°
        powers["degree"] = 1
    return frozenset((name, power) for name, power in powers.items() if power and name)


def _changes_number(phrase: str) -> bool:
    """Whether words change the number before them, as in "5 hundred", "12 sinx" or "5万"."""
    words = {*re.findall(f"{_LETTER}+", phrase.replace(r"\text", ""))}
    is_alone = len(words) == 1
    words |= {word.lower() for word in words}
    if not is_alone:  # "5 squared", but "5 meters squared"
        words -= _NO_UNITS_ALONE
    has_function = any(map(_NO_UNIT.fullmatch, words - _NAMES.keys()))
    return bool(has_function or words & NOT_UNITS or _FOREIGN_NUMERAL.search(phrase.lower()))


def _is_product(text: str, start: int) -> bool:
    """Whether letters without a space before them may be variables: in alphabetical order, 2abcd,
    or without a vowel, 2mvkt."""
    word = re.compile(r"(?<=[\d}i])[a-z]+").match(text, start)
    if not word or word[0] in _NAMES or re.fullmatch(_SHORT, word[0]):
        return False
    is_in_order = [*word[0]] == sorted({*word[0]})
    return is_in_order or not re.search("[aeiou]", word[0])


def _starts_part(text: str, start: int) -> bool:
    """Whether another number with a unit follows, as in 5 ft 3 in."""
    number = re.compile(r" *[\d.]+").match(text, start)
    return bool(number and _UNIT.match(text, number.end()))


def mark_units(text: str) -> tuple[str, list[Unit]]:
    """Replace units by marks: chr(0xE000 + i) stands for the i-th unit that is returned."""
    units = []

    def mark(match: re.Match) -> str:
        has_number = re.search(r"[\d%]|\\pi", text[: match.start()])
        if not has_number or _changes_number(match[0]) or _is_product(text, match.start()):
            return match[0]
        unit, separator = read_unit(match[0]), ""
        if re.compile(r" *\d").match(text, match.end()):
            separator = ","
            is_measure = all(name in _MEASURES for name, _ in unit)
            if not (is_measure and _starts_part(text, match.end())):
                return match[0]
        units.append(unit)
        return chr(0xE000 + len(units) - 1) + separator

    text = _UNIT.sub(mark, text)
    units.append(frozenset({("degree", 1)}))
    return _DEGREE.sub(" " + chr(0xE000 + len(units) - 1), text), units


def split_units(text: str, units: list[Unit]) -> tuple[str, tuple[Unit, ...]]:
    """Remove the marks of `mark_units`. Return the text and the unit of each of its parts, which
    end at PART_ENDS."""
    units_of_parts = []
    for part in re.split(f"[{PART_ENDS}]", text):
        marks = [units[ord(mark) - 0xE000] for mark in re.findall(MARK, part)]
        percent = {("%", 1)} if "%" in part else set()
        units_of_parts.append(frozenset(percent.union(*marks)))
    return re.sub(MARK, "", text), tuple(units_of_parts)


def compatible(gold: Unit, answer: Unit) -> bool:
    """Whether a unit was at most left out. "5 m" is no answer to "5 m/s", but words may be missing
    where things are counted: "12 dollars" for "$12 per hour"."""
    if not gold or not answer:
        return True
    measures = [{(n, p) for n, p in unit if n in _MEASURES} for unit in (gold, answer)]
    is_measured = any(power > 0 for _, power in measures[0] | measures[1])
    if is_measured and measures[0] != measures[1]:
        return False
    return gold <= answer or answer <= gold
