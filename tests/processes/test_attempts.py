"""Programs that torchrun starts again: the ranks of every attempt find each other, and not those that are gone."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torch import distributed as dist

from flashgp.foundations.errors import DomainError
from flashgp.processes import init_process_group

PROGRAM = """
import os, signal, sys, time
import torch
from torch import distributed as dist
from flashgp.processes import init_process_group

folder, rank, attempt = sys.argv[1], int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
init_process_group()
total = torch.ones(1)
dist.all_reduce(total)
dist.destroy_process_group()
if rank == 0 and attempt == 0:  # after it has joined the others in the one store, and before in the other
    while not os.path.exists(f"{folder}/store"):
        time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGKILL)
init_process_group(store=dist.FileStore(f"{folder}/store", 2))
dist.all_reduce(total)
dist.destroy_process_group()
open(f"{folder}/{rank}", "w").write(f"{attempt} {total.item():g}")
"""


def test_ranks_of_a_new_attempt_find_each_other(tmp_path: Path, root: Path) -> None:
    """A rank dies after it has joined the others by the store of torchrun, and before by one that the program brings,
    which is that of all attempts."""
    (tmp_path / "program.py").write_text(PROGRAM)
    run = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1"]
    paths = os.pathsep.join([str(root / "src"), os.environ.get("PYTHONPATH", "")])
    kept = {name: text for name, text in os.environ.items() if not name.startswith("TORCHELASTIC")}
    done = subprocess.run(
        [sys.executable, *run, str(tmp_path / "program.py"), str(tmp_path)],
        env={**kept, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert [(tmp_path / str(rank)).read_text() for rank in (0, 1)] == ["1 4", "1 4"]


@pytest.mark.parametrize(
    ("options", "said"),
    [({"store": "there"}, "got str"), ({"store": dist.HashStore(), "init_method": "env://"}, "got 'env://'")],
)
def test_a_meeting_place_that_is_none_is_refused(
    options: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"TORCHELASTIC_RESTART_COUNT": 0, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "RANK": 0}.items():
        monkeypatch.setenv(name, str(value))
    with pytest.raises(DomainError, match=said):
        init_process_group(**options)


WITHOUT = """
import torch
torch.distributed.is_available = lambda: False
import sys
for name in [name for name in sys.modules if name.startswith("torch.distributed.")]:
    sys.modules[name] = None  # as a build of torch without it: to import one of these is an error
import flashgp as fgp
x = torch.linspace(0.0, 1.0, 5, dtype=torch.float64)[:, None]
print(fgp.GP(fgp.kernels.Matern()).condition(x, x[:, 0]).count)
try:
    fgp.processes.init_process_group()
except fgp.BackendUnavailableError as error:
    print(error)
"""


def test_a_torch_without_process_groups_does_everything_else(source_environment: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], env=source_environment, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr[-2000:]
    count, error = done.stdout.splitlines()
    assert count == "5"
    assert "needs torch.distributed" in error
