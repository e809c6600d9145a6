"""Stored tiles that serve a matrix of nearly the same rows, eq. (M-117)."""

import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.inference.system import CovarianceSystem
from flashgp.operators import stored

F64, F32 = torch.float64, torch.float32


def system(x: Tensor, **options: object) -> CovarianceSystem:
    kernel = fgp.kernels.Matern(1.5, 0.7)
    operator = kernel.operator(x)
    return CovarianceSystem(operator, torch.full((len(x),), 0.1, dtype=F64), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(("kept", "new"), [(None, 3), ([1, 5, 6, 40], 0), (list(range(3, 50)), 2)], ids=str)
def test_products(kept: list[int] | None, new: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of K and some of its columns, after one change and after a second one."""
    monkeypatch.setattr(stored, "STORED_ROWS", 7)
    x = torch.rand(70, 2, dtype=F64, generator=torch.Generator().manual_seed(0))
    before, rows = system(x[:50], stored=True), torch.arange(50)
    for following in (50, 60):
        index = None if kept is None else torch.tensor([i for i in kept if i < len(rows)])
        rows = torch.cat([rows if index is None else rows[index], torch.arange(following, following + new)])
        K = system(x[rows]).dense(F64).triu()
        K = K + K.triu(1).mT - 0.1 * torch.eye(len(rows), dtype=F64)
        tiles = before.tiles_of(index, K[len(rows) - new :].to(F32))
        assert tiles is not None
        now = system(x[rows], tiles=tiles)
        assert now.stored
        v = torch.randn(len(rows), 3, dtype=F64, generator=torch.Generator().manual_seed(1))
        close = {"rtol": 0.0, "atol": 10 * len(rows) * torch.finfo(F32).eps}
        assert torch.allclose(now.multiply(v.to(F32)).double(), K @ v + 0.1 * v, **close)
        assert torch.allclose(tiles @ v, K @ v, **close)
        for columns in (slice(0, len(rows)), slice(1, 3), slice(len(rows) - 2, len(rows))):
            found = now.cross(slice(0, len(rows)), columns, v[columns].to(F32))
            assert torch.allclose(found.double(), K[:, columns] @ v[columns], **close)
        foreign = len(set(rows.tolist()) ^ set(range(50)))
        assert tiles.strange == foreign
        before = now
    assert system(x[:5]).tiles_of(None, torch.zeros(0, 5)) is None
