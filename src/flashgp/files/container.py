"""The safetensors container: 8 bytes of header length, a JSON header, the tensors' bytes without gaps.

Written and read here rather than by the safetensors package: a factor goes to and from the disk as its lower triangle
without a second copy in memory, every tensor and the header carry a checksum, and everything the header claims is
compared with the file's size before anything is allocated. The files are plain safetensors for other readers.
The checksums find damage; they do not prove who wrote the file.
"""

import contextlib
import hashlib
import json
import math
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy
import numpy.typing
import torch
from torch import Tensor

from flashgp.files.bounded_json import bounded_json
from flashgp.foundations.atomic import replacing
from flashgp.foundations.errors import DomainError, ModelFileError
from flashgp.table.json_fields import json_fields, refused

__all__ = ["Container", "Entry", "lower_triangle", "open_container", "whole", "write_container"]

FORMAT = "flashgp"
FORMAT_VERSION = 4
# 1 always has a factor, and plans of two routes; nothing is known of learning online before 3, of a tolerance before 4
READABLE = (1, 2, 3, 4)
MOST_HEADER_BYTES = 16 * 2**20
MOST_DIMS = 16
MOST_ENTRIES = 2**62  # of one tensor, an empty dimension counted as one
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


def whole(tensor: Tensor) -> Entry:
    """All entries of a contiguous tensor, row by row."""
    return Entry(tensor.dtype, tuple(tensor.shape), lambda: _pieces(_bytes(tensor.detach().cpu().contiguous())))


