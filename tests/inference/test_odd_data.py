"""What looks wrong in a table is said once, at the door: two values, values far out, fewer rows than parameters."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import flashgp as fgp
from flashgp.foundations.events import EventKind, of_kind

F64 = torch.float64


def table(n: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = 4.0 * torch.rand(n, 2, generator=generator, dtype=F64)
    return x, torch.sin(2.0 * x[:, 0]) + 0.1 * torch.randn(n, generator=generator, dtype=F64)


def fitted(x: Any, y: Any, **options: Any) -> Any:
    gp = fgp.GP(1.0 * fgp.kernels.Matern(nu=1.5, lengthscale=[1.0, 1.0]), **options)
    return fgp.fit(gp, x, y, starts=1, max_iterations=5)


def by_frame(x: torch.Tensor, y: torch.Tensor, tmp_path: Path) -> list[Any]:
    path = tmp_path / "table.csv"
    np.savetxt(path, np.column_stack([x, y]), delimiter=",", header="width,height,price", comments="", fmt="%.17g")
    model = fgp.TableModel(starts=1).fit(path, target="price")
    return [*model.training.report.events]


@pytest.mark.parametrize("value", [1e200, -1e30, 1e7])
def test_a_value_so_far_out_that_its_column_is_lost(value: float, tmp_path: Path) -> None:
    x, y = table()
    x[7, 1] = value
    with pytest.warns(fgp.FlashGPWarning, match="Half of the values of x2 lie within .* at row 7 is so far out"):
        (event,) = of_kind(fitted(x, y).report.events, EventKind.FAR_OUT)
    assert (event.fields["column"], event.fields["row"], event.fields["value"]) == ("x2", 7, value)
    with pytest.warns(fgp.FlashGPWarning, match="x2"):
        model = fgp.GPRegressor(starts=1, max_iterations=5).fit(x.numpy(), y.numpy())
    assert of_kind(model.report_.events, EventKind.FAR_OUT) == [event]
    with pytest.warns(fgp.FlashGPWarning, match="height"):
        (named,) = of_kind(by_frame(x, y, tmp_path), EventKind.FAR_OUT)
    assert (named.fields["column"], named.fields["row"]) == ("height", 8)  # of a file, from 1 on


def test_columns_that_are_not_odd() -> None:
    x, y = table()
    x[:, 1] = torch.where(torch.arange(40) == 3, 1.0, 0.0)  # an indicator of one row
    skewed = torch.exp(2.0 * torch.randn(40, generator=torch.Generator().manual_seed(1), dtype=F64))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not of_kind(fitted(x, skewed).report.events, EventKind.FAR_OUT)
        x[7, 0] = 40.0
        fitted(x, y)


@pytest.mark.parametrize("kind", ["booleans", "integers", "one of two outputs"])
def test_a_target_of_two_values_in_fit(kind: str) -> None:
    x, y = table()
    labels = y > 0.2
    both = torch.stack([y, labels.double()], -1)
    target, options = {
        "booleans": (labels, {}),
        "integers": (labels.long(), {}),
        "one of two outputs": (both, {"outputs": 2}),
    }[kind]
    with pytest.warns(fgp.FlashGPWarning, match="The target has 2 values, 0 and 1: this looks like classification"):
        fit = fitted(x, target, **options)
    assert len(of_kind(fit.report.events, EventKind.TWO_VALUES)) == 1


def test_one_row_tells_no_scale_but_its_size() -> None:
    """Seven lengthscales away the interval is about as wide as the target is large: (.3944, .3950) before."""
    x, y = table()
    x, y = x[:1], torch.tensor([0.3947], dtype=F64)
    fit = fgp.fit(fgp.GP(1.0 * fgp.kernels.Matern()), x, y)
    lower, upper = fit.posterior.predict(x + 20.0).interval(0.95)
    assert float(upper - lower) > 0.3947
    (event,) = of_kind(fit.report.events, EventKind.FEW_VALUES)
    assert event.fields["values"] == 1
    assert not of_kind(
        fgp.fit(fgp.GP(1.0 * fgp.kernels.Matern()), *table(8), starts=1).report.events, EventKind.FEW_VALUES
    )
    model = fgp.GPRegressor().fit(x.numpy(), y.numpy())
    assert model.predict(x.numpy() + 20.0, return_std=True)[1][0] > 0.1
