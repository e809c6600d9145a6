"""Arguments under the names that other libraries give them: refused with the name to use here.

One table for all constructors and calls: a name leads to the arguments that may mean it, of which a call takes the
first that it has. Nothing is accepted under two names.
"""

import difflib
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import ParamSpec, TypeVar

from flashgp.foundations.errors import DomainError

__all__ = ["usual_names_refused"]

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_LENGTHSCALE, _VARIANCE, _NOISE = ("lengthscale",), ("variance",), ("noise_variance", "likelihood")
USUAL: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("length_scale", "length_scales", "lengthscales", "ls", "ell"), _LENGTHSCALE),
    **dict.fromkeys(("ard_num_dims", "ARD", "ard"), ("lengthscale", "frequency")),
    **dict.fromkeys(("outputscale", "output_scale", "signal_variance", "amplitude", "constant_value"), _VARIANCE),
    **dict.fromkeys(("noise", "noise_level", "noise_var", "sigma_n", "obs_stddev"), _NOISE),
    **dict.fromkeys(("lr", "learning_rate", "step_size", "optimizer", "optimiser"), ("max_iterations",)),
    **dict.fromkeys(
        ("max_iter", "maxiter", "n_iter", "training_iter", "num_iters", "num_steps", "epochs"), ("max_iterations",)
    ),
    **dict.fromkeys(("n_restarts_optimizer", "n_restarts", "num_restarts", "restarts"), ("starts",)),
    **dict.fromkeys(("kern", "covar_module", "cov_function", "covariance"), ("kernel",)),
    **dict.fromkeys(("mean_function", "mean_module", "mean_func"), ("mean",)),
    **dict.fromkeys(("num_inducing", "n_inducing", "inducing_points", "inducing_variable"), ("inducing",)),
    **dict.fromkeys(("period_length", "periodicity", "p"), ("period",)),
    **dict.fromkeys(("num_tasks", "num_outputs", "output_dim"), ("outputs", "count")),
    **dict.fromkeys(("random_state", "rng", "key"), ("seed",)),
    "alpha": ("scale_mixture", "noise_variance", "likelihood"),
    "smoothness": ("nu",),
    "power": ("degree",),
    "order": ("degree",),
    "bias": ("offset",),
    "sigma": ("noise_variance", "variance"),
    "sigma_0": ("offset", "variance"),
    "normalize_y": ("standardise",),
    "normalise_y": ("standardise",),
    "standardize": ("standardise",),
    "batch_size": ("inducing",),
    "active_columns": ("active_dims",),
    "input_dim": ("active_dims",),
}
# What is not merely another name.
_HOW = {
    "likelihood": "pass likelihood=flashgp.likelihoods.Gaussian(noise_variance=...)",
    "max_iterations": "the search has no step size; max_iterations= and time_limit= end it",
    "batch_size": "minibatches come with approximation='sparse', inducing=...",
    "variance": "a number times a kernel, 2.0 * kernel, has that variance",
}
_EACH_COLUMN = ("ard_num_dims", "ARD", "ard")
_STEPS = ("lr", "learning_rate", "step_size", "optimizer", "optimiser")


def usual_names_refused(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """A call, or constructor, that answers an argument it does not have with the name of the one that is meant.

    Raises (on use): DomainError.
    """
    parameters = inspect.signature(function).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return function
    known = frozenset(parameters)

    @functools.wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        unknown = next((name for name in kwargs if name not in known), None)
        if unknown is None:
            return function(*args, **kwargs)
        made = args[0] if function.__name__ == "__init__" else None  # of the class that was called
        name = function.__qualname__ if made is None else type(made).__name__
        taken = [p for p in parameters if p != "self"]
        raise DomainError(
            f"`{unknown}` is no argument of {name}, which takes {', '.join(taken)}; {_way(unknown, taken)}"
        )

    return call


def _way(unknown: str, taken: list[str]) -> str:
    """What to do in place of an unknown argument."""
    meant = next((name for name in USUAL.get(unknown, ()) if name in taken), None)
    if meant is None:
        close = difflib.get_close_matches(unknown.lower(), taken, 1)
        if close:
            return f"did you mean `{close[0]}`?"
        return _HOW["variance"] if USUAL.get(unknown) == _VARIANCE else "leave it out"
    if unknown in _EACH_COLUMN:
        return f"{meant}=torch.ones(d) is one for each column"
    if unknown in _HOW:
        return _HOW[unknown]
    if meant == "max_iterations" and unknown in _STEPS:
        return _HOW[meant]
    return _HOW["likelihood"] if meant == "likelihood" else f"it is called `{meant}` here"
