"""Fingerprints: equal for equal values in every process, different for values that differ in anything that counts."""

import functools
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import (
    AffineTransform,
    ExpTransform,
    LogNormal,
    MultivariateNormal,
    Normal,
    TransformedDistribution,
)

import flashgp as fgp
from flashgp.foundations.fingerprint import NoFingerprintError, fingerprint


def mark(value: object) -> str:
    return fingerprint(value=value)


def defined(text: str, name: str = "f", **known: object) -> Any:
    """A function or class of its own, as another session would define it."""
    names = {"torch": torch, "nn": nn, "functools": functools, "__name__": "__main__", **known}
    exec(text, names)
    return names[name]


def scaled_by(scale: object) -> Callable[[Tensor], Any]:
    return lambda x: x * scale


class Warp(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor], offset: float = 0.0) -> None:
        super().__init__()
        self.function, self.offset = function, offset
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("centre", torch.zeros(2), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x * self.weight - self.centre) + self.offset


@dataclass
class Settings:
    power: int = 2
    names: tuple[str, ...] = ()


def module_with(change: Callable[[Warp], object]) -> Warp:
    module = Warp(torch.sin)
    change(module)
    return module


def chain(location: float, *transforms: Any) -> TransformedDistribution:
    return TransformedDistribution(Normal(location, 1.0), [*transforms])


def own_class(body: str) -> Any:
    return defined(f"class Own(nn.Module):\n    def forward(self, x):\n        return {body}", "Own")()


# Each entry: ways to build values that are all different.
DIFFERENT: dict[str, list[Callable[[], object]]] = {
    "numbers": [
        lambda: 1, lambda: 1.0, lambda: True, lambda: "1", lambda: b"1", lambda: None, lambda: -0.0, lambda: 0.0,
    ],
    "nesting": [lambda: ("a", "b"), lambda: ("ab",), lambda: (("a",), "b"), lambda: ["a", "b"], lambda: {"a": "b"}],
    "sets": [lambda: {"a", "b"}, lambda: {"a", "c"}, lambda: frozenset({"a", "b"})],
    "tensors": [
        lambda: torch.zeros(2), lambda: torch.zeros(2, dtype=torch.float64), lambda: torch.zeros(1, 2),
        lambda: torch.tensor([0.0, -0.0]), lambda: nn.Parameter(torch.zeros(2)), lambda: numpy.zeros(2, "f4"),
        lambda: torch.zeros(2, dtype=torch.bfloat16), lambda: torch.zeros(0, 2),
    ],
    "bodies": [
        lambda: defined("def f(x): return torch.sin(x)"), lambda: defined("def f(x): return torch.cos(x)"),
        lambda: defined("def f(x): return torch.sin(x) + 1"), lambda: defined("def f(x): return torch.sin(x) + 2"),
        lambda: defined("def f(x): return sum(torch.sin(i * x) for i in range(3))"),
        lambda: defined("def f(x): return sum(torch.cos(i * x) for i in range(3))"),
        lambda: defined("def f(x):\n    def g(z): return z + 1\n    return g(x)"),
        lambda: defined("def f(x):\n    def g(z): return z + 3\n    return g(x)"),
    ],
    "signatures": [
        lambda: defined("def f(x, a=1): return x"), lambda: defined("def f(x, a=2): return x"),
        lambda: defined("def f(x, *, a=1): return x"), lambda: defined("def f(x, *a): return x"),
    ],
    "closures": [
        lambda: scaled_by(1.0), lambda: scaled_by(2.0), lambda: scaled_by(torch.ones(2)), lambda: scaled_by([1, 2]),
        lambda: scaled_by(scaled_by(1.0)), lambda: scaled_by(scaled_by(2.0)),
    ],
    "globals": [
        lambda: defined("def f(x): return x * scale", scale=1.0),
        lambda: defined("def f(x): return x * scale", scale=2.0),
        lambda: defined("def f(x): return x * scale"),
        lambda: defined("def f(x): return (lambda: g(x))()", g=scaled_by(1.0)),
        lambda: defined("def f(x): return (lambda: g(x))()", g=scaled_by(2.0)),
    ],
    "library functions": [
        lambda: torch.sin,
        lambda: torch.cos,
        lambda: numpy.cos,
        lambda: nn.functional.softplus, lambda: nn.functional.relu, lambda: torch.func.vmap(scaled_by(1.0)),
        lambda: torch.func.vmap(scaled_by(2.0)),
        lambda: functools.partial(torch.add, 1),
        lambda: functools.partial(torch.add, 2),
    ],
    "attributes of functions": [
        lambda: defined("def f(x): return f.a * x\nf.a = 1"), lambda: defined("def f(x): return f.a * x\nf.a = 2"),
    ],
    "modules": [
        lambda: Warp(torch.sin), lambda: Warp(torch.cos), lambda: Warp(torch.sin, 1.0), lambda: Warp(scaled_by(1.0)),
        lambda: Warp(scaled_by(2.0)), lambda: module_with(lambda m: m.weight.data.fill_(2.0)),
        lambda: module_with(lambda m: m.centre.fill_(1.0)),
        lambda: module_with(lambda m: m.weight.requires_grad_(False)),
        lambda: module_with(lambda m: m.register_forward_pre_hook(lambda m, a: (a[0] + 1,))),
        lambda: module_with(lambda m: setattr(m, "forward", torch.cos)),
    ],
    "classes": [
        lambda: own_class("x.sin()"),
        lambda: own_class("x.cos()"),
        lambda: type("Derived", (type(own_class("x.sin()")),), {})(),
        lambda: type("Derived", (type(own_class("x.cos()")),), {})(),
    ],
    "library modules": [
        lambda: nn.Sequential(nn.Tanh()),
        lambda: nn.Sequential(nn.ReLU()),
        lambda: nn.LeakyReLU(0.1), lambda: nn.LeakyReLU(0.2), lambda: nn.Softplus(1.0), lambda: nn.Softplus(2.0),
    ],
    "objects": [lambda: Settings(), lambda: Settings(3), lambda: Settings(names=("a",))],
    "priors": [
        lambda: LogNormal(-1.0, 1.0), lambda: LogNormal(1.0, 1.0), lambda: Normal(-1.0, 1.0),
        lambda: chain(-1.0, ExpTransform()), lambda: chain(1.0, ExpTransform()),
        lambda: chain(0.0, AffineTransform(0.0, 2.0)), lambda: chain(0.0, AffineTransform(0.0, 3.0)),
        lambda: chain(0.0, AffineTransform(0.0, 2.0), ExpTransform()),
    ],
    "kernels": [
        lambda: fgp.kernels.RBF(),
        lambda: fgp.kernels.Matern(1.5),
        lambda: fgp.kernels.RBF(active_dims=[0]), lambda: fgp.kernels.RBF() + fgp.kernels.RBF(),
        lambda: fgp.kernels.RBF() * fgp.kernels.RBF(), lambda: fgp.kernels.RBF(fgp.Parameter(1.0, trainable=False)),
        lambda: fgp.kernels.Warped(Warp(torch.sin), fgp.kernels.RBF()),
        lambda: fgp.kernels.Warped(Warp(torch.cos), fgp.kernels.RBF()),
        lambda: fgp.kernels.Custom(lambda x, z: torch.exp(-((x - z) ** 2).sum())),
        lambda: fgp.kernels.Custom(lambda x, z: torch.exp(-2 * ((x - z) ** 2).sum())),
    ],
    "sharing": [lambda: shared(once=True), lambda: shared(once=False)],
}  # fmt: skip


