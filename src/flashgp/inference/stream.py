"""Streams: rows that come one after another, each predicted before it is learned (prequential, Dawid 1984).

A prediction never sees its own target, so the running figures are those of use: no row needs to be held out. The
posterior is a value; a stream is what replaces it, row by row, within a window where one is given.
"""

import collections
import math
import numbers
import os
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy
import torch
from jaxtyping import Float
from torch import Tensor

from flashgp.foundations.checks import check_count, check_points, check_targets
from flashgp.foundations.errors import (
    ConvergenceError,
    DomainError,
    MemoryBudgetError,
    NotPositiveDefiniteError,
    ShapeError,
    warn,
)
from flashgp.foundations.events import Event, EventKind
from flashgp.foundations.normal import LOG_2PI, QUANTILE_975
from flashgp.foundations.quantities import readable_seconds
from flashgp.inference.condition import condition
from flashgp.inference.data import Data
from flashgp.inference.judgement.residuals import drifting
from flashgp.inference.judgement.verdict import VERDICT
from flashgp.inference.online.update import in_dtype_of
from flashgp.inference.posterior import Posterior
from flashgp.inference.settings import ConditionSettings
from flashgp.solvers.direct.strided import load_routines

LATENCIES = 10_000  # steps that the quantiles of the latency are of: a stream has no end


@dataclass(frozen=True, eq=False)
class StreamStep:
    """Rows of one step: what was predicted of them before they were learned.

    Fields: mean and variance of the observations, (k,) or (k, outputs), units of y and their square; f, those of the
    latent function, likewise; y, the same shape, None where there was none; count, rows of the posterior now; seconds
    of predicting and learning, without what refining took, refining_seconds (0 where it was not its turn).
    """

    mean: Float[Tensor, "k *outputs"]
    variance: Float[Tensor, "k *outputs"]
    f: tuple[Float[Tensor, "k *outputs"], Float[Tensor, "k *outputs"]]
    y: Float[Tensor, "k *outputs"] | None
    count: int
    seconds: float
    refining_seconds: float


@dataclass(frozen=True)
class StreamMetrics:
    """Running figures of a stream, of all rows with a target so far.

    Fields: rows; rmse, units of y; nll, the mean of -log p(y_i | rows before), nats; coverage, the share of rows inside
    their central 95 % interval (NaN without rows). steps; of the seconds of the latest 10,000 the median, the
    99 % quantile and the largest (NaN without steps); refinements, and their seconds together.
    """

    rows: int
    rmse: float
    nll: float
    coverage: float
    steps: int
    median_seconds: float
    p99_seconds: float
    largest_seconds: float
    refinements: int
    refining_seconds: float

    def __str__(self) -> str:
        if not self.rows:
            return "no row predicted yet"
        refined = ""
        if self.refinements:
            refined = f"; refined {self.refinements:,} times in {readable_seconds(self.refining_seconds)}"
        return (
            f"{self.rows:,} rows: RMSE {self.rmse:.4g}, NLL {self.nll:.4g}, coverage {100 * self.coverage:.1f} %; "
            f"a step {readable_seconds(self.median_seconds)}, 99 % within {readable_seconds(self.p99_seconds)}, "
            f"largest {readable_seconds(self.largest_seconds)}{refined}"
        )


