"""`flashgp bench`: run one benchmark suite on this machine."""

import sys
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from flashgp.bench.records import write_record
from flashgp.bench.suite import Options
from flashgp.bench.suites import SUITES
from flashgp.foundations.errors import DomainError
from flashgp.foundations.quantities import readable_seconds

from .console import Console
from .options import BenchOptions, listed
from .paths import require_writable


def run_bench(options: BenchOptions, console: Console) -> dict[str, Any]:
    """Measure, print and write. Returns: the record. Raises: FlashGPError, OSError, before work where it can be."""
    began = time.perf_counter()
    if options.out is not None:
        if Path(options.out).suffix.lower() != ".json":
            raise DomainError(f"`--out` must end in .json, got {options.out!r}; a record is what is written")
        require_writable(options.out, "--out")
    with console.stages() as stage:

        def progress(line: str) -> None:
            if stage is not None:
                stage(line, 0.0)

        with redirect_stdout(sys.stderr):  # what other libraries print must not get between the results
            measured = SUITES[options.name].measure(
                Options(
                    sizes=options.rows,
                    dtypes=listed(options.dtypes),
                    devices=listed(options.device),
                    repeats=options.repeats,
                    clocks="all"
                    if options.clocks == "all"
                    else tuple(c for c in listed(options.clocks) if c != "none"),
                    peers=options.peers,
                    seed=options.seed,
                    progress=progress,
                )
            )
    console.say(str(measured))
    record = measured.record()
    if options.out is not None:
        write_record(options.out, record)
        console.say(f"wrote {options.out}")
    console.note(f"measured in {readable_seconds(time.perf_counter() - began)}")
    return {"command": "bench", "out": options.out, **record}
