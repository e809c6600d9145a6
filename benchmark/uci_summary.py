"""The table of finished cells: means over splits, beside what was to be reached."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flashgp.foundations.quantities import readable_bytes

COLUMNS = [
    {"key": "set", "title": "set"},
    {"key": "method", "title": "method"},
    {"key": "n", "title": "training rows", "format": "integer"},
    {"key": "n_distinct", "title": "distinct", "format": "integer"},
    {"key": "splits", "title": "splits"},
    {"key": "rmse", "title": "RMSE", "format": "fixed4"},
    {"key": "nll", "title": "NLL", "format": "fixed4"},
    {"key": "coverage", "title": "95 % coverage", "format": "percent"},
    {"key": "residual_error", "title": "largest residual"},
    {"key": "evaluations", "title": "evaluations", "format": "integer"},
    {"key": "solve_iterations", "title": "iterations of the last solve", "format": "integer"},
    {"key": "fit_seconds", "title": "fit"},
    {"key": "predict_seconds", "title": "predict"},
    {"key": "compile_seconds", "title": "compile"},
    {"key": "peak_bytes", "title": "peak above the data"},
    {"key": "route", "title": "route"},
    {"key": "target", "title": "at most: RMSE, NLL, seconds"},
    {"key": "verdict", "title": "reached"},
    {"key": "optimum", "title": "against dense float64"},
]
NAMES = {
    "flashgp": "FlashGP",
    "dense": "FlashGP, dense float64",
    "polished": "FlashGP, from there on dense float64",
    "gpytorch-default": "GPyTorch, defaults",
    "gpytorch-cholesky": "GPyTorch, Cholesky",
}
# How far a fit may be from the dense float64 optimum of the same split.
RMSE_MARGIN, NLL_MARGIN = 0.002, 0.01
_MEANS = (
    "n", "n_distinct", "rmse", "nll", "coverage", "evaluations", "solve_iterations", "seconds", "fit_seconds",
    "predict_seconds", "compile_seconds",
)  # fmt: skip
_LARGEST = {"residual_error": "relative_residual", "peak_bytes": "peak_bytes"}


@dataclass(frozen=True)
class Target:
    """What a fit to all training rows must reach: on split 0, and in the mean over splits; seconds with compiling."""

    rmse: float
    nll: float
    seconds: float

    def shortfalls(self, values: Mapping[str, Any]) -> list[str]:
        """What is worse than it should be, and by how much."""
        limits = {"rmse": self.rmse, "nll": self.nll, "seconds": self.seconds}
        return [
            f"{name} by {values[name] - limit:.2g}" if name != "seconds" else f"by {values[name] - limit:.0f} s"
            for name, limit in limits.items()
            if values[name] > limit
        ]


TARGETS = {
    "elevators": Target(0.358, 0.393, 120),
    "pol": Target(0.080, -1.20, 180),
    "kin40k": Target(0.067, -1.28, 900),
    "keggdirected": Target(0.085, -0.92, 300),
}


def summary(cells: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row for each set, method, number of rows kept and budget, in the order of the first cell."""
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for cell in cells.values():
        memory = cell["memory"] if cell["method"] == "flashgp" else None
        groups.setdefault((cell["set"], cell["rows"], cell["method"], memory), []).append(cell)
    order = list(dict.fromkeys(group[0] for group in groups))
    return [
        _row(groups[group], cells)
        for group in sorted(groups, key=lambda group: (order.index(group[0]), group[1] is not None, group[1] or 0))
    ]


def _row(group: Sequence[Mapping[str, Any]], cells: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    first = group[0]
    done = [cell for cell in group if cell["status"] == "done"]
    row: dict[str, Any] = {"set": first["set"], "method": NAMES[first["method"]], "rows_kept": first["rows"]}
    if first["memory"] is not None and first["method"] == "flashgp":
        row["method"] += f", {first['memory']}"
    row["splits"] = ", ".join(str(cell["split"]) for cell in sorted(done, key=lambda cell: cell["split"])) or None
    for key in _MEANS:
        values = [cell[key] for cell in done if cell.get(key) is not None]
        row[key] = statistics.fmean(values) if values else None
    for key, source in _LARGEST.items():
        row[key] = max((cell[source] for cell in done if cell.get(source) is not None), default=None)
    row["route"] = ", ".join(dict.fromkeys(str(cell["route"]) for cell in done)) or None
    if done and first["method"] == "flashgp":
        _against_target(row, done)
        row["optimum"] = _against_dense(done, cells)
    _unfinished(row, group)
    return row


def _against_target(row: dict[str, Any], done: Sequence[Mapping[str, Any]]) -> None:
    target = TARGETS.get(row["set"])
    if target is None or row["rows_kept"] is not None:
        return
    row["target"] = f"{target.rmse:g}, {target.nll:g}, {target.seconds:g} s"
    checked = [("mean", row), *(("split 0", cell) for cell in done if cell["split"] == 0)]
    short = [(name, target.shortfalls(values)) for name, values in checked]
    said = [f"{name} short: {', '.join(parts)}" for name, parts in short if parts]
    row["met"] = not said
    row["verdict"] = "; ".join(said) or "reached"


def _against_dense(done: Sequence[Mapping[str, Any]], cells: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The largest difference to the dense fit of the same split and rows, or to one that went on from there.

    Beside one that its time limit ended, nothing is reached: its optimum may be better still.
    """
    pairs, ended = [], True
    for cell in done:
        suffix = f"/rows={cell['rows']}" if cell["rows"] is not None else ""
        found = [cells.get(f"{cell['set']}/{cell['split']}/{method}{suffix}") for method in ("dense", "polished")]
        optimum = next((entry for entry in found if entry is not None and entry["status"] == "done"), None)
        if optimum is not None:
            ended = ended and not optimum.get("interrupted")
            pairs.append((cell["rmse"] - optimum["rmse"], cell["nll"] - optimum["nll"]))
    if not pairs:
        return None
    rmse, nll = (max(values) for values in zip(*pairs, strict=True))
    within = rmse <= RMSE_MARGIN and nll <= NLL_MARGIN
    verdict = "short" if not within else "reached" if ended else "within, of one that had not ended"
    return f"{rmse:+.4f}, {nll:+.4f}: {verdict}"


def _unfinished(row: dict[str, Any], group: Sequence[Mapping[str, Any]]) -> None:
    """Cells that would not fit, or failed, stand beside what the others reached."""
    notes = [row["verdict"]] if row.get("verdict") else []
    refused = [cell for cell in group if cell["status"] == "refused"]
    if refused:
        needed = readable_bytes(max(cell["needed_bytes"] for cell in refused))
        row["peak_bytes"] = row["peak_bytes"] or f"would need {needed}"
        notes.append(f"not run: would need {needed} of {readable_bytes(refused[0]['available_bytes'])}")
    for cell in group:
        if cell["status"] == "failed":
            notes.append(f"split {cell['split']} failed: {str(cell['error']).splitlines()[0][:80]}")
        elif cell.get("interrupted"):
            notes.append(f"split {cell['split']} ended by its time limit")
    row["verdict"] = "; ".join(notes) or None
