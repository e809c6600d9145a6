"""Modules of the user's are evaluated in evaluation mode, and keep their own: an answer is the same at every call."""

import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import flashgp as fgp
from flashgp.foundations.errors import DomainError

X = torch.rand(20, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 4
Y = torch.sin(2 * X[:, 0])


def network(columns: int) -> nn.Sequential:
    """Linear, BatchNorm and Dropout, in training mode but for one part that the user has frozen."""
    torch.manual_seed(0)
    layers = nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, columns)
    net = nn.Sequential(*layers).double()
    net[3].eval()
    return net


def warped(net: nn.Module) -> fgp.GP:
    return fgp.GP(1.0 * fgp.kernels.Warped(net, fgp.kernels.RBF()))


def in_the_mean(net: nn.Module) -> fgp.GP:
    return fgp.GP(1.0 * fgp.kernels.RBF(), mean=net)


Build = Callable[[nn.Module], fgp.GP]


@pytest.mark.parametrize(("build", "columns"), [(warped, 2), (in_the_mean, 1)])
def test_answers_are_those_of_evaluation_mode_and_the_module_stays_as_it_was(build: Build, columns: int) -> None:
    net = network(columns)
    gp, evaluated = build(net), build(network(columns).eval())
    modes, statistics = [part.training for part in net.modules()], net[1].running_mean.clone()
    for _ in range(2):
        assert torch.equal(gp.condition(X, Y).predict(X[:5]).mean, evaluated.condition(X, Y).predict(X[:5]).mean)
        assert torch.equal(gp.log_marginal_likelihood(X, Y), evaluated.log_marginal_likelihood(X, Y))
    first, second = (fgp.fit(gp, X, Y, starts=1, max_iterations=2).posterior for _ in range(2))
    assert torch.equal(first.predict(X[:5]).mean, first.predict(X[:5]).mean)
    assert torch.equal(first.predict(X[:5]).mean, second.predict(X[:5]).mean)
    assert [part.training for part in net.modules()] == modes
    assert torch.equal(net[1].running_mean, statistics)


def test_a_module_that_fails_stays_in_its_mode() -> None:
    class Failing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("mine")

    net = Failing()
    with pytest.raises(RuntimeError, match="mine"):
        fgp.kernels.Warped(net, fgp.kernels.RBF()).rows(X)
    assert net.training


def test_calls_of_two_threads_end_in_any_order() -> None:
    entered, leave = threading.Event(), threading.Event()
    seen: list[bool] = []

    class Waiting(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if threading.current_thread() is not threading.main_thread():
                entered.set()
                leave.wait(timeout=10)
            seen.append(self.training)
            return x

    net = Waiting()
    kernel = fgp.kernels.Warped(net, fgp.kernels.RBF())
    other = threading.Thread(target=kernel.rows, args=(X,))
    other.start()
    assert entered.wait(timeout=10)
    kernel.rows(X)  # begins after the other call, and ends before it
    leave.set()
    other.join()
    assert seen == [False, False]
    assert net.training


@pytest.mark.parametrize("drop", [nn.Dropout(0.5), nn.Dropout(0.01)])
def test_a_custom_function_that_draws_random_numbers_is_refused_and_in_evaluation_mode_taken(drop: nn.Module) -> None:
    def function(a: Tensor, b: Tensor) -> Tensor:
        return torch.exp(-(drop(a) - drop(b)).square().sum())

    with pytest.raises(DomainError, match=r"draws random numbers .* module\.eval\(\)"):
        fgp.kernels.Custom(function)
    drop.eval()
    kernel = fgp.kernels.Custom(function)
    drop.train()
    assert torch.equal(kernel(X).to_dense(), kernel(X).to_dense())
