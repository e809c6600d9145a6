"""The text of a form's compiled loops: product, block and gradient, from one profile.

One module per form, dtype and way of evaluating the statistics. Every function takes a list of tiles (pairs of block
numbers) and runs without the interpreter lock; a tile is visited four rows at a time, and each step of those (fill
four rows of covariances, sum them against right-hand sides, add them to the mirrored rows) is a simple loop over
contiguous columns, which is what vectorises. Terms of the profile that repeat (`families.py`) are one loop over their
index, around that over the pairs, so that the text does not grow with their number and does not name it: all spectral
mixtures share one module. The text can be read: `generated_source(...)`.
"""

import functools
from collections.abc import Sequence
from fractions import Fraction
from types import ModuleType

import torch

from flashgp.foundations.expression import Expression, number
from flashgp.foundations.form import Form
from flashgp.foundations.lazy_import import no_forks
from flashgp.pairwise.cpu.layout import Statistic
from flashgp.pairwise.cpu.scalar_code import ScalarCode
from flashgp.pairwise.program.families import Family, Slope, indexed

LETTER = {"distance": "q", "product": "s", "match": "m"}
SWEEP = {"differences": "difference_sweep", "dot": "dot_sweep"}
BUFFER = {"left": "L", "right": "E", "parameter": "P"}  # slopes by these; D by statistics


def compiled(form: Form, layout: tuple[Statistic, ...], dtype: torch.dtype) -> ModuleType:
    """The module of a form's loops; its functions compile at their first call, or come from the cache."""
    return _compiled(form, layout, str(dtype).removeprefix("torch."))


@functools.lru_cache(maxsize=512)
def _compiled(form: Form, layout: tuple[Statistic, ...], dtype: str) -> ModuleType:
    from flashgp.pairwise.program.source_cache import compiled_identity, import_generated

    with no_forks():  # the identity imports numba
        return import_generated(generated_source(form, layout, dtype), compiled_identity())


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
    families = [f"# {family.symbol}: the sum of {family.term.key}" for family in loops.families]
    return "\n".join([f"# {loops.profile.key}", *families, *head, "", *functions])


