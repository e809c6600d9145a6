"""What a model expects along an input, over two, and for each category: a mean or a probability, with intervals."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from flashgp.drawing import BLUE, INK, PAPER
from flashgp.foundations.errors import ShapeError
from flashgp.foundations.normal import half_width
from flashgp.targets import Number

from .axes import (
    COLOURS,
    column_label,
    date_axis,
    legend_above,
    name_ticks,
    new_axes,
    note,
    numbers,
    percent,
    plain,
    short,
    shown_rows,
    style,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from flashgp.inference.posterior import Posterior
    from flashgp.units import Scaling

Array = npt.NDArray[np.float64]
MAX_CATEGORIES = 12
_MARKERS = "vos^D"  # of rows of a class
_AHEAD = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)  # of probability, beside the next class
_Band = tuple[Array, Array]


def expected_1d(
    posterior: "Posterior",
    scaling: "Scaling",
    *,
    column: int = 0,
    at: Any = None,
    labels: Sequence[Any] = (),
    level: float = 0.95,
    points: int = 300,
    x_label: str = "",
    y_label: str = "",
    dates: bool = False,
    ax: "Axes | None" = None,
) -> "Axes":
    """What is expected along one column of x: the probability of a class or the mean of a number, others held.

    The band is of the function: what is expected where f is at the ends of its central interval. Of more than two
    classes each has a line, and no band.

    Args:
        posterior: of a likelihood that is no noise added to f.
        scaling: of x, and the target, as `TableModel.scaling`.
        column: along which to look, from 0.
        at: values of all columns, shape (d,), in the units of the posterior's x; the training medians by default.
        labels: of the classes; empty of numbers.
        level: probability of the band.
        points: places along the column.
        x_label: with units.
        y_label: what is expected.
        dates: whether the column holds days since 1970-01-01, which are then shown as dates.
        ax: axes to draw on; a new figure's by default.

    Raises:
        BackendUnavailableError: without matplotlib.
    Cost: a prediction at `points` places.

    Example:
        >>> x = np.linspace(-2.0, 2.0, 30)
        >>> model = fgp.TableModel().fit({"x": x, "warm": x + np.sin(9.0 * x) > 0.0}, target="warm")
        >>> fgp.plots.expected_1d(model.posterior, model.scaling, labels=(False, True), x_label="x").get_ylabel()
        'probability of True'
    """
    x = posterior.state.training_table.x[:, column].detach().cpu().double().numpy()
    line = np.linspace(float(x.min()), float(x.max()), points)
    grid = np.tile(place_of(posterior, at), (points, 1))
    grid[:, column] = line
    lines, bands = expected_at(posterior, scaling, grid, labels, level)
    line = line * scaling.x_scale[column] + scaling.x_shift[column]
    ax = new_axes(ax, (6.4, 4.0))
    y_label = y_label or (f"probability of {labels[-1]}" if labels else "mean")
    style(ax, x_label or column_label(posterior, column, dates=dates), y_label)
    if dates:
        line = line + date_axis(ax, float(line[0]), float(line[-1]))
    for lower, upper in bands[:1]:
        ax.fill_between(line, lower, upper, color=BLUE, alpha=0.25, linewidth=0, label=f"{percent(level)}, function",
                        zorder=2)  # fmt: skip
    for k, values in enumerate(lines[: len(COLOURS)]):
        ax.plot(line, values, color=COLOURS[k], linewidth=2.0, zorder=3,
                label=plain(str(labels[k]), 30) if len(labels) > 2 else "expected")  # fmt: skip
    if labels:
        ax.set_ylim(0.0, 1.0)
    ax.set_xlim(line[0], line[-1])
    legend_above(ax)
    return ax


def by_category(
    posterior: "Posterior",
    scaling: "Scaling",
    levels: Sequence[str],
    *,
    column: int = 0,
    at: Any = None,
    labels: Sequence[Any] = (),
    level: float = 0.95,
    y_label: str = "",
    ax: "Axes | None" = None,
) -> "Axes":
    """What is expected for each category of a column that holds codes, others held: the highest first.

    A thick line is the interval of the function, a thin one that of a new observation of a number. Of more than two
    classes each has its dots, and no line.

    Args:
        posterior: one model with one output.
        scaling: of x, and the target, as `TableModel.scaling`.
        levels: names of the categories, by code.
        column: which it is, from 0.
        at: as of `expected_1d`.
        labels: of the classes; empty of numbers.
        level: probability of the intervals.
        y_label: what is expected.
        ax: as of `expected_1d`.

    Raises:
        BackendUnavailableError: without matplotlib.
    Cost: a prediction for each category; the twelve most frequent are drawn, and the plot says so.

    Example:
        >>> town = np.array(["Bonn", "Kiel"])[np.arange(30) % 2]
        >>> rent = np.arange(30) % 2 + np.linspace(0.0, 1.0, 30)
        >>> model = fgp.TableModel().fit({"town": town, "rent": rent}, target="rent")
        >>> levels = model.encoding.inputs[0].levels
        >>> ax = fgp.plots.by_category(model.posterior, model.scaling, levels, y_label="rent")
        >>> [label.get_text() for label in ax.get_yticklabels()], ax.get_xlabel()
        (['Bonn (15)', 'Kiel (15)'], 'rent')
    """
    shift, scale = scaling.x_shift[column], scaling.x_scale[column]
    held = posterior.state.training_table.x[:, column].detach().double().numpy(force=True)
    count = np.bincount(np.rint(held * scale + shift).astype(np.int64), minlength=len(levels))
    shown = np.sort(np.argsort(-count, kind="stable")[:MAX_CATEGORIES])
    grid = np.tile(place_of(posterior, at), (len(shown), 1))
    grid[:, column] = (shown - shift) / scale
    lines, bands = expected_at(posterior, scaling, grid, labels, level)
    order = np.argsort(lines[0] if len(labels) <= 2 else -lines[0], kind="stable")
    ax = new_axes(ax, (5.4, max(2.2, 1.1 + 0.3 * len(shown))))
    style(ax, y_label or (f"probability of {labels[-1]}" if labels else "mean"), "", grid="x")
    heights = np.arange(len(shown))
    widths = ((6.0, BLUE, 0.45, "function"), (1.2, BLUE, 0.9, "new observation"))
    for (lower, upper), (width, colour, alpha, what) in zip(bands, widths, strict=False):
        ax.hlines(heights, lower[order], upper[order], color=colour, linewidth=width, alpha=alpha,
                  label=f"{percent(level)}, {what}", zorder=2)  # fmt: skip
    for k, values in enumerate(lines[: len(COLOURS)]):
        ax.plot(values[order], heights, linestyle="none", marker="o", markersize=5.0, color=COLOURS[k], zorder=3,
                label=plain(str(labels[k]), 30) if len(labels) > 2 else "expected")  # fmt: skip
    codes = shown[order]
    shortened = short([levels[code] for code in codes], ax)
    names = [f"{name} ({count[code]:,})" for code, name in zip(codes, shortened, strict=True)]
    name_ticks(ax, names)
    if labels:
        ax.set_xlim(-0.02, 1.02)
    if len(shown) < len(levels):
        note(ax, f"the {len(shown)} most frequent of {len(levels):,}")
    legend_above(ax)
    return ax


def probability_2d(
    posterior: "Posterior",
    scaling: "Scaling",
    *,
    columns: tuple[int, int] = (0, 1),
    at: Any = None,
    labels: Sequence[Any] = (),
    names: tuple[str, str] = ("column 1 of x", "column 2 of x"),
    points: int = 60,
    rows: int = 600,
    ax: "Axes | None" = None,
) -> "Axes":
    """The most probable class over two columns of x, others held, with the rows: the deeper, the more its probability
    is above that of any other class.

    Args:
        posterior: of classes.
        scaling: of x, as `TableModel.scaling`.
        columns: along which to look, from 0.
        at: as of `expected_1d`.
        labels: of the classes; their codes by default. The five that most rows have are drawn.
        names: of the columns.
        points: places along each column.
        rows: drawn at most.
        ax: as of `expected_1d`.

    Raises:
        BackendUnavailableError: without matplotlib.
    Cost: a prediction at the square of `points`.

    Example:
        >>> u = np.random.default_rng(0).uniform(-1.0, 1.0, (40, 2))
        >>> table = {"u": u[:, 0], "v": u[:, 1], "in": (u**2).sum(1) + 0.2 * np.sin(40.0 * u[:, 0]) < 0.6}
        >>> model = fgp.TableModel().fit(table, target="in")
        >>> ax = fgp.plots.probability_2d(model.posterior, model.scaling, names=("u", "v"), points=8)
        >>> ax.get_xlabel(), ax.get_ylabel()
        ('u', 'v')
    """
    import torch

    kept, (first, second) = posterior.state.training_table, columns
    x, y = (values.detach().cpu().double().numpy() for values in (kept.x, kept.y))
    y = y if y.ndim == 1 else y.argmax(axis=1)  # of indicators
    ends = [np.linspace(float(x[:, j].min()), float(x[:, j].max()), points) for j in columns]
    grid = np.tile(place_of(posterior, at), (points * points, 1))
    across, up = np.meshgrid(*ends)
    grid[:, first], grid[:, second] = across.reshape(-1), up.reshape(-1)
    like = posterior.state.like[0]
    with torch.no_grad():
        prediction = posterior.predict(torch.as_tensor(grid, dtype=like.dtype, device=like.device))
        p = prediction.probability.double().cpu().numpy().reshape(points, points, -1)
    p = np.concatenate([1.0 - p, p], axis=2) if p.shape[2] == 1 else p

    def own(values: Any, j: int) -> Any:
        return values * scaling.x_scale[j] + scaling.x_shift[j]

    ax = new_axes(ax, (6.4, 4.4))
    style(ax, *names, grid="")
    shown = np.sort(np.argsort(-np.bincount(y.astype(np.int64), minlength=p.shape[2]), kind="stable")[: len(COLOURS)])
    colours = {code: COLOURS[k] for k, code in enumerate(shown[::-1] if p.shape[2] == 2 else shown)}
    some, ordered = shown_rows(len(x), rows), np.sort(p, axis=2)
    for code, marker in zip(shown, _MARKERS, strict=False):
        ahead = p[:, :, code] - np.where(p[:, :, code] < ordered[:, :, -1], ordered[:, :, -1], ordered[:, :, -2])
        shades = [(colours[code], 0.1 + 0.8 * middle) for middle in _AHEAD[:-1]]
        place = own(ends[0], first), own(ends[1], second)
        if float(ahead.max()) > 0.0:
            ax.contourf(*place, ahead, levels=_AHEAD, colors=shades)
            ax.contour(*place, ahead, levels=[0.0], colors=INK, linewidths=0.8)
        these = some[y[some] == code]
        ax.scatter(own(x[these, first], first), own(x[these, second], second), s=14, color=colours[code], marker=marker,
                   edgecolors=PAPER, linewidths=0.4, zorder=3,
                   label=plain(str(labels[code]) if len(labels) else f"class {code}", 30))  # fmt: skip
    legend_above(ax)
    if len(shown) < p.shape[2]:
        note(ax, f"{len(shown)} of {p.shape[2]} classes drawn")
    elif x.shape[1] > 2 and at is None:
        note(ax, "other inputs at their median", "upper right")
    return ax


def place_of(posterior: "Posterior", at: Any) -> Array:
    """Values of all columns, (d,), in the units of the posterior's x; the training medians for None.

    Raises: ShapeError for another number of them.
    """
    x = posterior.state.training_table.x
    if at is None:
        return np.asarray(x.detach().median(dim=0).values.cpu().double().numpy())
    place = numbers(at, "at")
    if place.shape != (x.shape[1],):
        raise ShapeError(f"`at` must have shape ({x.shape[1]},), one value per column of x, got {place.shape}")
    return place


def expected_at(
    posterior: "Posterior", scaling: "Scaling", grid: Array, labels: Sequence[Any], level: float
) -> tuple[Array, list[_Band]]:
    """What is expected at points, (lines, points), a line for each of more than two classes, in units of the target;
    and intervals: of the function, and of new observations where noise is added to it."""
    import torch

    like, likelihood = posterior.state.like[0], posterior.state.prior.likelihood
    with torch.no_grad():
        prediction = posterior.predict(torch.as_tensor(grid, dtype=like.dtype, device=like.device))
        target = scaling.target
        if isinstance(target, Number) and likelihood.additive_noise(like.device) is not None:
            of_mean = prediction.mean.double().numpy(force=True)
            each = [one.double().sqrt().numpy(force=True)
                    for one in (prediction.variance, prediction.observation_variance)]  # fmt: skip
            functions, observations = (target.normal(of_mean, spread) for spread in each)
            return functions.mean[None], [one.interval(level) for one in (functions, observations)]
        mean = prediction.probability if labels else prediction.observation_mean
        lines = np.asarray(mean.double().cpu()).reshape(len(grid), -1).T
        shift, scale = target.sizes
        if len(labels) > 2:
            return lines, []
        half = half_width(level) * prediction.variance.double().sqrt()
        ends = [prediction.mean.double() + side * half for side in (-1.0, 1.0)]
        lower, upper = (likelihood.predictive(f, torch.zeros_like(f)).mean.cpu().numpy() for f in ends)
    return shift + scale * lines, [(shift + scale * lower, shift + scale * upper)]
