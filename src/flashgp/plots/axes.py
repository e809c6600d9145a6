"""Common parts of plots: a figure outside global state, a quiet style, safe colours, and at most so many points.

Colours are those of `flashgp.drawing`. Texts from data are never read as mathematics.
"""

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from flashgp.drawing import BLUE, GREEN, GREY, GRID, INK, ORANGE, PAPER, SKY, VERMILLION
from flashgp.foundations.errors import BackendUnavailableError, DomainError, ShapeError
from flashgp.foundations.normal import half_width
from flashgp.scores import NumberAnswers
from flashgp.target_transform import WarpedMixture, WarpedNormal

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

COLOURS = (BLUE, VERMILLION, GREEN, ORANGE, SKY)  # of lines and bars of different things, in this order
_SIZE = (5.4, 4.0)  # inches
_LONGEST_LABEL = 40
SMALL = 9.0  # points, of ticks, legends and notes
_CHARACTER = 5.9  # points that a letter of a label takes, and less of small text
_BESIDE = 80.0  # points of ticks and their label, beside the axes
_CALENDAR = (
    -719_162 + 366,
    2_932_896 - 366,
)  # days since 1970-01-01 that matplotlib has dates for, with a year to spare


def require_matplotlib(argument: str = "plots") -> None:
    """Raises: BackendUnavailableError naming what needs matplotlib when it is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise BackendUnavailableError(
            f"`{argument}` needs matplotlib, which is not installed ({error}); pip install 'flashgp[plot]'"
        ) from None


def new_axes(ax: "Axes | None", size: tuple[float, float] = _SIZE) -> "Axes":
    """The axes given, or those of a new figure."""
    return new_figure(size).subplots() if ax is None else ax


def new_figure(size: tuple[float, float]) -> "Figure":
    """A figure of that size in inches, with a canvas that needs no display. Raises: BackendUnavailableError."""
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained", facecolor=PAPER)
    FigureCanvasAgg(figure)
    return figure


def column_label(source: Any, column: int, *, dates: bool) -> str:
    """Label of an axis along a column of x that was given none. Args: source, a posterior, or a fit with names."""
    names = getattr(source, "columns", None)
    if names is not None:
        return str(names[column])
    return "date" if dates else f"x{column + 1}"


def style(
    ax: "Axes", x_label: str, y_label: str, title: str = "", grid: Literal["both", "x", "y", ""] = "both"
) -> None:
    """Labels, a faint grid behind the data, no frame on top and right."""
    across, up = (max(12, int((points - _BESIDE) / _CHARACTER)) for points in _room(ax))
    # Beside names of bars, which take room on the left, a label ends where the axis does.
    place: Any = "right" if grid == "x" else "center"
    ax.set_xlabel(_two_lines(x_label, across), parse_math=False, color=INK, loc=place)
    ax.set_ylabel(_two_lines(y_label, up), parse_math=False, color=INK)
    if title:
        ax.set_title(_two_lines(title, across), parse_math=False, loc="left", fontsize="medium", color=INK)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        ax.spines[side].set_color(GREY)
    ax.tick_params(colors=GREY, labelcolor=INK, labelsize=SMALL)
    if grid:
        ax.grid(True, axis=grid, color=GRID, linewidth=0.8)
    ax.set_axisbelow(True)


def _two_lines(text: str, width: int) -> str:
    return textwrap.fill(plain(text), width, max_lines=2, placeholder=" …")


def date_axis(ax: "Axes", low: float, high: float) -> float:
    """Let the x axis show dates, where matplotlib has those.

    Args:
        low, high: the ends of the axis, in days since 1970-01-01.
    Returns: days to add to a number of days before it is drawn.
    """
    if not _CALENDAR[0] <= low <= high <= _CALENDAR[1]:
        ax.set_xlabel(f"{ax.get_xlabel()} (days since 1970-01-01)")
        return 0.0
    from matplotlib import dates

    locator = dates.AutoDateLocator(minticks=3, maxticks=8)
    ax.xaxis.set_major_locator(locator)
    ax.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))
    return float(dates.date2num(np.datetime64("1970-01-01")))


def name_ticks(ax: "Axes", names: Sequence[str]) -> None:
    """Names up the y axis, one at each whole number from 0, in which nothing is markup."""
    ax.set_yticks(np.arange(len(names)))
    for tick, text in zip(ax.set_yticklabels(names), names, strict=True):
        tick.set_parse_math(False)
        tick.set_text(text)
    ax.set_ylim(-0.6, len(names) - 0.4)
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)


def plain_log_ticks(axis: "Axis", within: Sequence[float] = (1.0,)) -> None:
    """Numbers written out on a logarithmic axis: powers of ten times `within`."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=within))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.set_minor_formatter(NullFormatter())


def note(ax: "Axes", text: str, place: str = "lower right") -> None:
    """Small text inside a corner of the axes, readable over data."""
    vertical, horizontal = place.split()
    ax.text(
        0.98 if horizontal == "right" else 0.02,
        0.02 if vertical == "lower" else 0.98,
        plain(text, 500),
        transform=ax.transAxes,
        ha=horizontal,
        va="bottom" if vertical == "lower" else "top",
        fontsize=SMALL,
        color=INK,
        parse_math=False,
        bbox={"facecolor": PAPER, "alpha": 0.8, "edgecolor": "none", "pad": 2.0},
    )


def legend(ax: "Axes", **options: Any) -> None:
    """A legend without a box around it."""
    drawn = ax.legend(fontsize=SMALL, framealpha=0.8, edgecolor="none", labelcolor=INK, **options)
    for text in drawn.get_texts():
        text.set_parse_math(False)
        text.set_text(plain(text.get_text()))


