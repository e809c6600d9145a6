"""Calls with one argument that is wrong: a typed error or an answer, never a raw error, and nothing changed."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy
import torch

import flashgp as fgp
from hunt.differences import Findings

F64 = torch.float64
K, M, L = fgp.kernels, fgp.means, fgp.likelihoods

# What may arrive where something else was meant, by name, so that a case is readable.
WRONG: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "text": lambda: "four",
    "empty text": lambda: "",
    "true": lambda: True,
    "zero": lambda: 0,
    "minus one": lambda: -1,
    "minus a half": lambda: -0.5,
    "many": lambda: 10**30,
    "nan": lambda: float("nan"),
    "inf": lambda: float("inf"),
    "tiny": lambda: 5e-324,
    "huge": lambda: 1e308,
    "complex": lambda: 1j,
    "list": lambda: [1.0, 2.0],
    "empty list": list,
    "ragged": lambda: [[1.0], [2.0, 3.0]],
    "words": lambda: ["a", "b"],
    "dictionary": lambda: {"a": 1},
    "set": lambda: {1, 2},
    "object": object,
    "type": lambda: float,
    "function": lambda: len,
    "range": lambda: range(3),
    "bytes": lambda: b"abc",
    "scalar tensor": lambda: torch.tensor(0.5),
    "vector": lambda: torch.ones(4, dtype=F64),
    "matrix": lambda: torch.ones(4, 2, dtype=F64),
    "other matrix": lambda: torch.ones(3, 5, dtype=F64),
    "cube": lambda: torch.ones(2, 4, 2, dtype=F64),
    "no rows": lambda: torch.ones(0, 2, dtype=F64),
    "no columns": lambda: torch.ones(4, 0, dtype=F64),
    "empty tensor": lambda: torch.ones(0),
    "nan tensor": lambda: torch.full((4, 2), float("nan"), dtype=F64),
    "inf vector": lambda: torch.full((4,), float("inf")),
    "complex tensor": lambda: torch.ones(4, 2, dtype=torch.complex64),
    "integers": lambda: torch.arange(8).reshape(4, 2),
    "booleans": lambda: torch.ones(4, 2, dtype=torch.bool),
    "half": lambda: torch.ones(4, 2, dtype=torch.float16),
    "huge tensor": lambda: torch.full((4, 2), 1e308, dtype=F64),
    "sparse": lambda: torch.eye(4, 2).to_sparse(),
    "array of objects": lambda: numpy.array([object()] * 4),
    "array of dates": lambda: numpy.array(["2020-01-01"] * 4, dtype="datetime64[D]"),
    "masked array": lambda: numpy.ma.masked_array(numpy.ones((4, 2)), mask=numpy.eye(4, 2, dtype=bool)),
    "records": lambda: numpy.zeros(4, dtype=[("a", float), ("b", int)]),
    "long double": lambda: numpy.ones((4, 2), dtype=numpy.longdouble),
    "parameter": lambda: fgp.Parameter(0.5),
    "kernel": lambda: K.Matern(),
    "module": lambda: torch.nn.Linear(2, 1),
    "dtype": lambda: torch.float16,
    "device": lambda: "nowhere",
    "numpy number": lambda: numpy.float32(0.5),
    "numpy integer": lambda: numpy.int64(2),
    "numpy bool": lambda: numpy.bool_(True),
}


def _data() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 2, generator=generator, dtype=F64)
    return {"x": x, "y": x.sum(-1), "z": x + 0.3}


def _post() -> Any:
    given = _data()
    return fgp.GP(1.5 * K.Matern(), likelihood=L.Gaussian(0.1)).condition(given["x"], given["y"])


def _rows() -> Any:
    given = _data()
    return fgp.GP(K.Matern(), likelihood=L.Gaussian(0.1, row_variance=torch.full((4,), 0.2))).condition(
        given["x"], given["y"]
    )


def _outputs() -> Any:
    given = _data()
    return fgp.GP(K.Matern(), outputs=2).condition(given["x"], given["x"])


def _gp() -> Any:
    return fgp.GP(K.Matern())


def _used(kernel: Any) -> Any:
    """A kernel, and its matrix."""
    return kernel(_data()["x"]).to_dense()


X, Y, Z = (lambda: _data()["x"]), (lambda: _data()["y"]), (lambda: _data()["z"])


def of(value: Any) -> Callable[[], Any]:
    return lambda: value


# name: the call, and its arguments when they are right
CALLS: dict[str, tuple[Callable[..., Any], dict[str, Callable[[], Any]]]] = {
    "condition": (
        lambda **k: _gp().condition(**k).predict(Z()).mean,
        {
            "x": X, "y": Y, "solver": of("cholesky"), "tolerance": of(1e-3), "time_limit": of(100.0),
            "memory": of("1GiB"), "plan": of(None), "seed": of(0), "deterministic": of(False),
            "progress": of(None), "device": of("cpu"),
            "dtype": of(F64), "jitter": of(0.0), "differentiable": of(False),
        },
    ),
    "evidence": (
        lambda **k: _gp().log_marginal_likelihood(**k),
        {"x": X, "y": Y, "theta": of(None), "dtype": of(F64), "jitter": of(0.0)},
    ),
    "theta": (
        lambda value: _gp().log_joint(X(), Y(), theta={"kernel.lengthscale.raw": value}),
        {"value": of(torch.zeros(3, dtype=F64))},
    ),
    "predict": (lambda **k: _post().predict(**k).variance, {"x_test": Z, "variance": of("auto"), "memory": of(None)}),
    "log_prob": (lambda y: _post().predict(Z()).log_prob(y), {"y": Y}),
    "joint_log_prob": (lambda y: _post().predict(Z()).joint_log_prob(y), {"y": Y}),
    "interval": (lambda level: _post().predict(Z()).interval(level), {"level": of(0.9)}),
    "sample": (
        lambda **k: _post().predict(Z()).sample(**k),
        {"count": of(2), "observed": of(False), "seed": of(1)},
    ),
    "paths": (
        lambda **k: _post().paths(**k)(Z()), {"count": of(2), "features": of(16), "seed": of(1)},
    ),
    "path": (lambda x: _post().paths(2, features=8, seed=0)(x), {"x": Z}),
    "append": (lambda **k: _post().append(**k), {"x": Z, "y": Y, "row_weight": of(None)}),
    "append one": (lambda **k: _post().append(**k), {"x": lambda: Z()[:1], "y": lambda: Y()[:1]}),
    "append outputs": (lambda **k: _outputs().append(**k), {"x": Z, "y": Z}),
    "drop": (lambda indices: _post().drop(indices), {"indices": of([0, 2])}),
    "slide": (lambda **k: _post().slide(**k), {"x": lambda: Z()[:2], "y": lambda: Y()[:2]}),
    "replace": (lambda **k: _post().replace(**k), {"indices": of([1, 0]), "x": lambda: Z()[:2], "y": lambda: Y()[:2]}),
    "fantasize": (
        lambda **k: _post().fantasize(**k).predict(Z()).mean,
        {"x": Z, "y": of(None), "samples": of(2), "seed": of(1)},
    ),
    "fantasies": (lambda x_test: _post().fantasize(Z(), Y()).predict(x_test).mean, {"x_test": Z}),
    "stream": (
        lambda x, y, window, refine_every: fgp.Stream(_post(), window=window, refine_every=refine_every).step(x, y),
        {"x": lambda: Z()[0], "y": lambda: Y()[0], "window": of(4), "refine_every": of(None)},
    ),
    "save": (
        lambda model, metadata: fgp.save(model, "/dev/null/model", metadata=metadata),
        {"model": _post, "metadata": dict},
    ),
    "load": (lambda path: fgp.load(path), {"path": of("/nowhere/model.safetensors")}),
    "GP": (
        lambda **k: fgp.GP(**k).condition(X(), Y()).predict(Z()).mean,
        {"kernel": K.Matern, "mean": M.Zero, "likelihood": L.Gaussian, "outputs": of(None)},
    ),
    "Gaussian": (
        lambda **k: fgp.GP(K.Matern(), likelihood=L.Gaussian(**k)).condition(X(), Y()).predict(Z()).interval(),
        {"noise_variance": of(0.1), "row_variance": of(torch.ones(4)), "row_weight": of(torch.ones(4))},
    ),
    "Parameter": (
        lambda **k: repr(fgp.Parameter(**k)),
        {"value": of(0.5), "constraint": of(None), "prior": of(None), "trainable": of(True)},
    ),
    "Constant mean": (
        lambda **k: fgp.GP(K.Matern(), M.Constant(**k)).condition(X(), Y()),
        {"value": of(0.5), "outputs": of(None)},
    ),
    "Linear mean": (
        lambda **k: fgp.GP(K.Matern(), M.Linear(**k)).condition(X(), Y()),
        {"slope": of(torch.ones(2)), "intercept": of(0.5)},
    ),
    "SquaredExponential": (
        lambda **k: _used(K.SquaredExponential(**k)),
        {"lengthscale": of(1.0), "active_dims": of([0])},
    ),
    "Matern": (
        lambda **k: _used(K.Matern(**k)), {"nu": of(1.5), "lengthscale": of(1.0), "active_dims": of(None)},
    ),
    "RationalQuadratic": (
        lambda **k: _used(K.RationalQuadratic(**k)),
        {"scale_mixture": of(1.0), "lengthscale": of(1.0)},
    ),
    "Periodic": (lambda **k: _used(K.Periodic(**k)), {"period": of(1.0), "lengthscale": of(1.0)}),
    "Cosine": (lambda **k: _used(K.Cosine(**k)), {"frequency": of(1.0), "active_dims": of(0)}),
    "SpectralMixture": (
        lambda **k: _used(K.SpectralMixture(**k)),
        {"weights": of([1.0]), "means": of([[0.1, 0.2]]), "scales": of([[0.1, 0.2]])},
    ),
    "SpectralMixture.from_data": (
        lambda **k: K.SpectralMixture.from_data(**k),
        {"x": X, "y": Y, "components": of(2), "active_dims": of(None), "seed": of(0)},
    ),
    "Linear": (lambda **k: _used(K.Linear(**k)), {"variance": of(1.0), "active_dims": of(1)}),
    "Polynomial": (lambda **k: _used(K.Polynomial(**k)), {"degree": of(2), "offset": of(1.0), "variance": of(1.0)}),
    "Constant": (lambda **k: _used(K.Constant(**k)), {"variance": of(1.0)}),
    "Categorical": (
        lambda **k: K.Categorical(**k)(X().round()).to_dense(),
        {"lengthscale": of(1.0), "active_dims": of([0])},
    ),
    "Coregionalization": (
        lambda **k: K.Coregionalization(**k)(X().round().abs().clamp_max(1)).to_dense(),
        {"count": of(2), "rank": of(1), "factor": of(None), "diagonal": of(0.5), "active_dims": of([0])},
    ),
    "Warped": (
        lambda **k: _used(K.Warped(**k)),
        {"module": torch.nn.Identity, "kernel": K.Matern, "active_dims": of(None)},
    ),
    "Scaled": (lambda **k: _used(K.Scaled(**k)), {"kernel": K.Matern, "variance": of(1.0)}),
    "operator": (
        lambda **k: K.Matern().operator(**k).to_dense(),
        {"x1": X, "x2": Z, "plan": of(None), "memory": of("1GiB"), "deterministic": of(False), "skip_below": of(None)},
    ),
    "matmul": (lambda V: K.Matern()(X()) @ V, {"V": X}),
    "part": (lambda i, j: K.Matern()(X())[i, j], {"i": of([0, 1]), "j": of(slice(0, 2))}),
    "with_noise": (lambda v: K.Matern()(X()).with_noise(v).to_dense(), {"v": of(0.1)}),
    "to_dense": (lambda dtype: K.Matern()(X()).to_dense(dtype), {"dtype": of(None)}),
    "features": (
        lambda count: K.Matern().features(count, torch.Generator().manual_seed(0)), {"count": of(8)},
    ),
    "plan": (
        lambda **k: str(fgp.plan(_gp(), **k)),
        {"n": of(1000), "d": of(2), "memory": of("1GiB"), "n_test": of(10), "solver": of(None)},
    ),
    "cholesky": (lambda A: fgp.linalg.cholesky(A), {"A": of(torch.eye(3, dtype=F64))}),
    "qr": (lambda A: fgp.linalg.qr(A), {"A": X}),
    "eigh": (lambda A: fgp.linalg.eigh(A), {"A": of(torch.eye(3, dtype=F64))}),
    "solve_triangular": (
        lambda A, B, upper: fgp.linalg.solve_triangular(A, B, upper=upper),
        {"A": of(torch.eye(4, dtype=F64)), "B": X, "upper": of(False)},
    ),
    "fit": (
        lambda **k: fgp.fit(_gp(), **k),
        {"x": X, "y": Y, "max_iterations": of(1), "tolerance": of(1e-3), "time_limit": of(5.0), "seed": of(0),
         "initial": of("given"), "priors": of("given"), "starts": of(1), "progress": of(False), "jitter": of(None)},
    ),
}  # fmt: skip


@dataclass(frozen=True)
class CallCase:
    """One of CALLS with WRONG[value] for one of its arguments (None: as it is right)."""

    call: str = "condition"
    argument: str | None = None
    value: str = "none"

    def check(self) -> Findings:
        found = Findings()
        function, arguments = CALLS[self.call]
        given = {name: make() for name, make in arguments.items()}
        if self.argument is not None:
            given[self.argument] = WRONG[self.value]()
        before = (torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_num_threads())
        with found.watched(self.call):
            function(**given)
        if self.argument == "progress" and callable(given["progress"]):
            found.differences.pop(f"raw error in {self.call}", None)  # of the function that was passed, as it is
        refused = [name for name in found.differences if name.startswith("refused")]
        for name in refused:
            text = found.differences.pop(name)
            if self.argument is None:
                found.differences[name] = text
            else:
                found.refused.append("a wrong argument")
        after = (torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_num_threads())
        found.equal("modes after the call", after, before)
        return found


__all__ = ["CALLS", "WRONG", "CallCase"]
