"""Dates and clock times as text: the forms that are read, and what they come to in days and hours.

A column has one form, the same for all its cells, with or without a time of day. Two numbers before a year are day and
month in either order: whichever order all cells allow, which is both where no day is above 12. Two digits of a year do
not tell the century. Such columns keep every reading, and whoever uses them asks for the order. Names of months are
English. Nothing here guesses: text of another form is none of a date.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

Order = Literal["dmy", "mdy"]
ORDERS: tuple[Order, ...] = get_args(Order)
DateDoubt = Literal["seasons", "days"]

Array = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]

_MICROSECONDS_PER_DAY = 86_400_000_000
_SHORTEST, _LONGEST = 3, 64  # characters of a date
_LEAP_YEAR = 2000  # of days without a year
_FIRST_SHORT_YEAR = 69  # two digits are 1969 to 2068, as POSIX has them
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")

# -- the table of forms ------------------------------------------------------------------------------------------------
_Y = r"(?P<y>\d{4})"
_YEAR = r"(?P<y>(?:1[5-9]|2[01])\d\d)"  # where the form alone could be something else
_YY = r"(?P<yy>\d\d)"
_M, _D = r"(?P<m>\d\d?)", r"(?P<d>\d\d?)"
_NAME = (
    r"(?P<name>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|"
    r"oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)"
)
_NTH = _D + r"(?:st|nd|rd|th)?"
_GAP, _APART = r"[-/., ]{0,2}", r"[-/., ]{1,2}"
_DATES = (
    rf"{_Y}(?P<mark>[-/]){_M}(?P=mark){_D}",  # 2000-01-05, 2000/1/5
    rf"{_Y}\.(?P<m>\d\d)\.(?P<d>\d\d)",  # 2000.01.05
    rf"{_YEAR}(?P<m>\d\d)(?P<d>\d\d)",  # 20000105
    rf"{_YEAR}[-/M]{_M}",  # 2000-01, 2000/01, 2000M01
    rf"{_YEAR}[- /]?Q(?P<quarter>[1-4])",  # 2000Q1
    rf"Q(?P<quarter>[1-4])[- /]?{_YEAR}",  # Q1 2000
    rf"{_YEAR}-?W(?P<week>\d\d)(?:-?(?P<weekday>[1-7]))?",  # 2000-W01, 2000-W01-3
    rf"(?P<a>\d\d?)(?P<mark>[-/]|\. ?)(?P<b>\d\d?)(?P=mark){_Y}",  # 05.01.2000, 5/1/2000 and 1/5/2000
    rf"(?P<a>\d\d?)(?P<mark>[-/])(?P<b>\d\d?)(?P=mark){_YY}",  # 5/1/00
    rf"(?P<a>\d\d)\.(?P<b>\d\d)\.{_YY}",  # 05.01.00
    rf"{_NTH}{_GAP}{_NAME}{_GAP}{_Y}",  # 5 January 2000, 05-Jan-2000, 05JAN2000
    rf"{_NAME}{_GAP}{_NTH}{_APART}{_Y}",  # Jan 05 2000, January 5, 2000
    rf"{_Y}{_GAP}{_NAME}{_GAP}{_NTH}",  # 2000-Jan-05
    rf"{_NAME}{_GAP}{_YEAR}",  # Jan 2000, January-2000
    rf"{_YEAR}{_GAP}{_NAME}",  # 2000-Jan
    rf"{_NTH}{_GAP}{_NAME}{_GAP}{_YY}",  # 05-Jan-00
    rf"{_NAME}{_GAP}{_NTH}{_APART}{_YY}",  # Jan 5, 00
    rf"{_NAME}[-/.,' ]{{0,2}}{_YY}",  # Jan-00
)  # fmt: skip
_WITHOUT_YEAR = (
    rf"{_NTH}{_GAP}{_NAME}\.?",  # 5 January, 05-Jan
    rf"{_NAME}{_GAP}{_NTH}",  # Jan 5
    r"(?P<a>\d\d?)/(?P<b>\d\d?)",  # 5/13
    r"(?P<a>\d\d?)\. ?(?P<b>\d\d?)\.",  # 13.5.
)
_WEEKDAY = r"(?:(?:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?[.,]{0,2} +)?"
_HALF = r"(?: ?(?P<half>[ap])\.?m\.?)"
_CLOCK = rf"(?P<hour>\d\d?):(?P<minute>\d\d)(?::(?P<second>\d\d)(?:[.,](?P<fraction>\d{{1,9}}))?)?{_HALF}?"
_TIME = rf"(?:{_CLOCK}|(?P<hour_alone>\d\d?){_HALF.replace('half', 'half_alone')}?|(?P<hhmm>\d{{4}})(?P<ss>\d\d)?)"
_ZONE = r"(?P<zone> ?(?:Z|UTC|GMT|[+-]\d\d(?::?\d\d)?))"
_FLAGS = re.ASCII | re.IGNORECASE

FORMS = tuple(re.compile(rf"{_WEEKDAY}{date}(?:(?:T|,? +){_TIME}{_ZONE}?)?", _FLAGS) for date in _DATES)
_DAYS = tuple(re.compile(rf"{_WEEKDAY}{day}(?:,? +\d\d?:\d\d(?::\d\d)?)?", _FLAGS) for day in _WITHOUT_YEAR)
_CLOCK_TIME = re.compile(_CLOCK, _FLAGS)
_SEASON = re.compile(r"(\d{4})[-/\u2013](\d\d)", re.ASCII)
_OF_YEARS = re.compile(r"[-/']")  # between a month and a year of two digits, as spreadsheets write them


@dataclass(frozen=True, eq=False)
class Dates:
    """Texts read as dates.

    Fields:
        days: (texts,), float64, days since 1970-01-01 (UTC where the texts have an offset).
        readings: the same by the order of day and month, every order that all the texts allow; empty where the form
            leaves no question.
        short_years: whether years have two digits; they are then read as 1969 to 2068.
        doubt: what else all the texts may be: "seasons", two years each, or "days" without a year.
    """

    days: Array
    readings: dict[Order, Array]
    short_years: bool = False
    doubt: DateDoubt | None = None


def read_dates(texts: Sequence[str]) -> Dates | None:
    """Texts as dates; None unless all are dates of one form, all with or all without an offset from UTC."""
    form = _form_of(texts[0]) if texts else None
    if form is None:
        return None
    matches = []
    for text in texts:
        match = form.fullmatch(text)
        if match is None:
            return None
        matches.append(match)
    if len({match["zone"] is None for match in matches}) > 1:
        return None
    time, valid = _time_of_day(matches)
    if not valid.all():
        return None
    readings: dict[Order, Array] = {}
    for order in _orders(form):
        days, valid = _days(form, matches, order)
        if valid.all():
            readings[order] = (days * _MICROSECONDS_PER_DAY + time) / _MICROSECONDS_PER_DAY
    if not readings:
        return None
    first = next(iter(readings.values()))
    if "a" in form.groupindex:
        return Dates(first, readings, "yy" in form.groupindex)
    if "yy" in form.groupindex:
        spaced = not any(map(_OF_YEARS.search, texts)) and days_without_year(texts).all()
        return Dates(first, dict.fromkeys(ORDERS, first), True, "days" if spaced else None)
    return Dates(first, {}, doubt="seasons" if all(map(is_season, texts)) else None)


def likely_dates(
    texts: Sequence[str], counts: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Masks of the texts that are dates, (texts,), and of those with the form, offset and order that most cells have.

    Args: counts: the cells that each text stands in.
    """
    dates, alike, most = np.zeros(len(texts), bool), np.zeros(len(texts), bool), 0
    for form, rows, matches in _by_form(texts, FORMS):
        _, clock = _time_of_day(matches)
        for order in _orders(form):
            _, calendar = _days(form, matches, order)
            found = rows[clock & calendar]
            dates[found] = True
            if (cells := int(counts[found].sum())) > most:
                alike, most = np.zeros(len(texts), bool), cells
                alike[found] = True
    return dates, alike