def lower_triangle(lower: Tensor) -> Entry:
    """The lower triangle of (*batch, n, n), column after column from the diagonal down, as (*batch, n (n + 1) / 2)."""
    n = lower.shape[-1]

    def pieces() -> Iterator[Bytes]:
        # A view, not a copy, of a factor as Cholesky leaves it: column by column.
        columns = lower.detach().cpu().mT.contiguous().reshape(-1, n, n).numpy()
        return (columns[member, j, j:] for member in range(columns.shape[0]) for j in range(n))

    return Entry(lower.dtype, (*lower.shape[:-2], n * (n + 1) // 2), pieces)


def _bytes(tensor: Tensor) -> Bytes:
    """The memory of a contiguous tensor on the CPU."""
    return tensor.reshape(-1).view(torch.uint8).numpy()


def _pieces(data: Bytes) -> Iterator[Bytes]:
    return (data[start : start + PIECE_BYTES] for start in range(0, data.size, PIECE_BYTES))


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
    if len(header) > MOST_HEADER_BYTES:
        raise DomainError(
            f"`metadata` and the model's description must take at most {MOST_HEADER_BYTES:,} bytes, got "
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
class Slot:
    """Where a tensor lies in the file, counted from its first byte."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True)
class Container:
    """An open file whose header has been checked.

    Fields: version of the format; config and metadata, parsed; slots by tensor name.
    """

    file: BinaryIO
    version: int
    config: Any
    metadata: Any
    slots: Mapping[str, Slot]
    checksums: Mapping[str, str]

    def tensor(self, name: str) -> Tensor:
        """A tensor with the stored shape. Raises: ModelFileError when its bytes are damaged."""
        slot = self.slots[name]
        data = torch.empty(slot.stop - slot.start, dtype=torch.uint8)
        self._fill(name, _pieces(data.numpy()))
        if slot.dtype is torch.bool and data.numel() and int(data.max()) > 1:
            raise refused(name, "booleans 0 and 1", int(data.max()))
        return data.view(slot.dtype).reshape(slot.shape)

    def lower_triangle(self, name: str, n: int) -> Tensor:
        """What `lower_triangle` wrote, as (*batch, n, n) stored column by column; the caller has checked the shape."""
        slot = self.slots[name]
        columns = torch.zeros(*slot.shape[:-1], n, n, dtype=slot.dtype)
        flat = columns.reshape(-1, n, n).numpy()
        self._fill(name, (flat[member, j, j:] for member in range(flat.shape[0]) for j in range(n)))
        return columns.mT

    def _fill(self, name: str, pieces: Iterable[Bytes]) -> None:
        checksum = hashlib.sha256()
        self.file.seek(self.slots[name].start)
        for piece in pieces:
            if _read_into(self.file, piece) != piece.nbytes:
                raise refused(name, "complete", "the end of the file")
            checksum.update(piece.data)
        if checksum.hexdigest() != self.checksums[name]:
            raise refused(name, "the bytes that were written", "others (sha256 differs)")


def _read_into(file: BinaryIO, piece: Bytes) -> int:
    try:
        return file.readinto(piece.data)  # type: ignore[attr-defined]
    except OSError as error:
        raise ModelFileError(f"the file must be readable to its end, got {error.strerror or error}") from error


@contextlib.contextmanager
def open_container(path: str) -> Iterator[Container]:
    """Open a file and check its header; nothing larger than the header is allocated.

    Raises: ModelFileError for a file that cannot be read or is not one of ours.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # a pipe would wait for ever, a device never end
            raise OSError("it is a folder" if os.path.isdir(path) else "it is not a regular file")
        file = open(path, "rb")  # noqa: SIM115 (closed below, where its errors are another matter)
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        reason = getattr(error, "strerror", None) or str(error)
        raise ModelFileError(f"`path` must be a file that can be read, got {path!r} ({reason}); check it") from error
    with file:
        try:
            yield _checked(file, os.fstat(file.fileno()).st_size)
        except ModelFileError as error:
            raise ModelFileError(f"{path!r} is refused: {error}") from error


def _checked(file: BinaryIO, size: int) -> Container:
    start = file.read(8)
    length = int.from_bytes(start, "little")
    if len(start) < 8 or not 2 <= length <= min(MOST_HEADER_BYTES, size - 8):
        raise ModelFileError(
            f"the file must begin with the length of a header that it holds, at most {MOST_HEADER_BYTES:,} bytes, "
            f"got {start!r} ({size:,} bytes in all); it is truncated or another kind of file, save the model again"
        )
    text = file.read(length)
    if len(text) < length or not text.startswith(b"{"):
        raise refused("header", "a JSON object", text[:8])
    header = bounded_json(text, "header")
    texts = header.pop("__metadata__", None)
    if not isinstance(texts, dict) or texts.get("format") != FORMAT:
        raise ModelFileError("the file is safetensors but holds no model of flashgp; pass what flashgp.save wrote")
    version = _readable(texts.get("format_version"))
    json_fields(texts, "__metadata__", TEXTS)
    for key, value in texts.items():
        if not isinstance(value, str):
            raise refused(f"__metadata__.{key}", "text", value)
    slots = _slots(header, 8 + length, size)
    if texts.pop("sha256") != _seal(texts, header):
        raise refused("header", "what was written", "something else (sha256 differs)")
    checksums = bounded_json(texts["checksums"].encode(), "checksums")
    if not isinstance(checksums, dict) or checksums.keys() != slots.keys():
        raise refused("checksums", "one for each tensor", checksums)
    config = bounded_json(texts["config"].encode(), "config")
    metadata = bounded_json(texts["metadata"].encode(), "metadata")
    if not isinstance(metadata, dict):
        raise refused("metadata", "an object", metadata)
    return Container(file, version, config, metadata, slots, checksums)


def _readable(version: object) -> int:
    """The format version of a file, one of READABLE. Raises: ModelFileError."""
    for known in READABLE:
        if version == str(known):
            return known
    newer = isinstance(version, str) and version.isascii() and version.isdigit() and len(version) < 9
    advice = "install a newer flashgp" if newer and int(str(version)) > FORMAT_VERSION else "save the model again"
    shown = version[:20] if isinstance(version, str) else type(version).__name__
    readable = " or ".join(map(str, READABLE))
    raise ModelFileError(
        f"`format_version` of the model file must be {readable} for this flashgp, got {shown!r}; {advice}"
    )


def _slots(header: Mapping[str, Any], start: int, size: int) -> dict[str, Slot]:
    """Where every tensor lies. The tensors must fill the file after the header, without gap or overlap."""
    slots = {}
    for name, value in header.items():
        fields = json_fields(value, name[:60], ("dtype", "shape", "data_offsets"))
        dtype = DTYPES.get(fields["dtype"]) if isinstance(fields["dtype"], str) else None
        if dtype is None:
            raise refused(f"{name[:60]}.dtype", f"one of {', '.join(DTYPES)}", fields["dtype"])
        shape, offsets = fields["shape"], fields["data_offsets"]
        if not _counts(shape) or len(shape) > MOST_DIMS or math.prod(max(s, 1) for s in shape) > MOST_ENTRIES:
            raise refused(f"{name[:60]}.shape", "a list of sizes", shape)
        if not _counts(offsets) or len(offsets) != 2:
            raise refused(f"{name[:60]}.data_offsets", "two positions", offsets)
        if offsets[1] - offsets[0] != math.prod(shape) * dtype.itemsize:
            raise refused(f"{name[:60]}.data_offsets", "as many bytes as dtype and shape say", "another number")
        slots[name] = Slot(dtype, tuple(shape), start + offsets[0], start + offsets[1])
    position = start
    for name, slot in sorted(slots.items(), key=lambda item: (item[1].start, item[1].stop)):
        if slot.start != position:
            raise refused(f"{name[:60]}.data_offsets", f"{position - start:,} onwards", f"{slot.start - start:,}")
        position = slot.stop
    if position != size:
        raise ModelFileError(
            f"the tensors must fill the file, got {position:,} bytes described and {size:,} present; the file is "
            "truncated or damaged, save the model again"
        )
    return slots


def _counts(value: object) -> bool:
    return isinstance(value, list) and all(type(v) is int and 0 <= v < 2**62 for v in value)
