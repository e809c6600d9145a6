"""fgp.linalg against n on each device and on the one it chooses: the choice within 15 % + 10 us of the better one.

Needs an accelerator; writes records/gpu_linalg.json.
"""

import itertools
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from common import RECORDS, arguments
from torch import Tensor

import flashgp as fgp
from flashgp.bench import write_record
from flashgp.foundations.machine import accelerator
from flashgp.foundations.profile import BUILT_IN
from flashgp.foundations.profile_store import CHOICE, current_profile, keep_profile, machine_key

ORDERS = (10, 15, 20, 30, 50, 75, 100, 150, 200, 300, 400, 512, 700, 1000, 1500, 2000, 2500)
OPERATIONS = ("qr", "cholesky", "eigh", "triangular")
RIGHT_HAND_SIDES = 16
SHARE, SECONDS = 0.15, 1e-5  # the choice may take so much longer than the better device
TURN_SECONDS = 0.001  # of one turn, so that short calls are timed at their own pace
TURNS, SLOW_TURNS = 60, 6  # of each: what else runs on a machine comes in bursts longer than a few turns
COLUMNS = [
    {"key": "work", "title": "operation"},
    {"key": "cells", "title": "cells", "format": "integer"},
    {"key": "within", "title": "within 15 % + 10 µs", "format": "integer"},
    {"key": "ratio", "title": "longest, of the better device"},
    {"key": "where", "title": "there"},
    {"key": "met", "title": "reached"},
]


def problem(operation: str, n: int, dtype: torch.dtype, home: str) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    A = torch.randn(n, n, generator=generator, dtype=dtype)
    if operation == "eigh":
        A = A + A.mT
    elif operation == "cholesky":
        A = A @ A.mT / n + torch.eye(n, dtype=dtype)
    elif operation == "triangular":
        A = (A / n**0.5).tril_(-1) + torch.eye(n, dtype=dtype)
        return A.to(home), torch.randn(n, RIGHT_HAND_SIDES, generator=generator, dtype=dtype).to(home)
    return (A.to(home),)


def call(operation: str, where: Any, operands: tuple[Tensor, ...], **options: Any) -> Callable[[], Any]:
    """A call of torch.linalg or fgp.linalg, complete when it returns."""
    if operation == "triangular":
        options = {"upper": False, **options}
    function = getattr(where, "solve_triangular" if operation == "triangular" else operation)
    waits = operands[0].is_cuda or accelerator() is not None

    def run() -> Any:
        result = function(*operands, **options)
        if waits:
            torch.cuda.synchronize()
        return result

    return run


def error(operation: str, operands: tuple[Tensor, ...], result: Any) -> float:
    """Of the result, relative to A or B, in units of n eps: a fast wrong answer is a failed run."""
    A = operands[0].double()
    if operation == "qr":
        off, scale = result.Q.double() @ result.R.double() - A, A
    elif operation == "cholesky":
        off, scale = result.double() @ result.double().mT - A, A
    elif operation == "eigh":
        off, scale = A @ result.eigenvectors.double() - result.eigenvectors.double() * result.eigenvalues.double(), A
    else:
        off, scale = A @ result.double() - operands[1].double(), A.norm() * result.double()
    return float(off.norm() / scale.norm()) / (A.shape[-1] * torch.finfo(operands[0].dtype).eps)


