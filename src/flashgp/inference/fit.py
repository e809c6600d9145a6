"""fit: the parameters of a GP from data; what searches is inference/training."""

import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor

from flashgp.foundations.checks import check_flag, check_jitter
from flashgp.foundations.deadline import Deadline
from flashgp.foundations.errors import DomainError
from flashgp.foundations.events import Event, EventKind, NoDraws
from flashgp.foundations.report import Report
from flashgp.foundations.transforms import refuse_transformed
from flashgp.foundations.usual_names import usual_names_refused
from flashgp.inference.approximation import (
    Approximation,
    approximation_of,
    approximation_of_read,
)
from flashgp.inference.base_state import BaseState
from flashgp.inference.choice import Choice, cut_short, full_scale_is_late, instead, priced_with_sites
from flashgp.inference.data import Data, held
from flashgp.inference.findings import Unfinished, odd_data, why_unfinished
from flashgp.inference.fourier.fit import FourierFit
from flashgp.inference.full_scale.fit import FullScaleFit
from flashgp.inference.gathered import agreed_memory, agreed_plan
from flashgp.inference.gp import GP
from flashgp.inference.judgement.verdict import Verdict
from flashgp.inference.judging import Told, judged_unasked, unasked, verdict_of
from flashgp.inference.over_ranks import check_alike, choose_inference, counts_over, gathered_for, of_first
from flashgp.inference.parameter_rows import HEAD, NumberRow, number_rows, row_cells, table_text
from flashgp.inference.plan import check_plan, planned_device
from flashgp.inference.posterior import Posterior
from flashgp.inference.posterior_by_sites import condition_exactly, refuse_beside_sites
from flashgp.inference.prior import Prior
from flashgp.inference.progress_bar import shown_progress
from flashgp.inference.run import Run, with_run
from flashgp.inference.settings import ConditionSettings
from flashgp.inference.site_methods import method_of
from flashgp.inference.streamed.chosen import chosen_of_read
from flashgp.inference.streamed.fit import StreamedFit
from flashgp.inference.training.exact_fit import fit_exact
from flashgp.inference.training.fit import EngineLeft, ExactPosterior, Fitted, fitted_by, refuse_exact_fit
from flashgp.inference.training.history import HistoryEntry, Progress
from flashgp.inference.training.options import FitOptions, FitSettings
from flashgp.inference.training.uncertainty import refuse
from flashgp.planner.plan import Plan
from flashgp.planner.problem import PlanSettings, chosen_device
from flashgp.processes.group import Group
from flashgp.sources.source import RowSource, source_of
from flashgp.sources.survey import Survey

__all__ = ["Fit", "FitSettings", "HistoryEntry", "Progress", "fit", "fit_as"]


