"""Every backend gives what the float64 loops give, for each registered covariance function: (M-1), (M-20), (M-21).

The loops themselves are compared with formulas written a second time in tests/kernels/test_values.py.
"""

import functools

import pytest
import torch
from torch import Tensor

from flashgp.foundations.expression import exp, match, number, parameter, row_scalar, squared_distance
from flashgp.foundations.form import Form, Rows
from flashgp.pairwise.backend import BACKENDS, Backend, register_backend
from flashgp.pairwise.problem import PairProblem
from pairwise.pair_cases import (
    CASES,
    EPS,
    REFERENCE,
    ROUTES,
    SHAPE_IDS,
    SHAPES,
    TORCH,
    Case,
    Job,
    gradients,
    job,
    relative_error,
    torch_tiles_by,
)

# A value is a few dozen operations on numbers of size 1; a gradient is a sum of at most 81 of those.
VALUE_TOLERANCE = 50 * EPS
GRADIENT_TOLERANCE = 200 * EPS


def answers(backend: Backend, given: Job) -> dict[str, list[Tensor | None]]:
    """What a backend gives for all six operations."""
    g = given
    f64 = torch.float64
    return {
        "block": [backend.block(g.problem, dtype=f64)],
        "diagonal": [backend.diagonal(PairProblem(g.form, g.theta, g.rows), dtype=f64)],
        "product": [backend.product(g.problem, g.right)],
        "block_gradient": gradients(backend.block_gradient(g.problem, g.weights)),
        "bilinear_gradient": gradients(backend.bilinear_gradient(g.problem, g.left, g.right)),
        "diagonal_gradient": gradients(
            backend.diagonal_gradient(PairProblem(g.form, g.theta, g.rows), g.weights.sum(-1))
        ),
    }


@functools.cache
def truth(case: Case, n: int, m: int | None) -> dict[str, list[Tensor | None]]:
    return answers(REFERENCE, job(case, n, m))


def disagreements(found: dict[str, list[Tensor | None]], wanted: dict[str, list[Tensor | None]]) -> list[str]:
    """Each answer that is off, in words."""
    problems = []
    for what, tensors in wanted.items():
        tolerance = GRADIENT_TOLERANCE if "gradient" in what else VALUE_TOLERANCE
        for position, (one, two) in enumerate(zip(found[what], tensors, strict=True)):
            assert two is not None
            error = relative_error(torch.zeros_like(two) if one is None else one, two)
            if not error <= tolerance:
                problems.append(f"{what}[{position}] is off by {error / EPS:.0f} eps")
    return problems


@pytest.mark.parametrize("name", list(BACKENDS))
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("case", CASES)
def test_agrees_with_the_loops(name: str, route: str, case: Case) -> None:
    if name != "torch" and route != "one tile":
        return  # few pairs are handed to the portable backend
    backend = torch_tiles_by(route) if name == "torch" else BACKENDS[name]()
    problems = [
        f"{shape}: {problem}"
        for shape, (n, m) in zip(SHAPE_IDS, SHAPES, strict=True)
        for problem in disagreements(answers(backend, job(case, n, m)), truth(case, n, m))
    ]
    assert not problems, "\n".join(problems)


def test_a_disagreement_is_found() -> None:
    wanted = truth(Case("Matern", 0, 1), 7, 5)
    assert disagreements(wanted, wanted) == []
    for what, tensors in wanted.items():
        for position, tensor in enumerate(tensors):
            assert tensor is not None
            if tensor.numel():
                off = tensor.clone()
                off.view(-1)[-1] += 1e-12 * max(1.0, float(tensor.abs().max()))
                changed = {**wanted, what: [off if k == position else t for k, t in enumerate(tensors)]}
                assert len(disagreements(changed, wanted)) == 1


# A form with everything at once, whose row scalars stand inside and outside an exponential, both sides alike.
EVERYTHING = Form(
    (row_scalar("left") * row_scalar("right") + 1)
    * exp(-squared_distance(0) / 2 * row_scalar("left", 1) * row_scalar("right", 1))
    + match(1) * row_scalar("left") * row_scalar("right") * parameter(0),
    ("distance", "match"),
    2,
    1,
)


def everything_rows(n: int, seed: int) -> Rows:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    codes = torch.randint(0, 3, (n,), generator=generator)
    return Rows((features, codes), tuple(torch.rand(2, n, generator=generator, dtype=torch.float64)), n)


