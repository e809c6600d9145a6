"""Verdict: how good the predictions of a model are, in one sentence, and what to check.

    Good: predictions of rows left out explain 81 % of the variance (78 to 84); 95 % intervals hold 94 of 100, as they
    should.

A finding is a typed event whose sentence says what to do. docs/decisions/0060-verdict.md
"""

import html
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from flashgp.foundations.estimate import Estimate, Measure
from flashgp.foundations.events import Event, EventKind
from flashgp.inference.judgement.scored import Calibration, Scored


class Word(StrEnum):
    """Summary of a verdict in one word."""

    USELESS = "useless"
    WEAK = "weak"
    FAIR = "fair"
    GOOD = "good"
    EXCELLENT = "excellent"
    UNJUDGED = "not judged"


class How(StrEnum):
    """How rows were kept from the predictions that are judged."""

    LEFT_OUT = "rows left out one by one"
    SAMPLE = "a random sample of rows left out one by one"
    HELD_OUT = "rows held out"


@dataclass(frozen=True)
class VerdictSettings:
    """Settings of words and findings.

    Args:
        steps: shares explained from which a model is fair, good and excellent; steps_of_log_loss, of classes, whose log
            loss keeps much that no input can tell.
        least_explained: share below which nothing is explained; a constant that knows one row more explains 1 / n.
        below, above, by_chance: by which the share of rows inside their intervals may be too small or too large, and
            standard errors that it may be off by chance, before it is a finding; off_classes, of the rows whose most
            probable class is right.
        tail_gain: nats a row by which a Student t distribution describes the errors better, from which tails are heavy.
        few_rows, few_share, few_carry, few_deviations: rows, at least these and this share of all, that dominate where
            they make up so much of the squared error, each so many standard deviations off.
        rows_per_parameter: below which rows are few.
        repeated: share of rows that repeat another one, from which scores mean little.
        exactly: share of the squares that is left at most where errors are those of rounding.
        least_judged: rows below which they say nothing of others.
        least_left: share of the loss that is left at least where structure in it matters.
        least_rows: below which residuals are not looked at.
        neighbours: correlation of errors of neighbouring rows from which their order says something; beyond `errors`
            standard errors.
        beyond: of the width of the range of fitted rows, that a row may lie outside it.
        drift_rows, drift_errors: latest rows that are looked at, and standard errors by which more of them than usual
            lie outside their intervals before it is a finding.
        chance: probability that noise alone shows a period.
        period_share: of the squared errors that a period explains at least.
        of_others: findings of other outputs than the worst, at most.
        at_once: rows, times draws of hyperparameters, whose model shows its verdict unasked: about a second.
    """

    steps: tuple[float, float, float] = (0.3, 0.7, 0.9)
    steps_of_log_loss: tuple[float, float, float] = (0.15, 0.4, 0.75)
    least_explained: float = 0.01
    below: float = 0.07
    above: float = 0.03
    off_classes: float = 0.05
    by_chance: float = 3.0
    tail_gain: float = 0.4
    few_rows: int = 3
    few_share: float = 0.01
    few_carry: float = 0.6
    few_deviations: float = 3.0
    rows_per_parameter: float = 2.0
    repeated: float = 0.5
    exactly: float = 1e-6
    least_judged: int = 10
    least_left: float = 0.01
    least_rows: int = 20
    neighbours: float = 0.35
    errors: float = 4.0
    beyond: float = 0.1
    drift_rows: int = 100
    drift_errors: float = 5.0
    chance: float = 1e-3
    period_share: float = 0.15
    of_others: int = 4
    at_once: int = 4_000


VERDICT = VerdictSettings()


