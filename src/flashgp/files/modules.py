"""Foreign torch modules in a file: the tensors of their state, never their code. The caller brings the module."""

import copy
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from flashgp.foundations.errors import DomainError, ShapeError, warn
from flashgp.foundations.fingerprint import MARKS, NoFingerprintError, fingerprint
from flashgp.foundations.json_values import json_fields, json_list, json_text

FUNCTION = "function"  # in the place of a module's fields: a function of the caller's, which has no state
_FIELDS = ("state", "trainable", "training")


def module_state(module: nn.Module, key: str) -> dict[str, Tensor]:
    """Parameters and buffers by name. Raises: DomainError for a state that is not all tensors."""
    state = module.state_dict()
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise DomainError(
                f"`{key}` must have parameters and buffers only to be saved, got {type(value).__name__} as {name!r} of "
                "its state; keep it in a tensor"
            )
    return dict(state)


def module_description(module: nn.Module, key: str, trainable: Callable[[str], bool]) -> dict[str, Any]:
    """The names of its state, of its trainable parameters, and of its submodules in training mode."""
    return {
        "state": sorted(module_state(module, key)),
        "trainable": sorted(name for name, _ in module.named_parameters() if trainable(f"{key}.{name}")),
        "training": sorted(name for name, part in module.named_modules() if part.training),
    }


def code_marks(gp: nn.Module, keys: Iterable[str]) -> dict[str, Any]:
    """The fingerprint of the code of each module or function, null for one that has none, and the Python it is of."""
    return {"python": MARKS, "marks": {key: _mark(functools.reduce(getattr, key.split("."), gp)) for key in keys}}


def warn_of_other_code(marks: Any, keys: Mapping[str, Any], modules: Mapping[str, Any]) -> None:
    """Compare what `code_marks` wrote with the caller's modules; other versions of Python have other bytecode.

    Raises: ModelFileError for marks that are none.
    Warns: FlashGPWarning naming what has other code.
    """
    fields = json_fields(marks, "code", ("python", "marks"))
    stored = json_fields(fields["marks"], "code.marks", tuple(keys))
    for key, mark in stored.items():
        if mark is not None:
            json_text(mark, f"code.marks.{key[:60]}")
    if json_text(fields["python"], "code.python") != MARKS:
        return
    other = [key for key, mark in stored.items() if mark is not None and _mark(modules[key]) not in (mark, None)]
    if other:
        warn(
            f"the code of {', '.join(map(repr, other))} in `modules` is not that of the saved model: what it predicts "
            "may be wrong; pass what the model was saved with"
        )


def _mark(module: Any) -> str | None:
    try:
        return fingerprint(state=False, module=module)
    except NoFingerprintError:
        return None


def require_modules(keys: Mapping[str, Any], modules: Mapping[str, Any]) -> None:
    """Raises: DomainError naming the keys that are missing from `modules`, or that the file does not have."""
    for key, fields in keys.items():
        if fields != FUNCTION:
            json_fields(fields, f"modules.{key[:60]}", _FIELDS)
    missing = [key[:200] for key in keys if key not in modules][:20]
    if missing:
        wanted = ", ".join(f"{key!r}: ..." for key in missing)
        what = "function" if all(keys[key] == FUNCTION for key in missing) else "torch module"
        raise DomainError(
            f"`modules` must hold the {what} {', '.join(map(repr, missing))}, whose parameters are in the file "
            f"but whose code is not, got {sorted(modules)}; pass modules={{{wanted}}}, built as it was when saved"
        )
    unknown = [key for key in modules if key not in keys]
    if unknown:
        known = ", ".join(map(repr, keys)) or "none: the model has no foreign module"
        raise DomainError(f"`modules` names {unknown[0]!r}, which the file does not have; its keys are {known}")
    for key, module in modules.items():
        if keys[key] == FUNCTION:
            if not callable(module) or isinstance(module, nn.Module):
                raise DomainError(
                    f"`modules[{key!r}]` must be the function of two points, got {type(module).__name__}; pass the one "
                    "that Custom was made of"
                )
        elif not isinstance(module, nn.Module):
            raise DomainError(f"`modules[{key!r}]` must be a torch.nn.Module, got {type(module).__name__}")


def prepared_module(module: Any, key: str, description: Any, read: Callable[[str], Tensor]) -> Any:
    """A copy of the caller's module with the stored state, on the CPU; a function as it is. read: a tensor by its name.

    Raises: DomainError, ShapeError naming what differs between the module and the file.
    """
    if description == FUNCTION:
        return module
    fields = json_fields(description, f"modules.{key}", _FIELDS)
    lists: dict[str, list[str]] = {}
    for name in _FIELDS:
        where = f"modules.{key}.{name}"
        lists[name] = [json_text(entry, where) for entry in json_list(fields[name], where)]
    module = copy.deepcopy(module).cpu()
    current = {name: value for name, value in module.state_dict(keep_vars=True).items() if isinstance(value, Tensor)}
    stored = {name: read(f"{key}.{name}") for name in lists["state"]}
    advice = "build the module as it was when saved"
    for name in (*stored, *current):
        if name not in current or name not in stored:
            where = "the file" if name in stored else "the module"
            raise DomainError(
                f"`modules[{key!r}]` must have the state that was saved, but only {where} has {name!r}; {advice}"
            )
        if current[name].shape != stored[name].shape:
            raise ShapeError(
                f"`modules[{key!r}]` must have {name!r} of shape {tuple(stored[name].shape)}, got "
                f"{tuple(current[name].shape)}; {advice}"
            )
    with torch.no_grad():
        for name, value in current.items():
            value.data = value.data.to(stored[name].dtype)  # as it was trained: float64 modules stay float64
        try:
            module.load_state_dict(stored, strict=True)
        except (RuntimeError, ValueError, TypeError) as error:
            raise DomainError(f"`modules[{key!r}]` could not take the stored state ({error}); {advice}") from error
    for name, parameter in module.named_parameters():
        if parameter.is_floating_point():
            parameter.requires_grad_(name in lists["trainable"])
    for name, part in module.named_modules():
        part.training = name in lists["training"]
    return module
