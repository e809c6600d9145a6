"""A GP as JSON and tensors, and back. Kinds are looked up in the registries; nothing in a file names code.

    kernel      {"kind", "options", "parameters": {argument: key}, "parts": [kernel, ...], "module": key or null}
    parameters  {key: {"lower", "upper", "event_dim", "constrained", "trainable", "prior"}}

Every Parameter stands in one flat table under its first dotted path ("kernel.lengthscale"); places that share it
name the same key. What is rebuilt is described again and compared: a file that says anything else is refused.
"""

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from flashgp import kernels, likelihoods, means
from flashgp.files.modules import FUNCTION, module_description, module_state, prepared_module, require_modules
from flashgp.files.priors import prior_from_tensors, prior_tensors
from flashgp.files.validation import refusing
from flashgp.foundations.errors import DomainError
from flashgp.foundations.json_values import (
    json_count,
    json_fields,
    json_flag,
    json_list,
    json_number,
    json_text,
    number_json,
    refused,
)
from flashgp.foundations.parameters import Domain, Parameter
from flashgp.inference.gp import GP
from flashgp.inference.prior import Prior
from flashgp.kernels.base import Kernel
from flashgp.likelihoods import Gaussian, Likelihood, Sites
from flashgp.likelihoods.held_sites import HeldSites

DESCRIPTION_FIELDS = ("kernel", "likelihood", "mean", "modules", "outputs", "parameters")
MAX_DEPTH = 64  # kernels within kernels
MAX_KERNELS = 1024
_PARTS = ("kind", "module", "options", "parameters", "parts")
_PARAMETER_FIELDS = ("constrained", "event_dim", "lower", "prior", "trainable", "upper")
_ROW_TENSORS = ("row_variance", "row_weight")
_SITES = ("targets", "variance", "excess")  # of each row
_GIVEN = ("mean", "variance", "cdf", "draw")  # functions of Custom beside log p
_UNIT = "weight_unit"  # of a likelihood with weights; those of older files are absolute, and have none
_NOISE = ("outputs", "shared")  # of a likelihood: how many outputs have noise of their own, or whether they share it


