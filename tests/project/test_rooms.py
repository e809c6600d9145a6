"""Rooms import downwards: the root of a folder first, then its rooms in their order, in inference the facades last."""

from pathlib import Path

import pytest

from project.test_layers import imports

ROOMS = {
    "inference": ("judgement", "exact", "predict", "training", "online", "full_scale", "streamed", "fourier"),
    "solvers": ("direct", "growing", "preconditioners", "iterative"),
}
# Of inference: argument checks, then one call; no room imports them.
FACADES = (
    "gp",
    "answers",
    "judging",
    "posterior",
    "condition",
    "row_marginals",
    "posterior_by_sites",
    "fit",
    "stream",
)


def rank(module: str) -> int:
    """0 for the files at the root, then the rooms in their order, the facades last."""
    folder, name = module.split(".")[1:3]
    rooms = ROOMS[folder]
    if name in rooms:
        return 1 + rooms.index(name)
    return 1 + len(rooms) if folder == "inference" and name in FACADES else 0


def upward_imports(source: Path, folder: str) -> list[str]:
    found = []
    for path in sorted((source / folder).rglob("*.py")):
        if path.name == "__init__.py":
            continue
        module = ".".join(["flashgp", *path.relative_to(source).with_suffix("").parts])
        for one in imports(path, source):
            inside = one.target.startswith(f"flashgp.{folder}.")
            if inside and rank(one.target) > rank(module):
                found.append(f"{module}:{one.line} imports {one.target}")
    return found


@pytest.mark.parametrize("folder", ROOMS)
def test_rooms_import_downwards(root: Path, folder: str) -> None:
    found = upward_imports(root / "src" / "flashgp", folder)
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("file", "text", "wrong"),
    [
        ("state.py", "from flashgp.inference.exact.solve import mean_goal", True),
        ("exact/solve.py", "def f():\n    from flashgp.inference.predict import paths", True),
        (
            "training/fit.py",
            "if TYPE_CHECKING:\n    import flashgp.inference.gp",
            True,
        ),
        ("online/update.py", "from flashgp.inference.training.exact_fit import fit_exact", False),
        ("posterior.py", "from flashgp.inference.online import update", False),
        ("gp.py", "from flashgp.inference.posterior import Posterior", False),
    ],
)
def test_an_upward_import_is_found(tmp_path: Path, file: str, text: str, wrong: bool) -> None:
    for name in ("state", "gp", "posterior", *(f"{room}/a" for room in ROOMS["inference"])):
        path = tmp_path / "inference" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    for name in ("exact/solve", "predict/paths", "training/fit", "online/update"):
        (tmp_path / "inference" / f"{name}.py").touch()
    (tmp_path / "inference" / file).write_text(text, encoding="utf-8")
    assert bool(upward_imports(tmp_path, "inference")) is wrong
