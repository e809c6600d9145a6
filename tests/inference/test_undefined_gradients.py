"""Torch's own checks of derivatives, which send undefined gradients into every backward."""

import pytest
import torch
from torch import Tensor

import flashgp as fgp

F64 = torch.float64
GENERATOR = torch.Generator().manual_seed(0)
X = torch.rand(6, 2, generator=GENERATOR, dtype=F64)
Y = torch.rand(6, generator=GENERATOR, dtype=F64)


def model() -> fgp.GP:
    return fgp.GP(1.3 * fgp.kernels.RBF(torch.tensor([0.7, 1.4])), likelihood=fgp.likelihoods.Gaussian(0.1))


@pytest.mark.parametrize("name", ["x", "y"])
def test_evidence(name: str) -> None:
    gp, given = model(), {"x": X.clone(), "y": Y.clone()}

    def value(t: Tensor) -> Tensor:
        return gp.log_marginal_likelihood(**{**given, name: t})

    asked = given[name].clone().requires_grad_()
    assert torch.autograd.gradcheck(value, asked)
    assert torch.autograd.gradgradcheck(value, asked)


def test_evidence_by_parameters() -> None:
    gp = model()
    raws = tuple(gp.parameters())

    def value(*_: Tensor) -> Tensor:  # gradcheck moves the parameters where they stand
        return gp.log_marginal_likelihood(X, Y)

    assert torch.autograd.gradcheck(value, raws)