class Stream:
    """Learner of rows as they come, each predicted before it is learned.

        stream = fgp.Stream(posterior, window=2000, refine_every=500)
        for step in stream.consume(zip(x, y)):
            ...  # step.mean, step.variance of the row before it was learned
        print(stream.metrics)

    Steps from several threads come one after the other. Making one takes 0.1 s, with a window a second or more in a new
    process: what the first steps would load, and make late, is loaded then.

    Args:
        posterior: start, as `gp.condition` or `fgp.load` returns it, or `.posterior` of a fit. It stays as it is.
        window: most rows that are kept, the oldest go first; None keeps all. What is more than that at the beginning is
            dropped at once. Rows never leave an approximate posterior.
        refine_every: learned rows after which the hyperparameters take `refine_steps` steps (`Posterior.refine`); None
            leaves them as they are, as those of an approximate posterior stay.
        refine_steps: see `refine_every`.
        settle_nats: for each row of the posterior, by which new rows may have moved q(f) since sites that are found by
            iteration settled, eq. (M-275); beyond it those of all rows are found anew, with an event in the report of
            the posterior, which is then that of conditioning on these rows. Where none are found, a warning says so and
            they go on. None leaves them; an approximate posterior does.

    Attributes:
        posterior: as of now.
        metrics: of all steps so far.
        drift: finding that the latest rows are predicted worse than they should be; None where they are not. A warning
            says so when it begins.

    Raises:
        DomainError: for counts that are none, or a posterior that cannot learn online.
    Cost: of a step O(n^2) for each row, of an approximate posterior as its `append` (without a float64 factor solves:
        of the variance, and of the weights from the old ones), of a refinement about 1.3 n^3 flops a step.

    Example:
        >>> x = torch.linspace(0, 5, 30, dtype=torch.float64)[:, None]
        >>> y = torch.sin(x[:, 0])
        >>> stream = fgp.Stream(fgp.GP(fgp.kernels.Matern()).condition(x[:20], y[:20]), window=20)
        >>> steps = list(stream.consume(zip(x[20:], y[20:])))
        >>> len(steps), stream.posterior.x.shape
        (10, torch.Size([20, 1]))
    """

    def __init__(
        self, posterior: Posterior, *, window: int | None = None, refine_every: int | None = None,
        refine_steps: int = 5, settle_nats: float | None = 0.05,
    ) -> None:  # fmt: skip
        if not isinstance(posterior, Posterior):
            raise DomainError(
                f"`posterior` must be a Posterior, got {type(posterior).__name__}; use gp.condition(x, y), or "
                ".posterior of a fit"
            )
        for name, value in (("window", window), ("refine_every", refine_every), ("refine_steps", refine_steps)):
            if value is not None or name == "refine_steps":
                check_count(value, name, 1)
        asked = (
            ("posterior", posterior, "append"),
            ("window", window, "drop"),
            ("refine_every", refine_every, "refine"),
        )
        for name, given, question in asked:
            if given is not None and (reason := posterior.can(question)) is not None:
                raise DomainError(f"`{name}` of a stream must be one with which {question}() answers, but {reason}")
        nats: Any = settle_nats
        if nats is not None and (isinstance(nats, bool) or not isinstance(nats, numbers.Real) or not float(nats) > 0.0):
            raise DomainError(f"`settle_nats` must be positive, got {settle_nats!r}; None leaves sites as they are")
        self.window, self.refine_every, self.refine_steps = window, refine_every, refine_steps
        self.settle_nats = settle_nats
        surplus = 0 if window is None else posterior.count - window
        self.posterior = posterior.drop(range(surplus)) if surplus > 0 else posterior
        self._unrefined = 0  # rows learned since the last refinement
        self._unsettled = 0.0  # nats, where sites were last looked for in vain
        self._rows, self._squares, self._nll, self._inside = 0, 0.0, 0.0, 0.0
        self._steps, self._refinements, self._refining_seconds = 0, 0, 0.0
        self._latencies: collections.deque[float] = collections.deque(maxlen=LATENCIES)
        self._latest: collections.deque[bool] = collections.deque(maxlen=VERDICT.drift_rows)  # inside their intervals
        self.drift: Event | None = None
        self._lock, self._process = threading.RLock(), os.getpid()
        for part in self.posterior.state.parts:
            part.numpy_prior  # noqa: B018 - looked up now, and what it needs is loaded, not by the first step
        load_routines(removals=window is not None and not posterior.state.run.deterministic)

    def step(self, x: Any, y: Any = None, *, row_variance: Any = None, row_weight: Any = None) -> StreamStep:
        """Predict rows, then learn them.

        Args:
            x: (d,) or (k, d).
            y: a number, (k,) or (k, outputs), or None for rows that are predicted only.
            row_variance: (k,), known noise variances of these rows, as `Posterior.append`.
            row_weight: (k,), weights of these rows, as `Posterior.append`.

        Raises:
            ShapeError: as `Posterior.append`.
            DomainError: as `Posterior.append`.
            NotPositiveDefiniteError: as `Posterior.append`. Posterior and metrics then stay as they were.
        """
        with self._alone():
            return self._step(x, y, row_variance, row_weight)

    def _alone(self) -> threading.RLock:
        """The lock of this process: one that another thread held when this process was forked stays held for ever."""
        if self._process != os.getpid():
            self._lock, self._process = threading.RLock(), os.getpid()
        return self._lock

    def _step(self, x: Any, y: Any, row_variance: Any, row_weight: Any) -> StreamStep:
        began, posterior = time.perf_counter(), self.posterior
        x, y = self._rows_of(x, y)
        with torch.no_grad():
            prediction = posterior.predict(x)
            f, log_prob = (prediction.mean, prediction.variance), None
            mean, variance = f
            mixed = posterior.state.draws > 1 and row_variance is None and row_weight is None  # noise of each draw
            if mixed or posterior.state.prior.likelihood.additive_noise(x.device) is None:
                mean, variance = prediction.observation_mean, prediction.observation_variance
                log_prob = None if y is None else prediction.log_prob(y)
            else:
                noise = self._noise(posterior, len(x), row_variance, row_weight)
                variance = (variance.double() + noise).to(mean.dtype)
        after = posterior if y is None else self._learned(posterior, x, y, row_variance, row_weight)
        seconds = time.perf_counter() - began
        refining = 0.0
        if y is not None:
            self._score(mean.double(), variance.double(), y.double(), log_prob)
            self.posterior, self._unrefined = after, self._unrefined + len(x)
            if self.refine_every is not None and self._unrefined >= self.refine_every:
                refining = self._refine()
            elif self._moved > max((self.settle_nats or math.inf) * self.posterior.count, 2.0 * self._unsettled):
                refining = self._settle()
        self._steps += 1
        self._latencies.append(seconds)
        return StreamStep(mean, variance, f, y, self.posterior.count, seconds, refining)

    def consume(self, rows: Iterable[tuple[Any, ...]]) -> Iterator[StreamStep]:
        """A step for each (x, y) of `rows`, taken when it is asked for: nothing is read ahead."""
        for row in rows:
            if not isinstance(row, tuple | list) or len(row) != 2:
                raise ShapeError(
                    f"`rows` must give pairs (x, y), got {type(row).__name__}; for example zip(x, y) of two tensors"
                )
            yield self.step(*row)

    @property
    def metrics(self) -> StreamMetrics:
        """Metrics of all steps so far."""
        with self._alone():
            return self._metrics()

    def _metrics(self) -> StreamMetrics:
        seconds = numpy.array(self._latencies) if self._latencies else numpy.array([math.nan])
        rows = self._rows
        return StreamMetrics(
            rows=rows,
            rmse=math.sqrt(self._squares / rows) if rows else math.nan,
            nll=self._nll / rows if rows else math.nan,
            coverage=self._inside / rows if rows else math.nan,
            steps=self._steps,
            median_seconds=float(numpy.median(seconds)),
            p99_seconds=float(numpy.quantile(seconds, 0.99)),
            largest_seconds=float(seconds.max()),
            refinements=self._refinements,
            refining_seconds=self._refining_seconds,
        )

    def __getstate__(self) -> dict[str, Any]:
        with self._alone():
            state = {name: value for name, value in self.__dict__.items() if name not in ("_lock", "_process")}
            return {**state, "_latencies": self._latencies.copy()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.RLock(), _process=os.getpid())

    def __repr__(self) -> str:
        window = "" if self.window is None else f" of at most {self.window:,}"
        drift = "" if self.drift is None else f"\n{self.drift}"
        return f"Stream with {self.posterior.count:,} rows{window}\n{self.metrics}{drift}"

    # -- work ---------------------------------------------------------------------------------------------------------
    def _rows_of(self, x: Any, y: Any) -> tuple[Tensor, Tensor | None]:
        """(k, d) and (k,) or (k, outputs), checked, so that nothing is predicted of what cannot be learned."""
        like = self.posterior.state.like
        x = in_dtype_of(x, "x", like[0]).detach()
        if x.dim() not in (1, 2):
            raise ShapeError(f"`x` must be one row (d,) or a table (k, d), got {tuple(x.shape)}; give one table")
        x = check_points(x.unsqueeze(0) if x.dim() == 1 else x, "x", like=like[0])
        if y is None:
            return x, None
        y = in_dtype_of(y, "y", like[1]).detach()
        y = y.unsqueeze(0) if not y.dim() else y
        if y.shape == (len(x),):
            y = self.posterior.state.prior.likelihood.encoded(y, "y")
        if len(x) == 1 and y.dim() == like[1].dim() - 1:
            y = y.unsqueeze(0)
        return x, check_targets(
            y, "y", x, self.posterior.state.prior.outputs
        ).clone()  # it is in the step that is returned

    @staticmethod
    def _noise(posterior: Posterior, k: int, row_variance: Any, row_weight: Any) -> Tensor:
        """Variance of each row's noise, (k,), or (k, outputs or 1). Raises: as `Posterior.append`, for what does not
        fit k rows."""
        state = posterior.state
        prior, device, targets = state.prior, state.like[0].device, state.like[1]
        noise = prior.additive_noise(device)
        if row_variance is not None or row_weight is not None or not prior.likelihood.rows_alike:
            none = torch.zeros(0, dtype=torch.int64)
            rows = prior.likelihood.rows(none).extended(0, k, row_variance, row_weight)
            y = targets.new_zeros(k, *targets.shape[1:])
            noise = rows.sites(y, prior.outputs).variance
        if prior.separate:
            return noise.detach().expand(k, prior.factors)
        noise = noise.detach().expand(k)
        return noise if prior.outputs is None else noise.unsqueeze(-1)

    def _learned(self, posterior: Posterior, x: Tensor, y: Tensor, row_variance: Any, row_weight: Any) -> Posterior:
        """The posterior with these rows, and without the oldest ones that have no place beside them."""
        given = {"row_variance": row_variance, "row_weight": row_weight}
        k, window = len(x), self.window
        surplus = 0 if window is None else max(0, posterior.count + k - window)
        if window is not None and k > window:  # what would be gone at once is not learned
            last = slice(k - window, k)
            given = {name: None if value is None else value[last] for name, value in given.items()}
            x, y, k, surplus = x[last], y[last], window, posterior.count
        if surplus == k <= posterior.count:
            return posterior.slide(x, y, **given)
        return (posterior.drop(range(surplus)) if surplus else posterior).append(x, y, **given)

    def _score(self, mean: Tensor, variance: Tensor, y: Tensor, log_prob: Tensor | None) -> None:
        # Few numbers: NumPy's calls start sooner than torch's.
        predicted, spread, wanted = (t.cpu().numpy() for t in (mean, variance, y))
        with numpy.errstate(over="ignore"):  # then the metrics are infinite
            squares = numpy.square(wanted - predicted)
        self._rows += len(wanted)
        outputs = 1 if wanted.ndim == 1 else wanted.shape[-1]
        self._squares += float(squares.sum()) / outputs
        with numpy.errstate(all="ignore"):  # a variance of 0
            normal = 0.5 * float((squares / spread + numpy.log(spread) + LOG_2PI).sum()) / outputs
        self._nll += normal if log_prob is None else -float(log_prob.sum())
        inside = squares <= QUANTILE_975**2 * spread
        self._inside += float(inside.sum()) / outputs
        self._latest.extend(inside.ravel().tolist())
        before, self.drift = self.drift, drifting(self._latest)
        if before is None and self.drift is not None:
            warn(str(self.drift))

    @property
    def _moved(self) -> float:
        """Nats by which rows moved q(f) since sites settled; 0 of an approximate posterior, which leaves them."""
        state = self.posterior.state
        return state.parts[0].online.moved if state.exact and state.count else 0.0

    def _settle(self) -> float:
        """Seconds that finding all sites anew took. Where none are found those of now go on, until twice as far from
        where they settled."""
        began, moved, state = time.perf_counter(), self._moved, self.posterior.state
        run = replace(state.run, dtype=torch.float64 if state.parts[0].float64_factor is not None else None)
        prior = state.prior.without_held_sites()
        try:
            found = condition(prior, Data.of(prior, state.x, state.y), ConditionSettings(run))
            self.posterior, self._unsettled = Posterior(found), 0.0
            found.report.events.append(
                Event(EventKind.SITES_AGAIN, likelihood=prior.likelihood.name, rows=found.count, moved=moved)
            )
        except (ConvergenceError, NotPositiveDefiniteError, MemoryBudgetError) as error:
            self._unsettled = moved
            warn(f"the sites of {self.posterior.count:,} rows could not be found anew, they go on: {error}")
        seconds = time.perf_counter() - began
        self._refining_seconds += seconds
        return seconds

    def _refine(self) -> float:
        """Seconds that it took. Hyperparameters that cannot be refined go on as they are: the rows are learned."""
        began = time.perf_counter()
        self._unrefined = 0
        try:
            self.posterior = self.posterior.refine(self.refine_steps)
            self._refinements += 1
        except (NotPositiveDefiniteError, MemoryBudgetError) as error:
            event = f"the hyperparameters could not be refined at {self.posterior.count:,} rows, they go on: {error}"
            warn(event)
        seconds = time.perf_counter() - began
        self._refining_seconds += seconds
        return seconds
