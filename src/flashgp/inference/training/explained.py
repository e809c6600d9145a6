"""Whether a fitted model explains anything: its evidence beside that of a constant with noise, eq. (M-250)."""

import math

import torch
from torch import Tensor

from flashgp.foundations.events import Event, EventKind
from flashgp.foundations.normal import LOG_2PI
from flashgp.inference.prior import Prior
from flashgp.inference.training.period_starts import PERIODIC_ROLES

CHANCE = 1.0  # nats that a model without periods gains of a target that is noise
PER_PERIOD = 1.5  # log n each: of noise, some frequency explains so much


def nothing_explained(evidence: float, prior: Prior, y: Tensor) -> Event | None:
    """An event where the log marginal likelihood is no higher than that of a constant with noise, or than chance.

    Args:
        evidence: log p(y), nats, of the fitted model.
        prior: as fitted; y: its targets, (n,) or (n, outputs), NaN where a cell is missing.
    Returns: None where it explains more, where y is constant or of a batch, and where the user says what the noise is.
    Source: Djurić (1996), A model selection rule for sinusoids in white Gaussian noise, for 1.5 log n.
    """
    y = y.detach().double()
    n, noise = len(y), prior.likelihood.linear_noise()
    if y.dim() != 1 + (prior.outputs is not None) or noise is None or noise.parameter is None or n < 3:
        return None
    if not (prior.likelihood.rows_alike and noise.parameter.trainable):
        return None
    columns = [column[~column.isnan()] for column in y.reshape(n, -1).unbind(-1)]
    variances = torch.stack([column.var(correction=0) for column in columns])
    variances = variances if prior.separate else variances.mean().expand_as(variances)
    if not float(variances.min()) > 0.0:
        return None
    counts = variances.new_tensor([len(column) for column in columns])
    constant = -0.5 * float((counts * (variances.log() + LOG_2PI + 1.0)).sum())
    periods = sum(
        parameter.raw.numel()
        for leaf in prior.kernel.leaves()
        for name, role in getattr(leaf, "roles", {}).items()
        if role in PERIODIC_ROLES and (parameter := getattr(leaf, name)).trainable
    )
    gain, chance = evidence - constant, CHANCE + PER_PERIOD * periods * math.log(n)
    if gain > chance:
        return None
    return Event(EventKind.NOTHING_EXPLAINED, gain=gain, chance=chance, periods=periods or None)
