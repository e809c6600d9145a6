"""What ranks do in tests of Fourier series over ranks, against one process with all rows."""

import warnings
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

import flashgp as fgp
from flashgp.foundations.deadline import NO_DEADLINE, Deadline
from flashgp.inference.approximation import Approximation
from flashgp.inference.data import Data
from flashgp.inference.fit import fit_as
from flashgp.inference.fourier.condition import condition_on
from flashgp.inference.fourier.local import WindowSettings
from flashgp.inference.fourier.state import FourierSettings
from flashgp.inference.fourier.system import SolveSettings
from flashgp.inference.run import Run
from flashgp.inference.settings import ConditionSettings
from flashgp.inference.streamed.rows import survey_of
from flashgp.inference.training.options import FitOptions, FitSettings
from flashgp.inference.training.settings import SearchSettings, StochasticSettings
from flashgp.processes.group import Group
from flashgp.processes.shares import Shares
from flashgp.sources.source import Held
from processes.time_jobs import LIMIT, EndsAt

F64 = torch.float64
FEW = FitSettings(search=SearchSettings(start_rows=40), stochastic=StochasticSettings(first_rows=60))


def table(rows: int, d: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    x = torch.rand(rows, d, generator=generator, dtype=F64)
    return x, torch.sin(5.0 * x[:, 0]) * x.sum(-1) + 0.1 * torch.randn(rows, generator=generator, dtype=F64)


def model(d: int = 1, lengthscale: float = 0.5, **rows: Tensor) -> fgp.GP:
    kernel = 1.2 * fgp.kernels.Matern(nu=2.5, lengthscale=torch.full((d,), lengthscale, dtype=F64))
    return fgp.GP(kernel, fgp.means.Constant(0.1), fgp.likelihoods.Gaussian(0.02, **rows))


def answers(post: Any, d: int = 1) -> list[Tensor]:
    x_test = torch.rand(9, d, generator=torch.Generator().manual_seed(5), dtype=F64)
    p = post.predict(x_test)
    return [p.mean, p.variance, post.paths(3, seed=1)(x_test), post.log_marginal_likelihood().reshape(1)]


def apart(one: list[Tensor], other: list[Tensor]) -> float:
    assert [a.shape for a in one] == [b.shape for b in other]
    return max(float((a - b).abs().max() / a.abs().max()) for a, b in zip(one, other, strict=True))


def conditioned(group: Any, counts: tuple[int, ...]) -> list[float]:
    """Differences from one process: rows that are held, read, with variances and with weights of their own, and terms
    in different columns."""
    shares = Shares(counts)
    own, every = shares.slice(dist.get_rank(group)), slice(0, shares.total)
    x, y = table(shares.total)
    known = 0.01 + 0.1 * x[:, 0]
    wide = table(shares.total, 2)[0]
    terms = sum((fgp.kernels.Matern(nu=2.5, active_dims=[j]) for j in (0, 1)), 0.5 * fgp.kernels.RBF(active_dims=[0]))
    additive = fgp.GP(terms, likelihood=fgp.likelihoods.Gaussian(0.02))

    def batches(rows: slice) -> list[tuple[Tensor, ...]]:
        return [(x[rows][i : i + 9], y[rows][i : i + 9]) for i in range(0, rows.stop - rows.start, 9)]

    def of(rows: slice, group: Any) -> list[Any]:
        asked = {"approximation": "fourier", "group": group}
        whole = [(x[rows], y[rows], known[rows])] * (rows.stop > rows.start)
        return [
            model().condition(x[rows], y[rows], **asked), model().condition(batches(rows), **asked),
            model().condition(whole, **asked),
            model(row_weight=1.0 + known[rows]).condition(x[rows], y[rows], **asked),
            additive.condition(wide[rows], y[rows], **asked),
        ]  # fmt: skip

    out = []
    for ours, alone in zip(of(own, group), of(every, None), strict=True):
        assert (ours.count, ours.state.ranks) == (shares.total, len(counts))
        assert "SHARED" in [event.kind.name for event in ours.report.events]
        d = alone.state.sample.x.shape[-1]
        assert len(ours.state.grid.parts) == d
        out.append(apart(answers(alone, d), answers(ours, d)))
    return out


def fitted(group: Any, counts: tuple[int, ...], each: bool) -> tuple[float, float, int, list[str]]:
    """Difference of parameters and of answers from one process's fit, its ranks, and the events.

    Args: each, rows of their own noise with a mean that moves, so that an evaluation takes passes."""
    shares = Shares(counts)
    own, every = shares.slice(dist.get_rank(group)), slice(0, shares.total)
    x, y = table(shares.total)
    known = 0.01 + 0.1 * x[:, 0]
    fits = []
    for rows, of in ((every, None), (own, group)):
        gp = model(row_variance=known[rows]) if each else model()
        if each:
            gp = fgp.GP(gp.kernel, fgp.means.Linear(torch.tensor([0.2], dtype=F64)), gp.likelihood)
        fits.append(fgp.fit(
            gp, x[rows], y[rows], approximation="fourier", group=of, settings=FEW, progress=False, starts=1,
        ))  # fmt: skip
    alone, ours = fits
    values = [torch.stack([p.detach().sum() for p in fit.gp.parameters()]) for fit in fits]
    kinds = [event.kind.name for event in ours.report.events]
    found = apart(values[:1], values[1:]), apart(answers(alone.posterior), answers(ours.posterior))
    return *found, ours.posterior.state.ranks, kinds


def of_counts(group: Any, counts: tuple[int, ...]) -> tuple[list[float], int, list[str]]:
    """Differences from one process that reads: of conditioning on rows held, and read, and of a fit; ranks; events."""
    shares = Shares(counts)
    own, every = shares.slice(dist.get_rank(group)), slice(0, shares.total)
    x, f = table(shares.total)
    y, hours = torch.poisson(torch.exp(f), generator=torch.Generator().manual_seed(0)), 1.0 + x[:, 0].round()
    kernel = 1.2 * fgp.kernels.Matern(nu=2.5, lengthscale=0.5)
    gp = fgp.GP(kernel, fgp.means.Constant(0.1), fgp.likelihoods.Poisson())

    def batches(rows: slice) -> list[Any]:
        return [(x[rows], y[rows], {"exposure": hours[rows]})] * (rows.stop > rows.start)

    asked: dict[str, Any] = {"approximation": "fourier", "group": group}
    alone = gp.condition(batches(every), approximation="fourier")
    held = gp.with_likelihood(fgp.likelihoods.Poisson(exposure=hours[own])).condition(x[own], y[own], **asked)
    read = gp.condition(batches(own), **asked)
    how: dict[str, Any] = {"settings": FEW, "progress": False, "starts": 1}
    fits = [fgp.fit(gp, batches(every), approximation="fourier", **how), fgp.fit(gp, batches(own), **asked, **how)]
    found = [apart(answers(alone), answers(post)) for post in (held, read)]
    found.append(apart(answers(fits[0].posterior), answers(fits[1].posterior)))
    return found, held.state.ranks, [event.kind.name for event in fits[1].report.events]


def without_factor(process_group: Any, counts: tuple[int, ...]) -> tuple[float, list[float], list[float]]:
    """Where there is no factor and no window serves: how far means are from one process's with a factor, and ratios of
    variances by draws to its variances; and the mean of the sample alone, where the time is up on one rank."""
    shares = Shares(counts)
    own = shares.slice(dist.get_rank(process_group))
    x, y = table(shares.total)
    gp, x_test = model(), torch.linspace(0.0, 1.0, 50, dtype=F64).unsqueeze(-1)
    known = gp.condition(x, y, approximation="fourier").predict(x_test)
    solves, none = SolveSettings(dense=5, block=4, share=2), WindowSettings(frequencies=())
    how = FourierSettings(solves=solves, windows=none, draws=256)
    ended = Deadline(0.0, 0.0) if dist.get_rank(process_group) else Deadline(0.0, 1e300)
    states = []
    with Group.of(process_group).together() as group:
        for deadline in (NO_DEADLINE, ended):
            run = Run(tolerance=1e-7, group=group, deadline=deadline)
            survey = survey_of(gp, Held(x[own], y[own]), Approximation("fourier"), 0, group=group).of_fewer(30, 0)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", fgp.FlashGPWarning)
                states.append(condition_on(gp, survey, ConditionSettings(run=run), options=how))
    state, part = states
    assert not state.weights.system.dense
    assert (state.count, part.count, part.ranks, part.held) == (shares.total, 30, len(counts), None)
    drawn = state.grid.forward(x_test, state.functions(state.sampled)).square().mean(0) + state.tail
    mean = fgp.Posterior(state).predict(x_test).mean
    told = fgp.Posterior(part).predict(x_test).mean
    return apart([known.mean], [mean]), (drawn / known.variance).tolist(), told.tolist()


def limited_at(group: Any, moment: int | None) -> dict[str, Any]:
    """A fit whose time ends on rank 1 alone, after so many readings of its clock."""
    x, y = table(200)
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    clock = EndsAt(moment if rank == 1 else None)
    options = FitOptions(run=Run(deadline=Deadline(LIMIT, LIMIT, clock), group=Group.of(group)), settings=FEW)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fgp.FlashGPWarning)
        data = Data.of(model(), x[rank::size], y[rank::size])
        fit = fit_as(model(), data, options, Approximation("fourier"))
    return {"answers": [t.tolist() for t in answers(fit.posterior)], "read": clock.read}


def refused(group: Any) -> list[str]:
    """What is said on every rank: bad rows on one, several classes, other columns, questions of rows."""
    rank = dist.get_rank(group)
    x, y = table(40, 2)
    bad = y.clone()
    bad[3] = torch.nan if rank else 0.0
    asked: dict[str, Any] = {"approximation": "fourier", "group": group}
    classes = fgp.GP(fgp.kernels.RBF(), likelihood=fgp.likelihoods.Categorical(3))
    post = model(2).condition(x, y, **asked)
    calls = [
        lambda: model(2).condition(x, bad, **asked),
        lambda: fgp.fit(model(2), x, bad, **asked, progress=False),
        lambda: classes.condition(x, (y > 0.5).double(), **asked),
        lambda: fgp.fit(classes, x, (y > 0.5).double(), **asked, progress=False),
        lambda: model(2 - rank).condition(x[:, : 2 - rank], y, **asked),
        lambda: post.append(x[:2], y[:2]),
        post.leave_one_out,
        lambda: model(2).condition([], **asked),
    ]
    out = []
    for call in calls:
        try:
            call()
            out.append("nothing")
        except (ValueError, MemoryError, fgp.FlashGPError) as error:
            out.append(f"{type(error).__name__}: {error}")
    return out