@dataclass
class Fit:
    """Result of `fit`: a new gp, its posterior on all rows, the history, the report; interrupted if cut short.

    Attributes:
        priors: those that the fit was under, by path and entry of the parameter, in words.
        log_prior: their log density, nats; None where another objective was asked for.
        columns: names of those of x; x1, x2, ... for None.
    """

    gp: GP
    posterior: Posterior
    history: list[HistoryEntry]
    report: Report
    interrupted: bool = False
    priors: Mapping[str, Sequence[str]] = field(default_factory=dict)
    log_prior: float | None = None
    columns: tuple[str, ...] | None = None

    @property
    def events(self) -> list[Event]:
        """Events of the fit and of its posterior."""
        return [*self.report.events, *self.posterior.report.events]

    @property
    def unfinished(self) -> Unfinished | None:
        """Reason that more time, or a closer approximation, may change the model; None without one."""
        return why_unfinished(self.events, interrupted=self.interrupted)

    @cached_property
    def verdict(self) -> Verdict:
        """How good the predictions are, by leave-one-out, and what to check; made when first asked for. A model of a
        table has its own, in units of the table: `TableModel.verdict`. Never raises. All ranks of a group ask together.
        Cost: that of `Posterior.leave_one_out`."""
        return verdict_of(self.posterior.state, Told(self.columns, events=self.events, interrupted=self.interrupted))

    def _judged(self) -> Verdict:
        """The verdict where it takes a moment or has been asked for, of several ranks on all of them."""
        if "verdict" in vars(self) or judged_unasked(self.posterior.state):
            return self.verdict
        return unasked(self.posterior.state)

    def rows(self) -> list[NumberRow]:
        """Every number of the model with the column that it belongs to and the prior that it was fitted under."""
        names = self.columns or tuple(f"x{j + 1}" for j in range(self.posterior.state.like[0].shape[-1]))
        return number_rows(self.gp, names, self.priors)

    def summary(self) -> list[tuple[str, str]]:
        """(name, text): the log marginal likelihood, the priors, and their sum, which was maximised."""
        evidence = None
        if self.posterior.state.evidence_known:
            evidence = float(self.posterior.log_marginal_likelihood().sum())
        likelihood = self.gp.likelihood
        by_sites = not likelihood.has_sites and method_of(likelihood).bound
        least = ", at least" if by_sites or self.posterior.can("bound") is None else ""
        text = "posterior.log_marginal_likelihood() estimates it"
        lines = [("log marginal likelihood", text if evidence is None else f"{evidence:.6g} nats{least}")]
        if self.log_prior is None:
            return [*lines, ("maximised", "another objective than the log joint")]
        joint = "" if evidence is None else f"{evidence + self.log_prior:.6g} nats: "
        return [
            *lines, ("log prior", f"{self.log_prior:.6g} nats"),
            ("maximised", f"{joint}the sum of both, the log joint of the targets and the parameters"),
        ]  # fmt: skip

    def __repr__(self) -> str:
        pairs = [f"{name:<24} {text}" for name, text in self.summary()]
        title = f"Fit of {self.posterior.count:,} rows after {len(self.history):,} evaluations"
        table = repr(self.gp) if self.gp.kernel.batch_shape else f"{self.gp.title}\n{table_text(self.rows())}"
        return "\n".join([str(self._judged()), title, *pairs, table, str(self.report)])

    def _repr_html_(self) -> str:
        return self._judged()._repr_html_() + self.tables_html()

    def tables_html(self) -> str:
        """Evidence, numbers and report, for notebooks."""

        def line(cells: Sequence[str], tag: str = "td") -> str:
            return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

        pairs = "".join(line(pair) for pair in self.summary())
        table = self.gp._repr_html_()
        if not self.gp.kernel.batch_shape:
            table = f"<table>{line(HEAD, 'th')}{''.join(line(cells) for cells in row_cells(self.rows()))}</table>"
        return f"<table>{pairs}</table>{table}{self.report._repr_html_()}"


