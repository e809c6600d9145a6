"""Repeated terms of a profile as loops over an index: found, evaluated and pulled back like terms written out."""

import pytest
import torch

import flashgp as fgp
from flashgp.foundations.expression import Symbol, exp, number, parameter, product, squared_distance
from flashgp.foundations.form import Form
from flashgp.kernels import Kernel, SpectralMixture
from flashgp.pairwise.cpu.backend import cpu_tiles_missing
from flashgp.pairwise.cpu.generation import generated_source
from flashgp.pairwise.cpu.layout import Statistic, layout_of
from flashgp.pairwise.problem import PairProblem
from flashgp.pairwise.program.families import MIN_MEMBERS, Indexed, indexed
from pairwise.test_cpu import CPU, check, check_product, numbers

k = fgp.kernels
F32, F64 = torch.float32, torch.float64
needs_numba = pytest.mark.skipif(bool(cpu_tiles_missing()), reason="numba is not installed")


def uniform(*shape: int, seed: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def mixture(components: int, d: int = 2, seed: int = 0) -> SpectralMixture:
    means, scales = uniform(components, d, seed=seed + 1), 0.1 + 0.2 * uniform(components, d, seed=seed + 2)
    return SpectralMixture(0.1 + uniform(components, seed=seed), means, scales)


def sum_of(kernels: list[Kernel]) -> Kernel:
    total = kernels[0]
    for kernel in kernels[1:]:
        total = total + kernel
    return total


# Three families under sums and products, one with powers of a parameter of each member, beside what is none; and
# features of 9 to 13 columns, which one loop takes.
KERNELS = {
    "mixture": mixture(5),
    "families and others": 2.0 * mixture(5) * mixture(4, seed=3)
    + sum_of([(1.0 + i) * k.RationalQuadratic(1.0 + i, 0.3 + 0.1 * i) for i in range(4)])
    + k.Linear(),
    "many columns": sum_of([(1.0 + i) * k.RBF(2.0, active_dims=list(range(9 + i))) for i in range(5)]),
}
FAMILIES = {"mixture": [5], "families and others": [4, 5, 4], "many columns": [5]}


def differences(form: Form) -> tuple[Statistic, ...]:
    """A layout of loops that sweep differences and products."""
    ways = {"distance": "differences", "product": "dot", "match": "match"}
    return tuple(Statistic(kind, ways[kind], 0) for kind in form.statistics)


def seen(form: Form) -> Indexed:
    return indexed(form, differences(form))


@pytest.mark.parametrize("name", KERNELS)
def test_families_are_found(name: str) -> None:
    """Every statistic and parameter has one place, and the terms of all members are those of the profile."""
    form = KERNELS[name].form
    found = seen(form)
    assert sorted(f.count for f in found.families) == sorted(FAMILIES[name])
    assert sorted(number for numbers in found.statistics for number in numbers) == list(range(len(form.statistics)))
    assert sorted(number for numbers in found.parameters for number in numbers) == list(range(form.parameter_count))
    for family in found.families:
        for member in range(family.count):
            rename = {}
            for symbol in family.term.symbols:
                numbers_of = found.parameters if symbol.kind == "parameter" else found.statistics
                rename[symbol] = Symbol(symbol.kind, numbers_of[symbol.index][member])
            assert family.term.renamed(rename).key in form.profile.key


@pytest.mark.parametrize(
    ("profile", "statistics"),
    [
        (sum((parameter(q) * squared_distance(q) for q in range(MIN_MEMBERS - 1)), number(0)), MIN_MEMBERS - 1),
        (sum((parameter(q) * exp(-squared_distance(0) * (q + 1)) for q in range(5)), number(0)), 1),
        (sum((parameter(0) * exp(-squared_distance(q)) for q in range(5)), number(0)), 5),
        (sum((parameter(q) * exp(-squared_distance(q) * (q + 1)) for q in range(5)), number(0)), 5),
        (sum((squared_distance(q) for q in range(5)), number(0)) + product(5) * exp(squared_distance(2)), 6),
    ],
    ids=["few terms", "a statistic of all", "a parameter of all", "other numbers", "named elsewhere"],
)
def test_no_family(profile: object, statistics: int) -> None:
    """Terms that differ in more than their own symbols stay as they are."""
    kinds = tuple("product" if Symbol("product", s) in profile.symbols else "distance" for s in range(statistics))  # type: ignore[attr-defined]
    form = Form(profile, kinds, 0, 5)  # type: ignore[arg-type]
    found = seen(form)
    # Of those named elsewhere one is left out, the others are a family.
    assert [f.count for f in found.families] == ([4] if statistics == 6 else [])
    if not found.families:
        assert found.profile is form.profile


def test_generated_text_does_not_grow() -> None:
    """One text for every number of components, hardly longer than that of two."""
    of = {q: mixture(q).form for q in (2, MIN_MEMBERS, 32, 90)}
    text = {q: generated_source(form, differences(form), "float64") for q, form in of.items()}
    assert text[MIN_MEMBERS] == text[32] == text[90]
    assert len(text[32].splitlines()) <= 1.1 * len(text[2].splitlines())


@needs_numba
@pytest.mark.parametrize("name", KERNELS)
def test_loops_agree_with_the_portable_tiles(name: str) -> None:
    d = 13 if name == "many columns" else 2
    for n, m in [(1, None), (7, 5), (301, None), (530, 33)]:
        check(KERNELS[name], numbers(n, d, seed=1), None if m is None else numbers(m, d, seed=2), F64, 1e-13)


@needs_numba
@pytest.mark.parametrize("components", [33])
def test_any_number_of_components(components: int) -> None:
    check(mixture(components), numbers(301, 2), None, F64, 1e-13)
    check(mixture(components), numbers(301, 2), numbers(33, 2, seed=4), F32, 1e-6)


@needs_numba
@pytest.mark.parametrize(("d", "lengthscale", "spread"), [(10, 0.25, 0.0002)])
def test_many_members_share_one_budget(d: int, lengthscale: float, spread: float) -> None:
    """(M-75): what each of 64 terms may do to the covariance, all of them together may not."""
    kernel = sum_of([(1 / 64) * k.RBF(lengthscale) for _ in range(64)])
    x = uniform(600, d, seed=1) if d == 1 else numbers(600, d)
    x[300:] = x[:300] + lengthscale * spread * numbers(300, d, seed=9)
    rows, theta = kernel.rows(x).detach(), [t.item() for t in kernel.theta()]
    assert layout_of(kernel.form, theta, rows, rows, F32, pulled=True)[2] == F64
    check_product(kernel, x, None, F32, 1e-6)
    together = kernel(x).to_dense().detach()
    found = CPU.block(PairProblem(kernel.form, [t.detach() for t in kernel.theta()], rows), dtype=F32)
    assert float((found - together).abs().max()) <= 1.5e-6
