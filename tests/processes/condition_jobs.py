"""What ranks do in tests of conditioning: answers, gradients and refusals."""

import os
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.errors import DomainError, FlashGPError, RankMismatchError
from flashgp.foundations.events import EventKind, of_kind
from flashgp.foundations.profile import BUILT_IN
from flashgp.foundations.profile_store import CHOICE, forget_profiles, keep_profile
from flashgp.processes.group import Group
from flashgp.processes.shares import Shares

F64 = torch.float64


def table(n: int, d: int = 3, dtype: torch.dtype = F64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x, y, the variance of each row, and points."""
    generator = torch.Generator().manual_seed(5)
    x = torch.rand(n + 20, d, generator=generator, dtype=F64)
    y = torch.sin(5.0 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.1 * torch.randn(n + 20, generator=generator, dtype=F64)
    variance = 0.01 + 0.05 * torch.rand(n, generator=generator, dtype=F64)
    return x[:n].to(dtype), y[:n].to(dtype), variance, x[n:].to(dtype)


def model(kind: str, row_variance: Tensor | None = None) -> fgp.GP:
    if kind == "outputs":
        return fgp.GP(fgp.kernels.Matern(nu=1.5, lengthscale=0.5), outputs=2)
    kernel = 1.5 * fgp.kernels.Matern(nu=2.5, lengthscale=torch.tensor([0.6, 0.9, 1.2]))
    return fgp.GP(kernel, likelihood=fgp.likelihoods.Gaussian(0.02, row_variance=row_variance))


def case(kind: str, n: int) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    x, y, variance, z = table(n, dtype=torch.float32 if kind == "float32" else F64)
    if kind == "repeated":
        x[10:20] = x[:10]
    if kind == "outputs":
        y = torch.stack([y, y.cos()], dim=1)
    return x, y, variance if kind == "variances" else None, z


def answers(process_group: Any, kind: str, counts: tuple[int, ...], options: dict[str, Any]) -> dict[str, Any]:
    """Everything a posterior is asked for; without a group that of one process."""
    x, y, variance, z = case(kind, sum(counts))
    part = slice(None)
    if process_group is not None:
        part = Shares(counts).slice(torch.distributed.get_rank(process_group))
    gp = model(kind, None if variance is None else variance[part])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fgp.FlashGPWarning)
        post = gp.condition(x[part], y[part], group=process_group, **options)
        p = post.predict(z)
        out: dict[str, Any] = {
            "mean": p.mean, "variance": p.variance, "covariance": p.covariance(), "sample": p.sample(3, seed=4),
            "paths": post.paths(4, seed=7, features=256)(z), "weights": post.representer_weights, "x": post.x,
            "likelihood": post.log_marginal_likelihood(),
        }  # fmt: skip
        if post.state.factor is not None if kind != "outputs" else False:
            out["left out"] = post.leave_one_out().log_prob
    out = {name: value.numpy(force=True) for name, value in out.items()}
    out |= {"route": post.report.route, "iterations": post.report.iterations, "error": post.report.standard_error}
    shared = of_kind(post.report.events, EventKind.SHARED)
    out["shared"] = shared[0].fields if shared else None
    return out


def gradients(process_group: Any, counts: tuple[int, ...]) -> dict[str, Any]:
    """log p(y) with its gradients by parameters and by this rank's rows."""
    x, y, variance, _ = case("variances", sum(counts))
    part = slice(None)
    if process_group is not None:
        part = Shares(counts).slice(torch.distributed.get_rank(process_group))
    x, y = x[part].clone().requires_grad_(), y[part].clone().requires_grad_()
    gp = model("variances", variance[part])
    value = gp.log_marginal_likelihood(x, y, group=process_group)
    value.backward()
    found = {name: parameter.grad.numpy() for name, parameter in gp.named_parameters()}
    return {"value": value.item(), "x": x.grad.numpy(), "y": y.grad.numpy(), **found}


def refusals(process_group: Any) -> dict[str, str]:
    """What a group says no to, as every rank hears it; and that it works afterwards."""
    group = Group.of(process_group)
    x, y, _, z = table(60)
    part = Shares.even(60, group.size).slice(group.rank)
    x, y, last = x[part], y[part], group.rank == group.size - 1
    gp = model("plain")
    other = fgp.GP(1.5 * fgp.kernels.Matern(nu=1.5, lengthscale=torch.tensor([0.6, 0.9, 1.2])))
    moved = fgp.GP(1.5 * fgp.kernels.Matern(nu=2.5, lengthscale=torch.tensor([0.6, 0.9, 1.3 if last else 1.2])))
    post = gp.condition(x, y, group=process_group)
    solved = gp.condition(x, y, group=process_group, solver="cg")
    path = Path(tempfile.mkdtemp()) / "model.safetensors"
    asked = {
        "columns": lambda: gp.condition(x[:, :2] if last else x, y, group=process_group),
        "dtypes": lambda: gp.condition(x.float() if last else x, y.float() if last else y, group=process_group),
        "kernels": lambda: (other if last else gp).condition(x, y, group=process_group),
        "parameters": lambda: moved.condition(x, y, group=process_group),
        "seeds": lambda: gp.condition(x, y, seed=group.rank, group=process_group),
        "shape": lambda: gp.condition(x, y[:-1] if last else y, group=process_group),
        "not finite": lambda: gp.condition(x * (float("nan") if last else 1.0), y, group=process_group),
        "no rows": lambda: gp.condition(x[: int(not group.rank)], y[: int(not group.rank)], group=process_group),
        "time limit": lambda: gp.condition(x, y, time_limit=5.0 + last, group=process_group),
        "differentiable": lambda: gp.condition(x, y, differentiable=True, group=process_group),
        "memory": lambda: gp.condition(x, y, memory=1000, group=process_group),
        "points": lambda: solved.predict(z + float(last)),
        "variance": lambda: solved.predict(z, variance="sampled" if last else "auto"),
        "mean alone": lambda: solved.predict(z, variance=None).interval(),
        "append": lambda: post.append(x[:1], y[:1]),
        "stream": lambda: fgp.Stream(post),
        "drop": lambda: post.drop([0]),
    }  # fmt: skip
    out = {}
    for name, ask in asked.items():
        try:
            ask()
        except FlashGPError as error:
            out[name] = f"{type(error).__name__}: {error}"
    try:
        fgp.save(post, path)
        out["save"] = "saved"
        assert torch.equal(fgp.load(path).predict(z).mean, post.gp.condition(post.x, post.y).predict(z).mean)
    except DomainError as error:
        out["save"] = str(error)
    out["afterwards"] = repr(post.predict(z).mean[:2].tolist())
    assert isinstance(RankMismatchError("", names=(), ranks=()), ValueError)
    return out


def means(process_group: Any, counts: tuple[int, ...], kind: str, options: dict[str, Any]) -> dict[str, Any]:
    """Means at many points, with what a rank has sent for them, and their gradient by the points."""
    x, y, _, _ = case(kind, sum(counts))
    group = Group.of(process_group)
    part = slice(None) if process_group is None else Shares(counts).slice(group.rank)
    points = torch.rand(701, 3, generator=torch.Generator().manual_seed(9), dtype=F64)
    post = model(kind).condition(x[part], y[part], group=None if process_group is None else group, **options)
    before = group.bytes_sent
    solved = {} if process_group is None or options["solver"] == "cholesky" else {"variance": None}
    prediction = post.predict(points, **solved)
    mean = prediction.mean
    sent = group.bytes_sent - before
    moved = points.clone().requires_grad_()
    post.predict(moved, **solved).mean.square().sum().backward()
    out = {"mean": mean, "moved": moved.grad}
    if options["solver"] == "cholesky":  # else a solve for each point
        out["variance"] = prediction.variance
    return {name: value.numpy() for name, value in out.items()} | {"sent": sent, "route": post.report.route}


def variances(process_group: Any, folder: str) -> dict[str, Any]:
    """Variances without a factor where rank 0 alone has a profile of a machine that is so slow that it samples."""
    group = Group.of(process_group)
    x, y, _, _ = table(101)
    part = Shares.even(101, group.size).slice(group.rank)
    points = torch.rand(600, 3, generator=torch.Generator().manual_seed(9), dtype=F64)
    usual = os.environ[CHOICE]
    try:
        if group.rank == 0:
            os.environ[CHOICE] = folder
            products = tuple(replace(rate, pairs_per_second=1e-7 * rate.pairs_per_second) for rate in BUILT_IN.products)
            keep_profile(replace(BUILT_IN, name="measured", products=products))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", fgp.FlashGPWarning)
            post = model("plain").condition(x[part], y[part], group=group, solver="cg")
            prediction = post.predict(points)
            variance = prediction.variance
    finally:
        os.environ[CHOICE] = usual
        forget_profiles()
    sampled = bool(of_kind(prediction.report.events, EventKind.VARIANCE_BY_SAMPLES))
    return {"variance": variance.numpy(), "sampled": sampled}


def drawn_as_asked(process_group: Any, options: dict[str, Any]) -> tuple[str, Any]:
    """What functions without features answer over ranks, and samples, which its message advises."""
    x, y, _, z = table(60)
    part = Shares((40, 20)).slice(torch.distributed.get_rank(process_group))
    rough = fgp.kernels.Custom(lambda a, b: torch.exp(-(a - b).abs().sum()), columns=3)
    gp = fgp.GP(rough, likelihood=fgp.likelihoods.Gaussian(0.1))
    post = gp.condition(x[part], y[part], group=process_group, **options)
    refused = ""
    try:
        post.paths(2, seed=0)
    except DomainError as error:
        refused = str(error)
    return refused, post.predict(z).sample(2, seed=0).numpy()
