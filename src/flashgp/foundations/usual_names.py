"""Arguments under the names that other libraries give them: refused with the name to use here.

One table for all constructors and calls: a name leads to the arguments that may mean it, of which a call takes the
first that it has. Nothing is accepted under two names. What is in the table is never taken for a misspelling.
"""

import difflib
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

from flashgp.foundations.errors import DomainError

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_LENGTHSCALE, _VARIANCE, _NOISE = ("lengthscale",), ("variance",), ("noise_variance", "likelihood")
USUAL: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("length_scale", "length_scales", "lengthscales", "ls", "ell"), _LENGTHSCALE),
    **dict.fromkeys(("ard_num_dims", "ARD", "ard"), ("lengthscale", "frequency", "variance")),
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
    **dict.fromkeys(("df", "dof", "nu"), ("degrees_of_freedom",)),
    **dict.fromkeys(("total_count", "n_trials"), ("trials",)),
    **dict.fromkeys(("sample_weight", "weights"), ("row_weight",)),
    "alpha": ("scale_mixture", "noise_variance", "likelihood"),
    "smoothness": ("nu",),
    "power": ("degree",),
    "order": ("degree",),
    "bias": ("offset",),
    "sigma": ("noise_variance", "variance"),
    "sigma_0": ("offset",),
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
    "batch_size": "gp.minibatch_bound is the bound of a batch, for a loop of your own",
    "variance": "a number times a kernel, 2.0 * kernel, has that variance",
    "input_dim": "leave it out for all columns of x; active_dims= takes the numbers of those it acts on",
}
_EACH_COLUMN = ("ard_num_dims", "ARD", "ard")
_STEPS = ("lr", "learning_rate", "step_size", "optimizer", "optimiser")
_DEVIATIONS = ("amplitude", "sigma_n", "obs_stddev", "sigma", "sigma_0")  # whose square is what is asked for here
_KNOWN = frozenset(USUAL) | frozenset(name for names in USUAL.values() for name in names)


def usual_names_refused(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """A call, or constructor, that answers an argument it does not have with the name of the one that is meant.

    Raises (on use): DomainError.
    """
    parameters = inspect.signature(function).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return function
    several = {name for name, p in parameters.items() if p.kind is p.VAR_POSITIONAL}
    known = frozenset(parameters) - several

    @functools.wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        unknown = next((name for name in kwargs if name not in known), None)
        if unknown is None:
            return function(*args, **kwargs)
        made = args[0] if function.__name__ == "__init__" else None  # of the class that was called
        name = function.__qualname__ if made is None else type(made).__name__
        taken = [f"*{p}" if p in several else p for p in parameters if p != "self"]
        raise DomainError(
            f"`{unknown}` is no argument of {name}, which takes {', '.join(taken)}; {_way(unknown, taken, made)}"
        )

    return call


def _way(unknown: str, taken: list[str], made: Any) -> str:
    """Advice in place of an unknown argument. Args: made, the object whose constructor it is; None for a call."""
    meant = next((name for name in USUAL.get(unknown, ()) if name in taken and _means(unknown, name, made)), None)
    square = ", its square" if unknown in _DEVIATIONS else ""
    if meant is None:
        close = (
            []
            if unknown in _KNOWN
            else difflib.get_close_matches(unknown.lower(), [name for name in taken if name[0] != "*"], 1)
        )
        if close:
            return f"did you mean `{close[0]}`?"
        of_output = "variance" in USUAL.get(unknown, ()) and unknown not in _EACH_COLUMN and made is not None
        return _HOW["variance"] + square if of_output else "leave it out"
    if unknown in _EACH_COLUMN:
        return f"{meant}=torch.ones(d) is one for each column"
    if unknown in _HOW:
        return _HOW[unknown]
    if meant == "max_iterations" and unknown in _STEPS:
        return _HOW[meant]
    if meant == "likelihood":
        return _HOW[meant] + square
    return f"`{meant}` is its square here" if square else f"it is called `{meant}` here"


def _means(unknown: str, name: str, made: Any) -> bool:
    """True if an argument of this name is what an object calls so: of each column, or of the output."""
    if unknown in _EACH_COLUMN:
        return name in getattr(made, "per_column", ())
    return name != "variance" or getattr(made, "roles", {}).get(name) != "slope_variance"
