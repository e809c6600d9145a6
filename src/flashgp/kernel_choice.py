"""Which covariance function a table gets: chosen by leave-one-out log densities of a subset of its rows.

A short fit of each candidate to the same rows; the default stays unless another predicts them better by more than a
standard error. Of a table with a column of time one candidate has the periods that its rows show. Deterministic, given
the seed. Does not do: a search among sums and products.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor, float64

from flashgp.foundations.errors import NotPositiveDefiniteError
from flashgp.foundations.events import Event, EventKind, Untried
from flashgp.inference.prior import Prior
from flashgp.inference.training.options import FitOptions
from flashgp.kernels.default import CANDIDATES, DEFAULT, SeasonalKernel, TableKernel
from flashgp.kernels.periodogram import highest_frequency, strongest_frequencies
from flashgp.subset_fits import SubsetFits, SubsetSettings

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class KernelChoiceSettings(SubsetSettings):
    """What tunes the choice, beside the subset; with less than `min_rows` rows the first candidate stays.

    Args:
        standard_errors: by which another candidate must predict better than the first, paired row by row.
    """

    standard_errors: float = 2.0


@dataclass(frozen=True)
class SeasonSettings:
    """Which periods a column of time is taken to have.

    Args: most, how many; false_alarm, probability that the strongest frequency of pure noise counts; cycles, that the
        rows must show of a period; harmonics, multiples of a frequency that its Periodic term explains already.
    """

    most: int = 3
    false_alarm: float = 1e-3
    cycles: float = 2.0
    harmonics: int = 12


@dataclass(frozen=True)
class KernelChoice:
    """Fields: kernel; event, what was chosen and why."""

    kernel: TableKernel
    event: Event


def table_candidates(
    x: Tensor, z: Tensor, time: int | None, settings: SeasonSettings | None = None
) -> tuple[TableKernel, ...]:
    """The covariance functions to choose among: CANDIDATES, and a seasonal one where a column of time shows periods.

    A frequency counts where it explains more of what those before it left than the strongest of noise would, by
    Scargle's false-alarm probability for as many independent frequencies as x tells apart.

    Args: x, (n, d), and z, (n,), standardised; time, position of the column, None for none; several outputs take none.
    Cost: some periodograms, O(n + F log F) each.
    Source: Scargle (1982), Studies in astronomical time series analysis II; the share's law is a Beta(1, (n - 5) / 2).
    """
    settings = settings or SeasonSettings()
    if time is None or z.dim() > 1 or len(x) < 20:
        return CANDIDATES
    at = x[:, time].detach().to("cpu", float64)
    found = strongest_frequencies(at, z, count=settings.most + settings.harmonics)
    span = float(at.max() - at.min())
    independent = max(1.0, span * highest_frequency(at))
    frequencies: list[float] = []
    for count, (frequency, share) in enumerate(zip(found.frequencies.tolist(), found.power.tolist(), strict=True)):
        noise = 1.0 - (settings.false_alarm / independent) ** (2.0 / max(1.0, len(x) - 5.0 - 2.0 * count))
        if share < noise:
            break
        if frequency * span >= settings.cycles:
            frequencies.append(frequency)
    multiples = range(2, settings.harmonics + 1)
    own = [f for f in frequencies if not any(abs(f - k * g) * span < 1.0 for g in frequencies for k in multiples)]
    if not own:
        return CANDIDATES
    periods = tuple(1.0 / frequency for frequency in own[: settings.most])
    return (*CANDIDATES, SeasonalKernel(DEFAULT.base, DEFAULT.stationary, DEFAULT.linear, time, periods))


def choose_kernel(
    prior_of: Callable[[TableKernel], Prior],
    x: Tensor,
    z: Tensor,
    options: FitOptions | None,
    *,
    candidates: Sequence[TableKernel] = CANDIDATES,
    settings: KernelChoiceSettings | None = None,
) -> KernelChoice:
    """The candidate with the highest leave-one-out log density, eqs. (M-39) and (M-40), or the first of them.

    Hyperparameters have seen the row that is left out: they are those of a short fit to the subset. Candidates should
    therefore have about as many parameters each. The first stays unless the best gains `settings.standard_errors`
    standard errors of the gain.

    Args:
        prior_of: the prior of all rows with a candidate as its covariance function; the likelihood's are not changed.
        x: (n, d), as the prior takes it.
        z: (n,) or (n, outputs), standardised, and transformed where the target is.
        options: of the whole fit, whose seed draws the subset and whose time limit is kept; None where parameters stay
            as they are, and the first candidate with them.
        settings: by default `KernelChoiceSettings()`.

    Raises:
        NotPositiveDefiniteError: never; a candidate without a factor is out.
        KeyboardInterrupt: for Ctrl-C.
    Cost: a short fit of 300 rows for each candidate, .1 to .5 s each on one core.
    """
    settings = KernelChoiceSettings() if settings is None else settings
    first = candidates[0]

    def kept(untried: Untried) -> KernelChoice:
        return KernelChoice(first, Event(EventKind.KERNEL_KEPT, kernel=first.name, untried=untried))

    if options is None or len(x) < settings.min_rows:
        return kept(Untried.GIVEN if options is None else Untried.FEW_ROWS)
    fits = SubsetFits(prior_of(first), x, options, settings)
    rows = z[fits.index].to(fits.x.device)
    found: dict[TableKernel, Array] = {}
    cut = False
    for candidate in candidates:
        if cut := cut or fits.deadline.passed():
            break
        try:
            fit = fits.fit(fits.of_rows(prior_of(candidate)), rows, fits.first, "the covariance function")
        except NotPositiveDefiniteError:
            continue
        if cut := not fit.complete:
            break
        density = fits.left_out(fit.state)
        if np.isfinite(density).all():  # rows without noise that repeat have none
            found[candidate] = density
    others = [candidate for candidate in found if candidate is not first]
    if first not in found or not others:
        return kept(Untried.TIME if cut else Untried.NO_FACTOR)
    best = max(others, key=lambda candidate: float(fits.counts @ found[candidate]))
    gain, error = fits.gain(found[best], found[first])
    clearly = gain > 0.0 and gain >= settings.standard_errors * error
    chosen, other = (best, first) if clearly else (first, best)
    event = Event(
        EventKind.KERNEL_CHOSEN if clearly else EventKind.KERNEL_KEPT, kernel=chosen.name, other=other.name,
        rows=fits.rows, tried=len(found) if clearly else len(others), gain=gain, error=error,
        errors=settings.standard_errors, cut=Untried.TIME if cut else None,
    )  # fmt: skip
    return KernelChoice(chosen, event)
