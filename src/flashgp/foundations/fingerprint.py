"""A fingerprint of values, code included: equal in every process for equal models, and different for others.

Numbers and tensors count by their bytes, functions by their code, defaults, closures and the globals that they read,
classes by their methods, modules by parameters, buffers and attributes, other objects by what pickle would store. The
standard library and installed packages are named, not read; so are their functions and classes. Nothing depends on
memory addresses or hash seeds. Code is bytecode, which differs between minor versions of Python.

A text attribute `fingerprint` of a function, class, module or object stands for it, beside a module's tensors.
"""

import copyreg
import dis
import functools
import hashlib
import importlib.util
import os
import struct
import sys
import types
from collections.abc import Hashable, Iterable
from pathlib import PurePath
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Transform
from torch.distributions.transforms import _InverseTransform

__all__ = ["PYTHON", "NoFingerprintError", "fingerprint"]

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"  # that bytecode is of

# Named without a version: an update of these is not another model.
_NAMED = frozenset({"torch", "numpy", "scipy", "flashgp", "builtins"})
_STANDARD = os.path.dirname(os.__file__) + os.sep
_INSTALLED = ("site-packages", "dist-packages")
_PLAIN = (int, bool, complex, str, bytes, type(None), type(Ellipsis), type(NotImplemented))
_OF_MODULE = frozenset({"__name__", "__qualname__", "__module__", "__file__", "__doc__"})
# Of a class, made by Python or for readers only: what it computes stands elsewhere.
_OF_CLASS = _OF_MODULE | {
    "__dict__", "__weakref__", "__annotations__", "__annotate__", "__annotate_func__", "__annotations_cache__",
    "__firstlineno__", "__static_attributes__", "__abstractmethods__", "_abc_impl", "__parameters__",
    "__orig_bases__", "__type_params__", "__dataclass_fields__", "__dataclass_params__", "__match_args__",
    "_backward_cls", "not_fingerprinted",
}  # fmt: skip
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_TORCH_PARTS = ("_parameters", "_buffers", "_modules")


class NoFingerprintError(Exception):
    """Something that has no fingerprint.

    Fields: where, a dotted path to it; reason, what it is.
    """

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where} is {reason}")
        self.where, self.reason = where, reason


def fingerprint(*, state: bool = True, **parts: Any) -> str:
    """A hash of the named parts, 64 hexadecimal digits.

    Args: parts: any values; state: whether parameters and buffers of modules count.
    Raises: NoFingerprintError for what says nothing about its content (an open file, a lock, a generator, compiled
        code of a package that is not installed).
    Cost: a pass over all bytes.
    """
    walk = _Walk(state)
    try:
        for name, value in parts.items():
            walk.named(name, value)
    except RecursionError:
        raise NoFingerprintError(".".join(walk.path[:8]), "nested too deeply") from None
    return walk.digest.hexdigest()


