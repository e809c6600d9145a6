"""What the documentation site makes of the library: every task, every public name, every covariance function."""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import flashgp as fgp
from flashgp.kernels import REGISTRY

pytest.importorskip("matplotlib")


TOUR, TASK = "docs/tour/{}.md", "examples/tasks/{}.py"
SEARCHES = {  # what thirty tasks are looked for by, and the page that has the answer
    "plot regression": TASK.format("curve"),
    "lengthscale per column ARD": TASK.format("columns"),
    "priors LogNormal": TOUR.format("priors"),
    "fixed trainable bounds": TOUR.format("priors"),
    "sum of kernels components": TASK.format("sums"),
    "choose covariance active_dims SpectralMixture": TOUR.format("choosing"),
    "CO2 Periodic time series": TOUR.format("choosing"),
    "custom kernel": TASK.format("own_kernel"),
    "deep kernel": TASK.format("deep_kernel"),
    "several outputs missing cells": TASK.format("several_outputs"),
    "multitask coregionalization": TASK.format("coregionalization"),
    "heteroscedastic noise per row": TASK.format("noise_per_row"),
    "bayesian optimisation expected improvement": TASK.format("optimise"),
    "Thompson sampling": TOUR.format("bayesian-optimisation"),
    "BoTorch Ax": TOUR.format("botorch-and-gpytorch"),
    "Pipeline cross-validation": TASK.format("scikit_learn"),
    "SGPR SVGP multitask Interval state_dict": "docs/coming_from_gpytorch.md",
    "scikit-learn GridSearchCV": "docs/coming_from_scikit_learn.md",
    "leave-one-out": TASK.format("leave_one_out"),
    "is my model good": TOUR.format("judging"),
    "posterior samples": TASK.format("posterior_functions"),
    "streaming online": TASK.format("stream"),
    "save load": TASK.format("files"),
    "float32 Hessian": TASK.format("torch_habits"),
    "time limit": TASK.format("plan_first"),
    "million rows inducing points": TASK.format("many_rows"),
    "Parquet": TASK.format("parquet"),
    "torchrun distributed": TASK.format("several_processes"),
    "classification": TOUR.format("classes"),
    "command line predict": TOUR.format("command-line"),
    "dates text missing currency": TASK.format("messy_table"),
    "many columns": TASK.format("many_columns"),
    "forecast": TASK.format("forecast"),
    "spatial kriging": "docs/maps_and_series.md",
}


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


@pytest.mark.parametrize("words", SEARCHES)
def test_a_page_has_the_words_that_it_is_looked_for_by(words: str, root: Path) -> None:
    text = set(re.findall(r"\w+", (root / SEARCHES[words]).read_text(encoding="utf-8").lower()))
    assert [word for word in re.findall(r"\w+", words.lower()) if word not in text] == []


def test_links_that_lead_nowhere_are_found(pages: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "one.html").write_text('<a id="top" href="../two.html#here"/><a href="#top"/><img src="x.png"/>')
    (tmp_path / "two.html").write_text('<p id="here"/><a href="a/one.html#gone"/><a href="https://example.org/a"/>')
    assert pages.broken_links(tmp_path) == ["a/one.html: x.png", "two.html: a/one.html#gone"]


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
