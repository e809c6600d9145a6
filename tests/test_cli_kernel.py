"""The kernel language: what expressions become, in which units, and errors that point at the place."""

import contextlib
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("typer")

from flashgp import GP, kernels
from flashgp.cli.parameters import parameter_rows, parameter_table
from flashgp.foundations.errors import DomainError
from flashgp.kernel_expression import (
    GRAMMAR,
    NAMES,
    BuiltKernel,
    KernelColumns,
    build_kernel,
    parse_kernel,
)
from flashgp.table import InputColumn
from flashgp.targets import Number
from flashgp.units import Scaling

NAMES_OF_INPUTS = ["hour", "wind speed", "site", "temp"]
TABLE = ["hour", "power", "wind speed", "site", "temp"]  # power is the target
SCALING = Scaling((0.0, 0.0, 0.0, 0.0), (2.0, 4.0, 1.0, 0.5), Number())


def built(text: str) -> BuiltKernel:
    inputs = [InputColumn(name, "number", TABLE.index(name)) for name in NAMES_OF_INPUTS]
    inputs[2] = InputColumn("site", "category", 3, tuple("abcde"))
    return build_kernel(parse_kernel(text), KernelColumns(inputs, TABLE, SCALING.x_scale))


def values(parameter: Any) -> list[float]:
    return parameter.value.detach().reshape(-1).tolist()


def test_sums_products_and_numbers_are_those_of_python() -> None:
    kernel = built("2 * 3.0 * Matern(nu=1.5) * RBF() + Linear() + 0.5").kernel
    assert isinstance(kernel, kernels.Sum)
    product, linear, constant = kernel.parts
    assert isinstance(product, kernels.Product)
    scaled, rbf = product.parts
    assert isinstance(scaled, kernels.Scaled)
    assert values(scaled.variance) == [6.0]
    assert (type(scaled.kernel), scaled.kernel.nu) == (kernels.Matern, 1.5)
    assert [type(k) for k in (rbf, linear, constant)] == [kernels.SquaredExponential, kernels.Linear, kernels.Constant]
    assert values(constant.variance) == [0.5]
    grouped = built("Matern() * (RBF() + Linear())").kernel
    assert [type(k) for k in grouped.parts] == [kernels.Matern, kernels.Sum]


MIXTURE = "weights=[1, 0.5], means=[0, -3], scales=[0.5, 2], active_dims=hour"


@pytest.mark.parametrize("name", sorted(NAMES))
def test_every_kernel_of_the_registry_builds_and_evaluates(name: str) -> None:
    x = torch.tensor([[0.1, 0.2, 1.0, 0.4], [0.5, -0.2, 3.0, 0.1]], dtype=torch.float64)
    arguments = MIXTURE if name == "SpectralMixture" else ""
    K = built(f"{name}({arguments})").kernel(x).to_dense()
    assert torch.linalg.eigvalsh(K).min() > -1e-12
    assert name in GRAMMAR


def test_only_what_cannot_be_written_is_missing() -> None:
    assert set(kernels.REGISTRY) - set(NAMES) == {"Sum", "Product", "Scaled", "Warped", "Custom"}


def test_without_active_dims_numbers_see_numbers_and_categories_categories() -> None:
    kernel = built("Matern() * Categorical()").kernel
    matern, categorical = kernel.parts
    assert (matern.active_dims, categorical.active_dims) == ((0, 1, 3), (2,))
    assert matern.lengthscale.raw.shape == (3,)
    coregionalization = built("Coregionalization(rank=2)").kernel
    assert (coregionalization.active_dims, coregionalization.count, coregionalization.rank) == ((2,), 5, 2)


@pytest.mark.parametrize(
    ("written", "dims"),
    [
        ("hour", (0,)),
        ("[3, 1]", (1, 0)),
        ("'temp'", (3,)),
    ],
)
def test_columns_by_name_and_by_position_in_the_table(written: str, dims: tuple[int, ...]) -> None:
    assert built(f"RBF(active_dims={written})").kernel.active_dims == dims


@pytest.mark.parametrize(
    ("text", "attribute", "expected"),
    [
        ("Matern(lengthscale=3, active_dims=[hour])", "lengthscale", [1.5]),
        ("Periodic(period=24, active_dims=[hour])", "period", [12.0]),
        ("Cosine(frequency=-0.5)", "frequency", [-1.0, -2.0, -0.25]),
        ("RationalQuadratic(scale_mixture=2)", "scale_mixture", [2.0]),
        (f"SpectralMixture({MIXTURE})", "scales", [1.0, 4.0]),
        ("Linear(variance=2)", "variance", [2.0]),
    ],
)
def test_what_lies_along_a_column_is_in_its_units(text: str, attribute: str, expected: list[float]) -> None:
    assert values(getattr(built(text).kernel, attribute)) == pytest.approx(expected)


def test_a_mixture_is_shown_in_the_units_it_was_written_in() -> None:
    gp = GP(built(f"SpectralMixture({MIXTURE})").kernel)
    rows = {(row.name, row.of): row.in_units for row in parameter_rows(gp, NAMES_OF_INPUTS, SCALING, "power")}
    assert rows["SpectralMixture means", "hour"] == pytest.approx(-3.0)  # the last of both
    assert rows["SpectralMixture scales", "hour"] == pytest.approx(2.0)


