"""What a task's page of the gallery draws behind the task: a few lines more, of its own names."""

_CURVE = "axes = fgp.plots.posterior_1d(fit)"
_MODEL = "axes = fgp.plots.predicted_observed(y, fit.posterior.predict(x))"

PICTURES = {
    "classes": """
probability = fgp.GPClassifier().fit(iris.data[::5], labels).predict_proba(iris.data[1::5])
axes = fgp.plots.confusion(iris.target[1::5], probability, labels=model.classes_)
""",
    "columns": "axes = fgp.plots.importance(importance)",
    "compare": """
operator = kernel.operator(x[:100])
image = Figure(figsize=(4, 3.4), layout="constrained")
image.subplots().imshow(operator.to_dense().detach())
""",
    "coregionalization": """
at = torch.linspace(0.0, 6.0, 100, dtype=torch.float64)
figure = Figure(figsize=(6, 3), layout="constrained")
axes = figure.subplots()
for task, name in enumerate(("first", "second")):
    p = fit.posterior.predict(torch.stack([at, torch.full_like(at, task)], dim=1))
    lower, upper = p.interval(0.95)
    axes.plot(at, p.mean, label=name)
    axes.fill_between(at, lower, upper, alpha=0.2)
    axes.scatter((first, second)[task][:, 0], y[60:] if task else y[:60], s=6)
axes.legend()
""",
    "counts": """
at = torch.linspace(0.0, 6.0, 200, dtype=torch.float64)[:, None]
rate = fit.posterior.predict(at).given(exposure=torch.ones(200))
figure = Figure(figsize=(6, 3), layout="constrained")
axes = figure.subplots()
axes.scatter(x[:, 0], counts / hours, s=8, label="counts an hour")
axes.plot(at[:, 0], rate.observation_mean, color="C1", label="rate")
axes.legend()
""",
    "deep_kernel": _MODEL,
    "files": _CURVE,
    "forecast": """
at = np.arange(len(last["date"]))
figure = Figure(figsize=(7, 3), layout="constrained")
axes = figure.subplots()
axes.plot(at, last["sales"], "k.", label="held out")
axes.fill_between(at, lower, upper, alpha=0.3, label="95 %")
axes.set(xlabel="days after the last row", ylabel="sales")
axes.legend()
""",
    "leave_one_out": """
axes = fgp.plots.calibration(y[150:], fit.posterior.predict(x[150:]))
more = fgp.plots.residuals(y[150:], fit.posterior.predict(x[150:]))
""",
    "many_columns": "axes = fgp.plots.importance(importance)",
    "many_rows": """
side = torch.linspace(0.0, 1.0, 60, dtype=torch.float64)
mean = fit.posterior.predict(torch.cartesian_prod(side, side)).mean.reshape(60, 60)
figure = Figure(figsize=(4.6, 3.6), layout="constrained")
axes = figure.subplots()
figure.colorbar(axes.pcolormesh(side, side, mean.mT))
""",
    "messy_table": """
dates = [f"{1 + day % 28}.{1 + day // 28}.2024" for day in range(56)]
figure = Figure(figsize=(6, 3), layout="constrained")
axes = figure.subplots()
for city in ("Köln", "Ulm"):
    axes.plot(model.predict({"Stadt": [city] * 56, "Datum": dates}).mean, label=city)
axes.set(xlabel="days", ylabel="Preis")
axes.legend()
""",
    "noise_per_row": _CURVE,
    "optimise": """
figure = Figure(figsize=(4.6, 3.6), layout="constrained")
axes = figure.subplots()
mean = posterior.predict(candidates).mean
axes.tricontourf(candidates[:, 0], candidates[:, 1], mean, levels=20)
axes.plot(posterior.x[:, 0], posterior.x[:, 1], "r.", label="rows")
axes.legend()
""",
    "outliers": """
figure = Figure(figsize=(6, 3), layout="constrained")
axes = figure.subplots()
axes.plot(x[:, 0], y, "k.", label="rows")
axes.plot(x[:, 0], truth, label="truth")
axes.plot(x[:, 0], fit.posterior.predict(x).mean, label="StudentT")
axes.legend()
""",
    "own_kernel": _MODEL,
    "parquet": """
at = np.linspace(0.0, 6.0, 100)
lower, upper = model.predict({"x": at}).interval(0.95)
figure = Figure(figsize=(6, 3), layout="constrained")
axes = figure.subplots()
axes.plot(x, table["y"], ".", markersize=2, color="0.6")
axes.fill_between(at, lower, upper, alpha=0.4)
""",
    "plan_first": "axes = fgp.plots.training_trace(fit.history)",
    "posterior_functions": """
fine = torch.linspace(-1.0, 7.0, 200, dtype=torch.float64)[:, None]
figure = Figure(figsize=(6, 3), layout="constrained")
axes = figure.subplots()
axes.plot(fine[:, 0], functions(fine).T, linewidth=0.8)
axes.plot(x[:, 0], torch.sin(x[:, 0]), "k.")
""",
    "ratings": """
at = torch.linspace(0.0, 4.0, 200, dtype=torch.float64)[:, None]
figure = Figure(figsize=(6, 3), layout="constrained")
axes = figure.subplots()
axes.stackplot(at[:, 0], fit.posterior.predict(at).probability.T, labels=["0 stars", "1", "2", "3"])
axes.legend()
""",
    "scikit_learn": "axes = fgp.plots.posterior_1d(search.best_estimator_.posterior_, column=2)",
    "several_outputs": """
p = fit.posterior.predict(x)
lower, upper = p.interval(0.95)
figure = Figure(figsize=(6, 3), layout="constrained")
axes = figure.subplots()
for j in range(3):
    axes.plot(x[:, 0], y[:, j], ".", color=f"C{j}")
    axes.fill_between(x[:, 0], lower[:, j], upper[:, j], alpha=0.3, color=f"C{j}")
""",
    "stream": """
again, steps = fgp.Stream(fit.posterior, window=150), []
steps += again.consume(zip(x[100:], y[100:], strict=True))
figure = Figure(figsize=(6, 3), layout="constrained")
axes = figure.subplots()
axes.plot([abs(float(step.mean - step.y)) for step in steps], ".")
axes.set(xlabel="row", ylabel="error before it was learned")
""",
    "sums": "axes = fgp.plots.components(fit)",
    "ten_million_rows": """
side = np.linspace(0.0, 10.0, 80)
points = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
figure = Figure(figsize=(4.6, 3.6), layout="constrained")
axes = figure.subplots()
figure.colorbar(axes.pcolormesh(side, side, fit.posterior.predict(points).mean.reshape(80, 80)))
""",
    "torch_habits": "axes = fgp.plots.posterior_1d(posterior, column=0)",
}  # fmt: skip
