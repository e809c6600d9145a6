"""Constrained parameters: the maps and their inverses, priors, sharing, what they refuse, and that no digit is lost."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Beta, Gamma, LogNormal, Normal, constraints

from flashgp.foundations.errors import DomainError
from flashgp.foundations.parameters import Domain, Parameter, as_parameter, named_parameter_objects

f64 = torch.float64
DOMAINS = [
    pytest.param(Domain(), id="real"),
    pytest.param(Domain(lower=0.0), id="positive"),
    pytest.param(Domain(lower=-2.5), id="half-line"),
    pytest.param(Domain(0.0, 1.0), id="unit interval"),
    pytest.param(Domain(-3.0, 7.0), id="interval"),
]


@pytest.mark.parametrize("domain", DOMAINS)
def test_maps(domain: Domain) -> None:
    """(M-18), (M-19): onto the domain, inverse to each other, with the stated Jacobian."""
    raw = torch.linspace(-6, 6, 25, dtype=f64).requires_grad_()
    value = domain.value(raw)
    assert domain.contains(value)
    assert torch.allclose(domain.raw(value), raw, rtol=1e-12, atol=1e-12)
    (slope,) = torch.autograd.grad(value.sum(), raw)
    assert (slope > 0).all()
    assert torch.allclose(domain.log_jacobian(raw), slope.log(), rtol=1e-12, atol=1e-12)
    assert torch.autograd.gradcheck(domain.value, (raw,))


def test_maps_by_hand() -> None:
    raw = torch.tensor([0.0, 1.0], dtype=f64)
    assert Domain(lower=2.0).value(raw).tolist() == pytest.approx([3.0, 2.0 + math.e])
    assert Domain(-1.0, 3.0).value(raw).tolist() == pytest.approx([1.0, -1.0 + 4.0 / (1.0 + math.exp(-1.0))])


@pytest.mark.parametrize("value", [1e-300, 1e-8, 1.0, 1e8, 1e300])
def test_positive_values_of_any_size_are_kept(value: float) -> None:
    parameter = Parameter(value, constraint=constraints.positive)
    assert parameter.value.item() == pytest.approx(value, rel=1e-12)


CONSTRAINTS = [
    (None, Domain()),
    (constraints.real, Domain()),
    (constraints.positive, Domain(lower=0.0)),
    (constraints.interval(-1.0, 4.0), Domain(-1.0, 4.0)),
    (Domain(1.0, 2.0), Domain(1.0, 2.0)),
]


@pytest.mark.parametrize(("constraint", "domain"), CONSTRAINTS, ids=[str(c) for c, _ in CONSTRAINTS])
def test_constraints_of_torch(constraint: object, domain: Domain) -> None:
    assert Domain.of(constraint) == domain


NO_INTERVALS = [constraints.simplex, constraints.boolean, constraints.less_than(1.0), "positive", 3]


@pytest.mark.parametrize("constraint", NO_INTERVALS, ids=str)
def test_constraints_that_are_no_interval(constraint: object) -> None:
    with pytest.raises(DomainError, match="`constraint` must be real, positive"):
        Domain.of(constraint)


def test_a_python_number_keeps_its_64_bits() -> None:
    """0.1 is not float32's 0.1: a difference of 1.5e-8 that a comparison with another library would show."""
    for value in (0.1, np.float64(0.1), [0.1], np.array([0.1]), torch.tensor(0.1, dtype=f64)):
        assert Parameter(value).value.reshape(-1)[0].item() == 0.1
    assert Parameter(torch.tensor(0.1)).value.item() == torch.tensor(0.1).item()
    assert Parameter(np.arange(4.0)[::-2]).value.tolist() == [3.0, 1.0]
    assert Parameter(3).value.dtype == f64


def test_parameters_stay_in_double() -> None:
    """.to(float32), .float(), .half(): not a bit changes; the gradient stays with it."""
    parameter = Parameter(0.1, constraint=constraints.positive)
    parameter.raw.grad = torch.full((), 0.3, dtype=f64)
    before = parameter.raw.detach().clone()
    for module in (parameter, nn.Sequential(parameter)):
        module.to(torch.float32)
        module.float()
        module.half()
    assert parameter.raw.dtype == f64
    assert torch.equal(parameter.raw, before)
    assert parameter.raw.grad.dtype == f64
    assert parameter.raw.grad.item() == 0.3
    assert parameter.to("meta").raw.device.type == "meta"


REFUSED = [
    ("complex", lambda: Parameter(1j), DomainError, ["`value`", "real", "complex"]),
    ("above", lambda: Parameter(2.0, constraint=constraints.unit_interval), DomainError, ["`value`", "in (0, 1)", "2"]),
    ("prior", lambda: Parameter(1.0, prior=3.0), DomainError, ["`prior`", "Distribution", "float"]),
    ("settled", lambda: as_parameter(Parameter(-1.0), Domain(0.0), "period"), DomainError, ["`period`", "positive"]),
]


