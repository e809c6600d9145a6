"""Functions of one point as graphs of torch operations: what a traced covariance function makes of x alone.

Equal operations on equal operands are one node, so that u(x) and u(x') are recognised as the same map u by identity.
A node is evaluated on one point; `torch.func.vmap` takes it to many.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False, repr=False)
class Node:
    """An operation on nodes and constants, or a leaf: target "point", "parameter" (args: its name) or "literal".

    Fields: example, its value at the point it was traced with; of_point, of_parameters: what it depends on.
    """

    target: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    example: Any
    of_point: bool
    of_parameters: bool

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.example.shape)


class Graph:
    """Nodes by structure: the same operation is one object."""

    def __init__(self, point: Tensor, parameters: Mapping[str, Tensor]) -> None:
        self._known: dict[Any, Node] = {}
        self.point = Node("point", (), {}, point, True, False)
        self.parameters = {n: Node("parameter", (n,), {}, v, False, True) for n, v in parameters.items()}

    def literal(self, value: Tensor) -> Node:
        """A tensor written in the function."""
        key = ("literal", tuple(value.shape), str(value.dtype), str(value.tolist()))
        return self._known.setdefault(key, Node("literal", (value,), {}, value, False, False))

    def call(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        """target(*args, **kwargs), where arguments may be (lists of) nodes."""
        target = functional(target)
        operands: list[Node] = []
        key = (str(target), _mapped(args, _text_of), _mapped(tuple(sorted(kwargs.items())), _text_of))
        _mapped((args, tuple(kwargs.values())), lambda a: operands.append(a) if isinstance(a, Node) else None)
        if key not in self._known:
            example = target(*_mapped(args, _example_of), **{k: _mapped(v, _example_of) for k, v in kwargs.items()})
            point, parameters = any(o.of_point for o in operands), any(o.of_parameters for o in operands)
            self._known[key] = Node(target, args, kwargs, example, point, parameters)
        return self._known[key]


def functional(target: Any) -> Any:
    """The operation without side effects: squeeze for squeeze_."""
    name = schema_name(target)
    if not name.endswith("_") or target is operator.getitem:
        return target
    return getattr(getattr(torch.ops.aten, name[:-1]), target._overloadname)


def schema_name(target: Any) -> str:
    """The name of an ATen operation without its namespace and overload."""
    if isinstance(target, str):
        return target
    schema = getattr(target, "_schema", None)
    return str(target.__name__) if schema is None else str(schema.name).split("::")[-1]


def _mapped(value: Any, leaf: Callable[[Any], Any]) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_mapped(entry, leaf) for entry in value)
    return leaf(value)


def _text_of(value: Any) -> Any:
    return ("node", id(value)) if isinstance(value, Node) else (type(value).__name__, repr(value))


def _example_of(value: Any) -> Any:
    return value.example if isinstance(value, Node) else value


def evaluate(nodes: Sequence[Node], point: Tensor | None, parameters: Mapping[str, Tensor]) -> list[Tensor]:
    """The values of nodes at one point; the point may be None for nodes that do not depend on it."""
    device = next((t.device for t in (point, *parameters.values()) if t is not None), None)
    known: dict[int, Any] = {}

    def value(node: Node) -> Any:
        if id(node) not in known:
            match node.target:
                case "point":
                    output: Any = point
                case "parameter":
                    output = parameters[node.args[0]]
                case "literal":
                    output = node.args[0].to(device)
                case _:
                    kwargs = {k: _mapped(v, resolved) for k, v in node.kwargs.items()}
                    if kwargs.get("device") is not None:
                        kwargs["device"] = device
                    output = node.target(*_mapped(node.args, resolved), **kwargs)
            known[id(node)] = output
        return known[id(node)]

    def resolved(entry: Any) -> Any:
        return value(entry) if isinstance(entry, Node) else entry

    return [value(node) for node in nodes]