class _Loops:
    """Text of the loops of one form; constants are shared between its functions.

    Statistics and parameters go by their numbers in the indexed profile. Where a method takes a family, it speaks of
    what that owns, at member q; None is the profile around the families.
    """

    def __init__(self, form: Form, layout: Sequence[Statistic]) -> None:
        self.indexed = indexed(form, layout)
        self.profile, self.families = self.indexed.profile, self.indexed.families
        self.scalar_count = form.scalar_count
        self.layout = [layout[numbers[0]] for numbers in self.indexed.statistics]
        self.constants: dict[str, float] = {}

    def statistics(self, family: int | None) -> list[tuple[int, Statistic]]:
        return [(k, self.layout[k]) for k in self.indexed.owned("statistic", family)]

    # -- arguments ----------------------------------------------------------------------------------------------
    def arguments(self) -> list[str]:
        """Names of what describes the rows: packed features, norms, codes and row scalars of both sides.

        Those of a family have a leading axis, of its members.
        """
        names = []
        for k, statistic in enumerate(self.layout):
            names += [f"R{k}", f"C{k}_"]
            if statistic.way == "dot" and statistic.kind == "distance":
                names += [f"RN{k}", f"CN{k}", f"least{k}"]
        for k in range(self.scalar_count):
            names += [f"RA{k}", f"CB{k}"]
        return names

    def opening(self, family: int | None = None) -> list[str]:
        """Views of the tile's two blocks."""
        lines = []
        member = "" if family is None else "q, "
        for k, statistic in self.statistics(family):
            lines += [f"r{k} = R{k}[{member}bi]", f"c{k} = C{k}_[{member}bj]"]
            if statistic.way == "dot" and statistic.kind == "distance":
                lines += [f"rn{k} = RN{k}[{member}bi]", f"cn{k} = CN{k}[{member}bj]"]
        if family is None:
            for k in range(self.scalar_count):
                lines += [f"ra{k} = RA{k}[bi]", f"cb{k} = CB{k}[bj]"]
        return lines

    def buffers(self) -> list[str]:
        return [f"Q{k} = numpy.empty((4, size), REAL)" for k, s in enumerate(self.layout) if s.way in SWEEP]

    def sweeps(self, family: int | None) -> list[str]:
        """Row buffers of the statistics that are not unrolled."""
        swept = [(k, s.way) for k, s in self.statistics(family) if s.way in SWEEP]
        return [f"{SWEEP[way]}(r{k}, i, c{k}, nj, Q{k})" for k, way in swept]

    def left(self, r: str, family: int | None) -> list[str]:
        """Contribution of row i + r."""
        lines = []
        for k, statistic in self.statistics(family):
            if statistic.way == "inline":
                lines += [f"x{k}_{c} = r{k}[{c}, i + {r}]" for c in range(statistic.columns)]
            if statistic.way == "dot" and statistic.kind == "distance":
                lines.append(f"n{k} = rn{k}[i + {r}]")
            elif statistic.way == "split":
                d = statistic.columns
                lines += [f"x{k}_{c} = r{k}[{c}, i + {r}]" for c in range(2 * d)]
            elif statistic.way == "match":
                lines.append(f"x{k} = r{k}[i + {r}]")
        if family is None:
            lines += [f"a{k} = ra{k}[i + {r}]" for k in range(self.scalar_count)]
        return lines

    def pair(self, r: str, family: int | None) -> list[str]:
        """The statistics of the pair (i + r, j)."""
        lines = []
        for k, statistic in self.statistics(family):
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
                    least = f"least{k}" + ("" if family is None else "[q]")
                    lines.append(f"{name} = (n{k} + cn{k}[j]) - TWO * Q{k}[{r}, j]")
                    lines.append(f"{name} = {name} if {name} > {least} else ZERO")
                case _:
                    lines.append(f"{name} = Q{k}[{r}, j]")
        if family is None:
            lines += [f"b{k} = cb{k}[j]" for k in range(self.scalar_count)]
        return lines

    # -- pieces of text -------------------------------------------------------------------------------------------
    def function(self, name: str, extra: list[str], code: ScalarCode, setup: list[str], tile: list[str]) -> str:
        """A function that visits tiles; the lines of `tile` run once per tile."""
        self.constants.update(code.constants)
        arguments = ["tiles", "n", "m", "size", "symmetric", "theta", *self.arguments(), *extra]
        lines = [
            "@njit(**OPTIONS)",
            f"def {name}({', '.join(arguments)}):",
            "    wide_vectors()",
            *(f"    p{k} = theta[{k}]" for k in self.indexed.owned("parameter", None)),
            *(f"    {line}" for line in code.prelude),
            *(f"    {line}" for line in (*self.counts(), *self.buffers(), *setup)),
            "    for step in range(tiles.shape[0]):",
            "        bi = tiles[step, 0]",
            "        bj = tiles[step, 1]",
            "        mirror = symmetric and bi != bj",
            "        ni = min(size, n - bi * size)",
            "        nj = min(size, (m - bj * size + 15) // 16 * 16)",
            *(f"        {line}" for line in (*self.opening(), *tile)),
        ]
        return "\n".join(lines) + "\n"

    def counts(self) -> list[str]:
        """The members of every family, and where its first parameter stands in theta."""
        lines, first = [], str(len(self.indexed.owned("parameter", None)))
        for f in range(len(self.families)):
            lines += [f"count{f} = R{self.indexed.owned('statistic', f)[0]}.shape[0]", f"first{f} = {first}"]
            first = f"first{f} + {len(self.indexed.owned('parameter', f))} * count{f}"
        return lines

    def place(self, parameter: int, family: int | None) -> str:
        """Position of a parameter in theta; those of a family lie member by member, one after another."""
        if family is None:
            return str(parameter)
        return f"first{family} + {self.indexed.owned('parameter', family).index(parameter)} * count{family} + q"

    def fill(self, code: ScalarCode, results: list[str], family: int | None = None) -> list[str]:
        """The loop over r and j that evaluates `code` and stores `results`."""
        sums = [] if family is not None else [f"z{f} = S{f}[r, j]" for f in range(len(self.families))]
        return [
            *self.sweeps(family),
            "for r in range(4):",
            *(f"    {line}" for line in self.left("r", family)),
            "    for j in range(nj):",
            *(f"        {line}" for line in (*sums, *self.pair("r", family), *code.body, *results)),
        ]

    def members(self, family: int, code: ScalarCode, results: list[str], after: Sequence[str] = ()) -> list[str]:
        """`fill` for every member of a family, each followed by the lines `after`."""
        self.constants.update(code.constants)
        parameters = self.indexed.owned("parameter", family)
        inner = [
            *self.opening(family),
            *(f"p{k} = theta[{self.place(k, family)}]" for k in parameters),
            *code.prelude,
            *self.fill(code, results, family),
            *after,
        ]
        return [f"for q in range(count{family}):", *(f"    {line}" for line in inner)]

    def summed(self, family: int, target: str) -> list[str]:
        """target[r, j] = the sum of a family."""
        code = self._code(f"_{family}")
        value = code.value(self.families[family].term)
        self.constants.update(ZERO=0.0)
        return self.members(family, code, [f"{target}[r, j] = ({target}[r, j] if q > 0 else ZERO) + {value}"])

    def covariances(self) -> tuple[ScalarCode, list[str], list[str]]:
        """K[r, j] of four rows: the code of the profile, buffers, and lines."""
        code, setup = self._code(), ["K = numpy.empty((4, size), REAL)"]
        if self.families and self.profile == _sum(self.families[0]):
            return code, setup, self.summed(0, "K")
        value = code.value(self.profile)
        lines = [line for f in range(len(self.families)) for line in self.summed(f, f"S{f}")]
        return code, [*setup, *self.sums()], [*lines, *self.fill(code, [f"K[r, j] = {value}"])]

    def sums(self) -> list[str]:
        return [f"S{f} = numpy.empty((4, size), REAL)" for f in range(len(self.families))]

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
        code, setup, lines = self.covariances()
        inner = [*lines, "row_sums(K, vj, nj, out[bi], i)", "if mirror:", "    column_sums(K, vi, i, nj, part)"]
        tile = [
            "vj = VC[bj]",
            "vi = VR[bi]",
            *self.by_rows(inner, ["if mirror:", "    add_columns(part, nj, out[bj])"]),
        ]
        setup = [*setup, "part = numpy.zeros((VC.shape[1], size), REAL)"]
        return self.function("product", ["VR", "VC", "out"], code, setup, tile)

    def block(self) -> str:
        """K itself into `out`; when symmetric its upper triangle, with `both` the lower one from the same values."""
        code, setup, lines = self.covariances()
        inner = [
            *lines,
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
        return self.function("block", ["out", "both"], code, setup, tile)

    def gradient(self) -> str:
        """Gradients of sum_ij w_ij k_ij, w = U V^T, by features, row scalars and parameters, eq. (M-21).

        When symmetric, w is symmetric and stands for both orders of a pair: see `CpuTiles.bilinear_gradient`.
        """
        return self._pullback(
            "gradient", ["UR", "VC"], ["ur = UR[bi]", "vc = VC[bj]"], "weights_sweep(ur, i, vc, nj, W)"
        )

    def block_gradient(self) -> str:
        """Gradients for a given matrix of weights, (n, m); when symmetric, every pair counts twice, as above."""
        self.constants.update(ONE=1.0, TWO=2.0)
        times = ["times = TWO if symmetric else ONE"]
        return self._pullback(
            "block_gradient", ["weights"], times, "weights_tile(weights, bi * size + i, bj * size, times, W)"
        )

    def _pullback(self, name: str, extra: list[str], opening: list[str], weights: str) -> str:
        """A function that pulls weights, a tile of them made by a line of text, back through the derivatives.

        First through the profile, to what it names and to the sums of families; then, with those weights, through the
        term of every family, member by member.
        """
        pulls = {family: _Pulls(self, family) for family in (None, *range(len(self.families)))}
        setup = ["W = numpy.empty((4, size), REAL)"]
        code = self._code()
        results = pulls[None].results(code)
        given = {}
        for f in range(len(self.families)):
            slope = self.indexed.slope_of_sum(f)
            given[f] = "W" if slope == number(1) else f"V{f}"
            if given[f] != "W":
                setup.append(f"V{f} = numpy.empty((4, size), REAL)")
                results.append(f"V{f}[r, j] = w * {code.value(slope)}")
        inner = [weights]
        if results and self.families:
            setup += self.sums()
            inner += [line for f in range(len(self.families)) for line in self.summed(f, f"S{f}")]
        if results or not self.families:
            inner += self.fill(code, ["w = W[r, j]", *results])
        inner += pulls[None].lines
        for f in range(len(self.families)):
            term = self._code(f"_{f}")
            stored = pulls[f].results(term)
            inner += self.members(f, term, [f"w = {given[f]}[r, j]", *stored], pulls[f].lines)
        for part in pulls.values():
            setup += part.setup
        tile = [
            *opening,
            "share = 0.5 if symmetric and not mirror else 1.0",
            *self.by_rows(inner, [line for part in pulls.values() for line in part.ends]),
        ]
        extra = [*extra, *(argument for part in pulls.values() for argument in part.arguments), "by_theta"]
        return self.function(name, extra, code, setup, tile)

    def _code(self, mark: str = "") -> ScalarCode:
        return ScalarCode(self.constants, mark)


class _Pulls:
    """Code by which weights reach everything that the profile, or the term of a family, names.

    Fields, lines of text: arguments, arrays that are added to; setup, buffers; lines, after four rows; ends, after 256.
    """

    def __init__(self, loops: _Loops, family: int | None) -> None:
        self.slopes = [slope for slope in loops.indexed.slopes if slope.family == family]
        self.arguments: list[str] = []
        self.setup: list[str] = []
        self.lines: list[str] = []
        self.ends: list[str] = []
        at, shape = ("", 1) if family is None else ("q, ", 2)
        for slope in self.slopes:
            kind, k = slope.symbol.kind, slope.symbol.index
            buffer = self._buffer(slope)
            self.setup.append(f"{buffer} = numpy.empty((4, size), REAL)")
            if kind == "parameter":
                self.lines.append(f"by_theta[{loops.place(k, family)}] += share * tile_sum({buffer}, nj, ni - i)")
            elif kind == "left":
                self.arguments.append(f"by_left{k}")
                self.lines.append(f"tile_row_sums({buffer}, nj, by_left{k}[bi, 0], i)")
            elif kind == "right":
                self.arguments.append(f"by_right{k}")
                self.setup.append(f"part_right{k} = numpy.zeros((1, size), REAL)")
                self.lines += ["if not symmetric or mirror:", f"    tile_column_sums({buffer}, nj, part_right{k})"]
                self.ends.append(f"add_columns(part_right{k}, nj, by_right{k}[bj])")
            else:
                self.arguments += [f"by_rows{k}", f"by_cols{k}"]
                rule = "distance" if kind == "distance" else "product"
                count = "" if family is None else f"count{family}, "
                part = f"part{k}" if family is None else f"part{k}[q]"
                self.setup.append(f"part{k} = numpy.zeros(({count}by_cols{k}.shape[{shape}], size), REAL)")
                self.lines += [
                    f"{rule}_row_pull({buffer}, r{k}, i, c{k}, nj, by_rows{k}[{at}bi])",
                    "if not symmetric or mirror:",
                    f"    {rule}_column_pull({buffer}, r{k}, i, c{k}, nj, {part})",
                ]
                end = f"add_columns({part}, nj, by_cols{k}[{at}bj])"
                self.ends += [end] if family is None else [f"for q in range(count{family}):", f"    {end}"]

    def results(self, code: ScalarCode) -> list[str]:
        """Lines that store every weighted slope; w is the weight."""
        return [f"{self._buffer(slope)}[r, j] = w * {code.value(slope.expression)}" for slope in self.slopes]

    @staticmethod
    def _buffer(slope: Slope) -> str:
        return f"{BUFFER.get(slope.symbol.kind, 'D')}{slope.symbol.index}"


def _sum(family: Family) -> Expression:
    """A profile that is nothing but a family's sum."""
    return Expression({((family.symbol, 1),): Fraction(1)})