@usual_names_refused
def fit(
    gp: GP,
    x: Any,
    y: Any = None,
    *,
    starts: int | None = None,
    initial: Literal["data", "given"] = "data",
    priors: Literal["weak", "sparse", "given"] = "weak",
    max_iterations: int = 200,
    time_limit: float | None = None,
    memory: str | int | None = None,
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
    plan: Plan | None = None,
    tolerance: float = 1e-3,
    jitter: float | None = None,
    seed: int = 0,
    deterministic: bool = False,
    checkpoint: str | Path | None = None,
    progress: Callable[[Progress], None] | Literal[False] | None = None,
    settings: FitSettings | None = None,
    approximation: str | None = None,
    inducing: int | str | Tensor = "auto",
    neighbours: int | str = "auto",
    exact_posterior: bool = False,
    method: str | None = None,
    uncertainty: str | None = None,
    group: Any = None,
) -> Fit:
    """Fit the trainable parameters to data by maximising the log joint, eq. (M-38); the argument is not changed.

    Of a likelihood whose sites are found by iteration it maximises a lower bound on it, eqs. (M-267) and (M-271), for
    one table that is held or read; an evaluation takes three to six times as long.

    Args:
        gp: the model; `initial="given"` starts at its values.
        x: rows, (*batch, n, d), n at least 1. Or rows that are read in passes, not held: `fgp.data.parquet(...)`, or
            what gives batches (x, y), or (x, y, row_variance), or (x, y, row_weight) where sites are found by
            iteration, or (x, y, {"exposure": hours, ...}), again and again, such as a list or a DataLoader. Passes may
            differ in order but not in rows; a random sample of them is held.
        y: targets, (*batch, n) or (*batch, n, outputs); left out where rows are read.
        starts: runs from different initial values, on at most 400 rows, from where the best goes on to more and more
            rows. With more than one, a last run starts from the best with its long lengthscales reset, which finds
            columns that were ignored. None for 4, or 1 for initial="given", for models with modules of your own and
            for other likelihoods than Gaussian, which begin on 250 rows.
        initial: "data" starts from data-driven values (then the given ones, then random), "given" from the given ones,
            wherever they are: bounds, which the data suggest, contain them. Periods are then those that the periodogram
            of the targets suggests, weighed by the log joint, eq. (M-250), and the given one.
        priors: "weak" adds weakly informative priors to parameters without one (training/initial.py), "sparse" the same
            but for lengthscales of columns, which expect that few of them matter, eq. (M-386), "given" none. "weak" is
            "sparse" with `uncertainty` where draws can be had, and from 12 columns on with fewer than 12 rows for each.
        max_iterations: of each search: of L-BFGS-B per start, of Fisher scoring per number of rows.
        time_limit: seconds of the whole call, a compile included, kept to a tenth and 2 s; no evaluation or compile
            begins that would end too late. Where the posterior of all rows would take too long, an iterative solve ends
            with the time, labelled as `GP.condition` says, or the posterior is that of fewer rows: an event and a
            warning say so, and `gp.condition(x, y)` has all. Without time for an evaluation the parameters are those
            that the data suggest. A pass over rows that are read ends with the time: the posterior is then that of the
            best finished evaluation of all rows, or else of the random sample. Where it allows fewer evaluations of all
            rows by inducing points than a search usually takes, the hyperparameters are those of a random sample whose
            rows count for all of them, the inducing values are learned from random rows until the time is up
            (streamed/learning.py), and the report says how far from the optimum they are; rows that are read in a fixed
            order, such as a list of batches, are random within a buffer only, so shuffle them before.
        memory: as `GP.condition`.
        device: as `GP.condition`.
        dtype: as `GP.condition`.
        plan: as `GP.condition`.
        tolerance: as `GP.condition`.
        jitter: as `GP.condition`.
        seed: of random starts, probes and the posterior's solve; the same seed gives the same result.
        deterministic: the same bits whatever the number of threads, as `GP.condition` says; the posterior remembers.
            One thread, and general loops also for few rows, where an evaluation takes two to three times as long.
        checkpoint: a file that makes an interrupted fit resumable, along the same trajectory; with estimated gradients,
            to the tolerance of their solves, and to rounding where other processes change the number of threads. It is
            of this model, whose functions and modules count by their code, and of one minor version of Python where it
            has any. A text attribute `fingerprint` of a function or module stands for its code.
        progress: called after every evaluation; False for nothing. None for a bar after a second, where a terminal or a
            notebook shows it.
        settings: numbers that tune the search, and its objective (training/options.py).
        approximation: None for exact inference at any size, with the parameters of full scale where sites are found by
            iteration and a factor in each step does not fit, or takes long, (M-451); "full_scale" for inducing points
            and a block-Vecchia factor of the residual covariance, eq. (M-148), linear in the rows: `fit.posterior.lost`
            says what that costs; "sparse" for inducing points alone by their collapsed bound, eq. (M-160):
            `fit.posterior.bound` has a lower and an upper bound on log p(y). "fourier", of a stationary covariance
            function whose terms have one to three columns each, is the series (M-431), (M-425): after one pass of
            Gaussian noise an evaluation does not see the rows, unless their noise differs or their mean is not
            constant; `fit.posterior.lost` says what is left out, and points far outside the rows are refused; it pays
            for many more rows than frequencies. It needs finufft. "auto" is the series where these are planned to take
            a third of an exact fit's time, with a factor of their weights, or the least where that is late, unless the
            first rows say that they are slow; else exact inference where its plan keeps to time_limit and memory, and
            to a minute where sites are found by iteration, else full scale, else inducing points alone; under a
            time_limit that full scale of all rows would pass, full scale of some, or points where these lose less on
            rows held out, eq. (M-245), if the first rows leave time to try; the report says which and why. Rows that
            are read are fitted by inducing points or by "fourier"; where "auto" or nothing is asked for by the series
            where they are planned to take a third of the time of passes by inducing points, with a factor of their
            weights.
        inducing: of an approximation, how many points, 0 for block Vecchia alone; or the points themselves, (m, d).
            "auto" takes the largest sizes whose planned fit keeps to time_limit and memory, eq. (M-187); a checkpoint
            is of these, so name sizes in the first call to go on with another limit.
        neighbours: of an approximation, rows that each block is given; 0 for inducing points alone, as "sparse". "auto"
            as for inducing points, and without a time_limit twice as many where these add much, eq. (M-209).
        exact_posterior: an approximation gives the parameters alone, in time linear in the rows, and the posterior is
            the exact one, as `gp.condition(x, y)` gives it: certified, or as far as the time limit lets it come. For
            rows that are held, of which there are too many for exact gradients. Sites that are found by iteration are
            those of the exact posterior too.
        method: by which the sites of a likelihood are found, as `Likelihood.by_method` says; None as it says itself.
            "variational" is a lower bound on log p(y), "ep", of `Bernoulli`, moments. "laplace" takes slope and
            curvature at the mode, eq. (M-350), by exact inference, for comparison with others' results: the report
            warns where it is known to fail.
        uncertainty: of the hyperparameters, which point estimates leave out: intervals of small tables, and of many
            columns, are then too narrow. "laplace" averages predictions over 32 sets, the best and draws of Laplace's
            approximation, eq. (M-381); "nuts" over samples of four chains of the No-U-Turn sampler, eq. (M-383), in
            some twenty thousand gradients, a hundred times as many as the search: the report says how many, and how far
            chains have settled; "auto" is "laplace" where that takes no more gradients than the search, else nothing,
            and the report says which. Under a time_limit none that would end too late. Of Gaussian likelihoods, by
            exact inference; several outputs have their draws in common, as they have their covariance function.
        group: a ProcessGroup, or a DeviceMesh of one dimension, of processes that each call this with rows of their
            own, some with none: `torch.distributed.group.WORLD` under torchrun. All get the same answer, that of all
            rows, and an error of one is raised by all, Ctrl-C too. Files that are read are named alike on every rank,
            which then reads a part. Exact inference keeps all of x and y on every rank and shares what takes longer
            (`GP.condition`), "full_scale" likewise; inducing points and Fourier series sum over rows, and their
            posterior is one of rows that were read. With "auto" rank 0 decides for all. The first rank to pass
            time_limit stops all ranks. Rank 0 shows warnings that all ranks have, at the end.
            `flashgp.processes.Group.of` says how long ranks wait for each other, 10 minutes unless told.

    Returns:
        Fit. Ctrl-C and the time limit return the best so far, with `interrupted`: after Ctrl-C the posterior is of as
            many random rows as a second allows, if not of all, and fit.gp.condition of all rows, by the same
            approximation, goes on from there. Ctrl-C in an iterative solve of the posterior gives its best weights so
            far, labelled with the bound they reached.

    Raises:
        ShapeError: as `GP.condition`.
        DomainError: as `GP.condition`; for a checkpoint of something else, or with a model that holds what nothing
            tells apart (an open file, a lock).
        MemoryBudgetError: as `GP.condition`.
        NotPositiveDefiniteError: if no start can be evaluated.
        FitInterrupted: a KeyboardInterrupt that has the trained `gp`, for Ctrl-C where the posterior has no partial
            answer: gp.condition(x, y), or the same call with its checkpoint, goes on from there. On every rank.
    Cost: n^3 flops per evaluation of all rows, a dozen of them after 100 to 300 of 400 rows, and one n x n buffer, with
        n the number of distinct rows.

    Example:
        >>> x = torch.linspace(0, 5, 30, dtype=torch.float64)[:, None]
        >>> y = torch.sin(x[:, 0])
        >>> fit = fgp.fit(fgp.GP(1.0 * fgp.kernels.Matern(nu=2.5)), x, y, starts=1)
        >>> bool(fit.posterior.predict(x).mean.sub(y).abs().max() < 0.1)
        True
    """
    refuse_transformed("fit", "call it for each table, or take gradients of gp.log_marginal_likelihood", x, y)
    if method is not None:
        gp = gp.with_likelihood(gp.likelihood.underlying.by_method(method))
    deadline, exact_posterior = Deadline.after(time_limit), check_flag(exact_posterior, "exact_posterior")
    ranks = Group.of(group)
    with shown_progress(False if progress is None and ranks.rank else progress) as callback, ranks.together():
        options = FitOptions(
            starts, initial, priors, max_iterations,
            Run(seed, deterministic, tolerance, ranks, device, dtype, memory, deadline),
            plan, check_jitter(jitter), checkpoint, callback, settings or FitSettings(), uncertainty=uncertainty,
        )  # fmt: skip
        if y is None:
            if exact_posterior:
                raise DomainError(
                    "`exact_posterior` needs rows that are held, got rows that are read; pass x and y, or leave it out"
                )
            return fit_as(gp, source_of(x), options, approximation_of_read(approximation, inducing, neighbours))
        asked = approximation_of(approximation, inducing, neighbours)
        data = Data.of(gp, x, y)
        odd = _odd_data(data) if ranks.size == 1 else []
        exact = None
        if exact_posterior and asked is not None:
            plan = _choice(gp, data, options, asked).exact()
            exact = _exact_posterior(gp, data, options, priced_with_sites(gp, plan))
        found = fit_as(gp, data, options, asked, exact=exact)
        found.report.events[:0] = odd
        return found


