"""The text of a form's compiled loops: product, block and gradient, from one profile.

One module per form, dtype and way of evaluating the statistics. Every function takes a list of tiles (pairs of block
numbers) and runs without the interpreter lock; a tile is visited four rows at a time, and each step of those (fill
four rows of covariances, sum them against right-hand sides, add them to the mirrored rows) is a simple loop over
contiguous columns, which is what vectorises. The text can be read: `generated_source(...)`.
"""

import functools
from collections.abc import Sequence
from types import ModuleType

import torch

from flashgp.foundations.forks import no_forks
from flashgp.foundations.form import Form
from flashgp.pairwise.cpu.layout import Statistic
from flashgp.pairwise.cpu.scalar_code import ScalarCode
from flashgp.pairwise.program import program_of

__all__ = ["compiled", "generated_source"]

LETTER = {"distance": "q", "product": "s", "match": "m"}
SWEEP = {"differences": "difference_sweep", "dot": "dot_sweep"}
BUFFER = {"left": "L", "right": "E", "parameter": "P"}  # slopes by these; D by statistics


def compiled(form: Form, layout: tuple[Statistic, ...], dtype: torch.dtype) -> ModuleType:
    """The module of a form's loops; its functions compile at their first call, or come from the cache."""
    return _compiled(form, layout, str(dtype).removeprefix("torch."))


@functools.lru_cache(maxsize=512)
def _compiled(form: Form, layout: tuple[Statistic, ...], dtype: str) -> ModuleType:
    from flashgp.pairwise.cpu import identity
    from flashgp.pairwise.source_cache import import_generated

    with no_forks():  # the identity imports numba
        return import_generated(generated_source(form, layout, dtype), identity.of_this_library())


def generated_source(form: Form, layout: tuple[Statistic, ...], dtype: str) -> str:
    """Python text with `product`, `block`, `gradient` and `block_gradient` for a form; dtype "float32" or "float64"."""
    loops = _Loops(form, layout)
    functions = [loops.product(), loops.block(), loops.gradient(), loops.block_gradient()]
    constants = [f"{name} = {dtype}({value!r})" for name, value in loops.constants.items()]
    head = [
        "from math import sqrt",
        "import numpy",
        f"from numpy import {dtype}" + (", float64" if dtype != "float64" else ""),
        "from numba import njit",
        "from flashgp.pairwise.cpu.arithmetic import FAST, FUNCTIONS, wide_vectors",
        "from flashgp.pairwise.cpu.pulls import *",
        "from flashgp.pairwise.cpu.sweeps import *",
        "OPTIONS = dict(nogil=True, fastmath=FAST, error_model='numpy', cache=True)",
        *(f"{name} = FUNCTIONS['{dtype}']['{name}']" for name in ("exp2", "log1p", "cos", "sin")),
        *constants,
        f"REAL = {dtype}",
    ]
    return "\n".join([f"# {form.profile.key}", *head, "", *functions])


