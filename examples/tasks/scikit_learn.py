"""A pipeline, cross-validation and a grid of covariance functions, as everywhere in scikit-learn."""

import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import flashgp as fgp

x, y = load_diabetes(return_X_y=True)
x, y = x[:120, :4], y[:120]

model = make_pipeline(StandardScaler(), fgp.GPRegressor(starts=1, target_transform="none"))
print(cross_val_score(model, x, y, cv=3))

kernels = [1.0 * fgp.kernels.Matern(nu=2.5), 1.0 * fgp.kernels.SquaredExponential()]
search = GridSearchCV(fgp.GPRegressor(starts=1, target_transform="none"), {"kernel": kernels}, cv=2).fit(x, y)
mean, std = search.best_estimator_.predict(x[:3], return_std=True)
assert np.all(std > 0.0)
