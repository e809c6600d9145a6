"""What the documentation site makes of the library: every task, every public name, every covariance function."""

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import flashgp as fgp
from flashgp.kernels import REGISTRY

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def pages(root: Path) -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(root / "docs")
        yield importlib.import_module("site_pages")


def test_every_task_has_a_title_and_its_code(pages: ModuleType, root: Path, tmp_path: Path) -> None:
    tasks = root / "examples" / "tasks"
    pages.gallery_sources(tasks, tmp_path / "sources")
    names = {path.name for path in tasks.glob("*.py")}
    assert {path.name for path in (tmp_path / "sources").glob("*.py")} == names
    assert len(names) >= 25
    for name in names:
        made, given = (ast.parse((folder / name).read_text()) for folder in (tmp_path / "sources", tasks))
        title, line, *_ = (ast.get_docstring(made) or "").splitlines()
        assert title
        assert set(line) == {"="}
        assert [*map(ast.dump, made.body[1 : len(given.body)])] == [*map(ast.dump, given.body[1:])]
    drawn = {path.name for path in tasks.glob("*.py") if "savefig" in path.read_text()}
    assert len(drawn | {f"{name}.py" for name in pages.PICTURES}) >= 25  # with a picture
    assert {f"{name}.py" for name in pages.PICTURES} <= names


def test_the_reference_has_every_public_name(pages: ModuleType, tmp_path: Path) -> None:
    pages.reference_pages(tmp_path / "reference")
    text = "\n".join(path.read_text() for path in (tmp_path / "reference").glob("*.rst"))
    names = [name for name in fgp.__all__ if not isinstance(getattr(fgp, name), ModuleType)]
    names += [*fgp.likelihoods.__all__, *fgp.kernels.__all__]
    missing = {name for name in names if f":: {name}\n" not in text}
    assert missing <= {"REGISTRY"}


def test_every_covariance_function_is_drawn(pages: ModuleType, tmp_path: Path) -> None:
    pages.kernel_pages(tmp_path / "kernels")
    text = (tmp_path / "kernels" / "index.md").read_text()
    for name, row in REGISTRY.items():
        assert f"## {name}\n" in text
        assert (tmp_path / "kernels" / f"{name}.svg").exists() == (row.inputs == "real")
