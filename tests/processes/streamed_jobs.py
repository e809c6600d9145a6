"""What ranks do in tests of inducing points over ranks, against one process with all rows."""

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

import flashgp as fgp
from flashgp.foundations.deadline import Deadline
from flashgp.inference.approximation import approximation_of
from flashgp.inference.data import Data
from flashgp.inference.fit import fit_as
from flashgp.inference.run import Run
from flashgp.inference.training.options import FitOptions, FitSettings
from flashgp.inference.training.settings import SearchSettings, StochasticSettings
from flashgp.processes.group import Group
from flashgp.processes.shares import Shares
from flashgp.sources.group_survey import surveyed_over
from flashgp.sources.source import Held
from flashgp.sources.survey import surveyed
from processes.time_jobs import LIMIT, EndsAt

FEW = FitSettings(search=SearchSettings(start_rows=40), stochastic=StochasticSettings(first_rows=60))


def table(rows: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    x = torch.rand(rows, 2, generator=generator, dtype=torch.float64)
    return x, torch.sin(5.0 * x[:, 0]) * x[:, 1] + 0.1 * torch.randn(rows, generator=generator, dtype=torch.float64)


def model() -> fgp.GP:
    kernel = 1.2 * fgp.kernels.Matern(nu=1.5, lengthscale=torch.full((2,), 0.6, dtype=torch.float64))
    return fgp.GP(kernel, likelihood=fgp.likelihoods.Gaussian(0.02))


def answers(post: Any) -> list[Tensor]:
    x_test = torch.rand(9, 2, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    p = post.predict(x_test)
    paths = post.paths(3, features=64, seed=1)(x_test)
    return [p.mean, p.variance, paths, torch.tensor([post.bound.lower, post.bound.upper]), post.inducing]


def apart(one: list[Tensor], other: list[Tensor]) -> float:
    assert [a.shape for a in one] == [b.shape for b in other]
    return max(float((a - b).abs().max() / a.abs().max()) for a, b in zip(one, other, strict=True))


def conditioned(group: Any, counts: tuple[int, ...]) -> list[float]:
    """Differences from one process: rows that are held, in batches, with known variances, of float32."""
    shares = Shares(counts)
    own = shares.slice(dist.get_rank(group))
    x, y = table(shares.total)
    known = 0.01 + 0.1 * x[:, 0]
    out = []
    for of in (
        lambda rows, group: model().condition(x[rows], y[rows], approximation="sparse", inducing=12, group=group),
        lambda rows, group: model().condition(x[rows], y[rows], approximation="sparse", inducing=x[:7], group=group),
        lambda rows, group: model().condition(
            [(x[rows], y[rows])] * bool(len(x[rows])), approximation="auto", inducing=x[3:11], group=group
        ),
        lambda rows, group: model().condition(
            [(x[rows][i : i + 9], y[rows][i : i + 9], known[rows][i : i + 9]) for i in range(0, len(x[rows]), 9)],
            inducing=x[3:11], group=group,
        ),
        lambda rows, group: model().condition(
            x[rows].float(), y[rows].float(), approximation="sparse", inducing=x[:9].float(), group=group
        ),
    ):  # fmt: skip
        ours = of(own, group)
        assert ours.count == shares.total
        assert "SHARED" in [event.kind.name for event in ours.report.events]
        out.append(apart(answers(of(slice(None), None)), answers(ours)))
    return out


def with_numbers(group: Any, counts: tuple[int, ...]) -> list[float]:
    """Differences from one process where each rank's rows have weights and exposures of their own, held or read."""
    shares = Shares(counts)
    own = shares.slice(dist.get_rank(group))
    x, y = table(shares.total)
    likelihoods = fgp.likelihoods
    hours, weight, counted = 1.0 + x[:, 1], 1.0 + 4.0 * x[:, 0], (3.0 * y).exp().floor()
    kernel, x_test = model().kernel, x[:9] + 0.01

    def weighted(rows: slice, group: Any) -> Any:
        gp = fgp.GP(kernel, likelihood=likelihoods.Gaussian(0.02, row_weight=weight[rows]))
        return gp.condition(x[rows], y[rows], approximation="sparse", inducing=12, group=group)

    def counting(rows: slice, group: Any) -> Any:
        gp = fgp.GP(kernel, likelihood=likelihoods.Poisson(hours[rows], weight[rows]))
        return gp.condition(x[rows], counted[rows], approximation="sparse", inducing=12, group=group)

    def read(rows: slice, group: Any) -> Any:
        numbers = {"exposure": hours[rows], "row_weight": weight[rows]}
        batches = [(x[rows], counted[rows], numbers)] * bool(len(x[rows]))
        return fgp.GP(kernel, likelihood=likelihoods.Poisson()).condition(batches, inducing=12, group=group)

    out = []
    for of in (weighted, counting, read):
        found, wanted = of(own, group).predict(x_test), of(slice(None), None).predict(x_test)
        out.append(apart([wanted.mean, wanted.variance], [found.mean, found.variance]))
    return out


def fitted(group: Any, counts: tuple[int, ...], settings: dict[str, Any]) -> tuple[float, float, list[str]]:
    """Difference of parameters and of answers from one process's fit, and the events."""
    shares = Shares(counts)
    own = shares.slice(dist.get_rank(group))
    x, y = table(shares.total)
    asked = {"approximation": "sparse", "inducing": 12, "settings": FEW, "progress": False, "starts": 2, **settings}
    alone = fgp.fit(model(), x, y, **asked)
    ours = fgp.fit(model(), x[own], y[own], group=group, **asked)
    values = [torch.stack([p.detach().sum() for p in gp.parameters()]) for gp in (alone.gp, ours.gp)]
    kinds = [event.kind.name for event in ours.report.events]
    return apart(values[:1], values[1:]), apart(answers(alone.posterior), answers(ours.posterior)), kinds


def resumed(group: Any, path: str) -> tuple[int, bool, bool]:
    """A fit that goes on from the checkpoint of another: how many evaluations were replayed, and the same end."""
    x, y = table(300)
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    asked = {"approximation": "sparse", "inducing": 8, "settings": FEW, "progress": False, "starts": 1}
    first = fgp.fit(model(), x[rank::size], y[rank::size], group=group, checkpoint=path, **asked)
    dist.barrier(group)
    there = Path(path).is_file()
    again = fgp.fit(model(), x[rank::size], y[rank::size], group=group, checkpoint=path, **asked)
    replayed = next(e.fields["evaluations"] for e in again.report.events if e.kind.name == "RESUMED")
    same = all(torch.equal(a, b) for a, b in zip(first.gp.parameters(), again.gp.parameters(), strict=True))
    return replayed - len(first.history), there, same


def refused(group: Any) -> list[str]:
    """What is said on every rank: bad rows on one, other models, other points, appending."""
    rank = dist.get_rank(group)
    x, y = table(40)
    bad = y.clone()
    bad[3] = torch.nan if rank else 0.0
    short = {"approximation": "sparse", "inducing": 5, "group": group}
    calls = [
        lambda: model().condition(x, bad, **short),
        lambda: model().condition(x[:, : 2 - rank], y, **short),
        lambda: (model() if rank else fgp.GP(fgp.kernels.RBF())).condition(x, y, **short),
        lambda: model().condition(x, y, **short | {"inducing": 5 + rank}),
        lambda: model().condition(x, y, **short | {"inducing": 500}),
        lambda: fgp.fit(model(), x, bad, approximation="sparse", group=group, progress=False),
        lambda: fgp.fit(model(), x, y, seed=rank, **short, progress=False),
        lambda: model().condition([], inducing=5, group=group),
        lambda: model().condition(x, y, **short).append(x[:2], y[:2]),
        lambda: fgp.Stream(model().condition(x, y, **short)),
        lambda: model().condition(x, y, **short, memory=1000 if rank else "1GiB"),
    ]
    out = []
    for call in calls:
        try:
            call()
            out.append("nothing")
        except (ValueError, MemoryError, fgp.FlashGPError) as error:
            out.append(f"{type(error).__name__}: {error}")
    return out


def limited_at(group: Any, moment: int | None) -> dict[str, Any]:
    """A fit whose time ends on rank 1 alone, after so many readings of its clock."""
    x, y = table(300)
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    clock = EndsAt(moment if rank == 1 else None)
    options = FitOptions(run=Run(deadline=Deadline(LIMIT, LIMIT, clock), group=Group.of(group)), settings=FEW)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fgp.FlashGPWarning)
        fit = fit_as(
            model(), Data.of(model(), x[rank::size], y[rank::size]), options, approximation_of("sparse", 8, "auto")
        )
    found = [t.tolist() for t in answers(fit.posterior)]
    return {"answers": found, "read": clock.read}


def parquet(group: Any, pattern: str) -> list[Any]:
    """Rows of files dealt to ranks, as they are and in standard units: differences from one process, rows of ranks."""
    rows = fgp.data.parquet(pattern, target="y", columns=["a", "b"])
    own = rows.shard(Group.of(group))
    found = [own.count, len(torch.cat([torch.as_tensor(y) for _, _, y, _ in own.batches()])) if own.count else 0]
    out: list[Any] = [found]
    alone, ours = model().condition(rows, inducing=9), model().condition(rows, inducing=9, group=group)
    out.append(apart(answers(alone), answers(ours)))
    one, other = fgp.data.standardised(rows), fgp.data.standardised(rows, group=group)
    out.append(max(abs(a - b) for a, b in zip(one.scaling.x_shift, other.scaling.x_shift, strict=True)))
    asked = {"inducing": 9, "settings": FEW, "progress": False, "starts": 1}
    fits = fgp.fit(model(), one, **asked), fgp.fit(model(), other, group=group, **asked)
    out.append(apart(*(answers(fit.posterior) for fit in fits)))
    return out


def table_model(group: Any, pattern: str, settings: dict[str, Any]) -> tuple[float, bool, list[str]]:
    """A table with text, missing values and a target that is transformed, read by ranks."""
    new = {"a": [0.2, 0.7], "b": [0.5, 0.1], "city": ["Ulm", "Bonn"]}
    made = [
        fgp.TableModel(starts=1, approximation="sparse", inducing=9, missing="drop", **settings).fit(
            [pattern], "y", progress=False, group=of
        )
        for of in (None, group)
    ]
    one, other = (torch.from_numpy(model.predict(new).mean) for model in made)
    return float((one - other).abs().max() / one.abs().max()), made[0].encoding == made[1].encoding, list(made[1].notes)


def differing(group: Any, folder: str) -> list[str]:
    """What is said where ranks name other files, or one of them is broken on one rank."""
    out = []
    for name in ("part-*", "part-{}*", "broken-{}"):
        try:
            rows = f"{folder}/{name.format(dist.get_rank(group))}.parquet"
            fgp.TableModel(starts=1).fit([rows], "y", progress=False, group=group)
            out.append("nothing")
        except (ValueError, OSError) as error:
            out.append(f"{type(error).__name__}: {error}")
    return out


def sampled(group: Any, counts: tuple[int, ...]) -> tuple[bool, bool]:
    """Whether the sample and the checksum of a first pass are those of one process."""
    shares, (x, y) = Shares(counts), table(sum(counts))
    own = shares.slice(dist.get_rank(group))
    alone = surveyed(Held(x, y), None, 10, 3)
    ours = surveyed_over(Group.of(group), Held(x[own], y[own]), None, 10, 3)
    same = torch.equal(alone.x, ours.x) and torch.equal(alone.y, ours.y)
    return same, (alone.checksum, alone.count) == (ours.checksum, ours.count)
