"""Template of the reverse kernel: the gradients of sum(W * K) by all rows and parameters in one pass, eq. (M-63).

A program owns BM rows: it forms W and the profile's derivatives tile by tile and keeps the sums its rows need. The
columns' gradients come from the same kernel with the sides exchanged, so no program writes to another's memory.

Sums over columns are kept as tiles of partial sums, added up across lanes once in SPAN columns: a sum across lanes in
every tile would cost as much as the tile. Features of few columns are among them, by differences; those of many are
tensor-core products, eq. (M-24), or differences column by column when careful.
"""

from collections.abc import Sequence

from flashgp.foundations.form import Form
from flashgp.pairwise.triton.kernel_source import kernel_text, lines
from flashgp.pairwise.triton.profile_source import Derivative, float_text, profile_source
from flashgp.pairwise.triton.tile_source import PairText, TileStatistic


class GradientText:
    """The pieces of the kernel for one form and one way to have W.

    Args:
        weights: "given" (W is a tensor), "few" (a loop over `count` <= FEW columns of left and right) or "many"
            (tensor-core products of `count` columns at a time).
        width: columns of the wide features' gradients that one program keeps; more are shared out over programs.
        with_theta: whether the parameters' gradients are formed; once is enough for two sides.
    """

    def __init__(self, pairs: PairText, weights: str, count: int, width: int, with_theta: bool) -> None:
        self.pairs, self.weights, self.count, self.width = pairs, weights, count, width
        derivatives = pairs.profile.derivatives
        kinds = {s.index: s for s in pairs.floating}
        features = [(kinds[d.symbol.index], d) for d in derivatives if d.symbol.kind in ("distance", "product")]
        self.narrow = [(s, d) for s, d in features if s.route == "unrolled"]
        self.wide = [(s, d) for s, d in features if s.route != "unrolled"]
        self.scalars = [d for d in derivatives if d.symbol.kind == "left"]
        self.theta = [d for d in derivatives if with_theta and d.symbol.kind == "parameter"]
        self.sums = self._sums()

    @property
    def outputs(self) -> list[str]:
        """One tensor per gradient: g{k} for features, h{k} for row scalars, and one for all parameters."""
        features = sorted(s.index for s, _ in (*self.narrow, *self.wide))
        return [*(f"g{k}" for k in features), *(f"h{d.symbol.index}" for d in self.scalars), "to_theta"]

    def _sums(self) -> dict[str, str]:
        """Sums over the columns as a tile of partial sums: name, and the text that a tile adds."""
        found = {}
        for s, d in self.narrow:
            k = s.index
            for c in range(s.size):
                pulled = f"e{k}_{c}" if s.kind == "distance" else f"y{k}_{c}[None, :]"
                found[f"feature{k}_{c}"] = f"{self._weighted(d)} * {pulled}"
        for s, _ in self.wide:
            if self._by_product(s) and s.kind == "distance":
                found[f"pulled{s.index}"] = f"pulled{s.index}"
        for name, members in (("scalar", self.scalars), ("theta", self.theta)):
            found |= {f"{name}{d.symbol.index}": self._weighted(d) for d in members}
        return found

    @staticmethod
    def _weighted(derivative: Derivative) -> str:
        """W times the derivative's tile; the scalar in front is applied to the finished sum."""
        return "w" if derivative.tile is None else f"w{derivative.tile}"

    def _by_product(self, s: TileStatistic) -> bool:
        return s.kind == "product" or not self.pairs.careful

    def hoisted(self) -> list[str]:
        """Left sides of W, and zeros for every sum."""
        each = range(self.count)
        text = []
        if self.weights == "few":
            text += [f"u{c} = tl.load(left + i.to(tl.int64) * {self.count} + {c}, mask=i < n, other=0.0)" for c in each]
        elif self.weights == "many":
            text += [f"c = tl.arange(0, {self.count})", self._side("u", "left", "i", "n"), "u_high, u_low = _split(u)"]
        if self.wide:
            text.append(f"feature = chunk * {self.width} + tl.arange(0, {self.width})")
        for s, _ in self.wide:
            text += [f"{part}{s.index} = tl.zeros((BM, {self.width}), tl.float32)" for part in ("total", "lost")]
        for name in self.sums:
            text += [f"{part}_{name} = tl.zeros((BM,), tl.float32)" for part in ("total", "lost")]
        return text

    def zeroed(self) -> list[str]:
        """Lines at the start of a span: the tiles of partial sums."""
        return [f"part_{name} = tl.zeros((BM, BN), tl.float32)" for name in self.sums]

    def flushed(self) -> list[str]:
        """Lines at the end of a span: their sums across lanes, compensated, eq. (M-62)."""
        return [
            f"total_{name}, lost_{name} = _add_compensated(total_{name}, lost_{name}, tl.sum(part_{name}, 1))"
            for name in self.sums
        ]

    @staticmethod
    def _side(name: str, side: str, points: str, count: str, columns: str = "c") -> str:
        """A (points, columns) tile of left or right, zero outside."""
        return (
            f"{name} = tl.load({side} + {points}.to(tl.int64)[:, None] * t + {columns}[None, :], "
            f"mask=({points} < {count})[:, None] & ({columns} < t)[None, :], other=0.0)"
        )

    def weight(self) -> list[str]:
        """w, the weights of the tile, zero for pairs outside."""
        if self.weights == "given":
            return [
                "w = tl.load(weights + i.to(tl.int64)[:, None] * weights_row"
                " + j.to(tl.int64)[None, :] * weights_column, mask=(i < n)[:, None] & (j < stop)[None, :], other=0.0)"
            ]
        if self.weights == "many":
            return [
                self._side("v", "right", "j", "stop"),
                "v_high, v_low = _split(v)",
                "w = _dot(u_high, u_low, tl.trans(v_high), tl.trans(v_low))",
                f"for more in range({self.count}, t, {self.count}):",
                f"    more_c = more + tl.arange(0, {self.count})",
                "    " + self._side("more_u", "left", "i", "n", "more_c"),
                "    " + self._side("more_v", "right", "j", "stop", "more_c"),
                "    u_more, u_rest = _split(more_u)",
                "    v_more, v_rest = _split(more_v)",
                "    w += _dot(u_more, u_rest, tl.trans(v_more), tl.trans(v_rest))",
            ]
        text = []
        for r in range(self.count):
            text.append(f"v{r} = tl.load(right + j.to(tl.int64) * {self.count} + {r}, mask=j < stop, other=0.0)")
            term = f"u{r}[:, None] * v{r}[None, :]"
            text.append(f"w = {term}" if r == 0 else f"w += {term}")
        return text

    def tile(self) -> list[str]:
        """Code by which a tile adds to each sum."""
        profile = self.pairs.profile
        names = [f"t{k}" for k in range(profile.tile_count)]
        text = []
        if names:
            text.append(f"{', '.join(names)} = partials({', '.join(profile.inputs)})")
            text += [f"w{k} = w * t{k}" for k in range(len(names))]
        for s, d in self.wide:
            text += self._wide(s, self._weighted(d))
        return text + [f"part_{name} += {term}" for name, term in self.sums.items()]

    def _wide(self, s: TileStatistic, weighted: str) -> list[str]:
        """Sum over the tile of c v, or of c (u - v) column by column when careful, eqs. (M-24) and (M-25)."""
        k = s.index
        if not self._by_product(s):
            return [
                f"part = tl.zeros((BM, {self.width}), tl.float32)",
                f"for column in range(chunk * {self.width}, tl.minimum(d{k}, (chunk + 1) * {self.width})):",
                *("    " + line for line in self.pairs.difference(s)),
                f"    part = tl.where((feature == column)[None, :], tl.sum({weighted} * e, 1)[:, None], part)",
                f"total{k}, lost{k} = _add_compensated(total{k}, lost{k}, part)",
            ]
        # Equal rows pull nothing through their distance: without them the diagonal, often the largest weights, leaves
        # no rounding behind in u_i sum(c) - sum(c v).
        pulled = f"tl.where(q{k} == 0.0, 0.0, {weighted})" if s.kind == "distance" else weighted
        return [
            f"pulled{k} = {pulled}",
            f"v = tl.load(cols + (c{k} + feature).to(tl.int64)[None, :] * cols_stride + j[:, None], "
            f"mask=(feature < d{k})[None, :], other=0.0)",
            "v_high, v_low = _split(v)",
            f"w_high, w_low = _split(pulled{k})",
            f"total{k}, lost{k} = _add_compensated(total{k}, lost{k}, _dot(w_high, w_low, v_high, v_low))",
        ]

    def closing(self) -> list[str]:
        """Scale the sums and store them: (splits, members, n, d), (splits, members, n), one row of theta sums."""
        text = ["place = (split * (tl.num_programs(0) // (blocks * splits * chunks)) + member).to(tl.int64) * n"]
        text.append("to_theta += ((member * splits + split).to(tl.int64) * blocks + block) * THETA")
        for s, d in self.wide:
            text += self._store_wide(s, d)
        once = []
        for s, d in self.narrow:
            k, factor = s.index, _factor(s, d)
            for c in range(s.size):
                value = f"(total_feature{k}_{c} - lost_feature{k}_{c}) * {factor}"
                once.append(f"tl.store(g{k} + (place + i) * {s.size} + {c}, {value}, mask=i < n)")
        for d in self.scalars:
            k = d.symbol.index
            value = f"(total_scalar{k} - lost_scalar{k}) * {float_text(d.scalar)}"
            once.append(f"tl.store(h{k} + place + i, {value}, mask=i < n)")
        for d in self.theta:
            k = d.symbol.index
            value = f"tl.sum(total_theta{k}.to(tl.float64) - lost_theta{k}.to(tl.float64), 0) * ({d.scalar})"
            once.append(f"tl.store(to_theta + {k}, {value})")
        return [*text, "if chunk == 0:", *("    " + line for line in once)] if once else text

    def _store_wide(self, s: TileStatistic, d: Derivative) -> list[str]:
        k = s.index
        total = f"total{k} - lost{k}"
        text = []
        if s.kind == "distance" and not self.pairs.careful:
            text.append(
                f"u = tl.load(rows + (c{k} + feature).to(tl.int64)[None, :] * rows_stride + i[:, None], "
                f"mask=(feature < d{k})[None, :], other=0.0)"
            )
            total = f"(u * total_pulled{k}[:, None] - total{k}) - (u * lost_pulled{k}[:, None] - lost{k})"
        return [
            *text,
            f"gradient = ({total}) * {_factor(s, d)}",
            f"tl.store(g{k} + (place + i)[:, None] * d{k} + feature[None, :], gradient, "
            f"mask=(i < n)[:, None] & (feature < d{k})[None, :])",
        ]


