"""Whole fits from the same start without restarts, against BoTorch and scikit-learn; both optima scored by the peer.

Our optimum less the peer's, under the peer's own objective, stands in each row: a search ends where a step promises
less than 1e-4 nats a row.
Beside BoTorch, both fits also predict `HELD_OUT` rows of the same function, each by its own library.
"""

import math
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import numpy
import torch
from common import RECORDS, arguments, interleaved, peer, scores, smooth_data

import flashgp as fgp
from flashgp.bench import write_record

HELD_OUT = 500
COLUMNS = [
    {"key": "work", "title": "whole fit"},
    {"key": "against", "title": "against"},
    {"key": "ours_seconds", "title": "FlashGP"},
    {"key": "peer_seconds", "title": "peer"},
    {"key": "ratio", "title": "times faster"},
    {"key": "target", "title": "at least"},
    {"key": "ours_evaluations", "title": "our evaluations", "format": "integer"},
    {"key": "objective_gain", "title": "our optimum minus peer's, nats", "format": "fixed4"},
    {"key": "nll", "title": "negative log density of held-out rows", "format": "fixed4"},
    {"key": "peer_nll", "title": "the peer's", "format": "fixed4"},
]


def against_botorch(n: int, d: int, repeats: int, target: float) -> dict[str, Any]:
    """SingleTaskGP with its own priors and start; the same model, priors, constraints and start in FlashGP."""
    botorch, gpytorch = peer("botorch"), peer("gpytorch")
    assert botorch is not None and gpytorch is not None  # noqa: PT018 - the caller looked
    from botorch.fit import fit_gpytorch_mll
    from botorch.models import SingleTaskGP

    x, y = smooth_data(n + HELD_OUT, d, torch.float64)
    x = (x - x.amin(0)) / (x.amax(0) - x.amin(0))
    y = (y - y[:n].mean()) / y[:n].std()
    x, x_test, y, y_test = x[:n], x[n:], y[:n], y[n:]

    def fresh() -> Any:
        model = SingleTaskGP(x, y[:, None], outcome_transform=None)
        return gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)

    start = fresh().model
    kernel, likelihood = start.covar_module, start.likelihood
    noise_floor = likelihood.noise_covar.raw_noise_constraint.lower_bound.item()
    scale_floor = kernel.raw_lengthscale_constraint.lower_bound.item()
    above = torch.distributions.constraints.greater_than
    parameter = fgp.Parameter
    lengthscale = parameter(
        kernel.lengthscale.detach().reshape(-1).clone(), above(scale_floor),
        torch.distributions.LogNormal(kernel.lengthscale_prior.loc, kernel.lengthscale_prior.scale),
    )  # fmt: skip
    noise = parameter(
        likelihood.noise.detach().reshape(()).clone(), above(noise_floor),
        torch.distributions.LogNormal(likelihood.noise_covar.noise_prior.loc, likelihood.noise_covar.noise_prior.scale),
    )  # fmt: skip
    gp = fgp.GP(
        fgp.kernels.SquaredExponential(lengthscale),
        fgp.means.Constant(start.mean_module.constant.item()),
        fgp.likelihoods.Gaussian(noise),
    )

    def ours() -> Any:
        return fgp.fit(gp, x, y, starts=1, initial="given", priors="given")

    def theirs() -> Any:
        return fit_gpytorch_mll(fresh())

    def score(mll: Any) -> float:
        mll.train()
        with torch.no_grad():
            return float(mll(mll.model(*mll.model.train_inputs), mll.model.train_targets)) * n

    timed = interleaved({"ours": ours, "peer": theirs}, repeats, 2 if n < 500 else 1)
    fit = timed["ours"].result
    mine = fresh()
    with torch.no_grad():
        mine.model.covar_module.lengthscale = fit.gp.kernel.lengthscale.value
        mine.model.likelihood.noise = fit.gp.likelihood.noise_variance.value
        mine.model.mean_module.constant.fill_(fit.gp.mean.value.value.item())
    row = _row(f"SingleTaskGP model, n={n}, d={d}", "BoTorch fit_gpytorch_mll", timed, target)
    predicted = fit.posterior.predict(x_test)
    with torch.no_grad():
        of_peer = timed["peer"].result.model.posterior(x_test, observation_noise=True)
    return row | {
        "objective_gain": score(mine) - score(timed["peer"].result),
        "ours_evaluations": len(fit.history),
        "nll": scores(predicted.mean, predicted.observation_variance, y_test)["nll"],
        "peer_nll": scores(of_peer.mean[:, 0], of_peer.variance[:, 0], y_test)["nll"],
    }


