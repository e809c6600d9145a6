"""Networks inside kernels over ranks: gradients are those of one process with all rows, (M-220), wrapped or not."""

from pathlib import Path

import pytest
import torch

from processes import network_jobs
from processes.launch import Ranks

EPS = torch.finfo(torch.float64).eps
# Sums over rows in another order: errors grow with the condition of K_zz, whose noise floor is 1e-8.
TOLERANCE = EPS * 1e8


@pytest.mark.parametrize("what", ["exact", "collapsed", "minibatch"])
@pytest.mark.parametrize(("how", "counts"), [("plain", (101, 97, 3)), ("ddp", (60, 41)), ("fsdp", (31, 0, 5, 24))])
def test_gradients_equal_one_process(ranks: Ranks, counts: tuple[int, ...], how: str, what: str) -> None:
    """Sums, not means; (M-220), (M-221). Empty shares too."""
    for worst in ranks.run(network_jobs.equal, len(counts), how, what, counts):
        assert worst < TOLERANCE


@pytest.mark.parametrize("counts", [(101, 97, 3), (150, 0, 5, 24)])
def test_inducing_points_do_not_depend_on_ranks(ranks: Ranks, counts: tuple[int, ...]) -> None:
    """(M-77) among the same random rows."""
    assert all(ranks.run(network_jobs.points, len(counts), counts))


def test_training_goes_the_way_of_one_process(ranks: Ranks) -> None:
    for one, other in ranks.run(network_jobs.trained, 2, "fsdp"):
        assert other == pytest.approx(one, rel=1e-6)


def test_mixed_precision_is_honoured(ranks: Ranks) -> None:
    for inside, worst, dtypes in ranks.run(network_jobs.mixed, 2):
        assert inside
        assert TOLERANCE < worst < 30 * torch.finfo(torch.bfloat16).eps
        assert dtypes == ["torch.float64"]


def test_what_cannot_be_summed_is_refused_on_every_rank(ranks: Ranks) -> None:
    told = ranks.run(network_jobs.refused, 2)
    assert told[0] == told[1]
    part, others, parameters, points, rows, copied, kind = told[0]
    assert "wrapped as a whole" in part
    assert "over the 2 ranks of `group`, got 1 ranks" in others
    assert parameters.startswith("RankMismatchError")
    assert "module.0.bias" in parameters
    assert points.startswith("RankMismatchError")
    assert "inducing" in points
    assert rows.startswith("ShapeError")
    assert "`y`" in rows
    assert "full_state_dict=True" in copied
    assert kind == "Sequential"


def test_ddp_example(ranks: Ranks, root: Path) -> None:
    path = str(root / "examples" / "ddp_deep_kernel.py")
    errors = ranks.run(network_jobs.example, 2, path, {"rows": 1500, "epochs": 12})
    assert errors[0] == errors[1] < 0.75


def test_fsdp_example(ranks: Ranks, root: Path) -> None:
    path = str(root / "examples" / "fsdp_deep_kernel.py")
    told = ranks.run(network_jobs.example, 2, path, {"rows": 600, "steps": 40})
    (error, plain), other = told
    assert (error, plain) == other
    assert error < 0.5 * plain
