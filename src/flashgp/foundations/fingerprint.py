"""A fingerprint of values, code included: equal in every process for equal models, and different for others.

A hash of what pickle would store, with functions and classes of the user's by value: bytecode, defaults, closures and
the globals that they read. The standard library and installed packages are named, not read. Nothing depends on memory
addresses, hash seeds, file names or line numbers. Bytecode differs between minor versions of Python.

A text attribute `fingerprint` of a function, class, module or object stands for it, beside a module's tensors.
"""

import copyreg
import dis
import functools
import hashlib
import importlib.util
import os
import pickle
import sys
import types
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Transform
from torch.distributions.transforms import _InverseTransform

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"  # that bytecode is of
MARKS = f"{PYTHON}, 2"  # and how it is hashed: other marks are not compared

_NAMED = frozenset({"torch", "numpy", "scipy", "flashgp", "builtins"})
_STANDARD = os.path.dirname(os.__file__) + os.sep
_INSTALLED = {"site-packages", "dist-packages"}
_PLAIN = (int, float, bool, complex, str, bytes, tuple, type(None), type(Ellipsis), type(NotImplemented))
_OF_MODULE = frozenset({"__name__", "__qualname__", "__module__", "__file__", "__doc__"})
# Of a class, made by Python or for readers only: what it computes stands elsewhere.
_OF_CLASS = _OF_MODULE | {
    "__dict__", "__weakref__", "__annotations__", "__annotate__", "__annotate_func__", "__annotations_cache__",
    "__firstlineno__", "__static_attributes__", "__abstractmethods__", "_abc_impl", "__parameters__",
    "__orig_bases__", "__type_params__", "__dataclass_fields__", "__dataclass_params__", "__match_args__",
    "_backward_cls", "not_fingerprinted",
}  # fmt: skip
_SLOTS = (types.MemberDescriptorType, types.GetSetDescriptorType)
_WRAPPERS = (property, staticmethod, classmethod, functools.cached_property, functools._lru_cache_wrapper)
_LAZY = (functools.cached_property, torch.distributions.utils.lazy_property)


class NoFingerprintError(Exception):
    """Error of a value that has no fingerprint.

    Fields: where, a dotted path to it; reason, what it is.
    """

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where} is {reason}")
        self.where, self.reason = where, reason


def fingerprint(*, state: bool = True, **parts: Any) -> str:
    """A hash of the named parts, 64 hexadecimal digits.

    Args:
        state: whether parameters and buffers of modules count.
        parts: any values.

    Raises:
        NoFingerprintError: for what pickle does not store (an open file, a lock, a generator).

    Cost:
        A pass over all bytes.
    """
    walk = _Walk(state)
    try:
        return walk.hashed(walk.fields(parts))
    except RecursionError:
        raise NoFingerprintError(".".join(walk.path[:8]), "nested too deeply") from None


