"""Pages that the site makes of the library itself: gallery sources, the reference, samples of covariance functions."""

import ast
import inspect
import re
import shutil
from html import unescape
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote

import torch
from matplotlib.figure import Figure
from pictures import PICTURES

import flashgp as fgp
from flashgp.kernels import REGISTRY

MODULES = ("kernels", "likelihoods", "means", "data", "plots", "linalg", "processes", "operators", "bench")
NOT_RUN = {"several_processes"}  # needs torchrun


def _fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def gallery_sources(tasks: Path, folder: Path) -> None:
    """Copies of the tasks whose docstring has a title, as sphinx-gallery reads it."""
    _fresh(folder)
    (folder / "README.txt").write_text("Gallery\n=======\n\nTasks, each in a short file that runs as it stands.\n")
    for path in sorted(tasks.glob("*.py")):
        text = path.read_text()
        told = ast.get_docstring(ast.parse(text)) or path.stem
        code = text.split('"""', 2)[2]
        first, _, more = told.partition("\n")
        title, _, rest = first.partition(":")
        told = f"{title.strip().rstrip('.')}\n{'=' * 100}\n\n{rest.strip()}\n{more}"
        (folder / path.name).write_text(f'"""\n{told}\n"""\n{code}{_picture(path.stem)}')


def _picture(name: str) -> str:
    """A block of its own, behind the task, that draws."""
    code = PICTURES.get(name, "").strip()
    if not code:
        return ""
    figure = "from matplotlib.figure import Figure\n\n" if "Figure(" in code else ""
    return f"\n# %%\n# The picture\n{figure}{code}\n"


def reference_pages(folder: Path) -> None:
    """One page for the names of `flashgp`, and one for each of its public modules."""
    _fresh(folder)
    names = [name for name in fgp.__all__ if not isinstance(getattr(fgp, name), ModuleType)]
    pages = {"flashgp": ("flashgp", names)}
    for name in MODULES:
        module = getattr(fgp, name)
        own = [one for one in module.__all__ if one != "REGISTRY" and not isinstance(getattr(module, one), ModuleType)]
        pages[name] = (f"flashgp.{name}", own)
    for page, (module, names) in pages.items():
        (folder / f"{page}.rst").write_text(_reference(module, names))
    listed = "\n".join(f"   {page}" for page in pages)
    (folder / "index.rst").write_text(f"Reference\n=========\n\n.. toctree::\n   :maxdepth: 2\n\n{listed}\n")


def _reference(module: str, names: list[str]) -> str:
    lines = [module, "=" * len(module), "", f".. currentmodule:: {module}", ""]
    holder: Any = fgp if module == "flashgp" else getattr(fgp, module.partition(".")[2])
    for name in sorted(names, key=str.lower):
        thing = getattr(holder, name)
        lines += [name, "-" * len(name), ""]
        if inspect.isclass(thing):
            lines += [f".. autoclass:: {name}", "   :members:", "   :exclude-members: forward", ""]
        elif callable(thing):
            lines += [f".. autofunction:: {name}", ""]
        else:
            lines += [f".. autodata:: {name}", ""]
    return "\n".join(lines)


def kernel_pages(folder: Path) -> None:
    """Each covariance function with three functions drawn from it."""
    _fresh(folder)
    about = (
        "Three functions drawn from each, of one column. They add, multiply and scale: `2.0 * k`, `k1 + k2`, "
        "`k1 * k2`; `active_dims=` chooses columns; a lengthscale for each column is ARD. Which one when: [choose a "
        "covariance function](../../tour/choosing.md)."
    )
    lines = ["# Covariance functions", "", about, ""]
    x = torch.linspace(0.0, 6.0, 241, dtype=torch.float64)[:, None]
    for name, row in REGISTRY.items():
        lines += [f"## {name}", ""]
        if row.inputs == "real":
            _drawn(row.examples(1)[0], x, folder / f"{name}.svg")
            lines += [f"![functions drawn from {name}]({name}.svg)", ""]
        summary = (inspect.getdoc(row.kernel) or "").partition("\n\n")[0]
        lines += [re.sub(r"\s+", " ", summary).replace("*", r"\*").replace("_", r"\_"), ""]
        lines += [f"Arguments: [`fgp.kernels.{name}`](../reference/kernels.rst)", ""]
    (folder / "index.md").write_text("\n".join(lines))


def _drawn(kernel: Any, x: torch.Tensor, path: Path) -> None:
    covariance = kernel(x).to_dense().detach() + 1e-9 * torch.eye(len(x), dtype=torch.float64)
    normal = torch.randn(len(x), 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    values, vectors = torch.linalg.eigh(covariance)
    figure = Figure(figsize=(6.0, 1.8), layout="constrained")
    axes = figure.subplots()
    axes.plot(x[:, 0], vectors @ (values.clamp_min(0.0).sqrt()[:, None] * normal), linewidth=1.2)
    axes.set(xlabel="x", ylabel="f(x)")
    figure.savefig(path)


def broken_links(site: Path) -> list[str]:
    """Links between pages that lead nowhere: a file that is not there, or a place in it."""
    pages = {path.resolve(): path.read_text() for path in site.rglob("*.html")}
    places = {path: set(re.findall(r'\b(?:id|name)="([^"]+)"', text)) for path, text in pages.items()}
    broken = []
    for path, text in pages.items():
        for link in map(unescape, re.findall(r'\b(?:href|src)="([^"]*)"', text)):
            if re.match(r"[a-z]+:|//", link):
                continue
            name, _, place = link.partition("#")
            to = (path.parent / unquote(name.partition("?")[0])).resolve() if name else path
            if not to.exists() or (place and to in places and unquote(place) not in places[to]):
                broken.append(f"{path.relative_to(site.resolve())}: {link}")
    return sorted(broken)


class Pictures:
    """Pictures of a gallery's block: files that it writes, else figures that its names hold, without pyplot."""

    def __repr__(self) -> str:
        return "Pictures"

    def __call__(self, block: Any, block_vars: dict[str, Any], gallery_conf: dict[str, Any]) -> str:
        from sphinx_gallery.scrapers import figure_rst

        paths = []
        for written in sorted(Path(block_vars["src_file"]).parent.glob("*.png")):
            paths.append(next(block_vars["image_path_iterator"]))
            written.replace(paths[-1])
        held = [one for value in block_vars["example_globals"].values() for one in _figures(value)]
        for figure in {} if paths else {id(one): one for one in held}.values():
            paths.append(next(block_vars["image_path_iterator"]))
            figure.savefig(paths[-1], dpi=110)
        return figure_rst(paths, gallery_conf["src_dir"])


def _figures(value: Any) -> list[Figure]:
    several = value if isinstance(value, list) else [value]
    return [one for one in (getattr(each, "figure", each) for each in several) if isinstance(one, Figure)]
