"""The rooms of inference import downwards: values at the root, then exact, predict, training, online, then facades."""

from pathlib import Path

import pytest

from project.test_layers import imports

ROOMS = ("exact", "predict", "training", "online")
FACADES = ("gp", "posterior", "fit", "stream")  # argument checks, then one call; no room imports them


def rank(module: str) -> int:
    """0 for the values at the root, then the rooms in their order, the facades last."""
    name = module.split(".")[2]
    if name in ROOMS:
        return 1 + ROOMS.index(name)
    return 1 + len(ROOMS) if name in FACADES else 0


def upward_imports(source: Path) -> list[str]:
    found = []
    for path in sorted((source / "inference").rglob("*.py")):
        if path.name == "__init__.py":
            continue
        module = ".".join(["flashgp", *path.relative_to(source).with_suffix("").parts])
        for one in imports(path, source):
            inside = one.target.startswith("flashgp.inference.")
            if inside and rank(one.target) > rank(module):
                found.append(f"{module}:{one.line} imports {one.target}")
    return found


def test_rooms_import_downwards(root: Path) -> None:
    found = upward_imports(root / "src" / "flashgp")
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
        ("online/update.py", "from flashgp.inference.training.fit import fit_prior", False),
        ("posterior.py", "from flashgp.inference.online import update", False),
        ("gp.py", "from flashgp.inference.posterior import Posterior", False),
    ],
)
def test_an_upward_import_is_found(tmp_path: Path, file: str, text: str, wrong: bool) -> None:
    for name in ("state", "gp", "posterior", *(f"{room}/a" for room in ROOMS)):
        path = tmp_path / "inference" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    for name in ("exact/solve", "predict/paths", "training/fit", "online/update"):
        (tmp_path / "inference" / f"{name}.py").touch()
    (tmp_path / "inference" / file).write_text(text, encoding="utf-8")
    assert bool(upward_imports(tmp_path)) is wrong