def test_units_of_dates_are_said() -> None:
    gp = GP(
        built("Matern(lengthscale=[2, 2, 2]) + Periodic(period=24, active_dims=[hour]) + Cosine(frequency=.5)").kernel
    )
    rows = parameter_rows(gp, NAMES_OF_INPUTS, SCALING, "power", units=["days"] * 4)
    cells = {(name, of): shown for name, of, shown, *_ in parameter_table(rows)[1]}
    assert cells["Matern lengthscale", "hour"].endswith(" days")
    assert cells["Periodic period", "hour"] == "24 days"
    assert {shown.partition(" ")[2] for (name, _), shown in cells.items() if name == "Cosine frequency"} == {"/day"}
    assert {row.to_json()["unit"] for row in rows} == {"days", "/day", None}
    assert {row.unit for row in parameter_rows(gp, NAMES_OF_INPUTS, SCALING, "power")} == {""}


def test_fixed_is_not_trained() -> None:
    kernel = built("fixed(2) * Periodic(period=fixed(24), active_dims=hour)").kernel
    assert not kernel.variance.trainable
    assert not kernel.kernel.period.trainable
    assert kernel.kernel.lengthscale.trainable
    assert values(kernel.kernel.period) == [12.0]


@pytest.mark.parametrize(
    ("text", "starts"),
    [
        ("Matern(nu=1.5) + Linear()", False),
        ("Periodic(period=24, active_dims=hour)", False),  # a fit never replaces a period by a value from the data
        ("fixed(2) * Matern()", False),
        ("Matern(lengthscale=fixed(1))", False),
        (f"SpectralMixture({MIXTURE})", False),  # nor frequencies
    ],
)
def test_starting_values_are_noticed(text: str, starts: bool) -> None:
    assert built(text).has_starts is starts


SYNTAX = [
    ("Matern(2.5)", 8, "by name"),
    ("Matern(nu=3)", 11, "`nu` must be 0.5, 1.5 or 2.5"),
    ("-2 * RBF()", 1, "positive numbers"),
    ("Matern(foo=1)", 8, "only nu, lengthscale, active_dims"),
    ("RBF(lengthscale=x)", 17, "a number that a float can hold here"),
    ("RBF(lengthscale=[])", 17, "at least one number"),
    ("RBF(active_dims=[True])", 18, "names or positions"),
    ("RBF(lengthscale=fixed())", 17, "fixed(number)"),
    ("Matern(nu=fixed(1.5))", 11, "plain number"),
    ("RBF(active_dims=[])", 17, "at least one column"),
    ("RBF(lengthscale=1, active_dims=[1], active_dims=[2])", 37, "active_dims once"),
    ("SpectralMixture(means=[1])", 1, "must give SpectralMixture weights, scales: one number per component"),
]


@pytest.mark.parametrize(("text", "character", "message"), SYNTAX)
def test_a_mistake_is_shown_where_it_stands(text: str, character: int | None, message: str) -> None:
    with pytest.raises(DomainError) as caught:
        parse_kernel(text)
    said = str(caught.value)
    assert message in said
    if character is not None:
        assert f"at character {character}\n" in said
        shown, mark = said.split("\n")[-2:]
        assert shown == f"    {text}"
        assert mark.index("^") == 4 + character - 1


@pytest.mark.parametrize(
    ("text", "character", "message"),
    [
        ("RBF(active_dims=[6])", 18, "from 1 to 5"),
        ("Categorical(active_dims=hour)", 25, "use Matern()"),
        ("RBF(active_dims=[hour, 1])", 24, "once"),
        ("RBF(lengthscale=[1, 2])", 17, "one number per column (3), got 2"),
        ("SpectralMixture(weights=1, means=1, scales=1)", 1, "must give SpectralMixture one column, got 3"),
    ],
)
def test_columns_that_do_not_fit(text: str, character: int, message: str) -> None:
    with pytest.raises(DomainError) as caught:
        built(text)
    assert message in str(caught.value)
    assert f"at character {character}\n" in str(caught.value)


def test_kernels_without_columns_of_their_kind() -> None:
    scaling = Scaling((0.0,), (1.0,), Number())
    number, category = InputColumn("a", "number", 0), InputColumn("a", "category", 0, ("u", "v"))
    with pytest.raises(DomainError, match="Categorical without a column of categories"):
        build_kernel(parse_kernel("Categorical()"), KernelColumns([number], ["a", "y"], scaling.x_scale))
    with pytest.raises(DomainError, match="RBF without a column of numbers"):
        build_kernel(parse_kernel("RBF()"), KernelColumns([category], ["a", "y"], scaling.x_scale))


@pytest.mark.parametrize(
    "text",
    [
        "-" * 9_000 + "1",
        "+".join(["RBF()"] * 200),
        "RBF() * (" * 110 + "RBF()" + ")" * 110,
        "x" * 10_001,
        "RBF()\n+ RBF()",
    ],
)
def test_absurd_text_is_refused_cleanly(text: str) -> None:
    with pytest.raises(DomainError, match="`kernel`"):
        parse_kernel(text)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.text(alphabet="RBFMatern()=+*-.,[]'0123456789 ex_:{}@", max_size=40))
def test_any_text_parses_or_is_refused(text: str) -> None:
    with contextlib.suppress(DomainError):
        parse_kernel(text)


def test_nothing_python_has_to_say_about_a_text_reaches_the_user(recwarn: pytest.WarningsRecorder) -> None:
    with pytest.raises(DomainError):
        parse_kernel("'\\d'() * RBF() is 1")
    assert not recwarn.list
