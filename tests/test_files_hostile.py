"""Model files nobody vouches for: truncated, damaged, foreign or made to do harm. Each is refused, and says why."""

import contextlib
import hashlib
import json
import math
import os
import pickle
import random
import re
import time
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import distributions

import flashgp as fgp
from flashgp.files import container, description, load_metadata, validation

Header = dict[str, Any]
FOREIGN = "must be a safetensors file"


@pytest.fixture(scope="module")
def genuine(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A model with most of what a file can hold: sharing, a prior, a domain, two kernels deep, a transposed tensor."""
    k = fgp.kernels
    shared = fgp.Parameter(torch.tensor([0.5, 0.7]), prior=distributions.LogNormal(0.1, 1.3))
    scale = fgp.Parameter(1.3, distributions.constraints.interval(0.5, 9.0))
    kernel = k.Scaled(k.Matern(2.5, shared), scale) + k.Polynomial(3, 0.4) * k.Periodic(2.0, shared, active_dims=[0, 1])
    gp = fgp.GP(kernel, likelihood=fgp.likelihoods.Gaussian(0.1, row_weight=torch.ones(5), shared=True), outputs=2)
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(5, 2, generator=generator, dtype=torch.float64) for _ in range(2))
    path = tmp_path_factory.mktemp("genuine") / "model.safetensors"
    fgp.save(gp.condition(x, y), path, metadata={"columns": ["a", "b"]})
    return path.read_bytes()


def parts(data: bytes) -> tuple[Header, bytes]:
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def joined(header: Header | bytes, body: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def sealed(header: Header, body: bytes) -> bytes:
    """A forgery with all checksums right, so that only what it says can be found out."""
    texts = header.pop("__metadata__")
    sums = {}
    for name, slot in header.items():
        with contextlib.suppress(TypeError):  # of slots that are not even slots
            sums[name] = hashlib.sha256(body[slice(*slot["data_offsets"])]).hexdigest()
    texts["checksums"] = json.dumps(sums)
    texts.pop("sha256")
    texts["sha256"] = container._seal(texts, header)
    return joined({"__metadata__": texts, **header}, body)


def forged(data: bytes, change: Callable[[Any], None]) -> bytes:
    """The file with its config changed, sealed again."""
    header, body = parts(data)
    config = json.loads(header["__metadata__"]["config"])
    change(config)
    header["__metadata__"]["config"] = json.dumps(config)
    return sealed(header, body)


def refusal(path: Path, data: bytes, error: type[Exception] = fgp.ModelFileError) -> str:
    """The message with which a file is refused, quickly and with little memory."""
    path.write_bytes(data)
    tracemalloc.start()
    began = time.perf_counter()
    with pytest.raises(error) as caught, warnings.catch_warnings():
        warnings.simplefilter("error")
        fgp.load(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert time.perf_counter() - began < 60.0  # a bound on hanging, not on speed
    assert peak < 2**20 + 40 * len(data)
    return str(caught.value)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


def test_the_forger_makes_files_that_load(path: Path, genuine: bytes) -> None:
    """Or every refusal below would mean nothing."""
    path.write_bytes(forged(genuine, lambda config: None))
    assert fgp.load(path).count == 5


# -- paths ----------------------------------------------------------------------------------------------------------
def test_paths_that_are_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    cases = {
        tmp_path / "none": "No such file", tmp_path: "it is a folder", tmp_path / "pipe": "not a regular file",
        "/dev/zero": "not a regular file", tmp_path / "circle": "symbolic links", "a\0b": "null",
    }  # fmt: skip
    for path, reason in cases.items():
        for read in (fgp.load, load_metadata):
            with pytest.raises(fgp.ModelFileError, match=f"`path` must be a file that can be read.*{reason}"):
                read(path)


@pytest.mark.skipif(os.getuid() == 0, reason="root may read everything")
def test_a_file_without_permission(path: Path, genuine: bytes) -> None:
    path.write_bytes(genuine)
    path.chmod(0)
    with pytest.raises(fgp.ModelFileError, match="Permission"):
        fgp.load(path)


# -- foreign files --------------------------------------------------------------------------------------------------
class Harm:
    def __reduce__(self) -> Any:
        return os.system, ("touch harm",)


def test_foreign_files(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"a": torch.zeros(2)}, path)
    for data in (b"", b"{", b"1234567", pickle.dumps(Harm()), pickle.dumps(Harm(), 0), path.read_bytes(), b"\0" * 99):
        assert "is no model file of FlashGP" in refusal(path, data)
    assert not (tmp_path / "harm").exists()
    save_file({"weight": torch.zeros(3)}, path)
    assert "holds no model of flashgp" in refusal(path, path.read_bytes())
    save_file({"weight": torch.zeros(3)}, path, {"format": "pt"})
    assert "holds no model of flashgp" in refusal(path, path.read_bytes())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b'{"a": 1, "a": 2}', "the key 'a' twice"),
        (b'{"a": NaN}', "NaN is not a number"),
        (b'{"a": 1e999}', "1e999 is too large"),
    ],
)
def test_headers_that_are_no_header(path: Path, text: bytes, reason: str) -> None:
    assert reason in refusal(path, joined(text, b""))


def test_a_header_longer_than_the_file_or_the_limit(path: Path, genuine: bytes) -> None:
    for length in (2**64 - 1, 2**63, 2**24 + 1, 1, 0):
        assert "is no model file of FlashGP" in refusal(path, length.to_bytes(8, "little") + genuine[8:])
    for length in (2**24, len(genuine), len(genuine) - 7):
        assert "is truncated" in refusal(path, length.to_bytes(8, "little") + genuine[8:])
    with open(path, "wb") as file:  # a sparse file holds what it claims without taking the room
        file.write((2**24 + 8).to_bytes(8, "little") + b"{")
        file.truncate(2**40)
    with pytest.raises(fgp.ModelFileError, match="is no model file of FlashGP"):
        fgp.load(path)


def test_a_sparse_file_does_not_take_the_memory_it_claims(path: Path, genuine: bytes) -> None:
    header, _ = parts(genuine)
    n = 10**6
    sizes = {"factor": [n * (n + 1) // 2], "x": [n, 2], "y": [n, 2], "likelihood.row_weight": [n]}
    sizes |= {"representer_weights": [2, n], "residual": [n, 2]}
    start = 0
    for name, slot in header.items():
        if name != "__metadata__":
            slot["shape"] = sizes.get(name, slot["shape"])
            size = math.prod(slot["shape"]) * (8 if slot["dtype"] == "F64" else 4)
            slot["data_offsets"] = [start, start + size]
            start += size
    data = sealed(header, b"")
    with open(path, "wb") as file:
        file.write(data)
        file.truncate(len(data) + start)
    with pytest.raises(fgp.MemoryBudgetError, match="the model needs 7"):
        fgp.load(path)


def test_features_that_do_not_fit_into_memory() -> None:
    """A small file may ask for terabytes of row features; one row tells."""
    x = torch.zeros(1, 2, dtype=torch.float64)
    validation.check_rows(fgp.GP(fgp.kernels.RBF()), x)
    with pytest.raises(fgp.MemoryBudgetError, match="row features"):
        validation.check_rows(fgp.GP(fgp.kernels.RBF()), x.expand(10**13, 2))


# -- versions ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("version", "advice"),
    [("6", "install a newer flashgp"), ("0", "save the model"), ("1.0", "save the model"), ("²", "save")],
)
def test_other_versions(path: Path, genuine: bytes, version: Any, advice: str) -> None:
    header, body = parts(genuine)
    header["__metadata__"] = {"format": "flashgp", "format_version": version, "of the future": "unknown"}
    message = refusal(path, joined(header, body))
    assert "`format_version` of the model file must be 1 to 5" in message
    assert advice in message


# -- what the header says about tensors -------------------------------------------------------------------------------
def _with_slot(name: str, **fields: Any) -> Callable[[Header], None]:
    return lambda header: header[name].update(fields)


def _without(name: str) -> Callable[[Header], None]:
    """Drop a tensor from the header, and let its neighbour cover its bytes."""

    def change(header: Header) -> None:
        start, stop = header.pop(name)["data_offsets"]
        header["filler"] = {"dtype": "U8", "shape": [stop - start], "data_offsets": [start, stop]}

    return change


HEADERS: dict[str, tuple[Callable[[Header], Any], str]] = {
    "missing factor": (_without("factor"), "`factor` of the model file must be a tensor"),
    "an extra one": (lambda h: h.update(z={"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}), "got 'z'"),














    "dtype we lack": (_with_slot("y", dtype="C64"), "`y.dtype` of the model file must be one of F64"),
    "another dtype": (_with_slot("y", dtype="I64"), "`y` .* must be float64, or float32"),










    "x of one dimension": (_with_slot("x", shape=[10]), r"`x` of the model file must be of shape"),








    "metadata that is none": (lambda h: h["__metadata__"].update(metadata="[]"), "`metadata` of the model file"),


}  # fmt: skip


@pytest.mark.parametrize("case", HEADERS)
def test_headers_that_lie(path: Path, genuine: bytes, case: str) -> None:
    change, reason = HEADERS[case]
    header, body = parts(genuine)
    change(header)
    message = refusal(path, sealed(header, body))
    assert re.search(reason, message), message


def test_bytes_at_the_end_are_refused(path: Path, genuine: bytes) -> None:
    assert FOREIGN in refusal(path, genuine + b"\0")


# -- what the config says ---------------------------------------------------------------------------------------------
def _set(*place: Any) -> Callable[[Any], None]:
    """Set config[a][b]... to the last argument."""
    *keys, last, value = place

    def change(config: Any) -> None:
        for key in keys:
            config = config[key]
        config[last] = value

    return change


def _deep(levels: int) -> Callable[[Any], None]:
    def change(config: Any) -> None:
        part = config["kernel"]["parts"][0]["parts"][0]
        for _ in range(levels):
            part = {**config["kernel"]["parts"][0], "parts": [part]}
        config["kernel"] = part

    return change


FIRST = ("kernel", "parts", 0, "parts", 0)  # the Matern
SHARED = "kernel.kernels.0.kernel.lengthscale"

CONFIGS: dict[str, tuple[Callable[[Any], None], str]] = {
    "os.system": (_set(*FIRST, "kind", "os.system"), "must be one of SquaredExponential.*got 'os.system'"),
    "another option": (_set(*FIRST, "options", "self", 1), "options"),
    "columns x lacks": (_set(*FIRST, "options", "active_dims", [7]), "must name columns of x"),
    "a parameter that is none": (_set(*FIRST, "parameters", "lengthscale", "no"), "a key of `parameters`"),
    "nested a little deep": (_deep(70), "64 deep"),
    "a prior": (_set("parameters", SHARED, "prior", "os.system"), "null or one of"),
    "attempts": (_set("attempts", ["x"]), "`attempts` of"),
    "layouts of no object": (_set("layouts", [1]), "`layouts` of"),
    "an event without fields": (_set("report", "events", [{"kind": "NOTE", "fields": [1]}]), "`report.events.fields`"),
    "an event of no number": (
        _set("report", "events", [{"kind": "NOTE", "fields": {"a": {"float": "b"}}}]),
        "`report.events.fields`",
    ),
    "the tolerance of solves": (_set("solves", "tolerance", 0.0), "`solves.tolerance` of"),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_configs_that_lie(path: Path, genuine: bytes, case: str) -> None:
    change, reason = CONFIGS[case]
    message = refusal(path, forged(genuine, change))
    assert re.search(reason, message), message


def test_a_kernel_that_would_make_its_own_parameters(path: Path, genuine: bytes) -> None:
    """Coregionalization without a factor makes one: count x rank numbers, which no tensor of the file backs."""
    options = {"active_dims": [0], "count": 10**9, "rank": 10**9}
    part = {"kind": "Coregionalization", "options": options, "parameters": {}, "parts": [], "module": None}
    assert "those of its kind (factor, diagonal)" in refusal(path, forged(genuine, _set("kernel", part)))


VALUES: dict[str, tuple[str, float, str]] = {
    "nan in the factor": ("factor", math.nan, "`factor` must be finite"),
    "a pivot of zero": ("factor", 0.0, "a Cholesky factor"),
    "nan in a parameter": ("mean.value.raw", math.nan, "finite numbers in float64"),
    "a negative row weight": ("likelihood.row_weight", -1.0, "`row_weight` must be positive"),
}


@pytest.mark.parametrize("case", VALUES)
def test_values_that_no_model_holds(path: Path, genuine: bytes, case: str) -> None:
    name, value, reason = VALUES[case]
    header, body = parts(genuine)
    changed = bytearray(body)
    start = header[name]["data_offsets"][0]
    changed[start : start + 8] = torch.tensor([value], dtype=torch.float64).numpy().tobytes()
    assert reason in refusal(path, sealed(header, bytes(changed)))


GROUPS = {
    "below 0": ([0, 1, 2, -1, 0], "the numbers below 3, all of them"),
    "above all": ([0, 1, 2, 3, 0], "the numbers below 3, all of them"),
    "one that nothing joins": ([0, 1, 1, 1, 0], "the numbers below 3, all of them"),
    "rows that differ": ([0, 1, 2, 0, 0], "rows of equal x together"),
    "too few": ([0, 1, 2, 1], "5 integers, of one table"),
}


@pytest.mark.parametrize("case", GROUPS)
def test_joined_rows_that_lie(path: Path, case: str) -> None:
    """Which row joined which is looked at before anything is read by it."""
    x = torch.tensor([[1.0], [2.0], [3.0], [2.0], [1.0]], dtype=torch.float64)
    fgp.save(fgp.GP(fgp.kernels.RBF()).condition(x, x[:, 0]), path)
    group, reason = GROUPS[case]
    genuine = path.read_bytes()
    assert fgp.load(path).distinct == 3
    assert reason in refusal(path, with_tensors(genuine, group=torch.tensor(group)))
    header, body = parts(genuine)
    del header["group"]
    assert "of shape (*batch, 5, 1) like residual" in refusal(path, _repacked(header, body))


def _repacked(header: Header, body: bytes) -> bytes:
    """What is left of the tensors, without gaps."""
    new = b""
    for name, slot in header.items():
        if name != "__metadata__":
            content = body[slice(*slot["data_offsets"])]
            slot["data_offsets"] = [len(new), len(new) + len(content)]
            new += content
    return sealed(header, new)


def with_tensors(data: bytes, **tensors: torch.Tensor) -> bytes:
    """The file with tensors of any size in the place of others ("__" in a name stands for a dot), sealed again."""
    header, body = parts(data)
    new, start = b"", 0
    for name, slot in header.items():
        if name == "__metadata__":
            continue
        content = body[slice(*slot["data_offsets"])]
        tensor = tensors.pop(name.replace(".", "__"), None)
        if tensor is not None:
            content, slot["shape"] = tensor.numpy().tobytes(), list(tensor.shape)
        slot["data_offsets"] = [start, start + len(content)]
        start += len(content)
        new += content
    assert not tensors
    return sealed(header, new)


# -- damage at random -------------------------------------------------------------------------------------------------
def flips(genuine: bytes, count: int) -> Iterator[tuple[bytes, bool]]:
    """Copies with one to three bytes changed, half of them in the header; and whether only padding was hit."""
    choose = random.Random(5)
    length = 8 + int.from_bytes(genuine[:8], "little")
    padding = len(genuine[:length].rstrip(b" "))
    for i in range(count):
        data = bytearray(genuine)
        hits = [choose.randrange(length if i % 2 else len(data)) for _ in range(choose.choice([1, 1, 3]))]
        for hit in hits:
            data[hit] ^= choose.randrange(1, 256)
        yield bytes(data), all(padding <= hit < length for hit in hits)


def test_flipped_bytes_are_found(path: Path, genuine: bytes) -> None:
    for data, padded in flips(genuine, 150):
        path.write_bytes(data)
        if padded:
            continue
        with pytest.raises(fgp.ModelFileError, match=r"is refused|is no model file"):
            fgp.load(path)


def test_truncated_files_are_found(path: Path, genuine: bytes) -> None:
    choose = random.Random(7)
    for length in [*range(20), *(choose.randrange(len(genuine)) for _ in range(100)), len(genuine) - 1]:
        path.write_bytes(genuine[:length])
        with pytest.raises(fgp.ModelFileError, match=r"is refused|is no model file"):
            fgp.load(path)


def test_a_file_that_is_truncated_while_it_is_read_is_refused(path: Path) -> None:
    x = torch.linspace(0.0, 1.0, 400, dtype=torch.float64).unsqueeze(-1)
    fgp.save(fgp.GP(fgp.kernels.RBF()).condition(x, x[:, 0]), path)
    with pytest.raises(fgp.ModelFileError, match="truncated meanwhile"), container.open_container(str(path)) as file:
        os.truncate(path, path.stat().st_size // 2)
        file.lower_triangle("factor", 400)


JUNK: list[Any] = [
    None, True, -1, 0, 2, 2**70, 0.5, 1e308, "", "x", "inf", "Matern", "Sum", "kernel", [], [[]], [0, 0], {},
    {"kind": "Sum"},
]  # fmt: skip


def _places(value: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*here, key)
        yield from _places(inner, (*here, key))


def test_forged_configs_are_refused_or_hold_a_model(path: Path, genuine: bytes) -> None:
    """Junk at every place of the config, all checksums right: a ModelFileError, or a model that predicts."""
    config = json.loads(parts(genuine)[0]["__metadata__"]["config"])
    choose = random.Random(11)
    places = list(_places(config))
    accepted = []
    for place in places:
        for value in choose.sample(JUNK, 1):
            path.write_bytes(forged(genuine, _set(*place, value)))
            try:
                posterior = fgp.load(path)
            except fgp.ModelFileError:
                continue
            posterior.predict(torch.zeros(1, 2, dtype=torch.float64)).variance  # noqa: B018
            accepted.append(place)
    assert len(accepted) < 0.2 * len(places)  # another degree, domain or number in the report is a model too


def test_forged_shapes_are_refused_or_hold_a_model(path: Path, genuine: bytes) -> None:
    """Every tensor in other shapes of as many entries, all checksums right."""
    header, body = parts(genuine)
    for name in [key for key in header if key != "__metadata__"]:
        count = math.prod(header[name]["shape"])
        for shape in ([count], [1, count], [count, 1], [], [1, 1, count], [0, count]):
            if math.prod(shape) != count:
                continue
            changed = json.loads(json.dumps(header))
            changed[name]["shape"] = shape
            path.write_bytes(sealed(changed, body))
            try:
                posterior = fgp.load(path)
            except fgp.ModelFileError:
                continue
            posterior.predict(torch.zeros(1, 2, dtype=torch.float64)).variance  # noqa: B018


def test_limits_are_what_the_documents_say() -> None:
    assert (container.MAX_HEADER_BYTES, description.MAX_DEPTH, description.MAX_KERNELS) == (2**24, 64, 1024)
