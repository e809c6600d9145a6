"""What ranks do in tests of plans: what they send and hold, and what they refuse."""

import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch

import flashgp as fgp
from flashgp.foundations.errors import FlashGPError
from flashgp.foundations.events import EventKind, of_kind
from flashgp.foundations.machine import using_root
from flashgp.inference.exact.likelihood import DirectSettings
from flashgp.inference.full_scale.layout import layout_of
from flashgp.inference.full_scale.objective import FullScaleLogJoint
from flashgp.inference.training.objective import Problem
from flashgp.inference.training.parameter_vector import ParameterVector
from flashgp.pairwise.torch.tiles import TorchTiles
from flashgp.planner.plan import Sizes
from flashgp.processes.group import Group
from flashgp.processes.shares import Shares
from inference.allocations import Allocations
from processes.condition_jobs import table
from processes.full_scale_jobs import FEW

SMALL = 2**20


def rough(noise: float = 0.02) -> fgp.GP:
    """A model whose low rank takes all the columns that it may."""
    kernel = fgp.kernels.Matern(nu=0.5, lengthscale=torch.full((3,), 0.5))
    return fgp.GP(kernel, likelihood=fgp.likelihoods.Gaussian(noise))


def sent(process_group: Any, n: int, options: dict[str, Any], noise: float = 0.02) -> dict[str, Any]:
    """A posterior by iterations under a plan of these ranks: what was sent and held, beside what was planned."""
    group = Group.of(process_group)
    x, y, _, _ = table(n)
    part = Shares.even(n, group.size).slice(group.rank)
    gp = rough(noise)
    plan = fgp.plan(gp, n=n, d=3, memory="8GiB", ranks=group.size, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fgp.FlashGPWarning)
        post = gp.condition(x[part], y[part], plan=plan, group=group, tolerance=1e-2)
    shared = of_kind(post.report.events, EventKind.SHARED)[0].fields
    passes = of_kind(post.report.events, EventKind.SOLVED)[0].fields["passes"] if post.report.iterations else 0
    return {
        "sent": shared["sent"], "planned": shared["planned"], "passes": passes,
        "rank": plan.rank, "peak": post.report.peak_bytes, "planned peak": post.report.predicted_bytes,
        "text": str(of_kind(post.report.events, EventKind.SHARED)[0]),
        "compared": len(of_kind(post.report.events, EventKind.PRECONDITIONER_COMPARED)),
    }  # fmt: skip


def fitted(process_group: Any, n: int) -> dict[str, Any]:
    """An exact fit under a plan of these ranks: what was sent beside what was planned."""
    group = Group.of(process_group)
    x, y, _, _ = table(n)
    part = Shares.even(n, group.size).slice(group.rank)
    plan = fgp.plan(rough(), n=n, d=3, memory="8GiB", ranks=group.size, starts=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fgp.FlashGPWarning)
        fit = fgp.fit(rough(), x[part], y[part], plan=plan, group=group, progress=False, starts=1)
    shared = of_kind(fit.report.events, EventKind.SHARED)[0].fields
    return {"sent": shared["sent"], "planned": shared["planned"]}


def approximated(process_group: Any, n: int, kind: str, fitting: bool) -> dict[str, Any]:
    """An approximation by ranks: what was sent beside what was planned."""
    group = Group.of(process_group)
    x, y, _, _ = table(n)
    part = Shares.even(n, group.size).slice(group.rank)
    asked = {"approximation": kind, "inducing": 60, **({"neighbours": 30} if kind == "full_scale" else {})}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fgp.FlashGPWarning)
        if fitting:
            fit = fgp.fit(rough(), x[part], y[part], group=group, progress=False, starts=1, settings=FEW, **asked)
            report = fit.report
        else:
            report = rough().condition(x[part], y[part], group=group, **asked).report
    shared = report.plan.shared
    return {
        "sent": group.bytes_sent, "planned": shared.fit_sent_bytes if fitting else shared.sent_bytes,
        "shared": report.plan.to_json(),
        "events": [event.fields.get("planned") for event in of_kind(report.events, EventKind.SHARED)],
    }  # fmt: skip


def allocated(process_group: Any, n: int, sizes: tuple[int, int, int]) -> dict[str, int]:
    """The most bytes of tensors of this rank in full-scale conditioning and in a value with its gradient."""
    group = Group.of(process_group)
    x, y, _, _ = table(n)
    part = Shares.even(n, group.size).slice(group.rank)
    gp, (m, block, q) = rough(), sizes

    def condition() -> Any:
        return gp.condition(x[part], y[part], approximation="full_scale", inducing=m, neighbours=q, group=group)

    with group.together(), torch.no_grad():
        layout = layout_of(gp, x, torch.full((1,), 0.02, dtype=x.dtype), Sizes(m, block, q, 0), 0, None, group)
    objective = FullScaleLogJoint(Problem(gp.released(), x, y, DirectSettings(TorchTiles())), layout, group)
    theta = ParameterVector(objective.problem.prior, objective.problem.roles).values()
    out = {}
    for name, run in (("condition", condition), ("gradient", lambda: objective(theta))):
        with group.together():
            run()  # what is loaded once
        with group.together(), Allocations(2**12) as seen:
            result = run()
        del result
        out[name] = seen.peak
    return out


def refused(process_group: Any, short: int) -> list[str]:
    """Conditioning and a fit of many rows where one rank has a control group of little memory."""
    group = Group.of(process_group)
    x, y, _, _ = table(600)
    part = Shares.even(600, group.size).slice(group.rank)
    root = Path(tempfile.mkdtemp())
    if group.rank == short:
        files = {
            "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": f"{SMALL}\n",
            "sys/fs/cgroup/memory.current": "0\n", "sys/fs/cgroup/memory.stat": "inactive_file 0\n",
        }  # fmt: skip
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
    said, seven, one = [], fgp.plan(rough(), n=600, d=3, ranks=7), fgp.plan(rough(), n=600, d=3)
    for ask in (
        lambda: rough().condition(x[part], y[part], group=process_group),
        lambda: fgp.fit(rough(), x[part], y[part], group=process_group, progress=False),
        lambda: rough().condition(x[part], y[part], group=process_group, plan=seven),
        lambda: rough().condition(x[part], y[part], group=process_group, plan=one),
        lambda: fgp.fit(rough(), x[part], y[part], group=process_group, plan=one, progress=False),
    ):
        try:
            if group.rank == short:
                with using_root(root):
                    ask()
            else:
                ask()
        except FlashGPError as error:
            said.append(f"{type(error).__name__}: {error}")
    said.append(str(float(group.sum(torch.ones(())))))  # which works afterwards
    return said
