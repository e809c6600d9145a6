"""A pendulum whose friction and load nobody has told the controller follows a path: learned online, under a deadline.

    theta'' = u + f(theta, theta'),  f = -9 sin(theta) - 0.6 theta' - 1.5 tanh(6 theta') + 2 cos(2 theta)

Every 10 ms the controller asks a Gaussian process for f where the pendulum is, and sets u so that theta follows
r(t) = sin(1.3 t) + 0.6 sin(0.7 t):  u = r'' + 20 (r' - theta') + 100 (r - theta) - f. Then it measures theta'' with
noise, which is one more value of f, and learns it; the latest 300 are kept. Asking and learning have 5 ms.

Run: python examples/control_demo.py --out demo      (make control-demo)
"""

import argparse
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy
import torch

import flashgp as fgp

PERIOD, DEADLINE, WINDOW = 0.01, 0.005, 300  # seconds, seconds, rows
NOISE = 0.05  # of a measured acceleration, standard deviation, rad/s^2
STIFFNESS, DAMPING = 100.0, 20.0


def unknown(theta: float, speed: float) -> float:
    """f, rad/s^2: what the controller does not know."""
    return -9.0 * math.sin(theta) - 0.6 * speed - 1.5 * math.tanh(6.0 * speed) + 2.0 * math.cos(2.0 * theta)


def path(t: float) -> tuple[float, float, float]:
    """r, r' and r''."""
    a, b = 1.3, 0.7
    return (
        math.sin(a * t) + 0.6 * math.sin(b * t),
        a * math.cos(a * t) + 0.6 * b * math.cos(b * t),
        -a * a * math.sin(a * t) - 0.6 * b * b * math.sin(b * t),
    )


def moved(theta: float, speed: float, u: float) -> tuple[float, float]:
    """The pendulum one period later under a constant u, in ten steps of the midpoint rule."""
    h = PERIOD / 10
    for _ in range(10):
        middle, middle_speed = theta + 0.5 * h * speed, speed + 0.5 * h * (u + unknown(theta, speed))
        theta, speed = theta + h * middle_speed, speed + h * (u + unknown(middle, middle_speed))
    return theta, speed


def follow(seconds: float, guess: Callable[[float, float], float], learn: Callable[[float, float, float], Any]) -> list:  # type: ignore[type-arg]
    """Drive the loop; (t, theta, r, seconds of asking and learning) of every period."""
    generator = numpy.random.default_rng(0)
    theta, speed, trace = 0.5, 0.0, []
    for i in range(round(seconds / PERIOD)):
        r, r_speed, r_acceleration = path(i * PERIOD)
        began = time.perf_counter()
        known = guess(theta, speed)
        asked = time.perf_counter() - began
        u = r_acceleration + DAMPING * (r_speed - speed) + STIFFNESS * (r - theta) - known
        measured = u + unknown(theta, speed) + NOISE * generator.normal()
        began = time.perf_counter()
        learn(theta, speed, measured - u)
        trace.append((i * PERIOD, theta, r, asked + time.perf_counter() - began))
        theta, speed = moved(theta, speed, u)
    return trace


def controller() -> tuple[Callable[[float, float], float], Callable[[float, float, float], None]]:
    """A posterior that begins with no rows at all, and what asks and teaches it."""
    kernel = 30.0 * fgp.kernels.SquaredExponential(lengthscale=torch.tensor([0.8, 0.8]))
    prior = fgp.GP(kernel, fgp.means.Constant(0.0), fgp.likelihoods.Gaussian(NOISE**2))
    nothing = torch.zeros(0, 2, dtype=torch.float64)
    stream = fgp.Stream(prior.condition(nothing, nothing[:, 0]), window=WINDOW)

    def guess(theta: float, speed: float) -> float:
        with torch.no_grad():
            return float(stream.posterior.predict(torch.tensor([[theta, speed]], dtype=torch.float64)).mean)

    def learn(theta: float, speed: float, value: float) -> None:
        stream.step(torch.tensor([theta, speed], dtype=torch.float64), value)

    return guess, learn


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder of control.png")
    parser.add_argument("--seconds", type=float, default=20.0, help="of the path")
    options = parser.parse_args(argv)
    warm_guess, warm_learn = controller()
    for i in range(3):  # the first calls of a process load what they need
        warm_learn(0.1 * i, 0.0, 0.0)
        warm_guess(0.0, 0.0)
    guess, learn = controller()
    learned = numpy.array(follow(options.seconds, guess, learn))
    alone = numpy.array(follow(options.seconds, lambda *_: 0.0, lambda *_: None))
    half = len(learned) // 2
    errors = {name: float(numpy.sqrt(numpy.mean((t[half:, 1] - t[half:, 2]) ** 2))) for name, t in
              (("learned", learned), ("alone", alone))}  # fmt: skip
    taken = learned[:, 3]
    missed = int((taken > DEADLINE).sum())
    print(f"tracking error, second half: {1e3 * errors['learned']:.3g} mrad learned online, "
          f"{1e3 * errors['alone']:.3g} mrad by feedback alone")  # fmt: skip
    print(f"asking and learning: median {1e3 * numpy.median(taken):.2f} ms, 99 % within "
          f"{1e3 * numpy.quantile(taken, 0.99):.2f} ms, largest {1e3 * taken.max():.2f} ms; "
          f"{missed} of {len(taken):,} deadlines of {1e3 * DEADLINE:.0f} ms missed")  # fmt: skip
    _plot(learned, alone, options.out)
    return {**errors, "missed": missed, "steps": len(taken)}


def _plot(learned: numpy.ndarray, alone: numpy.ndarray, folder: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12.0, 4.2), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    for trace, colour, label in ((alone, "#6b6b6b", "feedback alone"), (learned, "#0072B2", "learned online")):
        left.plot(trace[:, 0], 1e3 * numpy.abs(trace[:, 1] - trace[:, 2]) + 1e-3, color=colour, label=label)
    left.set(xlabel="seconds", ylabel="tracking error, mrad (log scale)", yscale="log")
    left.legend()
    right.plot(learned[:, 0], 1e3 * learned[:, 3], ".", markersize=3, color="#0072B2")
    right.axhline(1e3 * DEADLINE, color="#D55E00", label="deadline")
    right.set(xlabel="seconds", ylabel="milliseconds of asking and learning (log scale)", yscale="log")
    right.legend()
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / "control.png", dpi=110)
    print(f"wrote {folder / 'control.png'}")


if __name__ == "__main__":
    main()
