"""Choice of inference for rows that are read, from what the first pass says of them: Fourier series or inducing points.

Nothing is read again for it: the engine that is taken goes on from this pass.
"""

from typing import Any

from flashgp.foundations.events import Event
from flashgp.inference.approximation import Approximation
from flashgp.inference.choice import decided_of_read
from flashgp.inference.prior import Prior
from flashgp.inference.streamed.rows import SAMPLE_ROWS, counts_of, first_pass
from flashgp.planner.plan import Plan
from flashgp.planner.problem import chosen_device
from flashgp.sources.source import RowSource
from flashgp.sources.survey import Survey

# What is taken; the first pass, None where it is left to the engine; and where series are, the plan of inducing points
# with their approximation, and the event.
Chosen = tuple[Approximation, Survey | None, tuple[Approximation | None, Plan] | None, Event | None]


def chosen_of_read(
    prior: Prior, rows: RowSource, asked: Approximation, options: Any, least: int = SAMPLE_ROWS, *, training: bool
) -> Chosen:
    """Args: asked, of kind "auto"; options, of a fit or of conditioning; least, rows of the sample. Raises: as
    `first_pass` and `decided_of_read`. Over ranks, and of a pass that the time ended, inducing points are taken."""
    points, run = Approximation("sparse", asked.inducing), options.run
    if run.group.size > 1:
        return points, None, None, None
    prior, survey = first_pass(prior, rows, asked, run, least)
    if survey.cut:
        return points, survey, None, None
    wanted = (options if training else run).planning(device=chosen_device(run.device, survey.x))
    limit, counts = run.deadline.limit, counts_of(survey)
    taken, _, event, other = decided_of_read(prior, counts, asked, wanted, limit, training=training)
    return taken, survey, None if event is None else (points, other), event