# -- from a GP ----------------------------------------------------------------------------------------------------
class _Describer:
    """One walk over a GP: paths by object, and the tables that fill on the way."""

    def __init__(self, gp: GP, trainable: Callable[[str], bool]) -> None:
        self.paths = {id(module): path for path, module in gp.named_modules()}
        self.trainable = trainable
        self.kernels = 0
        self.parameters: dict[str, Any] = {}
        self.modules: dict[str, Any] = {}
        self.tensors: dict[str, Tensor] = {}
        self.covered: dict[int, str] = {}  # torch parameters: the key of the entry that stores each

    def part(self, part: nn.Module, kind: str, options: Mapping[str, Any]) -> dict[str, Any]:
        children = {name: child for name, child in part._modules.items() if isinstance(child, Parameter)}
        parameters = {name: self.parameter(child) for name, child in children.items()}
        return {"kind": kind, "options": dict(options), "parameters": parameters, "parts": [], "module": None}

    def kernel(self, kernel: Kernel, depth: int = 1) -> dict[str, Any]:
        kind, path = type(kernel).__name__, self.paths[id(kernel)]
        if kind not in kernels.REGISTRY or kernels.REGISTRY[kind].kernel is not type(kernel):
            raise DomainError(
                f"`{path}` must be a covariance function of flashgp.kernels.REGISTRY to be saved, got {kind}; its code "
                "cannot be stored in a file, save its parameters with torch instead"
            )
        self.kernels += 1
        if depth > MAX_DEPTH or self.kernels > MAX_KERNELS:
            raise DomainError(
                f"`kernel` must have at most {MAX_KERNELS} parts, {MAX_DEPTH} deep, to be saved, got more at "
                f"{path[:200]}; save smaller models"
            )
        structure = kernel.structure()
        description = self.part(kernel, structure.pop("kind"), structure)
        description["parts"] = [self.kernel(part, depth + 1) for part in kernel.parts]
        if isinstance(kernel, kernels.Warped):
            description["module"] = self.module(kernel.module)
        if isinstance(kernel, kernels.Custom):
            description["module"] = f"{path}.function"
            self.modules[description["module"]] = FUNCTION
        return description

    def mean(self, mean: nn.Module) -> dict[str, Any]:
        kind = type(mean).__name__
        if means.REGISTRY.get(kind) is type(mean):
            structure: dict[str, Any] = cast(Any, mean).structure()
            return self.part(mean, structure.pop("kind"), structure)
        return {"kind": "Module", "options": {}, "parameters": {}, "parts": [], "module": self.module(mean)}

    def likelihood(self, likelihood: Likelihood) -> dict[str, Any]:
        kind, path = type(likelihood).__name__, self.paths[id(likelihood)]
        if isinstance(likelihood, HeldSites):
            found = self.rows_of(likelihood, "HeldSites", {}, _SITES)
            return {**found, "parts": [self.likelihood(likelihood.likelihood)]}
        if likelihoods.REGISTRY.get(kind) is not type(likelihood):
            raise DomainError(
                f"`{path}` must be a likelihood of flashgp.likelihoods.REGISTRY to be saved, got {kind}; its code "
                "cannot be stored in a file, write it as likelihoods.Custom"
            )
        if not isinstance(likelihood, Gaussian):
            structure: dict[str, Any] = cast(Any, likelihood).structure()
            kind, names = structure.pop("kind"), likelihood.of_rows
            found = self.rows_of(likelihood, kind, structure, names)
            if isinstance(likelihood, likelihoods.Custom):
                keys = {name: f"{path}.given.{name}" for name in vars(likelihood.given)}
                self.modules |= dict.fromkeys(keys.values(), FUNCTION)
                found["module"] = keys["function"]
            return found
        names = _ROW_TENSORS if likelihood.weight_unit is None else (*_ROW_TENSORS, _UNIT)
        rows = {name: getattr(likelihood, name) for name in names}
        self.tensors |= {f"likelihood.{name}": value for name, value in rows.items() if value is not None}
        options = {name: value is not None for name, value in rows.items()}
        noise = {name: getattr(likelihood, name) for name in _NOISE}
        return self.part(likelihood, "Gaussian", {**options, **noise})

    def rows_of(self, likelihood: Likelihood, kind: str, options: Mapping[str, Any], names: Sequence[str]) -> Any:
        """A likelihood with tensors of rows, by name, of which it may have none."""
        path = self.paths[id(likelihood)]
        known = {name: value for name in names if (value := getattr(likelihood, name)) is not None}
        self.tensors |= {f"{path}.{name}": value for name, value in known.items()}
        return self.part(likelihood, kind, {**options, "rows": list(known)})

    def parameter(self, parameter: Parameter) -> str:
        key = self.paths[id(parameter)]
        if key in self.parameters:
            return key
        self.cover({"raw": parameter.raw}, key)
        self.tensors[f"{key}.raw"] = parameter.raw
        name = None
        if parameter.prior is not None:
            name, arguments = prior_tensors(parameter.prior, parameter.raw.shape, key)
            self.tensors |= {f"{key}.prior.{argument}": value for argument, value in arguments.items()}
        self.parameters[key] = {
            "lower": number_json(parameter.domain.lower),
            "upper": number_json(parameter.domain.upper),
            "event_dim": parameter.event_dim,
            "constrained": parameter._constrained_by_user,
            "trainable": self.trainable(f"{key}.raw"),
            "prior": name,
        }
        return key

    def module(self, module: nn.Module) -> str:
        key = self.paths[id(module)]
        if key not in self.modules:
            self.cover(dict(module.named_parameters()), key)
            self.modules[key] = module_description(module, key, self.trainable)
            self.tensors |= {f"{key}.{name}": value for name, value in module_state(module, key).items()}
        return key

    def cover(self, weights: Mapping[str, Tensor], key: str) -> None:
        for name, value in weights.items():
            if self.covered.setdefault(id(value), key) != key:
                raise DomainError(
                    f"`{key}` and `{self.covered[id(value)]}` share the parameter {name!r}, which a file cannot say; "
                    "share whole modules or flashgp Parameters between covariance functions, or save a copy"
                )


