"""Rows of a source as inputs of a bound: residual, features, and sites, with what is known of single rows."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from flashgp.foundations.deadline import NO_DEADLINE, Deadline, TimeUp
from flashgp.foundations.errors import DomainError, ShapeError
from flashgp.inference.approximation import Approximation
from flashgp.inference.choice import refuse_batch
from flashgp.inference.full_scale.layout import PIVOT_SHARE
from flashgp.inference.over_ranks import shard
from flashgp.inference.plan_settings import RowCounts
from flashgp.inference.prior import Prior
from flashgp.inference.run import Run
from flashgp.inference.site_methods import Variational
from flashgp.inference.sites import from_prior, local_sites
from flashgp.inference.streamed.bound import BlockInputs
from flashgp.inference.streamed.steps import InducingValues
from flashgp.processes.agreement import late
from flashgp.processes.group import ALONE, Group
from flashgp.sources.group_survey import surveyed_over
from flashgp.sources.source import Encoded, Held, RowSource
from flashgp.sources.survey import Block, Survey, checked

SAMPLE_ROWS = 2000  # at least, of those that are kept


def prior_of_rows(prior: Prior, rows: Block) -> Prior:
    """The prior of some rows: parameters are shared. Raises: DomainError for numbers that it does not take."""
    return prior.with_likelihood(prior.likelihood.with_rows(**rows.numbers)) if rows.numbers else prior


def named(rows: RowSource, prior: Prior) -> RowSource:
    """Rows as a likelihood takes them: targets encoded, numbers by name."""
    return rows if isinstance(rows, Held) else Encoded(rows, prior.likelihood.encoded, prior.likelihood.read)


def noise_of(prior: Prior, rows: Block) -> Tensor:
    """The noise variance of some rows, (1,) or (b,), differentiable in the parameters; of iterated sites that of each
    row by itself."""
    prior = prior_of_rows(prior, rows)
    if not prior.likelihood.has_sites:
        y = rows.y.double()
        return local_sites(prior.likelihood, y, from_prior(prior, rows.x, y).at)[0].variance
    return prior.sites(rows.y).variance


def blocks_on_time(survey: Survey, size: int, deadline: Deadline, *, brief: bool = False) -> Iterator[Block]:
    """A pass in blocks of so many rows; of several ranks, of this one's.

    Args: brief, whether it takes less time than what follows.
    Raises: TimeUp before the first batch or block after the deadline; of several ranks at the beginning, on all.
    """
    shared = survey.group.size > 1
    if shared and late(survey.group, deadline):
        raise TimeUp

    def check() -> None:
        if deadline.passed():
            raise TimeUp

    return survey.blocks(size, None if shared or brief else check)


def inputs_of(
    prior: Prior, blocks: Iterable[Block], device: torch.device, first: int = 0, values: InducingValues | None = None
) -> Iterator[BlockInputs]:
    """Sites and features of blocks of rows, one after the other.

    Args: first, the number of their first row, for errors; values, q(u) that sites are made from where they need
        iteration.
    """
    for block in blocks:
        rows = block.to(device)
        of_rows = prior_of_rows(prior, rows)
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


def numbers_to_rows(prior: Prior, source: RowSource, group: Group) -> tuple[Prior, RowSource]:
    """What a likelihood knows of single rows goes to the rows, which are held. Over ranks each has its own, in the unit
    of all of them.

    Raises: DomainError for rows that are read, ShapeError for another number of rows.
    """
    likelihood = prior.likelihood
    if isinstance(source, Held) and group.size > 1:
        group.compare(numbers=sorted(likelihood.row_tensors))
        shares = group.shares(len(source.x))
        own = torch.arange(shares.total)[shares.slice(group.rank)]
        likelihood = likelihood.by_rows(lambda each: group.gather_rows(each, shares)).rows(own)
    if likelihood.rows_alike:
        return prior, source
    if not isinstance(source, Held):
        raise DomainError(
            "`likelihood` must be one that treats all rows alike where rows are read, got row_weight or others of "
            f"single rows; give them with the rows, as (x, y, {(*likelihood.of_read, 'row_variance')[0]})"
        )
    numbers = dict(sorted(likelihood.row_tensors.items()))
    if not numbers:
        raise DomainError(
            "`likelihood` must give what it knows of single rows as row_tensors by inducing points, got "
            f"{likelihood.name} without them; write that property, and with_rows"
        )
    for name, each in numbers.items():
        if each.shape[:1] != source.x.shape[:1]:
            raise ShapeError(
                f"`{name}` must have one entry per training row ({len(source.x)}), got shape {tuple(each.shape)}; pass "
                "it for the rows you condition on"
            )
    return prior.with_likelihood(likelihood.with_rows()), Held(source.x, source.y, numbers)


def numbers_to_likelihood(prior: Prior, source: RowSource) -> Prior:
    """The inverse of `numbers_to_rows`: the prior with the numbers of the rows that are held."""
    return prior_of_rows(prior, Block(source.x, source.y, source.numbers)) if isinstance(source, Held) else prior


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
    survey = surveyed_over(
        group, named(source, prior), prior.outputs, sample_rows(asked.most_inducing, least), seed, deadline
    )
    refuse_batch(batch=prior.is_batch(survey.x, survey.y))
    of_sample = prior_of_rows(prior, survey.sample).likelihood
    weight = of_sample.weight_of(survey.y)
    if weight is not None and not bool((weight > 0.0).any()):
        raise DomainError(
            f"`row_weight` must be positive somewhere, got {len(weight):,} zeros in a random sample; leave it out"
        )
    try:
        of_sample.check_targets(survey.y)
    except DomainError:  # of a row of the sample: by its number among all
        first = 0
        for _, block in checked(survey.source, prior.outputs, survey.width):
            prior_of_rows(prior, block).likelihood.check_targets(block.y, first)
            first += len(block.x)
        raise
    return survey


def first_pass(
    prior: Prior, rows: RowSource | Survey, asked: Approximation, run: Run, least: int = SAMPLE_ROWS
) -> tuple[Prior, Survey]:
    """The prior without numbers of single rows, and the first pass over this rank's, unless a choice has made it.
    Raises: DomainError, ShapeError."""
    if isinstance(rows, Survey):
        return prior, rows
    prior, rows = numbers_to_rows(prior, shard(rows, run.group), run.group)
    began = run.deadline.clock()
    survey = survey_of(prior, rows, asked, run.seed, least, run.deadline, run.group)
    return prior, replace(survey, seconds=run.deadline.clock() - began)


def counts_of(survey: Survey) -> RowCounts:
    """Sizes of rows that plans are made for."""
    extent = tuple((survey.x_moments.high - survey.x_moments.low).tolist())
    return RowCounts(survey.count, survey.width, alike=not survey.sample.numbers, extent=extent)


def sample_rows(inducing: int, least: int = SAMPLE_ROWS) -> int:
    """Rows that are kept of all that are read, at most."""
    return max(least, PIVOT_SHARE * inducing)
