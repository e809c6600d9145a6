"""Rows of a source as inputs of a bound: residual, features, and noise variances with those known of single rows."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from flashgp.foundations.deadline import NO_DEADLINE, Deadline
from flashgp.foundations.errors import DomainError
from flashgp.inference.approximation import Approximation
from flashgp.inference.choice import refuse_unfit
from flashgp.inference.full_scale.layout import PIVOT_SHARE
from flashgp.inference.prior import Prior
from flashgp.inference.site_methods import Variational
from flashgp.inference.sites import from_prior, local_sites
from flashgp.inference.streamed.bound import BlockInputs
from flashgp.inference.streamed.steps import InducingValues
from flashgp.processes.group import ALONE, Group
from flashgp.sources.group_survey import surveyed_over
from flashgp.sources.source import Encoded, Held, RowSource
from flashgp.sources.survey import Block, Survey, checked

SAMPLE_ROWS = 2000  # at least, of those that are kept


def prior_of_rows(prior: Prior, rows: Block) -> Prior:
    """The prior of some rows: parameters are shared. Raises: DomainError where no row can have a known variance."""
    if rows.row_variance is None:
        return prior
    return prior.with_likelihood(prior.likelihood.with_rows(rows.row_variance))


def priors_of(prior: Prior, blocks: Iterable[Block], first: int = 0) -> Iterator[tuple[Prior, Block]]:
    """Blocks of rows, one after the other, each with the prior of its rows. Args: first, the number of their first row,
    for likelihoods that know rows one by one."""
    for block in blocks:
        of_rows = prior_of_rows(prior, block)
        if not prior.likelihood.rows_alike and block.row_variance is None:
            index = torch.arange(first, first + len(block.x), device=block.x.device)
            of_rows = prior.with_likelihood(prior.likelihood.rows(index))
        first += len(block.x)
        yield of_rows, block


def noise_of_sample(prior: Prior, survey: Survey) -> Tensor:
    """Noise variances of the sample of the rows that a prior is of, (1,) or (b,)."""
    return prior_of_rows(prior_of_sample(prior, survey), survey.sample).sites(survey.y).variance


def prior_of_sample(prior: Prior, survey: Survey) -> Prior:
    """The prior of the sample of the rows that a prior is of, where it knows them one by one: parameters are shared."""
    if prior.likelihood.rows_alike:
        return prior
    return prior.with_likelihood(prior.likelihood.rows(survey.places))


def noise_of(prior: Prior, rows: Block) -> Tensor:
    """The noise variance of some rows, (1,) or (b,), differentiable in the parameters; of iterated sites that of each
    row by itself."""
    prior = prior_of_rows(prior, rows)
    if not prior.likelihood.has_sites:
        y = rows.y.double()
        return local_sites(prior.likelihood, y, from_prior(prior, rows.x, y).at)[0].variance
    return prior.sites(rows.y).variance


def inputs_of(
    prior: Prior, blocks: Iterable[Block], device: torch.device, first: int = 0, values: InducingValues | None = None
) -> Iterator[BlockInputs]:
    """Sites and features of blocks of rows, one after the other.

    Args: first, the number of their first row, for likelihoods that know rows one by one; values, q(u) that sites are
        made from where they need iteration.
    """
    for of_rows, rows in priors_of(prior, (block.to(device) for block in blocks), first):
        first += len(rows.x)
        features, likelihood, known = prior.kernel.rows(rows.x), of_rows.likelihood, None
        if likelihood.has_sites:
            sites = of_rows.sites(rows.y)
        else:
            assert values is not None
            y = rows.y.double()
            likelihood.check_targets(y, first - len(y))
            sites, at, known = values.sites(of_rows, rows.x, y, features.detach())
            sites = replace(sites, log_scale=Variational().excess(likelihood, y, at, sites).sum())
        yield BlockInputs(prior.residual(rows.x, sites.targets), features, sites.variance, sites.log_scale, known)


def move_row_variances_to_data(prior: Prior, source: RowSource, group: Group) -> tuple[Prior, RowSource]:
    """Known variances of rows that are held go from the likelihood to the rows. What else a likelihood knows of single
    rows stays there: passes take them one after the other, and the sample by their numbers.

    Raises: DomainError for that where rows are read or spread over ranks.
    """
    likelihood = prior.likelihood
    if likelihood.rows_alike:
        return prior, source
    known = likelihood.known_variances
    if known is None or known.dim() != 1 or not isinstance(source, Held):
        if isinstance(source, Held) and group.size == 1:
            return prior, source
        what = "known variances" if likelihood.has_sites else "weights"
        where, way = "where rows are read", f"give {what} with the rows, as (x, y, {likelihood.of_read})"
        if isinstance(source, Held):
            where, way = "over ranks", 'pass approximation="full_scale" with neighbours'
        raise DomainError(
            f"`likelihood` must be one that treats all rows alike {where}, got row_weight or others of single rows; "
            f"leave them out, or {way}"
        )
    prior.sites(source.y)  # refuses another number of rows
    return prior.with_likelihood(likelihood.with_rows()), Held(source.x, source.y, known)


def move_row_variances_to_likelihood(prior: Prior, source: RowSource) -> Prior:
    """The inverse of `move_row_variances_to_data`: the prior with the variances of the held rows."""
    if not isinstance(source, Held) or source.row_variance is None:
        return prior
    return prior.with_likelihood(prior.likelihood.with_rows(source.row_variance))


def survey_of(
    prior: Prior,
    source: RowSource,
    asked: Approximation,
    seed: int,
    least: int = SAMPLE_ROWS,
    deadline: Deadline = NO_DEADLINE,
    group: Group = ALONE,
) -> Survey:
    """The first pass, with as many rows kept as inducing points are chosen among. Raises: DomainError, ShapeError."""
    likelihood = prior.likelihood
    source = source if isinstance(source, Held) else Encoded(source, likelihood.encoded, likelihood.of_read)
    refuse_unfit(prior, "sparse", batch=False)
    survey = surveyed_over(group, source, prior.outputs, sample_rows(asked.most_inducing, least), seed, deadline)
    refuse_unfit(prior, "sparse", batch=prior.is_batch(survey.x, survey.y))
    known = survey.sample.row_variance
    if known is not None and not likelihood.has_sites and not bool((known > 0.0).any()):
        raise DomainError(
            f"`row_weight` must be positive somewhere, got {len(known):,} zeros in a random sample; leave it out"
        )
    prior_of_rows(prior, survey.sample)  # which may be refused
    try:
        prior_of_sample(prior, survey).likelihood.check_targets(survey.y)
    except DomainError:  # of a row of the sample: by its number among all
        first = 0
        for _, block in checked(source, prior.outputs, survey.width):
            likelihood.rows(torch.arange(first, first + len(block.y))).check_targets(block.y, first)
            first += len(block.x)
        raise
    return survey


def sample_rows(inducing: int, least: int = SAMPLE_ROWS) -> int:
    """Rows that are kept of all that are read, at most."""
    return max(least, PIVOT_SHARE * inducing)