def _odd_data(data: Data) -> list[Event]:
    """Suspicious data of one table."""
    x, outputs = data.x, data.prior.outputs
    if data.is_batch or not data.count:
        return []
    targets = ["the target"] if outputs is None else [f"output {j}" for j in range(outputs)]
    y = data.y
    if not data.prior.likelihood.has_sites:  # its targets are as odd as it says
        y, targets = x[:, :0], []
    return odd_data(x, y, [*(f"x{j + 1}" for j in range(x.shape[-1])), *targets], range(len(x)))


def fit_as(
    gp: GP,
    rows: Data | RowSource,
    options: FitOptions,
    asked: Approximation | None = None,
    *,
    exact: ExactPosterior | None = None,
) -> Fit:
    """`fit` with its arguments as values, such as a deadline of a call that began before.

    Args: exact, for the exact posterior beside an approximation. Raises: as `fit`.
    """
    event, rival, instead_of_series, group = None, None, None, options.run.group
    first: Survey | None = None
    if isinstance(rows, Data) and asked is not None and asked.kind == "auto":
        refuse_exact_fit(options)
        check_alike(group, gp, asked, options.alike)
        candidates, wanted, run = asked.candidates, _wanted(options), options.run
        asked, planned, event = choose_inference(gp, rows, asked, run, wanted, training=True)
        late = full_scale_is_late(planned, event, run.deadline.limit)
        if group.size == 1 and cut_short(gp, wanted) and late:
            rival = candidates[-1]
    if not isinstance(rows, Data) and asked is not None and asked.kind == "auto":
        refuse_exact_fit(options)
        how, least = options if gp.likelihood.has_sites else options.by_sites(), options.stages.first_rows
        asked, first, instead_of_series, event = chosen_of_read(gp, rows, asked, how, least, training=True)
    if isinstance(rows, Data) and asked is not None and asked.kind == "fourier":
        refuse_exact_fit(options)
        choice = _choice(gp, rows, options, asked)
        choice = replace(choice, settings=replace(choice.settings, factored=not gp.likelihood.has_sites))
        instead_of_series = of_first(group, Approximation("auto", series=False), choice.beside_series)
    if asked is None and exact is None and isinstance(rows, Data):
        exact = _searched_by_full_scale(gp, rows, options)
        if exact is not None:
            if options.plan is not None:
                own = with_run(options, device=options.plan.device, memory=options.plan.available_bytes)
                options = replace(own, plan=None)
            asked = Approximation("full_scale")
            event = Event(EventKind.SEARCHED_BY_FULL_SCALE, likelihood=gp.likelihood.name, rows=exact.data.count)
    columns, tried = None, list[Event]()
    passes = held(rows) if isinstance(rows, Data) and asked is not None and asked.by_passes else rows
    refuse_beside_sites(gp, passes, approximate=asked is not None)
    options = options if gp.likelihood.has_sites else options.by_sites()
    if asked is not None or exact is not None:
        refuse(NoDraws.APPROXIMATION, options.uncertainty)
    if asked is None:
        assert isinstance(rows, Data)
        if options.uncertainty is not None and options.priors == "weak" and options.settings.uncertainty.sparse:
            options = replace(options, priors="sparse")
        fitted: Fitted[Any] = fit_exact(gp, rows, options)
    elif instead_of_series is not None:
        assert not isinstance(passes, Data)
        columns = passes.columns
        other, plan = instead_of_series
        try:
            fitted = fitted_by(FourierFit, gp, first or passes, options, asked, exact=exact, rival=plan)
        except EngineLeft as left:
            found = fit_as(cast(GP, left.prior), rows, _going_on(options), other, exact=exact)
            found.report.seconds = (found.report.seconds or 0.0) + left.seconds
            for report in (found.report, found.posterior.report):
                report.events[:0] = [left.event]
            return replace(found, history=_history(left, found.history))
    elif asked.by_passes:
        assert not isinstance(passes, Data)
        columns = passes.columns
        fitted = fitted_by(
            FourierFit if asked.kind == "fourier" else StreamedFit, gp, first or passes, options, asked, exact=exact
        )
    elif rival is None:
        fitted = fitted_by(FullScaleFit, gp, rows, options, asked, exact=exact)
    else:
        assert isinstance(rows, Data)
        fitted, tried = fit_by_trial(gp, rows, options, asked, rival, exact)
    if asked is not None and options.uncertainty is not None:
        fitted.report.events.append(Event(EventKind.HYPERPARAMETERS_FIXED, reason=NoDraws.APPROXIMATION))
    if event is not None:
        event = instead(event, "sparse") if tried else event
        for report in (fitted.report, fitted.state.report):
            report.events[:0] = [event, *tried]
    return Fit(
        cast(GP, fitted.prior), Posterior(fitted.state), fitted.history, fitted.report, fitted.interrupted,
        fitted.priors, fitted.log_prior, columns,
    )  # fmt: skip


