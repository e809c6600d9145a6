"""The safetensors file of a model: tensors, and texts of JSON beside them.

The safetensors library checks the header against the size of the file. Bytes are read and written here. The library
reads from a memory map, where a file that is truncated meanwhile ends the process; its writer would hold a second copy
of the factor's triangle. Every tensor and the header carry a checksum. It finds damage; it does not prove who wrote the
file.
"""

import contextlib
import hashlib
import itertools
import json
import math
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BufferedReader
from typing import Any

import numpy
import numpy.typing
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from flashgp.foundations.atomic import replacing
from flashgp.foundations.errors import DomainError, ModelFileError
from flashgp.foundations.json_values import json_fields, parse_json, refused

FORMAT = "flashgp"
FORMAT_VERSION = 5
# 1 always has a factor, and plans of two routes; nothing is known of learning online before 3, of a tolerance before 4;
# before 5 all outputs share their noise
READABLE = (1, 2, 3, 4, 5)
MAX_HEADER_BYTES = 16 * 2**20
PIECE_BYTES = 2**24
TEXTS = ("checksums", "config", "format", "format_version", "metadata", "sha256")
DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8,
    "BOOL": torch.bool,
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_UNKNOWN = "0" * 64  # holds the place of a checksum until the bytes have been written

Bytes = numpy.typing.NDArray[Any]