@pytest.mark.parametrize("route", ROUTES)
def test_row_scalars_inside_and_outside(route: str) -> None:
    """The pullback to row scalars, eq. (M-26), where they are not mere factors."""
    backend = torch_tiles_by(route)
    theta = [torch.tensor(0.7, dtype=torch.float64)]
    generator = torch.Generator().manual_seed(3)
    for n, m in ((5, 8), (9, None)):
        count = n if m is None else m
        weights = torch.randn(n, count, generator=generator, dtype=torch.float64)
        given = Job(
            EVERYTHING,
            theta,
            everything_rows(n, 1),
            None if m is None else everything_rows(m, 2),
            torch.randn(n, 2, generator=generator, dtype=torch.float64),
            torch.randn(count, 2, generator=generator, dtype=torch.float64),
            weights if m is not None else weights + weights.mT,
        )
        assert disagreements(answers(backend, given), answers(REFERENCE, given)) == []


@pytest.mark.parametrize("route", ROUTES)
def test_symmetric_panels_equal_the_rectangle(route: str) -> None:
    """Weights of symmetric panels, eq. (M-23): both sides the same rows is the rectangle, its two gradients added."""
    backend = torch_tiles_by(route)
    given = job(Case("Product", 1, 3), 9, None)
    one = backend.block_gradient(PairProblem(given.form, given.theta, given.rows), given.weights)
    two = backend.block_gradient(PairProblem(given.form, given.theta, given.rows, given.rows), given.weights)
    for joined, left, right in zip(one.rows, two.rows, two.cols, strict=True):
        assert joined is not None
        assert left is not None
        assert right is not None
        assert relative_error(joined, left + right) <= GRADIENT_TOLERANCE
    block = backend.block(PairProblem(given.form, given.theta, given.rows), dtype=torch.float64)
    assert torch.equal(block, block.mT) or relative_error(block, block.mT.contiguous()) <= VALUE_TOLERANCE
    rectangle = backend.block(PairProblem(given.form, given.theta, given.rows, given.rows), dtype=torch.float64)
    assert relative_error(block, rectangle) <= VALUE_TOLERANCE


@pytest.mark.parametrize("case", [Case("Matern", 2, 3), Case("Sum", 1, 3), Case("Coregionalization", 0, 3)])
@pytest.mark.parametrize("n", [5, 9], ids=["one tile", "panels"])
def test_a_kept_tape_gives_the_same(case: Case, n: int) -> None:
    """`taped_block`: the upper triangle of the block, and the gradient of symmetric weights on it."""
    backend = torch_tiles_by("panels")
    given = job(case, n, None)
    for one in (backend, REFERENCE):
        block, pull = one.taped_block(PairProblem(given.form, given.theta, given.rows), dtype=torch.float64)
        wanted = truth(case, n, None)
        assert wanted["block"][0] is not None
        assert relative_error(block.triu(), wanted["block"][0].triu()) <= VALUE_TOLERANCE
        found = {**wanted, "block_gradient": gradients(pull(given.weights))}
        assert disagreements(found, wanted) == []


def test_upper_fills_the_upper_triangle() -> None:
    backend = torch_tiles_by("panels")
    given = job(Case("Matern", 2, 3), 9, None)
    block = backend.block(PairProblem(given.form, given.theta, given.rows), dtype=torch.float64, upper=True)
    full = backend.block(PairProblem(given.form, given.theta, given.rows), dtype=torch.float64)
    assert torch.equal(block.triu(), full.triu())


def test_the_registry_takes_a_row() -> None:
    @register_backend("another")
    class Another(type(TORCH)):  # type: ignore[misc]
        pass

    try:
        assert BACKENDS["another"] is Another
        assert Another.name == "another"
        assert TORCH.name == "torch"
    finally:
        del BACKENDS["another"]


def test_the_loops_refuse_a_batch() -> None:
    case = Case("SquaredExponential", 0, 2)
    rows = case.kernel.rows(torch.zeros(2, 3, 2))
    with pytest.raises(ValueError, match="`rows` must be unbatched"):
        REFERENCE.block(PairProblem(case.kernel.form, [], rows), dtype=torch.float64)


def test_a_profile_without_pairs_is_a_number() -> None:
    """A form without statistics still has the shape of its points, batch included."""
    form = Form(number(2) * parameter(0), (), 0, 1)
    rows = Rows((), (), 3, torch.Size((4,)))
    theta = [torch.tensor(1.5, dtype=torch.float64)]
    block = TORCH.block(PairProblem(form, theta, rows), dtype=torch.float64)
    assert block.shape == (4, 3, 3)
    assert torch.equal(block, torch.full((4, 3, 3), 3.0, dtype=torch.float64))
    assert TORCH.diagonal(PairProblem(form, theta, rows), dtype=torch.float64).shape == (4, 3)
