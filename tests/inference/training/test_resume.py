"""fit is repeatable, and resumable after being killed at any moment: the log of evaluations is the checkpoint."""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import save_file

import flashgp as fgp
from flashgp.foundations.events import Event, EventKind
from flashgp.inference.fit import Fit
from flashgp.inference.training.options import FitSettings
from forked import Forked
from inference.plain_gp import data, model

Trajectory = list[tuple[str, float, tuple[float, ...]]]


def trajectory(fit: Fit) -> Trajectory:
    return [(e.start, e.value, e.theta) for e in fit.history]


WRITTEN = FitSettings(seconds_between_writes=-1.0)  # after every evaluation


def replayed(fit: Fit) -> int:
    """Evaluations that came from a checkpoint."""
    return sum(
        e.fields["evaluations"] for e in fit.report.events if isinstance(e, Event) and e.kind is EventKind.RESUMED
    )


class Killed(BaseException):
    """Stands for SIGKILL: nothing catches it."""


def killed_after(count: int) -> Callable[[object], None]:
    def progress(p: object) -> None:
        if p.evaluation == count:
            raise Killed

    return progress


def test_a_log_that_no_longer_fits_is_left_behind(tmp_path: Path) -> None:
    """Another version may step elsewhere from the same start: what is logged from there on is replaced."""
    x, y = data(8)
    path = tmp_path / "log"
    one = {"starts": 1, "initial": "given", "max_iterations": 6}
    fresh = fgp.fit(model(), x, y, checkpoint=path, **one)
    with safe_open(path, framework="numpy") as file:
        header = file.metadata()
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    arrays["start 0/theta"][3] += 1e-3
    save_file(arrays, path, header)
    for count in (3, len(fresh.history)):
        again = fgp.fit(model(), x, y, checkpoint=path, **one)
        assert trajectory(again) == trajectory(fresh)
        assert replayed(again) == count


def test_a_disk_that_fills_up_costs_the_checkpoint_not_the_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = data(8)
    path = tmp_path / "log"
    options = {"max_iterations": 3, "settings": WRITTEN}
    whole = trajectory(fgp.fit(model(), x, y, **options))
    replace, calls = os.replace, []

    def full(*arguments: object) -> None:
        calls.append(1)
        if 3 < len(calls) < room:
            raise OSError(28, "No space left on device")
        replace(*arguments)

    monkeypatch.setattr(os, "replace", full)
    for room in (6, 10**6):  # once, and for good
        calls.clear()
        path.unlink(missing_ok=True)
        with pytest.warns(fgp.FlashGPWarning, match="`checkpoint` could not be written.*the fit") as caught:
            found = fgp.fit(model(), x, y, checkpoint=path, **options)
        assert len(caught) == (1 if room == 6 else 2), "the first time, and at the end"
        assert trajectory(found) == whole
        assert any(event.kind is EventKind.CHECKPOINT_FAILED for event in found.report.events) == (room > 6)
    calls[:] = [1] * room
    again = fgp.fit(model(), x, y, checkpoint=path, **options)
    assert trajectory(again) == whole


CHILD = """
import os, signal, sys, torch
from inference.plain_gp import data, model
import flashgp as fgp
from flashgp.inference.training.options import FitSettings
replace, calls = os.replace, []
def half(source, target):  # the temporary file is there, half of it, and the move never happens
    calls.append(1)
    if len(calls) == 5:
        os.truncate(source, os.path.getsize(source) // 2)
        os.kill(os.getpid(), signal.SIGKILL)
    replace(source, target)
os.replace = half
x, y = data(8)
torch.set_num_threads(int(sys.argv[2]))  # as many give the same bits
fgp.fit(model(), x, y, max_iterations=6, checkpoint=sys.argv[1], settings=FitSettings(seconds_between_writes=-1.0))
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL on this system")
def test_kill_9_during_the_write(tmp_path: Path) -> None:
    """CONTRACTS' case 13: resumed, it has the uninterrupted bits."""
    path = tmp_path / "log"
    child = Forked(CHILD, path, torch.get_num_threads())
    x, y = data(8)
    whole = trajectory(fgp.fit(model(), x, y, max_iterations=6))
    assert child.wait() == -signal.SIGKILL
    assert len(os.listdir(tmp_path)) == 2, "the log and a temporary file"
    resumed = fgp.fit(model(), x, y, max_iterations=6, checkpoint=path)
    assert trajectory(resumed) == whole
    assert replayed(resumed) == 4