def shared(*, once: bool) -> fgp.kernels.Kernel:
    first = fgp.Parameter(1.0)
    return fgp.kernels.RBF(first) + fgp.kernels.Matern(2.5, first if once else fgp.Parameter(1.0))


@pytest.mark.parametrize("what", DIFFERENT)
def test_what_differs_has_another_fingerprint(what: str) -> None:
    marks = [mark(build()) for build in DIFFERENT[what]]
    for place, one in enumerate(marks):
        assert one not in marks[:place], (what, marks.index(one), place)


@pytest.mark.parametrize("what", DIFFERENT)
def test_what_is_built_again_has_the_same(what: str) -> None:
    for place, build in enumerate(DIFFERENT[what]):
        assert mark(build()) == mark(build()), (what, place)


_PRINTED = """
import sys
sys.path.insert(0, sys.argv[1])
from foundations.test_fingerprint import DIFFERENT, mark
print(*(mark(build()) for builds in DIFFERENT.values() for build in builds))
"""


def test_another_process_finds_the_same() -> None:
    """With another hash seed, other addresses, and other things made before."""
    tests = str(Path(__file__).parents[1])
    expected = [mark(build()) for builds in DIFFERENT.values() for build in builds]
    run = subprocess.run(
        [sys.executable, "-c", _PRINTED, tests],
        env={"PYTHONHASHSEED": "1", "PYTHONPATH": ":".join(sys.path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == expected


def test_comments_lines_docstrings_and_names_do_not_count() -> None:
    plain = mark(defined("def f(x):\n    return torch.sin(x) + 1.0"))
    assert mark(defined("\n\n\ndef f(x):\n    # a comment\n\n    return (torch.sin(x)\n        + 1.0)")) == plain
    assert mark(defined('def f(x):\n    """Says what."""\n    return torch.sin(x) + 1.0')) == plain
    assert mark(defined("def g(x):\n    return torch.sin(x) + 1.0", "g")) == plain
    assert mark(defined("def f(x: float) -> float:\n    return torch.sin(x) + 1.0")) == plain
    assert mark(defined("def f(x):\n    return torch.sin(x) + 1.0", unread=object())) == plain


def test_what_is_computed_on_demand_does_not_count() -> None:
    kernel = fgp.kernels.Custom(lambda x, z: torch.exp(-(x - z).abs().sum())) + fgp.kernels.RBF()
    prior = MultivariateNormal(torch.zeros(2), torch.eye(2))
    cached = chain(0.0, ExpTransform(cache_size=1))
    before = mark([kernel, prior, cached])
    kernel(torch.rand(3, 2)).to_dense()
    prior.precision_matrix, cached.transforms[0].inv, cached.rsample()
    assert mark([kernel, prior, cached]) == before


def test_compiling_does_not_count() -> None:
    module, function = nn.Sequential(nn.Linear(2, 3), nn.Tanh()), scaled_by(2.0)
    before = mark([module, function])
    assert mark([torch.compile(module), torch.compile(function)]) == before == mark([module, function])


def test_the_order_of_submodules_counts() -> None:
    parts = {"b": nn.Tanh(), "a": nn.ReLU()}
    one, other = (OrderedDict((name, parts[name]) for name in order) for order in ("ba", "ab"))
    assert mark(nn.Sequential(one)) != mark(nn.Sequential(other))


def test_recursion_ends() -> None:
    function = defined("def f(x): return x if x < 1 else f(x - 1)")
    loop: list[object] = [function]
    loop.append(loop)
    assert mark(loop) == mark(loop)


class Locked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.lock = nn.Parameter(torch.ones(1)), threading.Lock()


def test_what_says_nothing_is_refused_and_named() -> None:
    for value, where in (
        (Locked(), "lock"), (scaled_by(c for c in "ab"), "scale"),
        (defined("def f(): return held", held=threading.Lock()), "held"),
        (torch.zeros(2, device="meta"), "value"), (defined("def f():\n    import no_such_module"), "value"),
    ):  # fmt: skip
        with pytest.raises(NoFingerprintError) as caught:
            mark(value)
        assert where in caught.value.where


def test_a_text_of_the_users_stands_for_it() -> None:
    def named(text: str, weight: float = 1.0) -> str:
        module = Locked()
        module.fingerprint = text
        module.weight.data.fill_(weight)
        return mark(module)

    assert named("one") == named("one")
    assert len({named("one"), named("two"), named("one", weight=2.0)}) == 3
    function = scaled_by(c for c in "ab")
    function.fingerprint = "by letters"
    assert mark(function) == mark(function)


def test_modules_without_their_state() -> None:
    one, other = Warp(torch.sin), module_with(lambda m: m.weight.data.fill_(2.0))
    assert fingerprint(module=one, state=False) == fingerprint(module=other, state=False)
    assert fingerprint(module=one, state=False) != fingerprint(module=Warp(torch.cos), state=False)


def test_files_of_the_users_own_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function reaches another through an import, at the top or in its body: the other's code counts."""
    monkeypatch.syspath_prepend(tmp_path)
    marks = {}
    for body in ("sin", "cos"):
        (tmp_path / f"own_{body}.py").write_text(f"import torch\ndef g(x): return torch.{body}(x)\nunread = open\n")
        module = __import__(f"own_{body}")
        module.__name__ = "own"
        marks[body] = mark(defined("def f(x): return own.g(x)", own=module))
        assert marks[body] == mark(defined("def f(x): return own.g(x)", own=module))
        monkeypatch.setitem(sys.modules, "own", module)
        marks[f"{body} in the body"] = mark(defined("def f(x):\n    import own\n    return own.g(x)"))
    assert len(set(marks.values())) == 4


def test_defaults_of_arguments_by_keyword_alone_count() -> None:
    def scaled(by: float) -> Any:
        def function(x: float, *, factor: float = by) -> float:
            return factor * x

        return function

    assert fingerprint(f=scaled(2.0)) == fingerprint(f=scaled(2.0)) != fingerprint(f=scaled(3.0))
