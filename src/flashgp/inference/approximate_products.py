"""Approximate products that certified solves may run on, from engines that have some."""

from collections.abc import Callable

from torch import Tensor

from flashgp.foundations.events import Event
from flashgp.inference.run import Run
from flashgp.kernels.base import Kernel
from flashgp.planner.plan import Plan
from flashgp.solvers.iterative.refinement import ApproximateProducts

Made = tuple[ApproximateProducts | None, list[Event]]
# By name, of a covariance function, distinct rows, variances of their noise, and the plan of solves by all pairs.
MAKERS: dict[str, Callable[[Kernel, Tensor, Tensor, Plan, Run], Made]] = {}


def approximate_products(kernel: Kernel, x: Tensor, noise: Tensor, plan: Plan, run: Run) -> Made:
    """The first that there are, None without; with the events of the choice."""
    events: list[Event] = []
    for make in MAKERS.values():
        found, said = make(kernel, x, noise, plan, run)
        events += said
        if found is not None:
            return found, events
    return None, events
