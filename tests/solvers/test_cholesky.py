"""The factor: in place, jitter only where needed and never silent, refinement that stops when it should."""

import math

import pytest
import torch
from torch import Tensor

from flashgp.foundations.errors import DomainError, NotPositiveDefiniteError
from flashgp.solvers.direct.cholesky import JITTER_STEPS, factorise, factorise_keeping, refine

F64 = torch.float64
EPS = torch.finfo(F64).eps


def spectrum(values: Tensor, seed: int = 0) -> Tensor:
    """A symmetric matrix with these eigenvalues."""
    n = values.shape[-1]
    generator = torch.Generator().manual_seed(seed)
    Q, _ = torch.linalg.qr(torch.randn(*values.shape[:-1], n, n, generator=generator, dtype=F64))
    A = Q @ torch.diag_embed(values.to(F64)) @ Q.mT
    return 0.5 * (A + A.mT)


@pytest.mark.parametrize("n", [1, 2, 7, 65])
@pytest.mark.parametrize("batch", [(), (3,), (2, 2), (0,)])
@pytest.mark.parametrize("dtype", [F64, torch.float32])
def test_a_factor(n: int, batch: tuple[int, ...], dtype: torch.dtype) -> None:
    """Eq. (M-30): L L^T is the matrix; solve, half_solve, determinant and inverse are those of the matrix."""
    A = spectrum(torch.linspace(0.5, 3.0, n).expand(*batch, n)).to(dtype)
    factor = factorise(lambda: A.clone())
    eps = 100 * n * torch.finfo(dtype).eps
    assert torch.equal(factor.jitter, torch.zeros(batch, dtype=dtype))
    assert factor.attempts == []
    assert torch.equal(factor.lower, factor.lower.tril())
    assert torch.allclose(factor.lower @ factor.lower.mT, A, atol=eps)
    rhs = torch.randn(*batch, n, 3, dtype=dtype)
    assert torch.allclose(A @ factor.solve(rhs), rhs, atol=10 * eps)
    assert torch.allclose(factor.lower @ factor.half_solve(rhs), rhs, atol=10 * eps)
    several = torch.randn(2, 3, n, 2, dtype=dtype)
    if not batch:  # one triangle for all of them
        assert torch.allclose(factor.lower @ factor.half_solve(several), several, atol=10 * eps)
        assert torch.allclose(factor.lower.mT @ factor.back_solve(several), several, atol=10 * eps)
    assert factor.log_determinant.dtype == F64
    wanted = torch.linspace(0.5, 3.0, n, dtype=F64).log().sum().expand(batch)
    assert torch.allclose(factor.log_determinant, wanted, atol=10 * eps)
    memory = factor.lower.untyped_storage().data_ptr()
    inverse = factor.inverse_()
    assert inverse.untyped_storage().data_ptr() == memory
    assert torch.allclose(inverse @ A, torch.eye(n, dtype=dtype).expand(*batch, n, n), atol=10 * eps)


@pytest.mark.parametrize("step", range(len(JITTER_STEPS)))
def test_the_ladder_stops_where_it_suffices(step: int) -> None:
    """Eq. (M-31): n eps times 1, 10, 100 of the mean diagonal; a least eigenvalue between two rungs needs the upper."""
    n = 20
    rung = n * EPS * JITTER_STEPS[step]
    values = torch.ones(n, dtype=F64)
    values[0] = -0.5 * rung
    A = spectrum(values)
    assert float(A.diagonal().mean()) == pytest.approx(0.95, rel=1e-3)
    built: list[int] = []

    def build() -> Tensor:
        built.append(1)
        return A.clone()

    factor = factorise(build)
    ladder = [n * EPS * s for s in JITTER_STEPS]
    assert factor.attempts[: step + 1] == pytest.approx(ladder[: step + 1])
    # Rounding may ask for one rung more than the eigenvalue alone.
    assert len(factor.attempts) in (step + 1, min(step + 2, len(ladder)))
    assert len(built) == len(factor.attempts) + 1
    assert float(factor.jitter) == pytest.approx(factor.attempts[-1] * float(A.diagonal().mean()))


def test_the_ladder_ends_below_what_may_be_added() -> None:
    """Each rung is another factorisation: one that is refused is not built."""
    A, built = spectrum(torch.tensor([-0.1, 1.0, 2.0])), []

    def build() -> Tensor:
        built.append(1)
        return A.clone()

    unit = 3 * EPS * float(A.diagonal().mean())
    for most, tried in ((0.5 * unit, 0), (5 * unit, 1), (500 * unit, 3)):
        built.clear()
        advice = "pass a larger jitter=" if tried == 3 else r"the next jitter, .*, is above .* the most"
        with pytest.raises(NotPositiveDefiniteError, match=advice) as caught:
            factorise(build, max_jitter=most)
        assert len(caught.value.jitters) == tried == len(built) - 1


def test_what_no_rung_repairs() -> None:
    A = spectrum(torch.tensor([-0.1, 1.0, 2.0]))
    with pytest.raises(
        NotPositiveDefiniteError, match=r"\(3 x 3\) must be positive definite, but pivot \d is"
    ) as caught:
        factorise(lambda: A.clone())
    assert caught.value.jitters == pytest.approx([3 * EPS * s for s in JITTER_STEPS])
    assert caught.value.smallest_pivot <= 0
    assert caught.value.indices == ()
    with pytest.raises(NotPositiveDefiniteError, match="tried: none") as caught:
        factorise(lambda: A.clone(), repair=lambda: False)
    assert caught.value.jitters == ()