def against_sklearn(n: int, d: int, repeats: int) -> dict[str, Any]:
    """ARD RBF + noise with a variance, no priors, the same start."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    x, y = smooth_data(n, d, torch.float64)
    y = y - y.mean()
    wide = (1e-5, 1e5)
    kernel = ConstantKernel(1.0, wide) * RBF(numpy.ones(d), wide) + WhiteKernel(0.1, wide)
    gp = fgp.GP(1.0 * fgp.kernels.SquaredExponential(torch.ones(d)), fgp.means.Zero(), fgp.likelihoods.Gaussian(0.1))

    def ours() -> Any:
        return fgp.fit(gp, x, y, starts=1, initial="given", priors="given")

    def theirs() -> Any:
        return GaussianProcessRegressor(kernel, alpha=1e-12).fit(x.numpy(), y.numpy())

    fgp.fit(gp, x[:300], y[:300], starts=1, initial="given", priors="given")  # imports, what is compiled on first use
    timed = interleaved({"ours": ours, "peer": theirs}, repeats, 0 if n > 500 else 1)
    fit, theirs_fit = timed["ours"].result, timed["peer"].result
    theta = torch.cat(
        [
            fit.gp.kernel.variance.value.reshape(1),
            fit.gp.kernel.kernel.lengthscale.value,
            fit.gp.likelihood.noise_variance.value.reshape(1),
        ]
    )
    gain = theirs_fit.log_marginal_likelihood(theta.log().detach().numpy()) - theirs_fit.log_marginal_likelihood_value_
    row = _row(f"ARD RBF + noise, n={n}, d={d}", "scikit-learn", timed, 40.0)
    return row | {"objective_gain": float(gain), "ours_evaluations": len(fit.history)}


def _row(work: str, against: str, timed: dict[str, Any], target: float) -> dict[str, Any]:
    ours, theirs = timed["ours"], timed["peer"]
    return {
        "work": work, "against": against, "ours_seconds": ours.seconds, "ours_spread_seconds": ours.spread,
        "peer_seconds": theirs.seconds, "peer_spread_seconds": theirs.spread, "ratio": theirs.seconds / ours.seconds,
        "target": target, "met": theirs.seconds / ours.seconds >= target, "peak_bytes": ours.result.report.peak_bytes,
        "predicted_seconds": ours.result.report.predicted_seconds,
    }  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv, __doc__ or "")
    warnings.simplefilter("ignore")
    rows = []
    if options.toy:
        row = against_sklearn(12, 2, 1)
        assert math.isfinite(row["ratio"])
        return 0
    if peer("botorch") is not None:
        for n, repeats, target in (
            (20, 9, 5.0),
            (50, 9, 5.0),
            (200, 9, 5.0),
            (500, 5, 10.0),
            (1000, 3, 10.0),
            (2000, 3, 10.0),
        ):
            if options.only in f"botorch n={n}":
                rows.append(against_botorch(n, 6, repeats, target))
                print(rows[-1])
    if options.only in "sklearn":
        rows.append(against_sklearn(2000, 6, 1))
        print(rows[-1])
    if not options.only:
        title = "Whole fits, both optima scored by the peer"
        write_record(RECORDS / "fit.json", {"title": title, "columns": COLUMNS, "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
