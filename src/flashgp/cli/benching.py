"""`flashgp bench`: run one benchmark suite on this machine."""

import sys
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from flashgp.bench.suite import Options
from flashgp.bench.suites import SUITES
from flashgp.foundations.errors import DomainError
from flashgp.foundations.quantities import readable_seconds

from .console import Console
from .options import BenchOptions, listed
from .paths import require_distinct, require_writable

__all__ = ["run_bench"]

ENDINGS = (".json", ".png", ".html", ".htm")


def run_bench(options: BenchOptions, console: Console) -> dict[str, Any]:
    """Measure, print and write. Returns: the record. Raises: FlashGPError, OSError, before work where it can be."""
    began, out = time.perf_counter(), options.out or []
    for path in out:
        if Path(path).suffix.lower() not in ENDINGS:
            raise DomainError(f"`--out` must end in {', '.join(ENDINGS)}, got {path!r}; choose what is to be written")
        require_writable(path, "--out")
        if Path(path).suffix.lower() != ".json":
            from flashgp.plots.axes import require_matplotlib

            require_matplotlib(f"--out {path}")
    require_distinct({f"--out ({number})": path for number, path in enumerate(out, start=1)})
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
    console.say(measured.text())
    for path in out:
        measured.save(path)
        console.say(f"wrote {path}")
    console.note(f"measured in {readable_seconds(time.perf_counter() - began)}")
    return {"command": "bench", "out": out, **measured.record()}
