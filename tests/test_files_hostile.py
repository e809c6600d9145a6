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
        (b"[]      ", FOREIGN),
        (b"{'a': 1}", "Expecting property name"),
        (b'{"a": 1, "a": 2}', "the key 'a' twice"),
        (b'{"a": NaN}', "NaN is not a number"),
        (b'{"a": [-Infinity]}', "-Infinity is not a number"),
        (b'{"a": 1e999}', "1e999 is too large"),
        (b'{"a": ' + b"9" * 5000 + b"}", "too large for an integer of 64 bits"),
        (b'{"a": "\\ud800"}', "surrogates not allowed"),
        (b'{"a": "\xff"}', "codec can't decode"),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "not nested deeply"),
        (b'{"a": ' + b'{"a":' * 100_000 + b"}" * 100_001, "not nested deeply"),
        (b'{"a": "\\\\", "b": ' + b"[" * 100_000, "not nested deeply"),
        (b'{"a": "\\"", "b": ' + b"[" * 100_000, "not nested deeply"),
        (b'{"a": "[[[' + b'\\"[' * 1000 + b'"}', FOREIGN),
        (b'{"a": [' + b"{}," * 100_000 + b"0]}", FOREIGN),
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


def _renamed(old: str, new: str) -> Callable[[Header], None]:
    return lambda header: header.update({new: header.pop(old)})


def _without(name: str) -> Callable[[Header], None]:
    """Drop a tensor from the header, and let its neighbour cover its bytes."""

    def change(header: Header) -> None:
        start, stop = header.pop(name)["data_offsets"]
        header["filler"] = {"dtype": "U8", "shape": [stop - start], "data_offsets": [start, stop]}

    return change


