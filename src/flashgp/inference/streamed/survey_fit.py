"""What fits in passes have alike: the first pass over the rows, whose random sample is searched first."""

import torch

from flashgp.inference.approximation import Approximation
from flashgp.inference.gathered import agreed_memory
from flashgp.inference.prior import Prior
from flashgp.inference.streamed.rows import first_pass, numbers_to_likelihood
from flashgp.inference.training.fit import S, refuse_exact_fit
from flashgp.inference.training.linear_stages import LinearFit
from flashgp.inference.training.options import FitOptions
from flashgp.planner.problem import PlanSettings
from flashgp.processes.group import ALONE
from flashgp.sources.source import Held, RowSource
from flashgp.sources.survey import Survey


class SurveyFit(LinearFit[S]):
    """See `EngineFit`; the search holds a random sample of the rows.

    Fields: whole, what the first pass saw of all rows, cut where the time ended it; survey, of the rows that are fitted
    to; rows, the source; read, whether it is read and not held.
    """

    gathers = False

    def look(self, prior: Prior, rows: RowSource | Survey, options: FitOptions, asked: Approximation) -> Prior:
        """The first pass: the prior without numbers of single rows. Raises: as `first_pass`, `refuse_exact_fit`."""
        # Every rank searches the sample by itself, and goes on from what rank 0 found.
        self.options, self.searchers, self.interrupts = options, ALONE, []
        refuse_exact_fit(options)
        prior, self.whole = first_pass(prior, rows, asked, options.run, options.stages.first_rows)
        self.rows, self.survey = self.whole.source, self.whole.of_sample if self.whole.cut else self.whole
        self.read = not isinstance(self.rows, Held)
        return prior

    def planning_on(self, device: torch.device) -> PlanSettings:
        """What plans on a device keep to, with the memory that all ranks have."""
        run = self.options.run
        return self.options.planning(memory=agreed_memory(run.memory, device, run.group), device=device)

    @property
    def result(self) -> Prior:
        return numbers_to_likelihood(self.prior, self.rows)
