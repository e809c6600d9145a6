"""The log joint by Fourier series of rows that pass by, whose sites every pass makes anew, eqs. (M-454) and (M-455)."""

from collections.abc import Iterator

import torch
from torch import Tensor

from flashgp.foundations.deadline import NO_DEADLINE, Deadline
from flashgp.foundations.transforms import vector_jacobian
from flashgp.inference.fourier.objective import FourierLogJoint
from flashgp.inference.fourier.passes import SeriesValues, settled, sites_of
from flashgp.inference.prior import Prior
from flashgp.inference.site_methods import Variational
from flashgp.inference.training.objective import Array


class FourierPassLogJoint(FourierLogJoint):
    """`FourierLogJoint` where sites are found by iteration: some passes for these, and one or two as elsewhere.

    Field: values, q of the weights that the sites of the last evaluation were made from.
    """

    values: SeriesValues | None = None

    def settled(self, tolerance: float | None = None, deadline: Deadline = NO_DEADLINE) -> None:
        """None: a pass makes sites."""
        return

    def _by_passes(self, spectrum: Tensor, left: Tensor) -> tuple[float, Array]:
        problem, none = self.problem, SeriesValues.of_prior(
            self.grid, spectrum.detach(), float(left.detach()), self.settings.solves
        )  # fmt: skip
        assert problem.sites is not None
        settings, start = problem.sites.settings, None if self.values is None else none.having(self.values.sums)
        found = settled(self._prior, self._survey, none, start, settings.search, settings, self._deadline)
        problem.sites.steps.append(found.steps)
        self.values = found.before
        self._beyond = torch.zeros(1 + self.parameters.size, dtype=torch.float64)  # a value, and its slopes
        value, gradient = super()._by_passes(spectrum, left)
        more = self._survey.group.sum(self._beyond).numpy()
        return value + float(more[0]), gradient + more[1:]

    def _blocks(self, left: float, *, again: bool = False) -> Iterator[tuple[Prior, Tensor, Tensor, Tensor]]:
        """As of its base, of the sites; what the likelihood has beside these is added up, once."""
        assert self.values is not None
        for of_rows, block, sites, at in sites_of(self._prior, self._survey, self.values, self._deadline):
            if not again:
                with torch.enable_grad():
                    beyond = Variational().excess(of_rows.likelihood, block.y.double(), at, sites).sum()
                self._beyond[0] += float(beyond.detach())
                if beyond.requires_grad:
                    slopes = vector_jacobian([(beyond, torch.ones_like(beyond))], self.parameters.tensors)
                    self._beyond[1:] += torch.from_numpy(self.parameters.flat(slopes))
            yield of_rows, block.x, self._prior.residual(block.x, sites.targets), sites.variance + left
