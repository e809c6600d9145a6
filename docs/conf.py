"""The documentation site: `make docs` builds it into build/site, offline and without warnings.

Pages are the Markdown of this folder. Made anew by each build, in docs/made: the gallery (examples/tasks, run, with
their pictures), the reference of public names from their docstrings, and a drawn sample of each covariance function.
"""

import re
import sys
from pathlib import Path
from typing import Any

import latex2mathml.converter
import matplotlib as mpl
import torch
from docutils import nodes
from sphinx.util import logging

import flashgp as fgp

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from site_pages import Pictures, broken_links, gallery_sources, kernel_pages, reference_pages  # noqa: E402

mpl.use("agg")

project, author, release = "FlashGP", "The FlashGP authors", fgp.__version__
copyright = author
extensions = [
    "myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode", "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
]  # fmt: skip
html_theme, html_title = "furo", f"FlashGP {release}"
html_static_path: list[str] = []
html_search_scorer = str(HERE / "search.js")
exclude_patterns = [
    "made/sources",
    "made/gallery/*.py",
    "**/README.md",
    "package.md",
    "**/sg_execution_times.rst",
    "*.py",
]
myst_enable_extensions = ["dollarmath", "colon_fence", "attrs_inline"]
myst_heading_anchors = 3
html_math_renderer = "mathml"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
autodoc_typehints = "none"
autodoc_member_order = "bysource"
napoleon_use_ivar, napoleon_attr_annotations = True, False
napoleon_custom_sections = [("Fields", "params_style")]
suppress_warnings = ["myst.header", "config.cache"]


sphinx_gallery_conf = {
    "examples_dirs": str(HERE / "made" / "sources"), "gallery_dirs": "made/gallery", "filename_pattern": r"\.py",
    "image_scrapers": (Pictures(),), "remove_config_comments": True, "download_all_examples": False,
    "show_memory": False, "min_reported_time": 10**6, "plot_gallery": "True", "write_computation_times": False,
    "within_subsection_order": "ExampleTitleSortKey", "abort_on_example_error": True, "capture_repr": (),
    "reset_modules": (),
}  # fmt: skip


# -- equations as MathML: no script from elsewhere -------------------------------------------------------------------
def _math(self: Any, node: nodes.Element, display: str) -> None:
    try:
        self.body.append(latex2mathml.converter.convert(node.astext(), display=display))
    except Exception as error:
        logging.getLogger(__name__).warning("no MathML for %r: %s", node.astext(), type(error).__name__, location=node)
    raise nodes.SkipNode


# -- docstrings ------------------------------------------------------------------------------------------------------
SECTION = re.compile(r"^(Cost|Source|Raises|Returns|Args|Fields): (.+)$")


def _docstring(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Text that reads well in a terminal as reStructuredText: code in single backticks, stars and bars as they are."""
    found, code, sections, short = list[str](), False, False, False
    for line in lines:
        sections = sections or bool(re.match(r"[A-Z][a-z]+:", line))
        if one := SECTION.match(line):  # a section on one line, or a few: a paragraph
            found += ["", f"**{one[1]}.** {_escaped(one[2])}"]
            short = True
            continue
        if short and line.startswith(" "):
            found.append(_escaped(line.strip()))
            continue
        found, short = [*found, *([""] if short else [])], False
        if line.startswith("    ") and not sections:  # an example before the sections
            found += [] if code else ["::", ""]
            code = True
        else:
            code = line.lstrip().startswith((">>>", "...")) or (code and bool(line.strip()))
        found.append(line if code else _escaped(line))
    lines[:] = found


def _escaped(line: str) -> str:
    parts = re.split(r"(`[^`]+`)", line)
    return "".join(f"`{part}`" if part.startswith("`") else re.sub(r"([*|]|_(?!\w))", r"\\\1", part) for part in parts)


def _links(app: Any, name: str, text: list[str]) -> None:
    """Tasks are pages of the gallery; folders are none."""
    text[0] = re.sub(r"\[([^\]]+)\]\((?:\.\./)+[^)]*/\)", r"\1", text[0])
    text[0] = re.sub(
        r"\n(\$\$.+?\$\$)\n", r"\n\n\1\n\n", text[0], flags=re.S
    )  # an equation begins and ends a paragraph
    up = "../" * name.count("/")
    text[0] = re.sub(r"\((?:\.\./)+examples/tasks/(\w+)\.py\)", rf"({up}made/gallery/\1.rst)", text[0])
    text[0] = re.sub(r"\(((?:\.\./)+)(examples|src|benchmark|data|README|CONTRIBUTING)([^)]*)\)", r"(\1\2\3)", text[0])


def _check_links(app: Any, error: Exception | None) -> None:
    if error is None and app.builder.name == "html":
        for link in broken_links(Path(app.outdir)):
            logging.getLogger(__name__).warning("broken link: %s", link)


def setup(app: Any) -> None:
    app.add_html_math_renderer(
        "mathml",
        (lambda self, node: _math(self, node, "inline"), None),
        (lambda self, node: _math(self, node, "block"), None),
    )
    app.connect("autodoc-process-docstring", _docstring, priority=400)
    app.connect("source-read", _links)
    app.connect("build-finished", _check_links)


torch.manual_seed(0)
gallery_sources(HERE.parent / "examples" / "tasks", HERE / "made" / "sources")
reference_pages(HERE / "made" / "reference")
kernel_pages(HERE / "made" / "kernels")