class _Walk:
    """One walk over values: the objects met so far, and the path to where it is."""

    def __init__(self, state: bool) -> None:
        self.state = state
        self.met: dict[int, int] = {}
        self.kept: list[Any] = []  # stays alive: addresses tell what was met
        self.path: list[str] = []

    def hashed(self, value: Any) -> str:
        digest = hashlib.sha256()
        try:
            _Pickler(self, digest.update).dump(value)
        except (NoFingerprintError, RecursionError):
            raise
        except Exception as error:  # whatever the object's own code says
            raise self.refuse(f"something that pickle does not store ({error})"[:200]) from None
        return digest.hexdigest()

    def fields(self, named: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
        """Names and hashes of their values, in an order that says nothing."""
        found = []
        for name, value in sorted(named.items()):
            self.path.append(name)
            found.append((name, self.hashed(value)))
            self.path.pop()
        return tuple(found)

    def refuse(self, reason: str) -> NoFingerprintError:
        return NoFingerprintError(".".join(self.path), reason)

    # -- what pickle asks --------------------------------------------------------------------------------------------
    def stand_in(self, value: Any) -> object:
        """A name or a number for an object that is named, or that was met before; None for others."""
        kind = type(value)
        if kind in _PLAIN:
            return None
        if kind in (set, frozenset):
            return kind.__name__, sorted(_Walk(self.state).hashed(item) for item in value)
        if isinstance(value, type | types.FunctionType) and _is_found(value):
            return value.__module__, value.__qualname__
        if isinstance(value, types.ModuleType):
            if not _is_library(value.__name__):
                raise self.refuse(f"the Python module {value.__name__!r}")
            return ("module", value.__name__)
        if id(value) in self.met:
            return self.met[id(value)]
        self.met[id(value)] = len(self.met)
        self.kept.append(value)
        return None

    def parts(self, value: Any) -> tuple[Any, ...]:
        """The parts of an object."""
        if isinstance(value, nn.Module | types.FunctionType):
            for original in ("_orig_mod", "_torchdynamo_orig_callable"):  # of torch.compile
                value = getattr(value, original, value)
        stands = vars(value).get("fingerprint") if isinstance(value, type) else getattr(value, "fingerprint", None)
        if isinstance(stands, str):
            tensors = value.state_dict() if self.state and isinstance(value, nn.Module) else {}
            return "fingerprint", stands, self.fields(tensors)
        if isinstance(value, Tensor):
            return self.tensor(value)
        if isinstance(value, types.FunctionType):
            return self.function(value)
        if isinstance(value, types.CodeType):
            return _code(value)
        if isinstance(value, _WRAPPERS):
            inner = ("fget", "fset", "fdel", "func", "__wrapped__")
            return type(value).__name__, self.fields({name: getattr(value, name, None) for name in inner})
        if isinstance(value, type):
            members = {name: member for name, member in vars(value).items() if name not in _OF_CLASS}
            kept = {name: member for name, member in members.items() if not isinstance(member, _SLOTS)}
            return "class", value.__qualname__, value.__bases__, self.fields(kept)
        return self.object(value)

    def tensor(self, value: Tensor) -> tuple[Any, ...]:
        if not self.state and isinstance(value, nn.Parameter):
            return ("parameter",)
        plain = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
        content: Any = plain.reshape(-1).view(torch.uint8).numpy() if plain.numel() else b""
        kind = type(value).__name__, str(value.dtype), tuple(value.shape), value.requires_grad
        return "tensor", *kind, pickle.PickleBuffer(content)

    def function(self, function: types.FunctionType) -> tuple[Any, ...]:
        """Code, defaults, attributes, and what it reads of its closure and globals; of a library without code."""
        code, module = function.__code__, function.__module__
        cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
        known = {name: cell.cell_contents for name, cell in cells if cell != types.CellType()}
        own: Any = (module, function.__qualname__)
        if not _is_library(module):
            own = code
            if function.__doc__ is not None and code.co_consts[:1] == (function.__doc__,):
                own = code.replace(co_consts=(None, *code.co_consts[1:]))
            known = self.read(function.__globals__ | known | self.imported(function), _names(code), frozenset())
        said = {"defaults": function.__defaults__, "by keyword": function.__kwdefaults__, **vars(function)}
        return "function", own, self.fields(known), self.fields(said)

    def read(self, known: Mapping[str, Any], names: frozenset[str], within: frozenset[str]) -> dict[str, Any]:
        """Values that code with these names reads of a namespace, and of modules of the user's in it."""
        found = {}
        for name in sorted((names & known.keys()) - _OF_MODULE):
            value = known[name]
            if isinstance(value, types.ModuleType) and not _is_library(value.__name__):
                inside = within | {value.__name__}
                value = () if value.__name__ in within else self.fields(self.read(vars(value), names, inside))
            found[name] = value
        return found

    def imported(self, function: types.FunctionType) -> dict[str, Any]:
        """Modules of the user's that a function imports when it runs."""
        found = {}
        for name in _imports(function.__code__):
            module = sys.modules.get(name) or sys.modules.get(f"{function.__globals__.get('__package__')}.{name}")
            if module is None and not _is_library(name):
                raise self.refuse(f"a function that imports {name!r}, which has not been imported yet")
            found[name] = module
        return found

    def object(self, value: Any) -> tuple[Any, ...]:
        """Stored state of an object, as pickle has it, without what is computed on demand or says nothing."""
        if isinstance(value, _InverseTransform):  # which does not store what it is the inverse of
            return "inverse", value.inv
        kind = type(value)
        reducer = copyreg.dispatch_table.get(kind)
        reduced = value.__reduce_ex__(4) if reducer is None else reducer(value)
        if isinstance(reduced, str):
            return "global", kind.__name__, getattr(value, "__module__", None), reduced
        function, arguments, held, items, pairs = (*reduced, None, None, None)[:5]
        if isinstance(held, dict):
            held = self.fields(self.settled(value, {str(name): one for name, one in held.items()}))
        return "object", function, arguments, held, tuple(items or ()), tuple(pairs or ())

    def settled(self, value: Any, held: dict[str, Any]) -> dict[str, Any]:
        members = [(name, member) for base in type(value).__mro__ for name, member in vars(base).items()]
        skipped = {name for name, member in members if isinstance(member, _LAZY)}
        skipped.update(*(member for name, member in members if name == "not_fingerprinted"))
        if isinstance(value, Transform):
            skipped |= {"_cached_x_y", "_inv"}
        found = {name: one for name, one in held.items() if name not in skipped}
        if isinstance(value, Distribution):
            found |= {name: getattr(value, name) for name in value.arg_constraints if hasattr(value, name)}
        return self.of_module(found) if isinstance(value, nn.Module) else found

    def of_module(self, held: dict[str, Any]) -> dict[str, Any]:
        """Attributes, hooks without their numbers, which count all of a process, submodules, and tensors."""
        found: dict[str, Any] = {name: list(one.values()) if "_hooks" in name else one for name, one in held.items()}
        tensors = found.pop("_parameters") | found.pop("_buffers")
        parts = found.pop("_modules")
        for name in ("_compiled_call_impl", "_is_torch_compile", "_non_persistent_buffers_set"):
            found.pop(name, None)
        if not self.state:
            found.pop("training")
        return found | parts | {"parts": tuple(parts)} | (tensors if self.state else {})


class _Pickler(pickle.Pickler):
    """Writes into a hash. Without pickle's own memo, which tells equal texts apart by their addresses."""

    def __init__(self, walk: _Walk, write: Any) -> None:
        super().__init__(types.SimpleNamespace(write=write), 5)
        self.fast = True
        self.walk = walk

    def persistent_id(self, value: Any) -> Any:
        return self.walk.stand_in(value)

    def reducer_override(self, value: Any) -> Any:
        return tuple, (self.walk.parts(value),)


def _code(code: types.CodeType) -> tuple[Any, ...]:
    """Without line numbers, file names and its own name."""
    counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & 0x0C
    names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
    return "code", *counts, *names, code.co_code, code.co_consts, code.co_exceptiontable


def _is_found(value: type | types.FunctionType) -> bool:
    """True if a library calls it by its name."""
    if not _is_library(value.__module__):
        return False
    found: Any = sys.modules.get(value.__module__)
    for part in value.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is value


def _is_library(module: str | None) -> bool:
    """True for a module of the standard library or an installed package."""
    top = (module or "").split(".")[0]
    if top in _NAMED or not top or top == "__main__":
        return top in _NAMED
    try:
        spec = getattr(sys.modules.get(top), "__spec__", None) or importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return False
    if spec is None:
        return False
    file = (spec.origin if spec.has_location else None) or next(iter(spec.submodule_search_locations or ()), "")
    if not _INSTALLED.isdisjoint(PurePath(file).parts):
        return True
    return top in sys.stdlib_module_names and (not file or file.startswith(_STANDARD))


def _names(code: types.CodeType) -> frozenset[str]:
    """All names in code and in the functions inside it."""
    inside = (_names(one) for one in code.co_consts if isinstance(one, types.CodeType))
    return frozenset(code.co_names + code.co_freevars).union(*inside)


def _imports(code: types.CodeType) -> Iterable[str]:
    """The modules that code and the functions inside it import."""
    for step in dis.get_instructions(code):
        if step.opname == "IMPORT_NAME":
            yield step.argval
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            yield from _imports(one)
