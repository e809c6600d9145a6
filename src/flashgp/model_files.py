"""`flashgp.save` and `flashgp.load`: a file gives back what was saved, a posterior or the model of a table.

The format is that of `flashgp.files`; what turns columns into numbers and back is in the file's metadata.
"""

import os
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from flashgp import files

if TYPE_CHECKING:
    import torch
    from torch import nn

    from flashgp.estimator import GPRegressor
    from flashgp.inference.fit import Fit
    from flashgp.inference.posterior import Posterior
    from flashgp.table_model import TableModel

_TABLE, _ESTIMATOR = "flashgp.table", "flashgp.estimator"  # keys of a file's metadata
_NOTHING: Mapping[str, Any] = MappingProxyType({})


def save(
    model: "Posterior | Fit | TableModel | GPRegressor",
    path: str | os.PathLike[str],
    *,
    metadata: Mapping[str, Any] = _NOTHING,
) -> None:
    """Write a model to one safetensors file, whole or not at all.

    Args:
        model: a posterior, a fit (its posterior), a TableModel, or a fitted GPRegressor, the latter two with their
            columns and units. A differentiable posterior is saved without its graph.
        path: the file; an existing one is replaced once the new one is complete.
        metadata: JSON values of the caller's own, for `flashgp.files.load_metadata`.

    Raises:
        DomainError: for a model that a file cannot hold (a kernel outside the registry, a prior outside the list, a
            module whose state is not all tensors), metadata that is not JSON, or a path that cannot be written.

    Warns:
        FlashGPWarning: naming the keys of foreign modules, whose code is not stored.
    Cost: O(n^2) bytes written and checksummed, n (n + 1) / 2 numbers of the factor; no copy of it on the CPU.

    Example:
        >>> x = torch.linspace(0.0, 1.0, 10, dtype=torch.float64).unsqueeze(-1)
        >>> posterior = fgp.GP(fgp.kernels.RBF()).condition(x, x[:, 0].sin())
        >>> fgp.save(posterior, "model.safetensors")
        >>> again = fgp.load("model.safetensors")
        >>> bool(torch.equal(again.predict(x).mean, posterior.predict(x).mean))
        True
    """
    kinds = {kind.__module__ for kind in type(model).__mro__}  # nothing is imported for what it is not
    if "flashgp.table_model.model" in kinds:
        cast("TableModel", model).save(path, metadata=metadata)
    elif "flashgp.estimator.regressor" in kinds:
        from flashgp.estimator.saved import save_regressor

        save_regressor(cast("GPRegressor", model), path, metadata)
    else:
        files.save(cast("Posterior | Fit", model), path, metadata=metadata)


def load(
    path: str | os.PathLike[str],
    modules: "Mapping[str, nn.Module | Callable[..., torch.Tensor]]" = _NOTHING,
    *,
    device: "str | torch.device | None" = None,
) -> Any:
    """Read what `save` or `flashgp fit` wrote; it predicts what the saved one did, bit by bit on the same machine.

    Args:
        path: the file.
        modules: foreign modules by key, built as they were when saved; copies of them receive the stored numbers.
            Functions of Custom by key, as they are.
        device: None for the CPU, "auto" for an accelerator when there is one.

    Returns:
        What was saved: a Posterior; a TableModel, also for files that `flashgp fit` wrote, which takes columns as they
        are and answers in units of the table (its `.posterior` is the standardised one); or a GPRegressor, without
        X_train_, y_train_ and history_, its own kernel, mean and likelihood with the fitted parameters.

    Raises:
        ModelFileError: for a file that cannot be read, is truncated, damaged, foreign, hostile or of another version.
        DomainError, ShapeError: for modules that are missing or do not fit.
        MemoryBudgetError: when the model is larger than the free memory, before anything large is allocated.
    Cost: one pass over the file; no factorisation.

    Example:
        >>> posterior = fgp.GP(fgp.kernels.RBF()).condition(torch.zeros(1, 2), torch.ones(1))
        >>> fgp.save(posterior, "model.safetensors")
        >>> fgp.load("model.safetensors").count
        1
    """
    metadata = files.load_metadata(path)
    if _TABLE in metadata:
        from flashgp.table_model import TableModel

        return TableModel.load(path, modules, device=device)
    if _ESTIMATOR in metadata:
        from flashgp.estimator.saved import load_regressor

        return load_regressor(path, modules, device)
    return files.load(path, modules, device=device)