class _Loops:
    """Text of the loops of one form; constants are shared between its functions."""

    def __init__(self, form: Form, layout: Sequence[Statistic]) -> None:
        self.form, self.layout = form, layout
        self.program = program_of(form)
        self.constants: dict[str, float] = {}

    # -- arguments ----------------------------------------------------------------------------------------------
    def arguments(self) -> list[str]:
        """Names of what describes the rows: packed features, norms, codes and row scalars of both sides."""
        names = []
        for k, statistic in enumerate(self.layout):
            names += [f"R{k}", f"C{k}_"]
            if statistic.way == "dot" and statistic.kind == "distance":
                names += [f"RN{k}", f"CN{k}", f"least{k}"]
        for k in range(self.form.scalar_count):
            names += [f"RA{k}", f"CB{k}"]
        return names

    def opening(self) -> list[str]:
        """Views of the tile's two blocks."""
        lines = []
        for k, statistic in enumerate(self.layout):
            lines += [f"r{k} = R{k}[bi]", f"c{k} = C{k}_[bj]"]
            if statistic.way == "dot" and statistic.kind == "distance":
                lines += [f"rn{k} = RN{k}[bi]", f"cn{k} = CN{k}[bj]"]
        for k in range(self.form.scalar_count):
            lines += [f"ra{k} = RA{k}[bi]", f"cb{k} = CB{k}[bj]"]
        return lines

    def buffers(self) -> list[str]:
        return [f"Q{k} = numpy.empty((4, size), REAL)" for k, s in enumerate(self.layout) if s.way in SWEEP]

    def sweeps(self) -> list[str]:
        """Row buffers of the statistics that are not unrolled."""
        swept = [(k, s.way) for k, s in enumerate(self.layout) if s.way in SWEEP]
        return [f"{SWEEP[way]}(r{k}, i, c{k}, nj, Q{k})" for k, way in swept]

    def left(self, r: str) -> list[str]:
        """What row i + r contributes."""
        lines = []
        for k, statistic in enumerate(self.layout):
            if statistic.way == "inline":
                lines += [f"x{k}_{c} = r{k}[{c}, i + {r}]" for c in range(statistic.columns)]
            if statistic.way == "dot" and statistic.kind == "distance":
                lines.append(f"n{k} = rn{k}[i + {r}]")
            elif statistic.way == "split":
                d = statistic.columns
                lines += [f"x{k}_{c} = r{k}[{c}, i + {r}]" for c in range(2 * d)]
            elif statistic.way == "match":
                lines.append(f"x{k} = r{k}[i + {r}]")
        return lines + [f"a{k} = ra{k}[i + {r}]" for k in range(self.form.scalar_count)]

    def pair(self, r: str) -> list[str]:
        """The statistics of the pair (i + r, j)."""
        lines = []
        for k, statistic in enumerate(self.layout):
            name, d = f"{LETTER[statistic.kind]}{k}", statistic.columns
            match statistic.way:
                case "inline" if statistic.kind == "distance":
                    lines += [f"d{k}_{c} = x{k}_{c} - c{k}[{c}, j]" for c in range(d)]
                    lines.append(f"{name} = " + " + ".join(f"d{k}_{c} * d{k}_{c}" for c in range(d)))
                case "inline":
                    lines.append(f"{name} = " + " + ".join(f"x{k}_{c} * c{k}[{c}, j]" for c in range(d)))
                case "split":
                    lines += [
                        f"d{k}_{c} = exact_difference(x{k}_{c}, c{k}[{c}, j], x{k}_{d + c}, c{k}[{d + c}, j])"
                        for c in range(d)
                    ]
                    lines.append(f"{name} = " + " + ".join(f"d{k}_{c} * d{k}_{c}" for c in range(d)))
                case "match":
                    lines.append(f"{name} = ONE if x{k} == c{k}[j] else ZERO")
                    self.constants.update(ONE=1.0, ZERO=0.0)
                case "dot" if statistic.kind == "distance":
                    self.constants.update(TWO=2.0, ZERO=0.0)
                    lines.append(f"{name} = (n{k} + cn{k}[j]) - TWO * Q{k}[{r}, j]")
                    lines.append(f"{name} = {name} if {name} > least{k} else ZERO")
                case _:
                    lines.append(f"{name} = Q{k}[{r}, j]")
        return lines + [f"b{k} = cb{k}[j]" for k in range(self.form.scalar_count)]

    # -- pieces of text -------------------------------------------------------------------------------------------
    def function(self, name: str, extra: list[str], code: ScalarCode, setup: list[str], tile: list[str]) -> str:
        """A function that visits tiles; the lines of `tile` run once per tile."""
        self.constants.update(code.constants)
        arguments = ["tiles", "n", "m", "size", "symmetric", "theta", *self.arguments(), *extra]
        lines = [
            "@njit(**OPTIONS)",
            f"def {name}({', '.join(arguments)}):",
            "    wide_vectors()",
            *(f"    p{k} = theta[{k}]" for k in range(self.form.parameter_count)),
            *(f"    {line}" for line in code.prelude),
            *(f"    {line}" for line in (*self.buffers(), *setup)),
            "    for step in range(tiles.shape[0]):",
            "        bi = tiles[step, 0]",
            "        bj = tiles[step, 1]",
            "        mirror = symmetric and bi != bj",
            "        ni = min(size, n - bi * size)",
            "        nj = min(size, (m - bj * size + 15) // 16 * 16)",
            *(f"        {line}" for line in (*self.opening(), *tile)),
        ]
        return "\n".join(lines) + "\n"

    def fill(self, code: ScalarCode, results: list[str]) -> list[str]:
        """The loop over r and j that evaluates `code` and stores `results`."""
        return [
            *self.sweeps(),
            "for r in range(4):",
            *(f"    {line}" for line in self.left("r")),
            "    for j in range(nj):",
            *(f"        {line}" for line in (*self.pair("r"), *code.body, *results)),
        ]

    def by_rows(self, inner: list[str], at_end: list[str]) -> list[str]:
        """Visit the tile's rows four at a time; column sums go to float64 every 256 rows."""
        return [
            "for i0 in range(0, ni, 256):",
            "    for i in range(i0, min(i0 + 256, ni), 4):",
            *(f"        {line}" for line in inner),
            *(f"    {line}" for line in at_end),
        ]

    # -- the functions ----------------------------------------------------------------------------------------
    def product(self) -> str:
        """K V, both K_ij v_j and K_ij v_i of a tile off the diagonal of a symmetric product, eq. (M-20)."""
        code = self._code()
        value = code.value(self.form.profile)
        inner = [
            *self.fill(code, [f"K[r, j] = {value}"]),
            "row_sums(K, vj, nj, out[bi], i)",
            "if mirror:",
            "    column_sums(K, vi, i, nj, part)",
        ]
        tile = [
            "vj = VC[bj]",
            "vi = VR[bi]",
            *self.by_rows(inner, ["if mirror:", "    add_columns(part, nj, out[bj])"]),
        ]
        setup = ["K = numpy.empty((4, size), REAL)", "part = numpy.zeros((VC.shape[1], size), REAL)"]
        return self.function("product", ["VR", "VC", "out"], code, setup, tile)

    def block(self) -> str:
        """K itself into `out`; when symmetric its upper triangle, with `both` the lower one from the same values."""
        code = self._code()
        value = code.value(self.form.profile)
        inner = [
            *self.fill(code, [f"K[r, j] = {value}"]),
            "store_rows(K, out, bi * size + i, min(4, ni - i), start, width)",
            "if both and mirror and i % 16 == 12:",  # above the diagonal every block of rows is whole
            "    mirror_rows(out, bi * size + i - 12, start, width)",
        ]
        tile = [
            "start = bj * size",
            "width = min(size, m - start)",
            "for i in range(0, ni, 4):",
            *(f"    {line}" for line in inner),
        ]
        return self.function("block", ["out", "both"], code, ["K = numpy.empty((4, size), REAL)"], tile)

    def gradient(self) -> str:
        """Gradients of sum_ij w_ij k_ij, w = U V^T, by features, row scalars and parameters, eq. (M-21).

        When symmetric, w is symmetric and stands for both orders of a pair: see `CpuTiles.bilinear_gradient`.
        """
        return self._pullback(
            "gradient", ["UR", "VC"], ["ur = UR[bi]", "vc = VC[bj]"], "weights_sweep(ur, i, vc, nj, W)"
        )

    def block_gradient(self) -> str:
        """The same for a given matrix of weights, (n, m); when symmetric, every pair counts twice, as above."""
        self.constants.update(ONE=1.0, TWO=2.0)
        times = ["times = TWO if symmetric else ONE"]
        return self._pullback(
            "block_gradient", ["weights"], times, "weights_tile(weights, bi * size + i, bj * size, times, W)"
        )

    def _pullback(self, name: str, extra: list[str], opening: list[str], weights: str) -> str:
        """A function that pulls weights, a tile of them made by a line of text, back through the derivatives."""
        code = self._code()
        results, setup, pulls, ends, extra = [], ["W = numpy.empty((4, size), REAL)"], [], [], list(extra)
        for symbol in self.program.present:
            slope = code.value(self.program.derivatives[symbol])
            k = symbol.index
            buffer = f"{BUFFER.get(symbol.kind, 'D')}{k}"
            setup.append(f"{buffer} = numpy.empty((4, size), REAL)")
            results.append(f"{buffer}[r, j] = w * {slope}")
            if symbol.kind == "parameter":
                pulls.append(f"by_theta[{k}] += share * tile_sum({buffer}, nj, ni - i)")
            elif symbol.kind == "left":
                extra.append(f"by_left{k}")
                pulls.append(f"tile_row_sums({buffer}, nj, by_left{k}[bi, 0], i)")
            elif symbol.kind == "right":
                extra.append(f"by_right{k}")
                setup.append(f"part_right{k} = numpy.zeros((1, size), REAL)")
                pulls.append(f"if not symmetric or mirror:\n    tile_column_sums({buffer}, nj, part_right{k})")
                ends.append(f"add_columns(part_right{k}, nj, by_right{k}[bj])")
            else:
                extra += [f"by_rows{k}", f"by_cols{k}"]
                rule = "distance" if symbol.kind == "distance" else "product"
                setup.append(f"part{k} = numpy.zeros((by_cols{k}.shape[1], size), REAL)")
                pulls += [
                    f"{rule}_row_pull({buffer}, r{k}, i, c{k}, nj, by_rows{k}[bi])",
                    f"if not symmetric or mirror:\n    {rule}_column_pull({buffer}, r{k}, i, c{k}, nj, part{k})",
                ]
                ends.append(f"add_columns(part{k}, nj, by_cols{k}[bj])")
        extra.append("by_theta")
        inner = [weights, *self.fill(code, ["w = W[r, j]", *results])]
        for pull in pulls:
            inner += pull.split("\n")
        tile = [
            *opening,
            "share = 0.5 if symmetric and not mirror else 1.0",
            *self.by_rows(inner, ends),
        ]
        return self.function(name, extra, code, setup, tile)

    def _code(self) -> ScalarCode:
        return ScalarCode(self.constants)