class _Walk:
    """One walk over values: a digest, the objects met so far, and the path to where it is."""

    def __init__(self, state: bool) -> None:
        self.digest = hashlib.sha256()
        self.state = state
        self.met: dict[Hashable, int] = {}
        self.kept: list[Any] = []  # stays alive: addresses tell what was met
        self.path: list[str] = []

    # -- writing ----------------------------------------------------------------------------------------------------
    def write(self, *texts: object) -> None:
        for text in texts:
            data = str(text).encode(errors="surrogatepass")
            self.digest.update(b"%d:" % len(data) + data)

    def refuse(self, reason: str) -> NoFingerprintError:
        return NoFingerprintError(".".join(self.path), reason)

    def named(self, name: str, value: Any) -> None:
        self.write(name)
        self.path.append(name)
        self.value(value)
        self.path.pop()

    def fields(self, kind: str, fields: Iterable[tuple[str, Any]]) -> None:
        """Named values in an order that says nothing."""
        ordered = sorted(fields, key=lambda pair: pair[0])
        self.write(kind, len(ordered))
        for name, value in ordered:
            self.named(name, value)

    def again(self, *key: Hashable) -> bool:
        """Whether this was met before; its number then stands for it."""
        count = len(self.met)
        place = self.met.setdefault(key, count)
        if place < count:
            self.write("again", place)
        return place < count

    # -- values -----------------------------------------------------------------------------------------------------
    def value(self, value: Any) -> None:
        kind = type(value)
        if kind in _PLAIN:
            self.write(kind.__name__, repr(value) if kind is bytes else value)
        elif kind is float:
            self.write("float", struct.pack("<d", value).hex())
        elif kind is tuple:
            self.items("tuple", value)
        elif kind is frozenset or kind is set:
            self.write(kind.__name__, *sorted(_digest(item, self.state) for item in value))
        elif isinstance(value, types.CodeType):
            self.code(value)
        elif isinstance(value, types.ModuleType):
            self.python_module(value, frozenset())
        elif isinstance(value, torch.dtype | torch.device | torch.layout | torch.memory_format | PurePath):
            self.write(kind.__name__, value)
        elif not self.again(id(value)):
            self.kept.append(value)
            self.object(value)

    def object(self, value: Any) -> None:
        """What has an identity."""
        stands = None if isinstance(value, type) else getattr(value, "fingerprint", None)
        if isinstance(value, type):
            self.python_class(value)
        elif isinstance(stands, str):
            self.write("fingerprint", type(value).__qualname__, stands)
            if isinstance(value, nn.Module):
                self.tensors_of(value)
        elif isinstance(value, Tensor):
            self.tensor(value)
        elif isinstance(value, numpy.ndarray | numpy.generic):
            self.array(value)
        elif isinstance(value, nn.Module):
            self.torch_module(value)
        elif type(value) is list:
            self.items("list", value)
        elif type(value) is dict or isinstance(value, types.MappingProxyType):
            self.write("dict", len(value))
            for key, item in value.items():
                self.value(key)
                self.named(str(key)[:40], item)
        elif isinstance(value, types.FunctionType):
            self.function(value)
        elif isinstance(value, functools._lru_cache_wrapper):
            self.named("__wrapped__", value.__wrapped__)
        elif isinstance(value, types.MethodType):
            self.write("method")
            self.value(value.__func__)
            self.value(value.__self__)
        elif isinstance(value, types.CellType):
            self.cell(value)
        elif isinstance(value, functools.cached_property):
            self.named("func", value.func)
        elif isinstance(value, property):
            self.fields("property", [(name, getattr(value, name)) for name in ("fget", "fset", "fdel")])
        elif isinstance(value, staticmethod | classmethod):
            self.write(type(value).__name__)
            self.value(value.__func__)
        elif isinstance(value, _COMPILED):
            self.compiled(value)
        elif isinstance(value, Distribution | Transform):
            self.distribution(value)
        else:
            self.pickled(value)

    def items(self, kind: str, values: Iterable[Any]) -> None:
        values = list(values)
        self.write(kind, len(values))
        for place, value in enumerate(values):
            self.path.append(str(place))
            self.value(value)
            self.path.pop()

    def tensor(self, value: Tensor) -> None:
        if not self.state and isinstance(value, nn.Parameter):
            self.write("parameter")
            return
        self.write("tensor", type(value).__name__, value.dtype, tuple(value.shape), value.requires_grad)
        try:
            plain = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
            self.digest.update(plain.reshape(-1).view(torch.uint8).numpy().data if plain.numel() else b"")
        except (RuntimeError, TypeError, NotImplementedError) as error:
            raise self.refuse(f"a tensor without bytes of its own ({str(error)[:80]})") from None

    def array(self, value: Any) -> None:
        self.write("array", value.dtype.str, value.shape)
        if value.dtype.hasobject:
            self.value(value.tolist())
        else:
            self.digest.update(numpy.ascontiguousarray(value).tobytes())

    def distribution(self, value: Any) -> None:
        """Its arguments and all it holds, without what it computes on demand or remembers."""
        self.python_class(type(value))
        fields = _settled(value)
        if isinstance(value, Transform):
            fields.pop("_cached_x_y", None)
            if not isinstance(value, _InverseTransform):  # which alone is made of its inverse
                fields.pop("_inv", None)
        else:
            fields |= {name: getattr(value, name) for name in value.arg_constraints if hasattr(value, name)}
        self.fields("distribution", fields.items())

    def torch_module(self, module: nn.Module) -> None:
        original = getattr(module, "_orig_mod", None)
        if isinstance(original, nn.Module):  # of torch.compile
            self.value(original)
            return
        self.python_class(type(module))
        fields = _settled(module)
        skipped = {name for base in type(module).__mro__ for name in vars(base).get("not_fingerprinted", ())}
        hooks = {name: list(fields[name].values()) for name in _HOOKS if fields.get(name)}
        plain = {
            name: value
            for name, value in fields.items()
            if name not in _TORCH_PARTS and name not in skipped and "_hooks" not in name
            and name not in ("_compiled_call_impl", "_non_persistent_buffers_set")
        }  # fmt: skip
        if not self.state:
            plain.pop("training", None)
        self.fields("module", (plain | hooks).items())
        if self.state:
            for name in ("_parameters", "_buffers"):
                self.fields(name, fields[name].items())
        self.write(len(fields["_modules"]))
        for name, part in fields["_modules"].items():
            self.named(name, part)

    def tensors_of(self, module: nn.Module) -> None:
        if self.state:
            self.fields("tensors", [*module.named_parameters(), *module.named_buffers()])

    def pickled(self, value: Any) -> None:
        """What pickle would store of any other object."""
        kind = type(value)
        try:
            reducer = copyreg.dispatch_table.get(kind)
            reduced = value.__reduce_ex__(2) if reducer is None else reducer(value)
        except Exception as error:  # whatever the object's own code says
            raise self.refuse(f"of type {_full_name(kind)}, which does not say what it holds ({error})"[:200]) from None
        self.python_class(kind)
        if isinstance(reduced, str):
            self.write("global", reduced)
            return
        self.kept.append(reduced)
        function, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
        self.write("object")
        self.value(function)
        self.value(arguments)
        if isinstance(state, dict):
            lazy = _lazy_names(kind)
            self.fields("state", [(str(name), held) for name, held in state.items() if name not in lazy])
        else:
            self.value(state)
        self.items("items", items or ())
        self.items("pairs", pairs or ())

    # -- code -------------------------------------------------------------------------------------------------------
    def function(self, function: types.FunctionType) -> None:
        """Code, defaults, closure, attributes, and the globals it reads."""
        original = vars(function).get("_torchdynamo_orig_callable")
        if original is not None:  # of torch.compile
            self.value(original)
            return
        module = function.__globals__.get("__name__")
        library = _library(module)
        if library is not None:
            self.write("function", library, module, function.__qualname__)
            if _found(module, function.__qualname__) is function:
                return
        else:
            self.write("function")
            self.code(function.__code__)
        self.named("__defaults__", function.__defaults__)
        self.named("__kwdefaults__", function.__kwdefaults__)
        self.fields("attributes", vars(function).items())
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            self.path.append(name)
            self.cell(cell, _names(function.__code__))
            self.path.pop()
        if library is None:
            self.globals(function)

    def cell(self, cell: types.CellType, names: frozenset[str] = frozenset()) -> None:
        try:
            content = cell.cell_contents
        except ValueError:
            self.write("empty")
            return
        self.in_scope(content, names)

    def globals(self, function: types.FunctionType) -> None:
        """The values of global names that the code reads, and of modules that it imports."""
        known, names = function.__globals__, _names(function.__code__)
        for name in sorted(_reads(function.__code__, "LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")):
            if name in known and name not in _OF_MODULE:
                self.write(name)
                self.path.append(name)
                self.in_scope(known[name], names)
                self.path.pop()
        for name in sorted(_reads(function.__code__, "IMPORT_NAME")):
            self.write("import", name)
            found = sys.modules.get(name) or sys.modules.get(f"{known.get('__package__')}.{name}")
            if _library(found.__name__ if found else name) is not None:
                continue
            if found is None:
                raise self.refuse(f"a function that imports {name!r}, which has not been imported yet")
            self.in_scope(found, names)

    def in_scope(self, value: Any, names: frozenset[str]) -> None:
        """A value that code sees; of a module what that code's names may mean."""
        if isinstance(value, types.ModuleType):
            self.python_module(value, names)
        else:
            self.value(value)

    def python_module(self, module: types.ModuleType, names: frozenset[str]) -> None:
        library = _library(module.__name__)
        self.write("import", library, module.__name__)
        if library is None and not self.again(module.__name__, names):
            if not names:
                raise self.refuse(f"the Python module {module.__name__!r}")
            for name in sorted(names & vars(module).keys() - _OF_MODULE):
                self.write(name)
                self.path.append(name)
                self.in_scope(vars(module)[name], names)
                self.path.pop()

    def code(self, code: types.CodeType) -> None:
        """Instructions with what they mean, without line numbers, file names and docstrings."""
        self.write("code", code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & 0x0C)
        self.write(*code.co_varnames, "|", *code.co_freevars, "|", *code.co_cellvars, "|")
        self.digest.update(code.co_exceptiontable)
        for step in dis.get_instructions(code):
            self.write(step.opname)
            if step.opcode in dis.hasconst or not isinstance(step.argval, int | str | None):
                self.value(step.argval)
            else:
                self.write(step.argval)

    def python_class(self, kind: type) -> None:
        """Its name, and the code of all its own classes."""
        self.write("class", kind.__qualname__)  # whatever file its own code stands in
        for base in kind.__mro__:
            library = _library(base.__module__)
            if library is not None and _found(base.__module__, base.__qualname__) is base:
                self.write(library, _full_name(base))
            elif not self.again(base):
                if isinstance(stands := vars(base).get("fingerprint"), str):
                    self.write("fingerprint", stands)
                    continue
                members = [(name, member) for name, member in vars(base).items() if name not in _OF_CLASS]
                self.path.append(base.__qualname__)
                self.fields("members", [pair for pair in members if not isinstance(pair[1], _SLOTS)])
                self.path.pop()

    def compiled(self, value: Any) -> None:
        """Compiled code: named, where it is of a library."""
        owner = getattr(value, "__objclass__", None) or getattr(value, "__self__", None)
        module = owner if isinstance(owner, types.ModuleType) else None
        kind = owner if isinstance(owner, type) else type(owner)
        name = getattr(value, "__module__", None) or (module.__name__ if module else kind.__module__)
        library = _library(name)
        if library is None:
            raise self.refuse(f"{value.__name__}, compiled code of {name}, which is not an installed package")
        self.write("compiled", library, name, getattr(value, "__qualname__", value.__name__))
        if owner is not None and module is None and not isinstance(owner, type):
            self.value(owner)


