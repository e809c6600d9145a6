"""Two tables learned row by row, in the order in which their rows stand, with a window: prequential error and latency.

The first 200 rows of each are fitted; every later row is predicted, then learned, and from time to time the
hyperparameters are refined. Beside it the same first model that learns nothing more.

Run: python examples/stream_demo.py --out demo      (make stream-demo)
"""

import argparse
import dataclasses
import gzip
import time
from collections.abc import Sequence
from pathlib import Path

import numpy
import torch

import flashgp as fgp
from flashgp.units import ColumnScaling

DATA = Path(__file__).resolve().parents[1] / "data"
FIRST = 200
TABLES = {"airfoil": 600, "kin40k_6000": 2000}  # and their windows
REFINE_EVERY = 500


def table(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """x and y, standardised by the first rows: all that is known when a stream begins."""
    with gzip.open(DATA / f"{name}.csv.gz", "rt") as file:
        numbers = numpy.loadtxt(file, delimiter=",", skiprows=1)
    x, y = numbers[:, :-1], numbers[:, -1]
    inputs, target = ColumnScaling.of(x[:FIRST]), ColumnScaling.of(y[:FIRST, None])
    return torch.from_numpy(inputs.apply(x)), torch.from_numpy(target.apply(y[:, None])[:, 0])


def learn(name: str, rows: int | None = None) -> tuple[fgp.Stream, list, list]:  # type: ignore[type-arg]
    """The stream at its end, its steps, and the steps of the first model on the same rows."""
    x, y = table(name)
    x, y = x[:rows], y[:rows]
    first = min(FIRST, len(x) // 2)
    kernel = 1.0 * fgp.kernels.Matern(nu=1.5, lengthscale=torch.ones(x.shape[1]))
    start = fgp.fit(fgp.GP(kernel), x[:first], y[:first]).posterior
    stream = fgp.Stream(start, window=TABLES[name], refine_every=REFINE_EVERY)
    steps, began, spoken = [], time.perf_counter(), time.perf_counter()
    for i, step in enumerate(stream.consume(zip(x[first:], y[first:], strict=True)), start=first + 1):
        steps.append(step)
        if time.perf_counter() - spoken > 10.0:
            spoken = time.perf_counter()
            print(f"  row {i:,} of {len(x):,}, {spoken - began:.0f} s", flush=True)
    still = fgp.Stream(start)
    unlearned = [still.step(x[i : i + 256]) for i in range(first, len(x), 256)]
    beside = [
        dataclasses.replace(step, y=y[i : i + 256], refining_seconds=0.0)
        for i, step in zip(range(first, len(x), 256), unlearned, strict=True)
    ]
    return stream, steps, beside


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder of stream.png")
    parser.add_argument("--rows", type=int, help="of each table; all by default")
    options = parser.parse_args(argv)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12.0, 4.2 * len(TABLES)), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(TABLES), 2, squeeze=False)
    for (left, right), (name, window) in zip(axes, TABLES.items(), strict=True):
        print(f"{name}, a window of {window:,} rows")
        stream, steps, beside = learn(name, options.rows)
        errors = torch.cat([(step.y - step.mean).square() for step in beside])
        print(f"  {stream.metrics}")
        print(f"  the first model, which learns nothing more: RMSE {float(errors.mean().sqrt()):.4g}")
        fgp.plots.prequential_error(steps, beside=beside, beside_label="the first model, unchanged", ax=left)
        left.set_title(f"{name}, window {window:,}", loc="left")
        fgp.plots.latency(steps, ax=right)
    options.out.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.out / "stream.png", dpi=110)
    print(f"wrote {options.out / 'stream.png'}")


if __name__ == "__main__":
    main()
