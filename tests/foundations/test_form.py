"""Shapes of batches broadcast as torch does it."""

import pytest
import torch

from flashgp.foundations.form import broadcast_batch

SHAPES = [(), (1,), (3,), (2, 1), (2, 3), (4, 1, 1), (0,), (0, 3)]


@pytest.mark.parametrize("first", SHAPES)
@pytest.mark.parametrize("second", SHAPES)
@pytest.mark.parametrize("third", [(), (1, 3)])
def test_batches_broadcast_as_in_torch(first: tuple[int, ...], second: tuple[int, ...], third: tuple[int, ...]) -> None:
    shapes = [torch.Size(shape) for shape in (first, second, third)]
    try:
        expected = torch.broadcast_shapes(*shapes)
    except RuntimeError:
        with pytest.raises(RuntimeError):
            broadcast_batch(*shapes)
        return
    found = broadcast_batch(*shapes)
    assert isinstance(found, torch.Size)
    assert found == expected


def test_no_shape_is_the_empty_one() -> None:
    assert broadcast_batch() == torch.Size()
