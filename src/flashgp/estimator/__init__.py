"""The scikit-learn estimator: what it is given, in which units it works, what repeated rows mean."""

from flashgp.estimator.regressor import GPRegressor

__all__ = ["GPRegressor"]
