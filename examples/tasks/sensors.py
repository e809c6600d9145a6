"""Sensors over time, with dates: trend, season and rest by Fourier series, and a forecast with its scores."""

import numpy as np
import torch

import flashgp as fgp

k, rng = fgp.kernels, np.random.default_rng(0)
time = np.datetime64("2020-01-01") + np.sort(rng.integers(0, 4 * 365 * 24, 1_000)).astype("timedelta64[h]")
day = (time - np.datetime64("1970-01-01")) / np.timedelta64(1, "D")
celsius = 10.0 + 3e-3 * (day - day[0]) + 8.0 * np.sin(2.0 * np.pi * day / 365.25) + np.sin(day / 12.0)
celsius += rng.normal(0.0, 0.7, len(day))

year = k.Periodic(period=fgp.Parameter(365.25, trainable=False), lengthscale=fgp.Parameter(1.0, trainable=False))
slow = fgp.Parameter(1_000.0, trainable=False)  # days
trend = 1.0 * k.RBF(lengthscale=slow)
season = 30.0 * (year * k.RBF(lengthscale=slow))  # changes slowly
rest = 1.0 * k.Matern(nu=2.5, lengthscale=12.0)
gp = fgp.GP(trend + season + rest, fgp.means.Constant(), fgp.likelihoods.Gaussian(0.5))

x, y = torch.from_numpy(day)[:, None], torch.from_numpy(celsius)
past = x[:, 0] < day[0] + 0.85 * (day[-1] - day[0])
fit = fgp.fit(gp, x[past], y[past], approximation="fourier", starts=1)
print(fit.posterior.judge(x[~past], y[~past]))  # a forecast, at most 25 % of the range beyond the rows
axes = fgp.plots.posterior_1d(fit, x_range=(day[0], day[-1]), dates=True, y_label="celsius", samples=0)
axes.figure.savefig("sensors.png")
fgp.plots.components(fit, dates=True)[0].figure.savefig("parts.png")