def legend_above(ax: "Axes", markerscale: float = 1.0) -> None:
    """A legend above the axes, which it hides nothing of, in as many columns as there is room for. It ends where they
    do: on the left, numbers and names take room of which nothing is known yet."""
    _, texts = ax.get_legend_handles_labels()
    if not texts:
        return
    room = _room(ax)[0] - 5.0 * SMALL  # beside the numbers of the other axis

    def width(columns: int) -> float:  # a legend fills column by column
        letters = sum(max(map(len, some)) for some in np.array_split(texts, columns))
        return 0.1 * SMALL * _CHARACTER * letters + 3.0 * SMALL * columns

    columns = next((count for count in range(len(texts), 1, -1) if width(count) <= room), 1)
    legend(ax, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=columns, columnspacing=1.0, handlelength=1.4,
           borderaxespad=0.2, markerscale=markerscale)  # fmt: skip


def _room(ax: "Axes") -> tuple[float, float]:
    """Width and height of the part of the figure that the axes have, in points."""
    from matplotlib.figure import SubFigure

    figure, spec = ax.figure, ax.get_subplotspec()
    assert not isinstance(figure, SubFigure)
    rows, columns = (1, 1) if spec is None else spec.get_gridspec().get_geometry()
    return 72.0 * float(figure.get_figwidth()) / columns, 72.0 * float(figure.get_figheight()) / rows


def plain(text: str, longest: int = _LONGEST_LABEL * 3) -> str:
    """Text for a label: one line unless it has line breaks of ours, printable, shortened."""
    shown = "".join(c if c.isprintable() or c == "\n" else "�" for c in text)
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"


def numbers(values: Any, name: str) -> npt.NDArray[np.float64]:
    """A tensor or array of shape (n,) as float64. Raises: ShapeError."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1:
        raise ShapeError(f"`{name}` must have shape (n,), got {array.shape}; plot one output of one model at a time")
    return array


def moments(y: Any, prediction: Any) -> tuple[npt.NDArray[np.float64], ...]:
    """y, and mean and standard deviation of new observations, each (n,), float64; rows that are not finite left out.

    Args:
        prediction: a `Prediction`, a pair (mean, std) of a new observation in units of y, or a `WarpedNormal`, whose
            transform of y these are of then, or a `WarpedMixture`, whose standard normal values.
    Raises: ShapeError, DomainError for what does not fit together.
    """
    if isinstance(prediction, WarpedMixture):
        y, prediction = prediction.standardised(y), (np.zeros(len(prediction)), np.ones(len(prediction)))
    if isinstance(prediction, WarpedNormal):  # calibration does not change under a monotone transform
        y, prediction = prediction.transform.forward(y), (prediction.location, prediction.spread)
    if isinstance(prediction, tuple):
        if len(prediction) != 2:
            raise DomainError(f"`prediction` must be a Prediction or a pair (mean, std), got {len(prediction)} items")
        mean, std = numbers(prediction[0], "mean"), numbers(prediction[1], "std")
    elif hasattr(prediction, "observation_variance"):
        mean = numbers(prediction.mean, "prediction.mean")
        std = np.sqrt(numbers(prediction.observation_variance, "prediction.observation_variance"))
    else:
        raise DomainError(
            f"`prediction` must be a Prediction or a pair (mean, std), got {type(prediction).__name__}; "
            "pass posterior.predict(x_test)"
        )
    observed = numbers(y, "y")
    if not len(observed) == len(mean) == len(std):
        raise ShapeError(
            f"`y` must have one value per predicted row, got {len(observed)} for {len(mean)} means and {len(std)} "
            "standard deviations; pass the targets of x_test"
        )
    kept = np.isfinite(observed) & np.isfinite(mean) & np.isfinite(std)
    return observed[kept], mean[kept], std[kept]


def central(y: Any, prediction: Any, level: float) -> tuple[npt.NDArray[np.float64], ...]:
    """y, mean, and the central interval of that probability, each (n,), float64; rows that are not finite left out.

    Args:
        prediction: as `moments`, or answers for numbers.
    Raises: ShapeError, DomainError for what does not fit together.
    """
    if isinstance(prediction, NumberAnswers):
        observed, mean = numbers(y, "y"), prediction.mean
        columns = (observed, mean, *prediction.interval(level))
        if observed.shape != mean.shape:
            raise ShapeError(
                f"`y` must have one value per predicted row, got {len(observed)} for {len(mean)} predictions; pass the "
                "targets of x_test"
            )
        kept = np.isfinite(np.stack(columns)).all(axis=0)
        return tuple(column[kept] for column in columns)
    observed, mean, std = moments(y, prediction)
    half = half_width(level) * std
    return observed, mean, mean - half, mean + half


def percent(level: float) -> str:
    """0.95 -> '95%', 0.999 -> '99.9%'."""
    return f"{100.0 * level:.6g}%"


def shown_rows(count: int, most: int, seed: int = 0) -> npt.NDArray[np.int64]:
    """Rows to draw: all, or `most` of them at random (the same ones every time), increasing."""
    if count <= most:
        return np.arange(count)
    return np.sort(np.random.default_rng(seed).choice(count, most, replace=False))


def empty(ax: "Axes", text: str) -> None:
    """Say why there is nothing to draw."""
    ax.text(0.5, 0.5, plain(text, 300), transform=ax.transAxes, ha="center", va="center", color=GREY, parse_math=False)


def short(names: Sequence[str], ax: "Axes | None" = None) -> list[str]:
    """Names short enough for tick labels: of an axis, at most two fifths of the width."""
    longest = _LONGEST_LABEL if ax is None else max(8, min(_LONGEST_LABEL, int(0.4 * _room(ax)[0] / _CHARACTER)))
    return [plain(name.replace("\n", " "), longest) for name in names]
