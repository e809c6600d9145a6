"""Forecast a time series with dates: hold the last rows out, and let the periods be found."""

import numpy as np

import flashgp as fgp

day = np.arange(240)
rng = np.random.default_rng(0)
table = {
    "date": [str(np.datetime64("2024-01-01") + one) for one in day],
    "sales": 50.0 + 0.05 * day + 8.0 * np.sin(2.0 * np.pi * day / 7.0) + rng.normal(0.0, 1.0, 240),
}
first = {name: values[:200] for name, values in table.items()}
last = {name: values[200:] for name, values in table.items()}

model = fgp.TableModel(kernel="Matern(nu=1.5) + Periodic(period=7) + Linear()").fit(first, target="sales")
print(model.judge(last))  # a forecast, not an interpolation
lower, upper = model.predict(last).interval(0.95)
assert np.mean((lower < last["sales"]) & (last["sales"] < upper)) > 0.8