def fit_by_trial(
    gp: GP,
    data: Data,
    options: FitOptions,
    asked: Approximation,
    rival: Approximation,
    exact: ExactPosterior | None = None,
) -> tuple[Fitted[Any], list[Event]]:
    """A fit by full scale, or by inducing points from the parameters of the first rows where a trial says so, (M-245).

    Args: asked, full scale; rival, inducing points. Returns: the fit; the event of a trial that took the points.
    """
    try:
        return fitted_by(FullScaleFit, gp, data, options, asked, exact=exact, rival=rival), []
    except EngineLeft as left:
        found = fitted_by(StreamedFit, left.prior, held(data), _going_on(options), rival, exact=exact)
        found.report.seconds = (found.report.seconds or 0.0) + left.seconds
        return replace(found, history=_history(left, found.history)), [left.event]


def _going_on(options: FitOptions) -> FitOptions:
    """Options of a fit from where another engine was left, whose checkpoint is of that one."""
    return replace(options, initial="given", starts=1, checkpoint=None)


def _history(left: EngineLeft, later: list[HistoryEntry]) -> list[HistoryEntry]:
    return [*left.history, *(replace(entry, seconds=entry.seconds + left.seconds) for entry in later)]


def _searched_by_full_scale(gp: GP, data: Data, options: FitOptions) -> ExactPosterior | None:
    """The posterior of an exact fit whose parameters are those of full scale, `Choice.searched`; None for others."""
    if options.jitter is not None or options.solver is not None:
        return None
    if (plan := options.plan) is not None:
        if plan.training != "full_scale" or gp.likelihood.has_sites:
            return None
        device, settings = planned_device(plan, options.run.device, data.x), ConditionSettings(options.run)
        check_plan(plan, gp, data.x, device, data.distinct, settings)
        return _exact_posterior(gp, data, options, plan)
    group = options.run.group
    check_alike(group, gp, None, options.alike)
    if gp.likelihood.has_sites or group.sum(torch.tensor(data.count)) == 0:
        return None
    choice = _choice(gp, data, options, None)
    plan = agreed_plan(choice.searched(choice.exact(), options.settings.sites), group)
    return _exact_posterior(gp, data, options, plan) if plan.training == "full_scale" else None