@dataclass(frozen=True)
class Entry:
    """A tensor to write: dtype and shape as stored, and the bytes in order, piece by piece."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    pieces: Callable[[], Iterable[Bytes]]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def stored(tensor: Tensor) -> tuple[Entry, list[int] | None]:
    """All entries in the order of the tensor's memory, and that order of dimensions where it is not the usual one.

    A tensor comes back with the strides it had: the same numbers in another order may give a product another last bit.
    """
    order = list(range(tensor.dim()))
    if not tensor.is_contiguous():
        # Expanded and single dimensions have no say; they stay in front.
        strides = [s if s and size > 1 else math.inf for s, size in zip(tensor.stride(), tensor.shape, strict=True)]
        order.sort(key=lambda i: -strides[i])
    tensor = tensor.permute(order)
    entry = Entry(tensor.dtype, tuple(tensor.shape), lambda: _pieces(_bytes(tensor.detach().cpu().contiguous())))
    return entry, None if order == sorted(order) else order


def lower_triangle(lower: Tensor) -> Entry:
    """The lower triangle of (*batch, n, n), column after column from the diagonal down, as (*batch, n (n + 1) / 2)."""
    n = lower.shape[-1]

    def pieces() -> Iterator[Bytes]:
        # A view, not a copy, of a factor as Cholesky leaves it: column by column.
        columns = lower.detach().cpu().mT.contiguous().reshape(-1, n, n).numpy()
        return (columns[member, j, j:] for member in range(columns.shape[0]) for j in range(n))

    return Entry(lower.dtype, (*lower.shape[:-2], n * (n + 1) // 2), pieces)


def stacked(entries: Sequence[Entry]) -> Entry:
    """Entries of one shape and dtype, one after the other, with a dimension for them in front."""
    first = entries[0]
    pieces = [entry.pieces for entry in entries]
    return Entry(first.dtype, (len(entries), *first.shape), lambda: itertools.chain.from_iterable(p() for p in pieces))


def _bytes(tensor: Tensor) -> Bytes:
    """The memory of a contiguous tensor on the CPU."""
    # An expanded tensor without entries is contiguous too, with a stride of 0.
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy()


def _pieces(data: Bytes) -> Iterator[Bytes]:
    return (data[start : start + PIECE_BYTES] for start in range(0, data.size, PIECE_BYTES))


def file_path(path: Any) -> str:
    """The name of a file. Raises: DomainError for what is none."""
    try:
        return os.fsdecode(path)
    except TypeError:
        raise DomainError(
            f"`path` must be the name of a file, got {type(path).__name__}; for example 'model.safetensors'"
        ) from None


# -- writing ------------------------------------------------------------------------------------------------------
def write_container(path: str, entries: Mapping[str, Entry], config: str, metadata: str) -> None:
    """Write a file whole or not at all: beside its name, synced, then renamed over it.

    Raises: DomainError for a dtype the format lacks, a header over the limit, or a path that cannot be written;
        what was there before is then untouched.
    """
    for name, entry in entries.items():
        if entry.dtype not in _NAMES:
            raise DomainError(f"`{name}` has dtype {entry.dtype}, which a model file does not hold; convert it first")
    # Wide types first, so that every tensor is aligned for readers that map the file into memory.
    names = sorted(entries, key=lambda name: (-entries[name].dtype.itemsize, name))
    checksums = dict.fromkeys(names, _UNKNOWN)
    header = _header(entries, checksums, config, metadata)
    if len(header) > MAX_HEADER_BYTES:
        raise DomainError(
            f"`metadata` and the model's description must take at most {MAX_HEADER_BYTES:,} bytes, got "
            f"{len(header):,}; store less metadata"
        )
    try:
        with replacing(path) as file:
            file.write(header)
            for name in names:
                checksum = hashlib.sha256()
                for piece in entries[name].pieces():
                    file.write(piece.data)
                    checksum.update(piece.data)
                checksums[name] = checksum.hexdigest()
            file.seek(0)
            file.write(_header(entries, checksums, config, metadata))
    except OSError as error:
        raise DomainError(
            f"`path` must be a file that can be written, got {path!r} ({error.strerror or error}); choose an existing "
            "folder with room where you may write"
        ) from error


def _header(entries: Mapping[str, Entry], checksums: Mapping[str, str], config: str, metadata: str) -> bytes:
    """Length and header; as long with other checksums."""
    fields: dict[str, Any] = {}
    start = 0
    for name in checksums:
        entry = entries[name]
        stop = start + entry.nbytes
        fields[name] = {"dtype": _NAMES[entry.dtype], "shape": list(entry.shape), "data_offsets": [start, stop]}
        start = stop
    texts = {
        "format": FORMAT, "format_version": str(FORMAT_VERSION), "config": config, "metadata": metadata,
        "checksums": json.dumps(dict(checksums)),
    }  # fmt: skip
    sealed = {"__metadata__": {**texts, "sha256": _seal(texts, fields)}, **fields}
    text = json.dumps(sealed, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _seal(texts: Mapping[str, str], fields: Mapping[str, Any]) -> str:
    """The checksum of everything in the header but itself."""
    return hashlib.sha256(json.dumps([texts, fields], sort_keys=True).encode()).hexdigest()


# -- reading ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Container:
    """A file whose header has been checked.

    Fields:
        file: opened for reading.
        version: of the format.
        config, metadata: parsed JSON.
        slots: dtype and shape of each tensor as stored, and where its bytes begin in the file.
        checksums: of each tensor.
        layouts: the order of dimensions in memory of tensors that have another one than usual.
        read: names of the tensors asked for so far.
    """

    file: BufferedReader
    version: int
    config: Any
    metadata: Any
    slots: Mapping[str, tuple[torch.dtype, tuple[int, ...], int]]
    checksums: Mapping[str, str]
    layouts: Mapping[str, list[int]]
    read: set[str] = field(default_factory=set)

    def __contains__(self, name: str) -> bool:
        return name in self.slots

    def dtype(self, name: str) -> torch.dtype:
        return self.slots[name][0]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors as stored."""
        return sum(math.prod(shape) * dtype.itemsize for dtype, shape, _ in self.slots.values())

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape that a tensor will have. Raises: ModelFileError when it is missing."""
        if name not in self.slots:
            raise refused(name[:60], "a tensor of the file", None)
        shape, order = self.slots[name][1], self.layouts.get(name)
        return shape if order is None else tuple(shape[order.index(i)] for i in range(len(order)))

    def tensor(self, name: str) -> Tensor:
        """A tensor in the layout it had. Raises: ModelFileError when it is missing or its bytes are damaged."""
        self.shape(name)
        dtype, shape, _ = self.slots[name]
        tensor, order = torch.empty(shape, dtype=dtype), self.layouts.get(name)
        self._fill(name, _pieces(_bytes(tensor)))
        if dtype is torch.bool and bool((tensor.view(torch.uint8) > 1).any()):
            raise refused(name, "booleans 0 and 1", "another byte")
        return tensor if order is None else tensor.permute([order.index(i) for i in range(len(order))])

    def lower_triangle(self, name: str, n: int) -> Tensor:
        """The tensor that `lower_triangle` wrote, as (*batch, n, n) stored column by column; the caller has checked the
        shape."""
        dtype, (*batch, _), _ = self.slots[name]
        columns = torch.zeros(*batch, n, n, dtype=dtype)
        flat = columns.reshape(math.prod(batch), n, n).numpy()
        self._fill(name, (flat[member, j, j:] for member in range(len(flat)) for j in range(n)))
        return columns.mT

    def require_all_read(self) -> None:
        extra = self.slots.keys() - self.read
        if extra:
            raise refused("the tensors", "those of the model", sorted(extra)[0])

    def _fill(self, name: str, arrays: Iterable[Bytes]) -> None:
        """Read the bytes of a tensor into contiguous arrays that hold as many together."""
        self.read.add(name)
        checksum = hashlib.sha256()
        try:
            self.file.seek(self.slots[name][2])
            for array in arrays:
                if self.file.readinto(array.data) < array.nbytes:
                    raise OSError("the file was truncated meanwhile")
                checksum.update(array.data)
        except OSError as error:
            raise refused(name, f"readable ({str(error)[:120]})", "something else") from None
        if checksum.hexdigest() != self.checksums[name]:
            raise refused(name, "as it was written", "other bytes: its checksum differs")


@contextlib.contextmanager
def open_container(path: str) -> Iterator[Container]:
    """Open a file and check its header; nothing larger than the header is allocated.

    Raises: ModelFileError for a file that cannot be read or is not one of ours.
    """
    with contextlib.ExitStack() as stack:
        try:
            if not stat.S_ISREG(os.stat(path).st_mode):  # a pipe would wait for ever, a device never end
                raise OSError("it is a folder" if os.path.isdir(path) else "it is not a regular file")
            file = stack.enter_context(open(path, "rb"))
            start = file.read(8)
            size, length = os.fstat(file.fileno()).st_size, int.from_bytes(start, "little")
            ours = len(start) == 8 and 2 <= length <= MAX_HEADER_BYTES
            text = file.read(length) if ours and length <= size - 8 else b""
        except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
            reason = getattr(error, "strerror", None) or str(error)
            raise ModelFileError(
                f"`path` must be a file that can be read, got {path!r} ({reason}); check it"
            ) from error
        if not ours:
            begin = f"begins with {start.decode('ascii', 'backslashreplace')!r}" if start else "is empty"
            raise ModelFileError(
                f"{path!r} is no model file of FlashGP, it {begin}; pass a file that `flashgp fit` or flashgp.save "
                "wrote",
                foreign=True,
            )
        try:
            if not text:
                raise ModelFileError(
                    f"the file is truncated, got {size:,} bytes of more than {length:,}; save the model again"
                )
            yield _container(file, path, parse_json(text, "header"))
        except ModelFileError as error:
            raise ModelFileError(f"{path!r} is refused: {error}") from error
        except RecursionError:
            raise ModelFileError(
                f"{path!r} is refused: its description is nested too deeply; save the model again"
            ) from None


def _container(file: BufferedReader, path: str, header: Any) -> Container:
    data_start = file.tell()
    # The library opens files by name: that of the open one, on Linux, since `save` may replace what `path` names.
    opened = f"/proc/self/fd/{file.fileno()}"
    try:
        safe_open(opened if os.path.exists(opened) else path, "np")  # checks the tensors' sizes against the file's
    except (SafetensorError, OSError) as error:
        raise ModelFileError(
            f"the file must be a safetensors file, got one that is truncated, damaged or foreign ({str(error)[:200]}); "
            "save the model again"
        ) from None
    texts = header.pop("__metadata__", None)
    if texts is None or texts.get("format") != FORMAT:
        raise ModelFileError("the file is safetensors but holds no model of flashgp; pass what flashgp.save wrote")
    version = _readable(texts.get("format_version"))
    json_fields(texts, "__metadata__", TEXTS)
    for name, slot in header.items():
        json_fields(slot, name[:60], ("dtype", "shape", "data_offsets"))
        if slot["dtype"] not in DTYPES:
            raise refused(f"{name[:60]}.dtype", f"one of {', '.join(DTYPES)}", slot["dtype"])
    if texts.pop("sha256") != _seal(texts, header):
        raise refused("header", "as it was written", "other bytes: its checksum differs")
    checksums, config, metadata = (
        parse_json(texts[name].encode(), name) for name in ("checksums", "config", "metadata")
    )
    if not isinstance(checksums, dict) or checksums.keys() != header.keys():
        raise refused("checksums", "one for each tensor", checksums)
    if not isinstance(metadata, dict):
        raise refused("metadata", "an object", metadata)
    slots = {
        name: (DTYPES[slot["dtype"]], tuple(slot["shape"]), data_start + slot["data_offsets"][0])
        for name, slot in header.items()
    }
    layouts = config.get("layouts", {}) if isinstance(config, dict) else {}
    return Container(file, version, config, metadata, slots, checksums, _layouts(layouts, slots))


def _layouts(layouts: Any, slots: Mapping[str, tuple[torch.dtype, tuple[int, ...], int]]) -> dict[str, list[int]]:
    if not isinstance(layouts, dict):
        raise refused("layouts", "an object", layouts)
    for name, order in layouts.items():
        dims = len(slots[name][1]) if name in slots and name != "factor" else 0
        numbers = isinstance(order, list) and all(type(i) is int for i in order)
        if not numbers or sorted(order) != list(range(dims)):
            raise refused(f"layouts.{name[:60]}", "the dimensions of a tensor in another order", order)
    return layouts


def _readable(version: object) -> int:
    """The format version of a file, one of READABLE. Raises: ModelFileError."""
    text = str(version)
    if text in map(str, READABLE):
        return int(text)
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 9 else 0
    advice = "install a newer flashgp" if number > FORMAT_VERSION else "save the model again"
    readable = f"{min(READABLE)} to {max(READABLE)}"
    raise ModelFileError(
        f"`format_version` of the model file must be {readable} for this flashgp, got {text[:20]!r}; {advice}"
    )
