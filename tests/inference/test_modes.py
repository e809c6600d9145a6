"""CONTRACTS' case 18: whatever torch modes the user has on, results are the same, and the modes are left alone."""

import contextlib
from collections.abc import Callable, Iterator

import pytest
import torch

import flashgp as fgp
from flashgp.foundations.events import Event, EventKind, of_kind
from inference.plain_gp import F64, data, model, relative


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextlib.contextmanager
def low_matmul_precision() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


MODES = {
    "float64 by default": lambda: default_dtype(torch.float64),
    "float16 by default": lambda: default_dtype(torch.float16),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "inference mode": torch.inference_mode,
    "no gradients": torch.no_grad,
    "deterministic": deterministic,
    "low matmul precision": low_matmul_precision,
}


def flags() -> tuple[object, ...]:
    return (
        torch.get_default_dtype(), torch.is_autocast_enabled("cpu"), torch.is_inference_mode_enabled(),
        torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled(), torch.get_num_threads(),
        torch.get_float32_matmul_precision(), torch.get_rng_state().sum().item(),
    )  # fmt: skip


@pytest.fixture(params=MODES, ids=str)
def mode(request: pytest.FixtureRequest) -> Callable[[], contextlib.AbstractContextManager[None]]:
    return MODES[request.param]


def answers(gp: fgp.GP, x: torch.Tensor, y: torch.Tensor, x_test: torch.Tensor) -> dict[str, torch.Tensor]:
    posterior = gp.condition(x, y)
    found = posterior.predict(x_test)
    single = gp.condition(x.float(), y.float(), dtype=torch.float32).predict(x_test.float())
    operator = gp.kernel.operator(x.float(), x_test.float())
    return {
        "mean": found.mean,
        "variance": found.variance,
        "quantile": found.quantile(0.9),
        "sample": found.sample(2, seed=0),
        "joint": found.joint_log_prob(torch.zeros(len(x_test), dtype=F64)),
        "leave one out": posterior.leave_one_out().mean,
        "float32 mean": single.mean,
        "float32 variance": single.variance,
        "likelihood": gp.log_marginal_likelihood(x, y),
        "float32 likelihood": gp.log_marginal_likelihood(x.float(), y.float(), dtype=torch.float32),
        "operator": operator @ torch.ones(len(x_test), 2, dtype=torch.float32),
        "block": operator.to_dense(),
    }


def test_answers_and_flags(mode: Callable[[], contextlib.AbstractContextManager[None]]) -> None:
    x, y = data(20)
    x_test, _ = data(5, seed=3)
    gp = model()
    wanted = answers(gp, x, y, x_test)
    with mode():
        before = flags()
        found = answers(gp, x, y, x_test)
        assert flags() == before
    for what, value in wanted.items():
        assert found[what].dtype == value.dtype, what
        assert relative(found[what], value) <= (1e-14 if value.dtype == F64 else 1e-6), what


def test_fit(mode: Callable[[], contextlib.AbstractContextManager[None]]) -> None:
    x, y = data(10)
    wanted = fgp.fit(model(), x, y, max_iterations=5)
    gp = model()
    with mode():
        before = flags()
        found = fgp.fit(gp, x, y, max_iterations=5)
        assert flags() == before
    assert [e.theta for e in found.history] == [e.theta for e in wanted.history]
    assert not any(p.is_inference() for p in found.gp.parameters())


class Recording(torch.nn.Module):
    """A network that says in which dtype its products came out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(3, 2)
        self.seen: set[torch.dtype] = set()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.layer(x)
        self.seen.add(found.dtype)
        return torch.tanh(found)


def test_networks_run_under_the_callers_autocast_and_nothing_else_does() -> None:
    """Features come from the network as the caller runs it; all that is made of them is in full precision, said."""
    x, y = data(12, d=3)
    gp = fgp.GP(fgp.kernels.Warped(Recording(), fgp.kernels.Matern(nu=1.5)), fgp.means.Zero(), model().likelihood)
    network = gp.kernel.module
    outside = gp.condition(x, y)
    assert network.seen == {torch.float32}
    network.seen.clear()
    with torch.autocast("cpu", torch.bfloat16):
        posterior = gp.condition(x, y)
        prediction = posterior.predict(x)
        mean, value = prediction.mean, gp.log_marginal_likelihood(x, y)
        torch.autograd.grad(value, list(gp.parameters()))
        assert torch.is_autocast_enabled("cpu")
        with torch.no_grad():
            features = network(x.float()).double()
    assert network.seen == {torch.bfloat16}
    said = Event(EventKind.AUTOCAST, dtypes=["bfloat16 on cpu"])
    assert posterior.report.events.count(said) == 1
    assert prediction.report.events.count(said) == 1
    assert not of_kind(outside.report.events, EventKind.AUTOCAST)
    plain = fgp.GP(gp.kernel.kernel, gp.mean, gp.likelihood).condition(features, y)
    assert relative(mean, plain.predict(features).mean) <= 1e-13
    with torch.autocast("cpu", torch.bfloat16):
        fitted = fgp.fit(gp, x, y, max_iterations=2)
        assert said not in model(3).condition(x, y).report.events
    assert fitted.report.events.count(said) == 1