@dataclass(frozen=True, repr=False)
class Verdict:
    """How good the predictions of a model are.

    Attributes:
        word: the summary.
        how: how rows were kept from their predictions.
        rows: how many were predicted.
        measure: of what `explained` is a share.
        explained: share beyond the constant model, with its interval at 95 %; None where it cannot be had.
        calibration: rows inside 95 % intervals, or whose most probable class is right, beside how many are expected.
        findings: what to check, events whose sentences say what to do; of several outputs those of the worst, and of
            others what it has not.
        reason: why there is no judgement, a sentence, if there is none.
        of: which of several outputs it is of, in words.

    Example:
        >>> x = torch.linspace(0.0, 6.0, 60, dtype=torch.float64)[:, None]
        >>> verdict = fgp.fit(fgp.GP(fgp.kernels.RBF()), x, x[:, 0].sin(), starts=1).verdict
        >>> verdict.word, verdict.explained.value > 0.99, verdict.findings
        (<Word.EXCELLENT: 'excellent'>, True, ())
    """

    word: Word
    how: How
    rows: int = 0
    measure: Measure = Measure.VARIANCE
    explained: Estimate | None = None
    calibration: Calibration | None = None
    findings: tuple[Event, ...] = ()
    reason: str = ""
    of: str = ""

    @property
    def sentence(self) -> str:
        """The verdict in one sentence."""
        word = self.word.capitalize()
        if self.explained is None or self.word is Word.UNJUDGED:
            return f"{word}: {self.reason}"
        parts = [f"{word}: predictions of {self.of}{self.how} {self._explains}"]
        if self.calibration is not None:
            parts.append(self._calibrated(self.calibration))
        return f"{'; '.join(parts)}."

    @property
    def _explains(self) -> str:
        assert self.explained is not None
        value, low, high = (100.0 * part for part in (self.explained.value, self.explained.low, self.explained.high))
        if self.word is Word.USELESS:
            beside = "the class shares" if self.measure is Measure.LOG_LOSS else "the mean"
            return f"are no better than {beside}"
        said, *ends = (_percent(part) for part in (value, low, high))
        between = "" if ends == [said, said] else f" ({' to '.join(ends)})"
        return f"explain {said} % of {self.measure}{between}"

    def _calibrated(self, found: Calibration) -> str:
        of = found.rows if found.rows <= 100 else 100
        held, low, high = (of * share for share in (found.share, *found.range))
        expected = f"{low:.0f} to {high:.0f} expected"
        off = found.off(0.0, 0.0)
        much = "too" if any(event.kind in _OFF and not event.stage for event in self.findings) else "a little"
        if self.measure is Measure.LOG_LOSS:
            words = {-1: f"{expected}: {much} sure", 0: "as predicted", 1: f"{expected}: {much} cautious"}[off]
            return f"the most probable class is right in {_count(held)} of {of}, {words}"
        words = {-1: f"{expected}: {much} narrow", 0: "as they should", 1: f"{expected}: {much} wide"}[off]
        return f"95 % intervals hold {_count(held)} of {of}, {words}"

    def with_findings(self, findings: Sequence[Event]) -> "Verdict":
        """The verdict with more findings, each kind once; none where they say that rows left out are known."""
        known = {event.kind for event in self.findings}
        found = replace(self, findings=(*self.findings, *(event for event in findings if event.kind not in known)))
        if self.how is How.HELD_OUT or all(event.kind is not EventKind.ROWS_REPEATED for event in findings):
            return found
        return replace(found, word=Word.UNJUDGED, reason=self.reason or _REPEATED)

    def __repr__(self) -> str:
        return "\n".join([self.sentence, *(f"- {finding}" for finding in self.findings)])

    def _repr_html_(self) -> str:
        found = "".join(f"<li>{html.escape(str(finding))}</li>" for finding in self.findings)
        return f"<p>{html.escape(self.sentence)}</p>{f'<ul>{found}</ul>' if found else ''}"

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        explained, found = self.explained, self.calibration
        return {
            "word": self.word.value,
            "sentence": self.sentence,
            "how": self.how.name.lower(),
            "rows": self.rows,
            "measure": self.measure.name.lower(),
            "explained": None if explained is None else explained.value,
            "explained_95": None if explained is None else [explained.low, explained.high],
            "held": None if found is None else found.share,
            "held_expected": None if found is None else list(found.range),
            "findings": [event.to_json() for event in self.findings],
        }


def judged(scored: Scored, how: How, findings: Sequence[Event] = (), settings: VerdictSettings = VERDICT) -> Verdict:
    """The verdict on scored rows. Args: findings, further ones."""
    explained, rows = scored.explained, len(scored.loss)
    classes = scored.measure is Measure.LOG_LOSS
    if rows < settings.least_judged:
        reason = f"too few rows, {rows}, to tell how others are predicted; {settings.least_judged} may do."
        return Verdict(Word.UNJUDGED, how, rows, scored.measure, findings=tuple(findings), reason=reason)
    if explained is None:
        return Verdict(Word.UNJUDGED, how, rows, scored.measure, findings=tuple(findings), reason=_WITHOUT)
    steps = settings.steps_of_log_loss if classes else settings.steps
    word = Word.USELESS if explained.value < settings.least_explained else _word(explained, steps)
    found = list[Event]()
    if word is Word.USELESS:
        found.append(Event(EventKind.NO_BETTER, classes=classes or None))
    below, above = (settings.off_classes,) * 2 if classes else (settings.below, settings.above)
    off = scored.calibration.off(below, above, settings.by_chance)
    if off < 0 or (off > 0 and (classes or explained.value < 1.0 - settings.exactly)):
        low, high = (100.0 * end for end in scored.calibration.range)
        kinds = _CLASSES_OFF if classes else _INTERVALS_OFF
        found.append(Event(kinds[off], held=100.0 * scored.calibration.share, low=low, high=high))
    return Verdict(word, how, rows, scored.measure, explained, scored.calibration, tuple(found)).with_findings(findings)


def unjudged(reason: str, findings: Sequence[Event] = ()) -> Verdict:
    """A verdict that cannot be had. Args: reason, a sentence."""
    return Verdict(Word.UNJUDGED, How.LEFT_OUT, findings=tuple(findings), reason=reason)


_WITHOUT = "all rows have the same target, and there is nothing to explain."
_REPEATED = "most rows repeat another one, and one that is left out is known from its twin."
_INTERVALS_OFF = {-1: EventKind.INTERVALS_NARROW, 1: EventKind.INTERVALS_WIDE}
_CLASSES_OFF = {-1: EventKind.TOO_SURE, 1: EventKind.TOO_CAUTIOUS}
_OFF = frozenset((*_INTERVALS_OFF.values(), *_CLASSES_OFF.values()))


def _word(explained: Estimate, steps: tuple[float, float, float]) -> Word:
    if not explained.low > 0.0:
        return Word.USELESS
    fair, good, excellent = steps
    for least, word in ((excellent, Word.EXCELLENT), (good, Word.GOOD), (fair, Word.FAIR)):
        if explained.value >= least:
            return word
    return Word.WEAK


def _percent(value: float) -> str:
    """A share for people: 100 is exact, and what is close to it keeps the digit that tells it apart."""
    if not value > -1e3:
        return "less than -1,000"
    if 99.995 <= value < 100.0:
        return "more than 99.99"
    digits = 0
    while digits < 3 and value < 100.0 and round(value, digits) >= 100.0:
        digits += 1
    return f"{value:.{digits}f}" if value < 100.0 else "100"


def _count(value: float) -> str:
    return f"{value:.0f}" if value > 99.95 or value < 99.5 else f"{value:.1f}"
