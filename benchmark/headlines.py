"""The measured rows that the README shows, taken from records: `<!-- table:headlines -->` in a document."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flashgp.bench import read_record
from flashgp.bench.results import format_ratio, format_seconds

__all__ = ["headline_record"]

COLUMNS = [
    {"key": "work", "title": "work, on two cores"},
    {"key": "ours", "title": "FlashGP"},
    {"key": "peer", "title": "beside"},
    {"key": "faster", "title": "times faster"},
    {"key": "record", "title": "record"},
]
# record: the row's `work`, what to call it, key of our figure, the other library, key of its figure
ROWS = {
    "products": (
        "RBF, n=100,000, d=8, t=1, lengthscale 1 sqrt(d)",
        "K v, n=100,000, d=8",
        "rate",
        "KeOps",
        "peer_rate",
    ),
    "blocks": ("RBF, n=8,000, d=8", "K, n=8,000, d=8", "ours_seconds", "GPyTorch", "gpytorch_seconds"),
    "objective": (
        "objective + gradient, n=2000, d=8, float32",
        "likelihood and gradient, n=2,000, d=8",
        "ours_seconds",
        "GPyTorch",
        "peer_seconds",
    ),
    "fit": ("ARD RBF + noise, n=2000, d=6", "fit, n=2,000, d=6", "ours_seconds", "scikit-learn", "peer_seconds"),
    "prediction": (
        "mean + variance of one point, n=2000",
        "mean and variance of a point, n=2,000, d=6",
        "ours_seconds",
        "GPyTorch",
        "peer_seconds",
    ),
    "online": ("append one row, n=500, beside GPyTorch", "append a row, n=500", "seconds", "GPyTorch", "peer_seconds"),
}


def headline_record(records: Path) -> dict[str, Any]:
    """Title, columns and rows, as a record has them. Raises: StopIteration if a record has lost its row."""
    rows = []
    for record, (work, title, ours, peer, theirs) in ROWS.items():
        row = next(row for row in read_record(records / f"{record}.json")["rows"] if row["work"] == work)
        rows.append({
            "work": title, "ours": _figure(row, ours), "peer": f"{peer} {_figure(row, theirs)}",
            "faster": format_ratio(row[ours] / row[theirs] if ours == "rate" else row[theirs] / row[ours]),
            "record": f"`{record}.json`",
        })  # fmt: skip
    return {"title": "Headlines", "columns": COLUMNS, "rows": rows}


def _figure(row: Mapping[str, Any], key: str) -> str:
    return f"{row[key]:.2f} G pairs/s" if key.endswith("rate") else format_seconds(row[key])