def test_a_checkpoint_of_something_else_is_refused(tmp_path: Path) -> None:
    x, y = data(8)
    path = tmp_path / "log"
    k, m, lik = fgp.kernels, fgp.means, fgp.likelihoods
    noise = torch.full((8,), 0.1)
    gamma = torch.distributions.Gamma

    def build(kernel: object = None, mean: object = None, likelihood: object = None) -> fgp.GP:
        return fgp.GP(
            kernel or k.RBF(1.0, active_dims=[0]),
            mean or m.Constant(),
            likelihood or lik.Gaussian(0.1, row_variance=noise),
        )

    first = fgp.fit(build(), x, y, max_iterations=3, checkpoint=path)
    others = {
        "y": lambda **o: fgp.fit(build(), x, y + 1.0, **o),
        "kernel": lambda **o: fgp.fit(build(k.Matern(2.5, 1.0, active_dims=[0])), x, y, **o),
        "row variance": lambda **o: fgp.fit(build(likelihood=lik.Gaussian(0.1, row_variance=2 * noise)), x, y, **o),
        "fixed value": lambda **o: fgp.fit(build(mean=m.Constant(fgp.Parameter(1.0, trainable=False))), x, y, **o),
        "prior's numbers": lambda **o: fgp.fit(
            build(k.RBF(fgp.Parameter(1.0, prior=gamma(2.0, 1.0)), active_dims=[0])), x, y, **o
        ),
        "seed": lambda **o: fgp.fit(build(), x, y, seed=1, **o),
        "jitter": lambda **o: fgp.fit(build(), x, y, jitter=1e-3, **o),
    }
    before = path.read_bytes()
    for what, other in others.items():
        with pytest.raises(fgp.DomainError, match="belongs to other data") as caught:
            other(max_iterations=3, checkpoint=path)
        assert str(path) in str(caught.value), what
    assert path.read_bytes() == before
    assert trajectory(fgp.fit(build(), x, y, max_iterations=3, checkpoint=path)) == trajectory(first)


class Warp(torch.nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(3.0 * x)


def warped(function: Callable[[torch.Tensor], torch.Tensor]) -> fgp.GP:
    return fgp.GP(fgp.kernels.Warped(Warp(function), fgp.kernels.RBF()))


def custom(power: float) -> fgp.GP:
    return fgp.GP(
        fgp.kernels.Custom(lambda x, z, a: torch.exp(-a * a * ((x - z).square().sum() + 1e-6) ** power), a=1.0)
    )


def with_prior(location: float) -> fgp.GP:
    normal = torch.distributions.Normal(location, 0.1)
    prior = torch.distributions.TransformedDistribution(normal, [torch.distributions.ExpTransform()])
    return fgp.GP(fgp.kernels.RBF(fgp.Parameter(1.0, prior=prior)))


@pytest.mark.parametrize(
    ("build", "one", "other"),
    [
        pytest.param(warped, torch.sin, torch.cos, id="a warp's function"),
        pytest.param(custom, 1.0, 0.5, id="a closure of Custom"),
        pytest.param(
            lambda f: fgp.GP(fgp.kernels.Custom(f, a=1.0)),
            lambda x, z, a: torch.exp(-a * a * (x.sin() - z.sin()).square().sum()),
            lambda x, z, a: torch.exp(-a * a * (x.cos() - z.cos()).square().sum()),
            id="a body of Custom",
        ),
        pytest.param(with_prior, -1.0, 1.0, id="a transformed prior"),
        pytest.param(
            lambda f: fgp.GP(fgp.kernels.RBF(), mean=Warp(lambda x: f(x)[..., 0])),
            torch.sin,
            torch.cos,
            id="a mean's function",
        ),
    ],
)
def test_a_checkpoint_of_a_model_that_differs_in_code_is_refused(
    build: Callable[[object], fgp.GP], one: object, other: object, tmp_path: Path
) -> None:
    x, y = data(8)
    y = y if y.dim() == 1 else y[:, 0]
    first = fgp.fit(build(one), x[:, :1], y, max_iterations=3, checkpoint=tmp_path / "log")
    again = fgp.fit(build(one), x[:, :1], y, max_iterations=3, checkpoint=tmp_path / "log")
    assert trajectory(again) == trajectory(first)
    assert replayed(again) == len(first.history)
    with pytest.raises(fgp.DomainError, match="belongs to other data, another model"):
        fgp.fit(build(other), x[:, :1], y, max_iterations=3, checkpoint=tmp_path / "log")


def test_what_cannot_be_told_apart_is_refused_with_a_way_out(tmp_path: Path) -> None:
    x, y = data(8)
    lock = threading.Lock()

    def locked(x: torch.Tensor) -> torch.Tensor:
        with lock:
            return x.sin()

    gp = fgp.GP(fgp.kernels.RBF(), mean=Warp(lambda x: locked(x).sum(-1)))
    with pytest.raises(fgp.DomainError, match=r"gp\.mean.*locked\.lock is .*attribute `fingerprint`.*leave out"):
        fgp.fit(gp, x, y, max_iterations=2, checkpoint=tmp_path / "log")
    assert not (tmp_path / "log").exists()
    locked.fingerprint = "sines"
    first = fgp.fit(gp, x, y, max_iterations=2, checkpoint=tmp_path / "log")
    assert replayed(fgp.fit(gp, x, y, max_iterations=2, checkpoint=tmp_path / "log")) == len(first.history)
    locked.fingerprint = "cosines"
    with pytest.raises(fgp.DomainError, match="another model"):
        fgp.fit(gp, x, y, max_iterations=2, checkpoint=tmp_path / "log")


def test_a_truncated_or_foreign_file_is_refused(tmp_path: Path) -> None:
    x, y = data(6)
    path = tmp_path / "log"
    fgp.fit(model(), x, y, max_iterations=2, checkpoint=path)
    whole = path.read_bytes()
    for length in (1, 7, 9, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(fgp.DomainError, match="must be a file that fit wrote"):
            fgp.fit(model(), x, y, max_iterations=2, checkpoint=path)
    save_file({"weight": numpy.ones(3)}, path)
    with pytest.raises(fgp.DomainError, match="must be a file that fit wrote"):
        fgp.fit(model(), x, y, max_iterations=2, checkpoint=path)
