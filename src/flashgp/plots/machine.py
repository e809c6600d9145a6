"""Machine profiles: how fast each dense operation is at each size, several machines beside each other."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from flashgp.drawing import GREY, INK
from flashgp.foundations.errors import DomainError
from flashgp.foundations.profile import OPERATIONS, MachineProfile, curves_of, operation_flops

from .axes import COLOURS, empty, legend, new_axes, plain, plain_log_ticks, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = (*COLOURS, GREY)
OPERATION_NAMES = {"gemm": "matrix products", "cholesky": "Cholesky factorisations"}


def machine_rates(
    profiles: Mapping[str, MachineProfile], operation: str = "cholesky", *, ax: "Axes | None" = None
) -> "Axes":
    """GFLOP/s of one dense operation against its size: a colour for each profile, float32 dashed, a GPU with squares.

    Args:
        profiles: by the name that the legend shows, as `fgp.tune()` returned them.
        operation: "gemm" or "cholesky".
        ax: axes to draw on; a new figure's by default.

    Raises:
        BackendUnavailableError: without matplotlib.
        DomainError: for an operation that does not exist.

    Example:
        >>> import flashgp as fgp
        >>> from flashgp.foundations.profile import BUILT_IN
        >>> ax = fgp.plots.machine_rates({"built-in": BUILT_IN}, "cholesky")
        >>> ax.get_ylabel()
        'GFLOP/s'
    """
    if operation not in OPERATIONS:
        raise DomainError(f"`operation` must be one of {', '.join(OPERATIONS)}, got {operation!r}")
    ax = new_axes(ax)
    style(ax, "order n", "GFLOP/s", OPERATION_NAMES[operation])
    drawn = False
    for place, (name, profile) in enumerate(profiles.items()):
        for rates, device, marker in ((profile.cpu, "", "o"), (profile.accelerator, " GPU", "s")):
            for dtype, dash in (("float64", "-"), ("float32", "--")):
                known = () if rates is None else curves_of(rates.operations).get((operation, dtype), ())
                curve = [(one.order, operation_flops(operation, one.order) / one.seconds / 1e9) for one in known]
                if not curve:
                    continue
                drawn = True
                ax.plot(*zip(*curve, strict=True), color=_COLOURS[place % len(_COLOURS)], linestyle=dash, marker=marker,
                        markersize=3.5, linewidth=1.4, label=plain(f"{name}{device}, {dtype}", 60))  # fmt: skip
    if not drawn:
        empty(ax, "not measured in these profiles")
        return ax
    ax.set_xscale("log")
    ax.set_yscale("log")
    for axis in (ax.xaxis, ax.yaxis):
        plain_log_ticks(axis, (1.0, 2.0, 5.0))
    legend(ax, loc="lower right")
    return ax


def machine_bandwidths(profiles: Mapping[str, MachineProfile], *, ax: "Axes | None" = None) -> "Axes":
    """Rates beside factorisations: copies, exponentials, blocks of covariances and products K V, each as a multiple of
    the first profile's, on the CPU.

    Args:
        profiles: as of `machine_rates`.
        ax: as of `machine_rates`.

    Raises:
        BackendUnavailableError: without matplotlib.

    Example:
        >>> import flashgp as fgp
        >>> from flashgp.foundations.profile import BUILT_IN
        >>> ax = fgp.plots.machine_bandwidths({"built-in": BUILT_IN})
        >>> ax.get_xlabel()
        'times built-in'
    """
    ax = new_axes(ax)
    style(ax, f"times {next(iter(profiles), 'the first')}", "", "copies, exp and products on the CPU", "x")
    if not profiles:
        empty(ax, "there are no profiles")
        return ax
    kinds = {name: _others(profile) for name, profile in profiles.items()}
    first = next(iter(kinds.values()))
    bar = 0.8 / len(kinds)
    for place, (name, values) in enumerate(kinds.items()):
        at = [row + place * bar for row, kind in enumerate(first) if kind in values]
        ax.barh(at, [values[kind] / first[kind] for kind in first if kind in values], height=bar,
                color=_COLOURS[place % len(_COLOURS)], label=plain(name, 60))  # fmt: skip
    ax.set_yticks([row + 0.4 - bar / 2 for row in range(len(first))], list(first), color=INK)
    ax.invert_yaxis()
    ax.axvline(1.0, color=GREY, linewidth=0.8)
    if len(kinds) > 1:
        legend(ax, loc="lower right")
    return ax


def _others(profile: MachineProfile) -> dict[str, float]:
    """Rates on the CPU by name; of products the quickest backend."""
    cpu = profile.cpu
    rates = {"copy": cpu.copy_bytes, "exp": cpu.exp, "dense block": cpu.block_pairs}
    for rate in profile.products:
        if rate.device == "cpu" and rate.symmetric and rate.dtype == "float32":
            name = f"K V, d={rate.d}, t={rate.t}"
            rates[name] = max(rates.get(name, 0.0), rate.pairs_per_second)
    return rates