def quickest(jobs: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Seconds of a call of each: the least mean of its turns, A B A B, since other work only ever adds time."""
    least = dict.fromkeys(jobs, float("inf"))
    for _ in range(repeats):
        for name, job in jobs.items():
            calls, began, spent = 0, time.perf_counter(), 0.0
            while not calls or spent < TURN_SECONDS:
                job()
                calls, spent = calls + 1, time.perf_counter() - began
            least[name] = min(least[name], spent / calls)
    return least


def row_of(operation: str, n: int, dtype: torch.dtype, home: str, repeats: int) -> dict[str, Any]:
    operands = problem(operation, n, dtype, home)
    devices = ["cpu", *(["cuda"] if accelerator() is not None else [])]
    jobs = {"torch": call(operation, torch.linalg, operands), "auto": call(operation, fgp.linalg, operands)}
    jobs |= {device: call(operation, fgp.linalg, operands, device=device) for device in devices}
    worst = max(error(operation, operands, job()) for job in jobs.values())
    assert worst <= 10.0, f"{operation} of order {n} is off by {worst:.1f} n eps"
    seconds = quickest(jobs, repeats)
    better = min(seconds[device] for device in devices)
    auto = seconds["auto"]
    return {
        "work": operation, "dtype": str(dtype).removeprefix("torch."), "home": home, "n": n,
        "torch_seconds": seconds["torch"], "auto_seconds": auto,
        **{f"{device}_seconds": seconds.get(device) for device in ("cpu", "cuda")},
        "over_better": auto / better,
        "crossover": current_profile().crossover(operation, dtype, home), "errors_n_eps": worst,
        "met": auto <= better * (1 + SHARE) + SECONDS,
    }  # fmt: skip


def rows_of(
    orders: Sequence[int], only: str = "", deadline: float = float("inf"), toy: bool = False
) -> Iterable[dict[str, Any]]:
    """Every operation, dtype and place of the data; what comes after the deadline (time.monotonic) is left out."""
    homes = ["cpu", *(["cuda"] if accelerator() is not None else [])]
    for n, operation, dtype, home in itertools.product(orders, OPERATIONS, (torch.float64, torch.float32), homes):
        if only in operation and time.monotonic() < deadline:
            slow = n >= 1000 and operation in ("eigh", "qr")
            yield row_of(operation, n, dtype, home, 1 if toy else SLOW_TURNS if slow else TURNS)


def payload(title: str, cells: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of the record: the cells, and a row for each operation with the choice that took longest beside the better."""
    rows = []
    for operation in OPERATIONS:
        own = [cell for cell in cells if cell["work"] == operation]
        if own:
            worst = max(own, key=lambda cell: cell["over_better"])
            rows.append({
                "work": operation, "cells": len(own), "within": sum(cell["met"] for cell in own),
                "ratio": worst["over_better"], "where": f"n={worst['n']:,}, {worst['dtype']}, data on {worst['home']}",
                "met": all(cell["met"] for cell in own),
            })  # fmt: skip
    return {"title": title, "columns": COLUMNS, "rows": rows, "cells": list(cells), "seed": 0}


def measured_rates() -> None:
    """Rates of this machine for the choice, where there is one to make and nobody has measured them: what it rests on
    alone, in a folder that is not the user's."""
    if accelerator() is None or current_profile().measured:
        return
    os.environ[CHOICE] = tempfile.mkdtemp(prefix="flashgp-")
    processor, cores, threads, version = machine_key()
    own = {"processor": processor, "cores": cores, "threads": threads, "torch_version": version}
    keep_profile(replace(BUILT_IN, name="measured", **own))
    fgp.tune(only="crossover")


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(list(sys.argv[1:] if argv is None else argv), __doc__ or "")
    if accelerator() is None and not options.toy:
        print("there is one device, and nothing to choose")
        return 0
    if not options.toy:
        measured_rates()
    rows = []
    for row in rows_of((10, 50) if options.toy else ORDERS, options.only, toy=options.toy):
        rows.append(row)
        print(
            f"{row['work']:<10} {row['dtype']} n={row['n']:<5} on {row['home']:<4} auto {row['auto_seconds']:.3e} s, "
            f"{row['over_better']:.2f} of the better one{'' if row['met'] else '  MISSED'}",
            flush=True,
        )
    if not options.toy and not options.only:
        write_record(RECORDS / "gpu_linalg.json", payload("fgp.linalg on a GPU", rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
