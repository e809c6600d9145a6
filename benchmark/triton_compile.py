"""Compile the Triton kernels for sm_90 on a machine without a GPU, and read what the assembler made of them.

One line per kernel: registers of a thread, bytes of stack (spills), shared memory, tensor-core instructions, and
instructions per pair in the innermost loops. Run it as `PYTHONPATH=src python benchmark/triton_compile.py
[forward|gradient|wide]`. It measures nothing: what it predicts is for a GPU to confirm.
"""

import collections
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from flashgp import kernels
from flashgp.foundations.form import Form
from flashgp.pairwise.triton.backend import HELD
from flashgp.pairwise.triton.kernel_source import FEW
from flashgp.pairwise.triton.launch import TileShape, _kernel, routes, shape_for
from flashgp.pairwise.triton.tile_source import UNROLLED, power_of_two

ARCHITECTURE = 90
CONSTANTS = ("ROUTE", "BM", "BN", "SPAN", "MIRROR", "THETA")
POINTERS = {"row_codes": "*i64", "col_codes": "*i64", "theta": "*fp64", "to_theta": "*fp64", "route": "*i32"}
FLOATS = ("rows", "cols", "limits", "left", "right", "weights", "out")
UNALIGNED = ("weights_row", "weights_column")


def compiled(
    name: str, form: Form, columns: Sequence[int], careful: bool, options: tuple[Any, ...], tile: TileShape
) -> Any:
    """The kernel as a launch would compile it: aligned pointers and strides, other numbers unspecialised."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = _kernel(name, form, routes(form, columns, careful), careful, options)
    types = {}
    for a in kernel.arg_names:
        is_float = a in FLOATS or re.fullmatch(r"[gh]\d+", a)
        types[a] = "constexpr" if a in CONSTANTS else POINTERS.get(a, "*fp32" if is_float else "i32")
    values = {"ROUTE": int(careful), "BM": tile.rows, "BN": tile.columns, "SPAN": tile.span, "MIRROR": True}
    values["THETA"] = max(1, form.parameter_count)
    constants = {a: v for a, v in values.items() if a in types}
    plain = {kernel.arg_names[k] if isinstance(k, int) else k for k in kernel.do_not_specialize}
    aligned = [a for a in types if types[a][0] == "*" or (types[a] == "i32" and a not in plain and a not in UNALIGNED)]
    attributes = {(kernel.arg_names.index(a),): [["tt.divisibility", 16]] for a in aligned}
    source = ASTSource(kernel, types, constants, attributes)
    settings = {"num_warps": tile.warps, "num_stages": tile.stages, "enable_fp_fusion": True}
    return triton.compile(source, target=GPUTarget("cuda", ARCHITECTURE, 32), options=settings)


def assembled(kernel: Any) -> dict[str, Any]:
    """Registers, stack, shared bytes and the instructions of a compiled kernel."""
    import triton

    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        usage = _output(tools / "cuobjdump", "--dump-resource-usage", file.name)
        text = _output(tools / "nvdisasm", "-c", file.name)
    found = {key: int(value) for key, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", usage)}
    instructions, labels = [], {}
    for line in text.splitlines():
        if label := re.match(r"^(\.L\w+):", line.strip()):
            labels[label[1]] = len(instructions)
        elif instruction := re.match(r"^\s+/\*[0-9a-f]+\*/\s+(.*?);", line):
            instructions.append(instruction[1])
    return {
        "registers": found["REG"],
        "stack": found["STACK"] + found.get("LOCAL", 0),
        "shared": kernel.metadata.shared,
        "tensor": sum("HGMMA" in i or "HMMA" in i for i in instructions),
        "loops": _inner_loops(instructions, labels),
        "counts": collections.Counter(re.sub(r"^@!?U?P\w+ ", "", i).split()[0].split(".")[0] for i in instructions),
    }


def _inner_loops(instructions: Sequence[str], labels: dict[str, int]) -> list[int]:
    """The lengths of loops that hold no other."""
    loops = []
    for place, instruction in enumerate(instructions):
        target = re.search(r"BRA.*`\((\.L\w+)\)", instruction)
        if target and labels.get(target[1], place) < place:
            loops.append((labels[target[1]], place))
    return [b - a + 1 for a, b in loops if not any(a <= x and y <= b for x, y in loops if (x, y) != (a, b))]


def _output(*command: object) -> str:
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, check=True).stdout


def jobs(which: str) -> Iterator[tuple[str, str, Form, list[int], int]]:
    """(label, kernel, form, columns, right-hand sides)."""
    rbf, matern = kernels.SquaredExponential().form, kernels.Matern(1.5).form
    wide = (kernels.SquaredExponential() * kernels.Periodic(2.0) + kernels.Linear()).form
    for label, form in (("rbf", rbf), ("matern32", matern)):
        if which in ("forward", "gradient"):
            kernel = "product" if which == "forward" else "gradient"
            yield f"{label}-{kernel}-d3-t1", kernel, form, [3], 1
            yield f"{label}-{kernel}-d26-t64", kernel, form, [26], 64
        if which == "forward":
            yield f"{label}-block-d3", "block", form, [3], 0
            yield f"{label}-block-d26", "block", form, [26], 0
    if which == "wide":
        for d in (3, 26):
            for t in (1, 16):
                yield f"mixed-product-d{d}-t{t}", "product", wide, [d, 2 * d, d], t
                yield f"mixed-gradient-d{d}-t{t}", "gradient", wide, [d, 2 * d, d], t


def main(argv: Sequence[str]) -> int:
    for label, name, form, columns, t in jobs(argv[0] if argv else "forward"):
        for careful in (False, True):
            options: tuple[Any, ...]
            if name == "product":
                tile = shape_for("few" if t <= FEW else "many", routes(form, columns, False), t)
                options = (t if t <= FEW else power_of_two(t),)
            elif name == "block":
                tile, options = shape_for("block", routes(form, columns, False)), (True,)
            else:
                tile = shape_for("gradient", routes(form, columns, False))
                several = len(form.statistics) > 1 and max(columns) > UNROLLED
                how = ("few", t) if t <= FEW else ("many", power_of_two(t, most=HELD))
                options = (*how, power_of_two(max(columns), most=32 if several else 64), True)
            if careful and name != "block":
                tile = TileShape(tile.rows, max(16, tile.columns // 2), tile.warps, tile.stages, tile.span)
            started = time.perf_counter()
            kernel = compiled(name, form, columns, careful, options, tile)
            seconds = time.perf_counter() - started
            found = assembled(kernel)
            per_thread = tile.rows * tile.columns / (32 * tile.warps)
            loops = ",".join(f"{length / per_thread:.1f}" for length in found["loops"])
            print(
                f"kernel name={label} route={'careful' if careful else 'fast'} tile={tile.rows}x{tile.columns} "
                f"registers={found['registers']} stack={found['stack']} shared={found['shared']} "
                f"tensor={found['tensor']} loop_instructions_per_pair={loops or '-'} seconds={seconds:.1f}"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