def days_without_year(texts: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Mask of texts that are a day and a month without a year, such as 5 Jan, (texts,). Of numbers, such as 5/13, all
    are or none: where all are, in one order, and some are above 12, since they may be shares or counts too."""
    days = np.zeros(len(texts), bool)
    for form, rows, matches in _by_form(texts, _DAYS):
        for order in _orders(form):
            _, calendar = _days(form, matches, order)
            if "a" in form.groupindex:
                above = np.maximum(_whole(matches, "a"), _whole(matches, "b")) > len(_MONTHS)
                calendar &= len(matches) == len(texts) and calendar.all() and above.any()
            days[rows[calendar]] = True
    return days


def is_season(text: str) -> bool:
    """True if text is a year and the last two digits of the year after, such as 2005-06 and 1999-00."""
    match = _SEASON.fullmatch(text)
    return match is not None and (int(match[1]) + 1) % 100 == int(match[2])


def clock_hours(texts: Sequence[str]) -> tuple[Array, npt.NDArray[np.bool_]]:
    """Clock times such as 14:30, 2:30 PM or 14:30:15 as hours since midnight, (texts,), and which texts are such."""
    matches = [_CLOCK_TIME.fullmatch(text) for text in texts]
    given = np.array([match is not None for match in matches], bool)
    hours = np.full(len(texts), np.nan)
    time, valid = _time_of_day([match for match in matches if match is not None])
    hours[given] = np.where(valid, time / (_MICROSECONDS_PER_DAY / 24), np.nan)
    return hours, ~np.isnan(hours)


def calendar_days(numbers: Array) -> Array | None:
    """Numbers such as 20000105 as days since 1970-01-01; None unless all are dates of the years 1800 to 2199."""
    if not len(numbers) or not ((numbers >= 18000101) & (numbers <= 21991231)).all():
        return None
    whole = numbers.astype(np.int64)
    if not np.array_equal(whole, numbers):
        return None
    days, valid = _day_numbers(whole // 10_000, whole // 100 % 100, whole % 100)
    return days.astype(np.float64) if valid.all() else None


def shown_date(days: float, *, time: bool = True) -> str:
    """Days since 1970-01-01 as ISO 8601, to the second; without `time` the day alone."""
    moment = np.datetime64(round(days * 86_400), "s")
    text = str(moment.astype("datetime64[D]") if not time or days % 1 == 0 else moment)
    return text.replace("T", " ").removesuffix(":00")


# -- work --------------------------------------------------------------------------------------------------------------
def _form_of(text: str, forms: Sequence[re.Pattern[str]] = FORMS) -> re.Pattern[str] | None:
    """The first form that a text has; None for text that is no date, whatever its numbers."""
    if not _SHORTEST <= len(text) <= _LONGEST:
        return None
    return next((form for form in forms if form.fullmatch(text)), None)


def _by_form(
    texts: Sequence[str], forms: Sequence[re.Pattern[str]]
) -> Iterator[tuple[re.Pattern[str], Whole, list[re.Match[str]]]]:
    """Each form that texts have, with or without an offset from UTC, their places and their matches."""
    alike: dict[tuple[re.Pattern[str], bool], list[int]] = {}
    for row, text in enumerate(texts):
        form = _form_of(text, forms)
        if form is not None and (match := form.fullmatch(text)):
            alike.setdefault((form, match.groupdict().get("zone") is None), []).append(row)
    for (form, _), rows in alike.items():
        yield form, np.array(rows), [match for row in rows if (match := form.fullmatch(texts[row]))]


def _orders(form: re.Pattern[str]) -> tuple[Order, ...]:
    """The orders of day and month that a form may have, the first standing for all where it makes no difference."""
    return ORDERS if "a" in form.groupindex else ORDERS[:1]


def _days(form: re.Pattern[str], matches: Sequence[re.Match[str]], order: Order) -> tuple[Whole, npt.NDArray[np.bool_]]:
    """Whole days since 1970-01-01 of matches of a form, and which of them are in the calendar."""
    names = form.groupindex
    one = np.ones(len(matches), np.int64)
    if "yy" in names:
        short = _whole(matches, "yy")
        year = short + np.where(short < _FIRST_SHORT_YEAR, 2000, 1900)
    else:
        year = _whole(matches, "y") if "y" in names else _LEAP_YEAR * one
    if "week" in names:
        return _week_days(year, _whole(matches, "week"), _whole(matches, "weekday", 1))
    if "a" in names:
        first, second = _whole(matches, "a"), _whole(matches, "b")
        return _day_numbers(year, *((second, first) if order == "dmy" else (first, second)))
    if "quarter" in names:
        return _day_numbers(year, 3 * _whole(matches, "quarter") - 2, one)
    month = (
        _whole(matches, "m") if "m" in names else np.array([_MONTHS.index(m["name"][:3].lower()) + 1 for m in matches])
    )
    return _day_numbers(year, month, _whole(matches, "d") if "d" in names else one)


def _day_numbers(year: Whole, month: Whole, day: Whole) -> tuple[Whole, npt.NDArray[np.bool_]]:
    valid = (year >= 1) & (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)
    months = ((year - 1970) * 12 + month - 1).astype("datetime64[M]")
    days = months.astype("datetime64[D]") + (day - 1)
    return days.astype(np.int64), valid & (days.astype("datetime64[M]") == months)


def _week_days(year: Whole, week: Whole, weekday: Whole) -> tuple[Whole, npt.NDArray[np.bool_]]:
    """Days of ISO 8601 weeks: week 1 is that of the 4th of January."""
    one = np.ones_like(year)

    def first(of: Whole) -> Whole:
        fourth, _ = _day_numbers(of, one, 4 * one)
        return fourth - (fourth + 3) % 7  # 1970-01-01 was a Thursday

    days = first(year) + 7 * (week - 1) + weekday - 1
    return days, (week >= 1) & (days < first(year + 1))


def _time_of_day(matches: Sequence[re.Match[str]]) -> tuple[Whole, npt.NDArray[np.bool_]]:
    """Microseconds since midnight, UTC where there is an offset, and which times a clock shows; 0 without a time."""
    found, valid = np.zeros(len(matches), np.int64), np.ones(len(matches), bool)
    for row, match in enumerate(matches):
        hour, minute, second, fraction, half = match.group("hour", "minute", "second", "fraction", "half")
        zone = ""
        if match.re is not _CLOCK_TIME:
            hour_alone, half_alone, hhmm, ss, zone = match.group("hour_alone", "half_alone", "hhmm", "ss", "zone")
            if hhmm is not None:
                hour, minute, second = hhmm[:2], hhmm[2:], ss
            elif hour_alone is not None:
                hour, half = hour_alone, half_alone
        if hour is None:
            continue
        h, m, s = int(hour), int(minute or 0), int(second or 0)
        micro = int(fraction[:6].ljust(6, "0")) if fraction else 0  # finer digits are cut, as of typed moments
        valid[row] = m < 60 and s < 60 and (1 <= h <= 12 if half else (h, m, s, micro) <= (24, 0, 0, 0))
        if half:
            h = h % 12 + 12 * (half in "pP")
        found[row] = ((h * 60 + m) * 60 + s) * 1_000_000 + micro
        offset = (zone or "").strip()
        if offset[:1] in ("+", "-"):
            hours, minutes = int(offset[1:3]), int(offset[3:].strip(":") or 0)
            valid[row] &= hours < 24 and minutes < 60
            found[row] -= (1 if offset[0] == "+" else -1) * (hours * 60 + minutes) * 60_000_000
    return found, valid


def _whole(matches: Sequence[re.Match[str]], name: str, otherwise: int = 0) -> Whole:
    return np.array([int(match[name] or otherwise) for match in matches], np.int64)
