"""Hyperparameters of a posterior that learns online: a few steps of the log joint from where they are.

The rows of the posterior, which in a stream are those of its window, are all that the steps see. Gradients are exact:
estimated ones are for searches that begin far away. The values found get a new factor.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import torch

from flashgp.foundations.checks import check_count
from flashgp.foundations.deadline import Deadline
from flashgp.inference.choice import Choice
from flashgp.inference.data import Data
from flashgp.inference.output_states import AnyState
from flashgp.inference.run import Run
from flashgp.inference.settings import TimeSettings
from flashgp.inference.state import continued
from flashgp.inference.training.exact_fit import fit_exact
from flashgp.inference.training.history import Progress
from flashgp.inference.training.options import FitOptions, FitSettings


def refined(
    state: AnyState,
    steps: int,
    *,
    priors: Literal["weak", "given"],
    time_limit: float | None,
    progress: Callable[[Progress], None] | None,
) -> AnyState:
    """See `Posterior.refine`."""
    deadline = Deadline.after(time_limit)
    steps = check_count(steps, "steps", 1)
    prior = state.prior.without_held_sites()
    data = Data(prior, state.x, state.y)
    asked = state.run.planning(device=state.x.device, dtype=torch.float64)
    plan = Choice(prior, data.counts, asked, training=False).exact()
    if plan.training != "exact":  # the factor that conditioning takes gives the gradient too
        plan = replace(plan, training="exact", training_bytes=plan.peak_bytes)
    options = FitOptions(
        starts=1, initial="given", priors=priors, max_iterations=steps, plan=plan, progress=progress,
        run=Run(state.run.seed, state.run.deterministic, deadline=deadline),
        settings=FitSettings(time=TimeSettings(min_rows=data.count)),  # no row is lost, however short the time
    )  # fmt: skip
    fitted = fit_exact(prior, data, options)
    before = [replace(part.online, refined=part.online.refined + 1, moved=0.0) for part in state.parts]
    return fitted.state.mapped(lambda part, j: continued(part, before[j]))