_COMPILED = (
    types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType,
    types.ClassMethodDescriptorType,
)  # fmt: skip
_SLOTS = (types.MemberDescriptorType, types.GetSetDescriptorType)


def _digest(value: Any, state: bool) -> str:
    walk = _Walk(state)
    walk.value(value)
    return walk.digest.hexdigest()


def _settled(value: Any) -> dict[str, Any]:
    """The attributes of an object as pickle takes them, without those that are computed on demand."""
    state = value.__getstate__() if isinstance(value, nn.Module) else vars(value)
    if not isinstance(state, dict):
        state = vars(value)
    lazy = _lazy_names(type(value))
    return {name: held for name, held in state.items() if name not in lazy}


def _lazy_names(kind: type) -> set[str]:
    lazy = functools.cached_property, torch.distributions.utils.lazy_property
    return {name for base in kind.__mro__ for name, member in vars(base).items() if isinstance(member, lazy)}


def _full_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _found(module: Any, name: str) -> Any:
    """What a module calls by that qualified name."""
    value: Any = sys.modules.get(module)
    for part in name.split("."):
        value = getattr(value, part, None)
    return value


def _library(module: str | None) -> str | None:
    """The package of a module of the standard library or an installed package, with a version where it may matter."""
    top = (module or "").split(".")[0]
    if not top or top == "__main__":
        return None
    if top in _NAMED:
        return top
    loaded = sys.modules.get(top)
    try:
        spec = getattr(loaded, "__spec__", None) or importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    file = (spec.origin if spec.has_location else None) or next(iter(spec.submodule_search_locations or ()), "")
    if any(part in _INSTALLED for part in PurePath(file).parts):
        return f"{top} {getattr(loaded, '__version__', '')}"
    return top if top in sys.stdlib_module_names and (not file or file.startswith(_STANDARD)) else None


def _names(code: types.CodeType) -> frozenset[str]:
    """All names in code and in the functions inside it."""
    return frozenset(code.co_names).union(*(_names(c) for c in code.co_consts if isinstance(c, types.CodeType)))


def _reads(code: types.CodeType, *operations: str) -> set[str]:
    """What these instructions name, in code and in the functions inside it."""
    found = {step.argval for step in dis.get_instructions(code) if step.opname in operations}
    return found.union(*(_reads(c, *operations) for c in code.co_consts if isinstance(c, types.CodeType)))