def _factor(s: TileStatistic, d: Derivative) -> str:
    """Factor of a finished feature sum: 2 for a distance, eq. (M-24), times the derivative's scalar."""
    scalar = float_text(d.scalar)
    return f"(2.0 * {scalar})" if s.kind == "distance" else scalar


def gradient_source(
    form: Form,
    statistics: Sequence[TileStatistic],
    careful: bool,
    weights: str,
    count: int,
    width: int,
    with_theta: bool,
) -> str:
    """Text of `gradient` for one form, one set of routes and one way to have W; see GradientText."""
    pairs = PairText(form, profile_source(form), statistics, careful)
    gradient = GradientText(pairs, weights, count, width, with_theta)
    program = ["program = tl.program_id(0)", "block = program % blocks", "rest = program // blocks"]
    program += ["split = rest % splits", "rest = rest // splits", "chunk = rest % chunks", "member = rest // chunks"]
    opening = [*program, *pairs.opening(), "i = block * BM + tl.arange(0, BM)"]
    if weights == "given":
        given = ["weights", "weights_member", "weights_row", "weights_column"]
        opening.append("weights += member.to(tl.int64) * weights_member")
    else:
        given = ["left", "right", "left_member", "right_member", *(["t"] if weights == "many" else [])]
        opening.append("left += member.to(tl.int64) * left_member")
        opening.append("right += member.to(tl.int64) * right_member")
    opening += ["start = split * split_columns", "stop = tl.minimum(m, start + split_columns)"]
    text = lines([*opening, *pairs.hoisted(), *gradient.hoisted(), "for span in range(start, stop, SPAN):"]) + "\n"
    text += lines([*gradient.zeroed(), "for first in range(span, tl.minimum(stop, span + SPAN), BN):"], 1) + "\n"
    text += lines(["j = first + tl.arange(0, BN)", *pairs.tile(), *gradient.weight(), *gradient.tile()], 2) + "\n"
    text += lines(gradient.flushed(), 1) + "\n" + lines(gradient.closing())
    arguments = [*given, *gradient.outputs, "blocks", "splits", "split_columns", "chunks"]
    return kernel_text("gradient", pairs, arguments, ["ROUTE", "BM", "BN", "SPAN", "THETA"], text)