@pytest.mark.parametrize(("call", "error", "words"), [pytest.param(*row[1:], id=row[0]) for row in REFUSED])
def test_refused(call: object, error: type[ValueError], words: list[str]) -> None:
    with pytest.raises(error) as caught:
        call()  # type: ignore[operator]
    for word in words:
        assert word in str(caught.value)


def test_assigning_a_value() -> None:
    parameter = as_parameter([1.0, 2.0], Domain(lower=0.0), "lengthscale", event_dim=1)
    raw = parameter.raw
    parameter.value = torch.tensor([3.0, 4.0])
    assert parameter.raw is raw  # an optimiser that holds it goes on
    assert parameter.value.tolist() == pytest.approx([3.0, 4.0])
    parameter.value = 5.0
    assert parameter.value.tolist() == pytest.approx([5.0, 5.0])
    with pytest.raises(DomainError, match="positive"):
        parameter.value = -1.0
    assert parameter.value.tolist() == pytest.approx([5.0, 5.0])
    parameter.value = torch.ones(3, 2)
    assert parameter.batch_shape == (3,)


def test_a_place_gives_its_domain_unless_the_user_did() -> None:
    assert as_parameter(Parameter(2.0), Domain(lower=0.0), "period").domain == Domain(lower=0.0)
    mine = Parameter(2.0, constraint=constraints.interval(1.0, 3.0))
    assert as_parameter(mine, Domain(lower=0.0), "period") is mine
    assert mine.domain == Domain(1.0, 3.0)
    assert mine.value.item() == pytest.approx(2.0)
    assert str(mine.domain) == "in (1, 3)"
    assert repr(mine) == "Parameter(2, in (1, 3))"
    assert repr(Parameter(2.0, trainable=False)) == "Parameter(2, real, fixed)"


def test_columns_meet_points() -> None:
    x = torch.ones(4, 7, 2, dtype=f64)
    for value, event_dim, shape in ((2.0, 0, ()), ([1.0, 2.0], 1, (2,)), ([[1.0, 2.0]] * 4, 1, (4, 1, 2)),
                                    ([2.0] * 4, 0, (4, 1, 1))):  # fmt: skip
        parameter = as_parameter(value, Domain(lower=0.0), "lengthscale", event_dim=event_dim)
        assert parameter.column().shape == shape
        assert (x / parameter.column()).shape == x.shape


def test_priors() -> None:
    """The density of the value, summed over the event and not over the batch; with the Jacobian, that of raw."""
    value = torch.tensor([[0.5, 1.5], [2.5, 0.1]], dtype=f64)
    prior = LogNormal(torch.tensor(0.2, dtype=f64), torch.tensor(0.7, dtype=f64))
    parameter = as_parameter(Parameter(value, prior=prior), Domain(lower=0.0), "lengthscale", event_dim=1)
    wanted = prior.log_prob(value).sum(-1)
    assert torch.allclose(parameter.log_prior(), wanted)
    # log of a log-normal variable is normal
    normal = Normal(0.2, 0.7).log_prob(value.log()).sum(-1)
    assert torch.allclose(parameter.log_prior(jacobian=True), normal)
    unit = Parameter(0.3, constraint=constraints.unit_interval, prior=Beta(2.0, 3.0))
    raw = torch.linspace(-30, 30, 20001, dtype=f64)
    density = (Beta(2.0, 3.0).log_prob(unit.domain.value(raw)) + unit.domain.log_jacobian(raw)).exp()
    assert torch.trapezoid(density.nan_to_num(), raw).item() == pytest.approx(1.0, rel=1e-6)
    assert Parameter(0.3).log_prior().item() == 0.0
    assert Parameter(0.3).log_prior(jacobian=True).item() == 0.0
    fixed = Parameter(0.3, constraint=constraints.positive, trainable=False)
    assert fixed.log_prior(jacobian=True).item() == 0.0
    assert not fixed.trainable
    (slope,) = torch.autograd.grad(unit.log_prior(jacobian=True), unit.raw)
    assert slope.isfinite()


def test_copies_are_apart() -> None:
    parameter = Parameter(0.3, constraint=constraints.positive, prior=Gamma(2.0, 1.0))
    other = copy.deepcopy(parameter)
    other.value = 9.0
    assert parameter.value.item() == pytest.approx(0.3)
    assert other.log_prior() != parameter.log_prior()


def test_every_parameter_object_once() -> None:
    shared = Parameter(1.0)
    tree = nn.ModuleDict({"a": nn.ModuleDict({"x": shared}), "b": nn.ModuleDict({"y": Parameter(2.0), "z": shared})})
    assert [name for name, _ in named_parameter_objects(tree)] == ["a.x", "b.y"]
    assert shared().item() == 1.0


def test_a_parameter_that_is_used_again_keeps_its_bits() -> None:
    domain = Domain(0.0, 1.0)
    for value in (0.21036647491838456, 0.415708324714125, 0.4146924673325306):  # there and back loses a bit
        parameter = as_parameter(value, domain, "share")
        raw = parameter.raw.detach().clone()
        as_parameter(parameter, domain, "share")
        assert torch.equal(parameter.raw, raw)