def _split(header: Header, name: str) -> None:
    """The first number of a tensor alone, the others under another name."""
    start, stop = header[name]["data_offsets"]
    header["rest"] = {**header[name], "shape": [(stop - start) // 8 - 1], "data_offsets": [start + 8, stop]}
    header[name].update(shape=[], data_offsets=[start, start + 8])


HEADERS: dict[str, tuple[Callable[[Header], Any], str]] = {
    "overlap": (_with_slot("y", data_offsets=[0, 80]), FOREIGN),
    "gap": (_with_slot("y", data_offsets=[10_000, 10_080]), FOREIGN),
    "beyond": (lambda h: h.update(z={"dtype": "U8", "shape": [9**9], "data_offsets": [9**9, 2 * 9**9]}), FOREIGN),
    "backwards": (_with_slot("y", data_offsets=[80, 0]), FOREIGN),
    "negative": (_with_slot("y", data_offsets=[-80, 0]), FOREIGN),
    "a float": (_with_slot("y", data_offsets=[0.0, 80]), FOREIGN),
    "one offset": (_with_slot("y", data_offsets=[80]), FOREIGN),
    "huge": (_with_slot("y", shape=[2**40, 2**40]), FOREIGN),
    "huge and empty": (_with_slot("y", shape=[0, 2**61, 2**61], data_offsets=[0, 0]), FOREIGN),
    "many dimensions": (_with_slot("y", shape=[1] * 99), FOREIGN),
    "a true size": (_with_slot("y", shape=[True, 10]), FOREIGN),
    "no shape": (_with_slot("y", shape=None), FOREIGN),
    "dtype": (_with_slot("y", dtype="F8"), FOREIGN),
    "dtype of no text": (_with_slot("y", dtype=["F64"]), FOREIGN),
    "dtype we lack": (_with_slot("y", dtype="C64"), "`y.dtype` of the model file must be one of F64"),
    "another dtype": (_with_slot("y", dtype="I64"), "`y` .* must be float64, or float32"),
    "another field": (_with_slot("y", code="import os"), "code"),
    "not an object": (lambda h: h.update(y=3), FOREIGN),
    "missing x": (_without("x"), "`x` of the model file must be a tensor of the file"),
    "missing factor": (_without("factor"), "`factor` of the model file must be a tensor"),
    "missing parameter": (_without("mean.value.raw"), "`mean.value.raw` of the model file must be a tensor"),
    "missing prior": (_without("kernel.kernels.0.kernel.lengthscale.prior.loc"), "prior.loc` of the model"),
    "an extra one": (lambda h: h.update(z={"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}), "got 'z'"),
    "renamed": (_renamed("residual", "_"), "`residual` of the model file must be a tensor"),
    "factor of other size": (_with_slot("factor", shape=[3, 5]), r"`factor` of .* shape \(\*batch, 15\)"),
    "factor in a batch": (_with_slot("factor", shape=[1, 15]), "`factor` of"),
    "x of one dimension": (_with_slot("x", shape=[10]), r"`x` of the model file must be of shape"),
    "x of other rows": (_with_slot("x", shape=[2, 5]), r"`y` of the model file must be of shape"),
    "x without columns": (_with_slot("x", shape=[5, 2, 1]), r"`y` of"),
    "weights of other rows": (_with_slot("representer_weights", shape=[10, 1]), "`representer_weights` of"),
    "weights of other outputs": (_with_slot("residual", shape=[10]), "`representer_weights` of"),
    "row weights": (_with_slot("likelihood.row_weight", shape=[5, 1]), "one entry for each of 5 rows"),
    "no dimension in the factor": (
        lambda h: _split(h, "factor"),
        "`factor` of",
    ),
    "a text that is none": (lambda h: h["__metadata__"].update(config={}), "text"),
    "another text": (lambda h: h["__metadata__"].update(more=""), "more"),
    "metadata that is none": (lambda h: h["__metadata__"].update(metadata="[]"), "`metadata` of the model file"),
    "config that is none": (lambda h: h["__metadata__"].update(config="[]"), "`config` of the model file"),
    "config that is deep": (
        lambda h: h["__metadata__"].update(config="[" * 10**5 + "]" * 10**5),
        "`config` .* not nested deeply",
    ),
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


def _wide(config: Any) -> None:
    config["kernel"]["parts"] = [config["kernel"]["parts"][0]["parts"][0]] * 1500


FIRST = ("kernel", "parts", 0, "parts", 0)  # the Matern
SECOND = ("kernel", "parts", 1, "parts", 0)  # the Polynomial
SHARED = "kernel.kernels.0.kernel.lengthscale"
NOISE = ("parameters", "likelihood.noise_variance")

CONFIGS: dict[str, tuple[Callable[[Any], None], str]] = {
    "os.system": (_set(*FIRST, "kind", "os.system"), "must be one of SquaredExponential.*got 'os.system'"),
    "a dunder": (_set(*FIRST, "kind", "__class__"), "must be one of"),
    "a list as kind": (_set(*FIRST, "kind", []), "must be one of"),
    "a base class": (_set(*FIRST, "kind", "Stationary"), "must be one of"),
    "a mean of another kind": (_set("mean", "kind", "Sequential"), "`mean.kind`"),
    "a likelihood of another kind": (_set("likelihood", "kind", "Bernoulli"), "`likelihood` of"),
    "another field": (_set(*FIRST, "code", "import os"), "code"),
    "a missing field": (lambda c: c["kernel"].pop("parts"), "kernel.parts"),
    "another option": (_set(*FIRST, "options", "self", 1), "options"),
    "an option of no name": (_set(*FIRST, "options", "__init__", 1), "those that its kind takes"),
    "a parameter as an option": (_set(*FIRST, "options", "lengthscale", 1.0), "options and parameters by name"),
    "a smoothness": (_set(*FIRST, "options", "nu", 3.5), "`nu` must be"),
    "a smoothness that is text": (_set(*FIRST, "options", "nu", "2.5"), "`nu` must be"),
    "a true degree": (_set(*SECOND, "options", "degree", True), "`degree` must be"),
    "a degree that is a float": (_set(*SECOND, "options", "degree", 3.0), "`degree` must be"),
    "columns x lacks": (_set(*FIRST, "options", "active_dims", [7]), "must name columns of x"),
    "columns that are text": (_set(*FIRST, "options", "active_dims", "ab"), "`active_dims`"),
    "columns that are many": (_set(*FIRST, "options", "active_dims", [0]), "must have one entry or 1"),
    "no parameter": (_set(*FIRST, "parameters", {}), "those of its kind .lengthscale."),
    "another parameter": (_set(*FIRST, "parameters", "period", SHARED), "those of its kind"),
    "a parameter that is none": (_set(*FIRST, "parameters", "lengthscale", "no"), "a key of `parameters`"),
    "a parameter in a circle": (_set(*FIRST, "parameters", "lengthscale", ["kernel"]), "a key of `parameters`"),
    "parts of a leaf": (_set(*FIRST, "parts", [{}]), "an object with|kind|present"),
    "no parts": (_set("kernel", "parts", []), "empty"),
    "parts of no list": (_set("kernel", "parts", {}), "an array"),
    "a module of a leaf": (_set(*FIRST, "module", "kernel"), "a key of `modules`"),
    "modules of no object": (_set("modules", []), "`modules` of"),
    "nested a little deep": (_deep(70), "64 deep"),
    "nested deep": (_deep(300), "64 deep|nested"),
    "more than a thousand kernels": (_wide, "at most 1024 parts"),
    "an unused parameter": (_set("parameters", "kernel.no", {}), "`kernel.no.raw` of"),
    "a domain upside down": (_set("parameters", SHARED, "upper", -1.0), "lower < upper"),
    "a domain of text": (_set(*NOISE, "lower", "0"), "a number"),
    "a domain of nan": (_set(*NOISE, "lower", "nan"), "lower < upper"),
    "a domain beyond floats": (_set(*NOISE, "lower", 10**400), "too large for an integer"),
    "a degree beyond integers": (_set(*SECOND, "options", "degree", 2**70), "too large for an integer"),
    "event dimensions": (_set(*NOISE, "event_dim", 5), "an integer from 0 to 0"),
    "event dimensions of another shape": (_set("parameters", SHARED, "event_dim", 0), "another description"),
    "trainable": (_set(*NOISE, "trainable", 1), "true or false"),
    "a prior": (_set("parameters", SHARED, "prior", "os.system"), "null or one of"),
    "a prior of no tensors": (_set("parameters", SHARED, "prior", "Gamma"), "prior.concentration"),
    "another prior of the same tensors": (_set("parameters", SHARED, "prior", None), "those of the model"),
    "other outputs": (_set("outputs", 3), r"`y` of the model file must be of shape"),
    "outputs of no number": (_set("outputs", True), "null or a positive integer"),
    "one output": (_set("outputs", None), "`y` of"),
    "a mean of other outputs": (_set("mean", "options", "outputs", 3), "mean|batch shape|what a model holds"),
    "row weights": (_set("likelihood", "options", "row_weight", False), "`weight_unit` must be one of all rows"),
    "row weights of no truth": (
        _set("likelihood", "options", "row_weight", 1),
        "`weight_unit` must be one of all rows",
    ),
    "weights of no unit": (_set("likelihood", "options", "weight_unit", False), "another description"),
    "row variances": (_set("likelihood", "options", "row_variance", True), "likelihood.row_variance"),
    "no noise": (_set("likelihood", "parameters", {}), "another description|unused"),
    "attempts": (_set("attempts", ["x"]), "`attempts` of"),
    "layouts": (_set("layouts", {"x": [1, 1]}), "`layouts.x`"),
    "layouts of another tensor": (_set("layouts", {"no": [1, 0]}), "`layouts.no`"),
    "layouts of the factor": (_set("layouts", {"factor": [0]}), "`layouts.factor`"),
    "layouts of no object": (_set("layouts", [1]), "`layouts` of"),
    "a report": (_set("report", "route", 3), "`report.route`"),
    "a report of no number": (_set("report", "seconds", [[{}]]), "`report.seconds`"),
    "a plan": (_set("report", "plan", "n", "five"), "`report.plan`"),
    "a plan of another dtype": (_set("report", "plan", "dtype", "int8"), "`report.plan`"),
    "events": (_set("report", "events", "abc"), "`report.events`"),
    "an event of no kind": (_set("report", "events", [{"kind": 3, "fields": {}}]), "`report.events.kind`"),
    "an event without fields": (_set("report", "events", [{"kind": "NOTE", "fields": [1]}]), "`report.events.fields`"),
    "an event of no number": (
        _set("report", "events", [{"kind": "NOTE", "fields": {"a": {"float": "b"}}}]),
        "`report.events.fields`",
    ),
    "the seed of solves": (_set("solves", "seed", 0.5), "`solves.seed` of"),
    "how solves are planned": (_set("solves", "deterministic", 1), "`solves.deterministic` of"),
    "the tolerance of solves": (_set("solves", "tolerance", 0.0), "`solves.tolerance` of"),
    "a tolerance of no number": (_set("solves", "tolerance", "1e-3"), "`solves.tolerance` of"),
    "solves of another version": (_set("solves", {"seed": 0}), "`solves.deterministic` of .* must be present"),
    "how much was learned": (_set("learned", "appended", -1), "`learned.appended` of"),
    "learned by halves": (_set("learned", "refined", 0.5), "`learned.refined` of"),
    "learned as another version": (_set("learned", {"appended": 0}), "`learned.dropped` of .* must be present"),
    "versions": (_set("torch", 2), "`torch` of"),
    "more": (_set("more", 1), "more"),
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
    "nan in x": ("x", math.nan, "`x` must be finite, got NaN at row 0 and column 0"),
    "infinity in y": ("y", math.inf, "`y` must be finite"),
    "nan in the weights": ("representer_weights", math.nan, "`representer_weights` must be finite"),
    "nan in the factor": ("factor", math.nan, "`factor` must be finite"),
    "a pivot of zero": ("factor", 0.0, "a Cholesky factor"),
    "a negative jitter": ("jitter", -1.0, "a Cholesky factor"),
    "nan in a parameter": ("mean.value.raw", math.nan, "finite numbers in float64"),
    "a negative row weight": ("likelihood.row_weight", -1.0, "`row_weight` must be positive"),
    "a unit of weights that is 0": ("likelihood.weight_unit", 0.0, "`weight_unit` must be positive"),
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


def test_a_prior_outside_its_domain(path: Path, genuine: bytes) -> None:
    header, body = parts(genuine)
    start = header[f"{SHARED}.prior.scale"]["data_offsets"][0]
    changed = bytearray(body)
    changed[start : start + 4] = torch.tensor([-1.0]).numpy().tobytes()
    assert "a LogNormal distribution" in refusal(path, sealed(header, bytes(changed)))


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


def test_shapes_that_do_not_broadcast(path: Path, genuine: bytes) -> None:
    ones = torch.ones(3, 15, dtype=torch.float64)
    assert "`factor` of" in refusal(path, with_tensors(genuine, factor=ones, jitter=torch.zeros(3).double()))
    key = f"{SHARED}.prior.".replace(".", "__")
    message = refusal(path, with_tensors(genuine, **{f"{key}loc": torch.ones(3), f"{key}scale": torch.ones(3)}))
    assert "arguments that broadcast to (2,)" in message
    message = refusal(path, with_tensors(genuine, **{f"{key}loc": torch.ones(2)}))
    assert "arguments of one shape" in message
    message = refusal(path, with_tensors(genuine, **{SHARED.replace(".", "__") + "__raw": torch.ones(4, 2).double()}))
    assert "`kernel` of the model file must be of a batch shape" in message


class Masked(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.tensor([True, False]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.mask).sum(-1)


def test_a_boolean_that_is_neither(path: Path) -> None:
    x = torch.ones(2, 2, dtype=torch.float64)
    with pytest.warns(fgp.FlashGPWarning, match="'mean'"):
        fgp.save(fgp.GP(fgp.kernels.RBF(), Masked()).condition(x, x[:, 0]), path)
    assert fgp.load(path, {"mean": Masked()}).gp.mean.mask.tolist() == [True, False]
    header, body = parts(path.read_bytes())
    start = header["mean.mask"]["data_offsets"][0]
    path.write_bytes(sealed(header, body[:start] + b"\x02" + body[start + 1 :]))
    with pytest.raises(fgp.ModelFileError, match="booleans 0 and 1"):
        fgp.load(path, {"mean": Masked()})


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
        with pytest.raises(fgp.ModelFileError, match="is refused"):
            fgp.load(path)


def test_every_bit_of_the_first_bytes_is_found(path: Path, genuine: bytes) -> None:
    for place in range(16):
        for bit in range(8):
            data = bytearray(genuine)
            data[place] ^= 1 << bit
            path.write_bytes(data)
            with pytest.raises(fgp.ModelFileError, match=r"is refused|is no model file"):
                fgp.load(path)


def test_metadata_finds_flips_in_the_header(path: Path, genuine: bytes) -> None:
    for data, padded in flips(genuine, 60):
        path.write_bytes(data)
        if data[: len(data) - len(parts(genuine)[1])] == genuine[: len(data) - len(parts(genuine)[1])]:
            assert load_metadata(path) == {"columns": ["a", "b"]}  # only tensors were hit, which it does not read
        elif not padded:
            with pytest.raises(fgp.ModelFileError, match="is refused"):
                load_metadata(path)


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


def test_a_factor_of_no_rows_is_refused_or_empty(path: Path) -> None:
    fgp.save(fgp.GP(fgp.kernels.RBF()).condition(torch.zeros(0, 1).double(), torch.zeros(0).double()), path)
    header, body = parts(path.read_bytes())
    header["factor"] = {"dtype": "F64", "shape": [0], "data_offsets": [len(body), len(body)]}
    header["jitter"] = {"dtype": "F64", "shape": [], "data_offsets": [len(body), len(body) + 8]}
    path.write_bytes(sealed(header, body + bytes(8)))
    with contextlib.suppress(fgp.ModelFileError):
        assert fgp.load(path).count == 0


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