def _wanted(options: FitOptions) -> PlanSettings:
    """Options that an exact plan has to keep to."""
    return options.planning(dtype=options.run.dtype, ranks=1)


def _choice(gp: GP, data: Data, options: FitOptions, asked: Approximation | None) -> Choice:
    """A choice for the rows of all ranks, with what a plan of exact inference on them has to keep to."""
    group, device = options.run.group, chosen_device(options.run.device, data.x)
    if group.size > 1:
        check_alike(group, gp, asked, options.alike)
    rows = data.counts if group.size == 1 else counts_over(group, gp, data)
    memory = agreed_memory(options.run.memory, device, group)
    factored = rows.batch * gp.kernel.batch_shape.numel() > 1
    wanted = replace(_wanted(options), memory=memory, device=device, factored=factored, ranks=group.size)
    return Choice(gp, rows, wanted, options.run.deadline.limit)


def _exact_posterior(gp: GP, data: Data, options: FitOptions, plan: Plan) -> ExactPosterior:
    """The posterior of all rows by exact inference, by a plan; of those of all ranks on every rank."""
    group = options.run.group
    if group.size == 1:
        return ExactPosterior(data, plan, condition_exactly)
    whole, data, _, options = gathered_for(gp, data, group, options, options.alike)

    def condition(prior: Prior, data: Data, settings: ConditionSettings) -> BaseState:
        numbers, run = whole.likelihood.row_tensors, options.run
        if numbers:
            prior = prior.with_likelihood(prior.likelihood.with_rows(**numbers))
        settings = with_run(settings, memory=run.memory, deadline=run.deadline)
        return condition_exactly(prior, data, settings)

    return ExactPosterior(data, agreed_plan(plan, group), condition)