def describe(gp: Prior, trainable: Mapping[str, bool]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """JSON and tensors of a GP.

    Args:
        trainable: by the names of `gp.named_parameters()`: whether learning may change it.
    Raises: DomainError naming what cannot be stored: a kernel outside the registry, another prior, a shared weight.
    """
    if type(gp) is not GP:
        raise DomainError(f"`gp` must be a flashgp.GP to be saved, got its subclass {type(gp).__name__}")
    walk = _Describer(gp, lambda name: bool(trainable.get(name, False)))
    description = {
        "kernel": walk.kernel(gp.kernel),
        "mean": walk.mean(gp.mean),
        "likelihood": walk.likelihood(gp.likelihood),
        "outputs": gp.outputs,
        "parameters": walk.parameters,
        "modules": walk.modules,
    }
    for name, value in gp.named_parameters():
        if id(value) not in walk.covered:
            raise DomainError(f"`{name}` is part of no covariance function, mean or likelihood and cannot be saved")
    return description, walk.tensors


# -- back to a GP -------------------------------------------------------------------------------------------------
class _Builder:
    """One walk over a description that nobody vouches for."""

    def __init__(self, parameters: Mapping[str, Parameter], modules: Mapping[str, Any]) -> None:
        self.parameters = parameters
        self.modules = modules
        self.kernels = 0

    def arguments(self, fields: Mapping[str, Any], constructor: Callable[..., Any], where: str) -> dict[str, Any]:
        """Options, Parameters and the module as keyword arguments of a constructor; nothing it does not take."""
        options, keys = fields["options"], fields["parameters"]
        if not isinstance(options, dict) or not isinstance(keys, dict) or options.keys() & keys.keys():
            raise refused(where, "options and parameters by name", options)
        # All its parameters come from the table: a constructor left to make its own might make a huge one.
        roles = getattr(constructor, "roles", {})
        # Those of a user's function are the function's own names: its constructor refuses others.
        named = constructor not in (kernels.Custom, likelihoods.Custom)
        if named and (not keys.keys() <= roles.keys() or (constructor is not Gaussian and keys.keys() != roles.keys())):
            raise refused(f"{where}.parameters", f"those of its kind ({', '.join(roles) or 'none'})", sorted(keys))
        for name in options:
            if name not in inspect.signature(constructor).parameters:
                raise refused(f"{where}.options", "those that its kind takes", name)
        arguments = dict(options)
        for name, key in keys.items():
            if not isinstance(key, str) or key not in self.parameters:
                raise refused(f"{where}.parameters.{name}", "a key of `parameters`", key)
            arguments[name] = self.parameters[key]
        if fields["module"] is not None:
            arguments["module" if named else "function"] = self.module(fields["module"], where)
        return arguments

    def module(self, key: object, where: str) -> Any:
        if not isinstance(key, str) or key not in self.modules:
            raise refused(f"{where}.module", "a key of `modules`", key)
        return self.modules[key]

    def kernel(self, description: Any, where: str, depth: int = 1) -> Kernel:
        fields = json_fields(description, where[:60], _PARTS)
        kind = fields["kind"]
        if not isinstance(kind, str) or kind not in kernels.REGISTRY:
            raise refused(f"{where[:60]}.kind", f"one of {', '.join(kernels.REGISTRY)}", kind)
        self.kernels += 1
        if depth > MAX_DEPTH or self.kernels > MAX_KERNELS:
            raise refused("kernel", f"of at most {MAX_KERNELS} parts, {MAX_DEPTH} deep", "more")
        constructor = kernels.REGISTRY[kind].kernel
        arguments = self.arguments(fields, constructor, where[:60])
        parts = json_list(fields["parts"], f"{where[:60]}.parts")
        built = [self.kernel(part, f"{where}.parts[{i}]", depth + 1) for i, part in enumerate(parts)]
        if any(p.kind is p.VAR_POSITIONAL for p in inspect.signature(constructor).parameters.values()):
            return constructor(*built, **arguments)
        if built:
            arguments["kernel"] = built[0]
        return constructor(**arguments)

    def mean(self, description: Any) -> nn.Module:
        fields = json_fields(description, "mean", _PARTS)
        kind = fields["kind"]
        if kind == "Module":
            module = self.module(fields["module"], "mean")
            if not isinstance(module, nn.Module):
                raise refused("mean.module", "the key of a torch module", fields["module"])
            return module
        if not isinstance(kind, str) or kind not in means.REGISTRY:
            raise refused("mean.kind", f"Module or one of {', '.join(means.REGISTRY)}", kind)
        constructor = means.REGISTRY[kind]
        return constructor(**self.arguments(fields, constructor, "mean"))

    def likelihood(self, description: Any, read: Callable[[str], Tensor], path: str = "likelihood") -> Likelihood:
        fields = json_fields(description, path, _PARTS)
        kind, options = fields["kind"], fields["options"]
        if kind != "Gaussian":
            return self.non_gaussian(fields, read, path)
        names = (*_ROW_TENSORS, _UNIT) if isinstance(options, dict) and _UNIT in options else _ROW_TENSORS
        rows = json_fields(options, "likelihood.options", (*names, *_NOISE))
        if rows["outputs"] is not None:
            json_count(rows["outputs"], "likelihood.options.outputs", 2**31)
        json_flag(rows["shared"], "likelihood.options.shared")
        tensors = {name: read(f"likelihood.{name}") for name in names if rows[name] is True}
        if any(value.dtype != torch.float64 for value in tensors.values()):
            raise refused("likelihood", "row tensors in float64", "another dtype")
        arguments = self.arguments({**fields, "options": {}}, Gaussian, "likelihood")
        noise = {"noise_variance": None, **{name: rows[name] for name in _NOISE}}
        weight, unit = tensors.pop("row_weight", None), tensors.pop(_UNIT, None)
        return Gaussian(**{**noise, **arguments, **tensors}).with_weights(weight, unit)

    def non_gaussian(self, fields: Mapping[str, Any], read: Callable[[str], Tensor], path: str) -> Likelihood:
        """A likelihood with sites found by iteration, or the sites that are held of one."""
        kind, options, held = fields["kind"], fields["options"], fields["kind"] == "HeldSites"
        if not held and (not isinstance(kind, str) or kind not in likelihoods.REGISTRY):
            raise refused(f"{path}.kind", f"one of {', '.join(likelihoods.REGISTRY)}", kind)
        constructor: Any = HeldSites if held else likelihoods.REGISTRY[kind]
        names = _SITES if held else constructor.of_rows
        if not isinstance(options, dict) or not isinstance(options.get("rows"), list):
            raise refused(f"{path}.options", "an object with the names of its rows", options)
        if not set(map(str, options["rows"])) <= set(names):
            raise refused(f"{path}.options.rows", f"some of {', '.join(names) or 'none'}", options["rows"])
        rows = {name: read(f"{path}.{name}") for name in options["rows"]}
        if held:
            (part,) = json_list(fields["parts"], f"{path}.parts")
            sites = Sites(rows["targets"], rows["variance"])
            return HeldSites(self.likelihood(part, read, f"{path}.likelihood"), sites, rows.get("excess"))
        plain = {name: value for name, value in options.items() if name not in ("rows", "method")}
        arguments = self.arguments({**fields, "options": plain}, constructor, path)
        if constructor is likelihoods.Custom:
            given = {key.removeprefix(f"{path}.given."): function for key, function in self.modules.items()}
            arguments |= {name: function for name, function in given.items() if name in _GIVEN}
        built: Likelihood = constructor(**arguments, **rows)
        return built.by_method(options["method"]) if "method" in options else built


def rebuild(description: Mapping[str, Any], read: Callable[[str], Tensor], modules: Mapping[str, Any]) -> GP:
    """The GP of a description.

    Args:
        description: the JSON that `describe` made; read: a stored tensor by name; modules: by key.
    Raises: ModelFileError for a description that `describe` did not make; DomainError, ShapeError for modules that
        are missing or do not fit.
    """
    tables = {name: description[name] for name in ("parameters", "modules")}
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise refused(name, "an object", table)
    require_modules(tables["modules"], modules)
    prepared = {key: prepared_module(modules[key], key, fields, read) for key, fields in tables["modules"].items()}
    raws = {key: _raw(read, key) for key in tables["parameters"]}
    # While constructors look at them, parameters are zeros of the right shape without a domain: a trained value may
    # have reached the edge of its domain in floating point, which no constructor would admit.
    real = torch.distributions.constraints.real
    parameters = {key: Parameter(torch.zeros_like(raw), real) for key, raw in raws.items()}
    build = _Builder(parameters, prepared)
    with refusing("the model"):
        kernel = build.kernel(description["kernel"], "kernel")
        mean = build.mean(description["mean"])
        gp = GP(kernel, mean, build.likelihood(description["likelihood"], read), description["outputs"])
        for key, fields in tables["parameters"].items():
            _settle(parameters[key], raws[key], key, fields, read)
        for part in gp.modules():
            if isinstance(part, kernels.Custom):
                part.forget()  # what it found with zeros for its parameters
        flags = {name: value.requires_grad for name, value in gp.named_parameters()}
        again, _ = describe(gp, flags)
    for name in DESCRIPTION_FIELDS:
        if _text(again[name]) != _text(description[name]):
            raise refused(name, "what flashgp.save writes", "another description")
    return gp


def with_noise_of_outputs(description: dict[str, Any], version: int) -> tuple[dict[str, Any], bool]:
    """A description of any format version as one of the latest, and whether outputs have noise of their own.

    Before version 5 all outputs shared their noise.
    """
    likelihood = description["likelihood"]
    options = likelihood.get("options") if isinstance(likelihood, dict) else None
    if not isinstance(options, dict):
        return description, False  # refused when it is rebuilt
    if version < 5 and not options.keys() & set(_NOISE):
        options = {**options, "outputs": None, "shared": description["outputs"] is not None}
        description = {**description, "likelihood": {**likelihood, "options": options}}
    of_classes = likelihood.get("kind") == "HeldSites" and description["outputs"] is not None  # a function for each
    return description, options.get("outputs") is not None or of_classes


def _text(value: Any) -> str:
    """Comparable JSON: true, 1 and 1.0 differ."""
    return json.dumps(value, sort_keys=True)


def _raw(read: Callable[[str], Tensor], key: str) -> Tensor:
    raw = read(f"{key}.raw")
    if raw.dtype != torch.float64 or raw.numel() == 0 or not bool(raw.isfinite().all()):
        raise refused(f"{key[:60]}.raw", "finite numbers in float64", str(raw.dtype))
    return raw


def _settle(parameter: Parameter, raw: Tensor, key: str, fields: Any, read: Callable[[str], Tensor]) -> None:
    """Give a Parameter its stored bits, domain and prior."""
    where = f"parameters.{key[:60]}"
    fields = json_fields(fields, where, _PARAMETER_FIELDS)
    lower, upper = (json_number(fields[name], f"{where}.{name}") for name in ("lower", "upper"))
    if not lower < upper:
        raise refused(where, "a domain with lower < upper", [lower, upper])
    parameter.domain = Domain(lower, upper)
    parameter.event_dim = max(parameter.event_dim, json_count(fields["event_dim"], f"{where}.event_dim", raw.dim()))
    parameter._constrained_by_user = json_flag(fields["constrained"], f"{where}.constrained")
    parameter.raw = nn.Parameter(raw, requires_grad=json_flag(fields["trainable"], f"{where}.trainable"))
    if fields["prior"] is not None:
        name = json_text(fields["prior"], f"{where}.prior")
        parameter.prior = prior_from_tensors(name, lambda argument: read(f"{key}.prior.{argument}"), raw.shape, where)