def test_a_jitter_that_was_asked_for() -> None:
    A = spectrum(torch.tensor([-0.1, 1.0, 2.0]))
    mean = float(A.diagonal().mean())
    factor = factorise(lambda: A.clone(), 0.5)
    assert float(factor.jitter) == pytest.approx(0.5 * mean)
    assert factor.attempts == [0.5]
    assert torch.allclose(factor.lower @ factor.lower.mT, A + 0.5 * mean * torch.eye(3, dtype=F64), atol=100 * EPS)
    with pytest.raises(NotPositiveDefiniteError) as caught:
        factorise(lambda: A.clone(), 0.01)
    assert caught.value.jitters == (0.01,)
    for jitter in (-1.0, math.nan, math.inf):
        with pytest.raises(DomainError, match="`jitter` must be a finite number >= 0"):
            factorise(lambda: A.clone(), jitter)


def test_each_member_its_own_jitter() -> None:
    """Members that succeed keep their bits; those that fail climb on alone; those beyond repair are named."""
    n = 6
    rung = n * EPS
    values = torch.ones(4, n, dtype=F64)
    values[1, 0], values[3, 0] = -0.3 * rung, -30.0 * rung
    A = spectrum(values)
    factor = factorise(lambda: A.clone())
    good = factorise(lambda: torch.stack([A[0], A[2]]))
    assert torch.equal(factor.lower[0], good.lower[0])
    assert torch.equal(factor.lower[2], good.lower[1])
    assert factor.jitter[0] == factor.jitter[2] == 0.0
    assert 0.0 < float(factor.jitter[1]) < float(factor.jitter[3])
    A[2] = spectrum(torch.tensor([-1.0, 1, 1, 1, 1, 1]))
    with pytest.raises(NotPositiveDefiniteError, match=r"batch member \(2,\)") as caught:
        factorise(lambda: A.clone())
    assert caught.value.indices == ((2,),)
    grid = torch.stack([A, A])
    with pytest.raises(NotPositiveDefiniteError) as caught:
        factorise(lambda: grid.clone())
    assert caught.value.indices == ((0, 2), (1, 2))


def test_keeping_and_differentiating() -> None:
    A = spectrum(torch.tensor([0.5, 1.0, 2.0]))
    before = A.clone()
    assert torch.allclose(factorise_keeping(A).lower @ factorise_keeping(A).lower.mT, A, atol=100 * EPS)
    assert torch.equal(A, before)
    rhs = torch.ones(3, 1, dtype=F64)
    assert torch.autograd.gradcheck(
        lambda B: factorise_keeping(0.5 * (B + B.mT)).solve(rhs), A.clone().requires_grad_()
    )
    bad = spectrum(torch.tensor([-0.1, 1.0, 2.0])).requires_grad_()
    factor = factorise_keeping(bad, 0.5)
    assert factor.lower.requires_grad
    assert torch.allclose(
        (factor.lower @ factor.lower.mT).detach(), bad.detach() + factor.jitter * torch.eye(3), atol=100 * EPS
    )


# -- refinement ------------------------------------------------------------------------------------------------------
def solver(A: Tensor, error: float) -> tuple[object, object]:
    """A solve of a slightly different matrix: each correction shrinks the residual by about `error`."""
    wrong = torch.linalg.inv(A) * (1.0 + error)
    return (lambda v: wrong @ v), (lambda v: A @ v)


def test_refinement_converges() -> None:
    """Eq. (M-32): the residual shrinks by the solver's relative error in every correction."""
    A = spectrum(torch.linspace(0.1, 2.0, 8))
    rhs = torch.randn(8, 2, dtype=F64, generator=torch.Generator().manual_seed(0))
    solve, multiply = solver(A, 1e-3)
    exact = torch.linalg.solve(A, rhs)
    for target, corrections in ((1.0, 0), (1e-2, 0), (1e-5, 1), (1e-8, 2), (1e-11, 3)):
        solution, relative, steps = refine(solve, multiply, rhs, target)
        assert steps == corrections
        assert relative <= target
        assert relative == pytest.approx(
            float(((rhs - A @ solution).norm(dim=-2) / rhs.norm(dim=-2)).amax()), rel=1e-2, abs=1e-15
        )
        assert float((solution - exact).norm()) <= 50 * relative * float(exact.norm())


def test_refinement_gives_up_and_keeps_the_best() -> None:
    A = spectrum(torch.linspace(0.1, 2.0, 8))
    rhs = torch.ones(8, 1, dtype=F64)
    solve, multiply = solver(A, 1e-3)
    solution, relative, steps = refine(solve, multiply, rhs, 0.0, limit=50)  # no residual is below rounding
    assert steps < 20
    assert relative < 1e-14
    diverging, multiply = solver(A, 3.0)  # every correction triples the residual
    solution, relative, steps = refine(diverging, multiply, rhs, 1e-9)
    assert steps == 0
    assert relative == pytest.approx(3.0)
    assert torch.equal(solution, diverging(rhs))
    slow, multiply = solver(A, 0.8)  # better, but not by half: one correction, then no more
    _, relative, steps = refine(slow, multiply, rhs, 1e-9)
    assert steps == 1
    assert relative == pytest.approx(0.64)
    _, _, steps = refine(*solver(A, 0.4), rhs, 1e-30, limit=3)
    assert steps == 3


def test_a_covariance_that_is_not_a_number_is_no_matter_of_noise() -> None:
    with pytest.raises(NotPositiveDefiniteError, match="not a number: check the hyperparameters and the rows"):
        factorise(lambda: torch.full((2, 2), math.nan, dtype=F64))
