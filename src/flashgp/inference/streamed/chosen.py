"""Choice of inference for rows that are read, from what the first pass says of them: Fourier series or inducing points.

Nothing is read again for it: the engine that is taken goes on from this pass.
"""

from typing import Any

from flashgp.foundations.events import Event
from flashgp.inference.approximation import Approximation
from flashgp.inference.choice import Choice
from flashgp.inference.gathered import agreed_memory
from flashgp.inference.over_ranks import check_alike, of_first
from flashgp.inference.prior import Prior
from flashgp.inference.streamed.rows import SAMPLE_ROWS, counts_of, first_pass
from flashgp.planner.plan import Plan
from flashgp.planner.problem import chosen_device
from flashgp.sources.source import RowSource
from flashgp.sources.survey import Survey

# What is taken; the first pass; and where series are, the plan of inducing points with their approximation, and the
# event.
Chosen = tuple[Approximation, Survey, tuple[Approximation | None, Plan | None] | None, Event | None]


def chosen_of_read(
    prior: Prior, rows: RowSource, asked: Approximation, options: Any, least: int = SAMPLE_ROWS, *, training: bool
) -> Chosen:
    """Args: asked, of kind "auto"; options, of a fit or of conditioning; least, rows of the sample. Raises: as
    `first_pass` and `Choice.decided_of_read`. Of a pass that the time ended inducing points are taken; of ranks the
    first chooses."""
    points, run = Approximation("sparse", asked.inducing), options.run
    with run.group.together() as group:
        check_alike(group, prior, asked, options.alike)
        prior, survey = first_pass(prior, rows, asked, run, least)
        if survey.cut:
            return points, survey, None, None
        device = chosen_device(run.device, survey.x)
        memory = agreed_memory(run.memory, device, group)
        wanted = (options if training else run).planning(device=device, memory=memory)
        choice = Choice(prior, counts_of(survey), wanted, run.deadline.limit, training)
        taken, _, event, other = of_first(group, asked, lambda: choice.decided_of_read(asked))
        return taken, survey, None if event is None else (points, other), event
