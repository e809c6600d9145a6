"""Findings about the errors of rows that were left out: heavy tails, few rows that dominate, structure that is left."""

import math
from collections.abc import Sequence

import numpy as np
import torch

from flashgp.foundations.estimate import Measure
from flashgp.foundations.events import Event, EventKind
from flashgp.inference.judgement.scored import LEVEL, Array, Scored
from flashgp.inference.judgement.verdict import VERDICT, VerdictSettings
from flashgp.kernels.periodogram import periodogram

FAR = 4.0  # standard deviations
DEGREES = (3.0, 5.0, 8.0)  # of freedom
_BEYOND_FAR = math.erfc(FAR / math.sqrt(2.0))
_NAMED = 5  # rows of a sentence


def tails(scored: Scored, names: Sequence[str] | None = None, settings: VerdictSettings = VERDICT) -> list[Event]:
    """Findings of rows far off: of few that dominate, or else of heavy tails. Args: names, of the rows."""
    if scored.standard is None or scored.measure is not Measure.VARIANCE or len(scored.loss) < settings.least_rows:
        return []
    n, total = len(scored.loss), float(scored.loss.sum())
    most = max(settings.few_rows, int(settings.few_share * n))
    order = np.argsort(-scored.loss, kind="stable")[:most]
    shares = np.cumsum(scored.loss[order]) / total if total > 0.0 else np.zeros(most)
    found, few = [], int(np.searchsorted(shares, settings.few_carry)) + 1  # that carry so much
    if few <= most and (np.abs(scored.standard[order[:few]]) > settings.few_deviations).all():
        which = None if names is None else tuple(names[row] for row in order[:few][:_NAMED])
        share = 100.0 * float(shares[few - 1])
        found.append(Event(EventKind.DOMINATED, rows=few, of=n, share=share, which=which))
    z = scored.standard
    if np.isfinite(z).all() and student_t_gain(z) > settings.tail_gain:
        far = int((np.abs(z) > FAR).sum())
        if far > 1:
            found.append(Event(EventKind.HEAVY_TAILS, rows=far, of=n, expected=_BEYOND_FAR * n))
    return found


def student_t_gain(z: Array) -> float:
    """Nats a row by which the best of a few Student t distributions describes z better than the best normal one."""
    scale = float(np.sqrt(np.mean(np.square(z))))
    if not scale > 0.0:
        return 0.0
    scales = scale * np.geomspace(0.05, 1.0, 40)
    best = -math.inf
    for nu in DEGREES:
        constant = math.lgamma(0.5 * (nu + 1.0)) - math.lgamma(0.5 * nu) - 0.5 * math.log(nu * math.pi)
        spread = np.log1p(np.square(z[:, None] / scales) / nu).mean(axis=0)
        best = max(best, float((constant - np.log(scales) - 0.5 * (nu + 1.0) * spread).max()))
    return best + 0.5 * math.log(2.0 * math.pi) + math.log(scale) + 0.5


def order_left(scored: Scored, settings: VerdictSettings = VERDICT) -> list[Event]:
    """Finding of errors that are alike in neighbouring rows, in the order of rows."""
    z = scored.standard
    if z is None or len(z) < settings.least_rows or not np.isfinite(z).all():
        return []
    ranks = np.argsort(np.argsort(z)).astype(np.float64)  # of which a few rows far off make nothing
    ranks -= ranks.mean()
    correlation = float(ranks[1:] @ ranks[:-1] / (ranks @ ranks))
    if correlation < max(settings.neighbours, settings.errors / len(z) ** 0.5):
        return []
    return [Event(EventKind.ORDER_LEFT, correlation=correlation)]


def period_left(
    scored: Scored, x: Array, column: str, *, table: bool = False, settings: VerdictSettings = VERDICT
) -> list[Event]:
    """Finding of errors that repeat along a column, by their periodogram, eqs. (M-247) and (M-422).

    Args: x, (n,), the column, and its name; table, whether the model is one of a table.
    """
    z = scored.standard
    if z is None or len(z) < settings.least_rows or not np.isfinite(z).all():
        return []
    found = periodogram(torch.from_numpy(np.ascontiguousarray(x)), torch.from_numpy(np.clip(z, -FAR, FAR)))
    if not len(found.power):
        return []
    best, n = int(found.power.argmax()), len(z)
    power, span = float(found.power[best]), float(x.max() - x.min())
    chance = len(found.power) * (1.0 - power) ** (0.5 * (n - 3))
    frequency = float(found.frequencies[best])
    if chance > settings.chance or power < settings.period_share or frequency * span < 2.0:
        return []
    return [Event(EventKind.PERIOD_LEFT, column=column, period=1.0 / frequency, share=100.0 * power, table=table)]


def drifting(inside: Sequence[bool], settings: VerdictSettings = VERDICT) -> Event | None:
    """Finding of new rows, the latest last, too many of which lay outside their 95 % intervals before they were
    learned."""
    latest = [*inside][-settings.drift_rows :]
    rows, outside = len(latest), sum(not one for one in latest)
    usual = (1.0 - LEVEL) * rows
    if rows < settings.least_rows or outside <= usual + settings.drift_errors * (LEVEL * usual) ** 0.5:
        return None
    return Event(EventKind.DRIFTING, rows=rows, outside=outside, expected=usual)
