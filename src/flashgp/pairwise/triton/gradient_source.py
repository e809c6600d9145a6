"""Template of the reverse kernel: the gradients of sum(W * K) by all rows and parameters in one pass, eq. (M-63).

A program owns BM rows: it forms W and the profile's derivatives tile by tile and keeps the sums its rows need. The
columns' gradients come from the same kernel with the sides exchanged, so no program writes to another's memory.
"""

from collections.abc import Sequence

from flashgp.foundations.form import Form
from flashgp.pairwise.triton.kernel_source import kernel_text, lines
from flashgp.pairwise.triton.profile_source import Derivative, float_text, profile_source
from flashgp.pairwise.triton.tile_source import PairText, TileStatistic

__all__ = ["GradientText", "gradient_source"]


class GradientText:
    """The pieces of the kernel for one form and one way to have W.

    Args:
        weights: "given" (W is a tensor), "few" (a loop over `count` <= FEW columns of left and right) or "many"
            (tensor-core products of `count` columns at a time).
        width: columns of the features' gradients that one program keeps; more are shared out over programs.
        with_theta: whether the parameters' gradients are formed; once is enough for two sides.
    """

    def __init__(self, pairs: PairText, weights: str, count: int, width: int, with_theta: bool) -> None:
        self.pairs, self.weights, self.count, self.width = pairs, weights, count, width
        derivatives = pairs.profile.derivatives
        kinds = {s.index: s for s in pairs.floating}
        self.features = [(kinds[d.symbol.index], d) for d in derivatives if d.symbol.kind in ("distance", "product")]
        self.scalars = [d for d in derivatives if d.symbol.kind == "left"]
        self.theta = [d for d in derivatives if with_theta and d.symbol.kind == "parameter"]

    @property
    def outputs(self) -> list[str]:
        """One tensor per gradient: g{k} for features, h{k} for row scalars, and one for all parameters."""
        return [*(f"g{s.index}" for s, _ in self.features), *(f"h{d.symbol.index}" for d in self.scalars), "to_theta"]

    @staticmethod
    def _weighted(derivative: Derivative) -> str:
        """W times the derivative's tile; the scalar in front is applied to the finished sum."""
        return "w" if derivative.tile is None else f"w{derivative.tile}"

    def hoisted(self) -> list[str]:
        text = []
        if self.weights == "few":
            text += [
                f"u{c} = tl.load(left + i.to(tl.int64) * {self.count} + {c}, mask=i < n, other=0.0)"
                for c in range(self.count)
            ]
        elif self.weights == "many":
            text.append(f"c = tl.arange(0, {self.count})")
            text += [self._side("u", "left", "i", "n"), "u_high, u_low = _split(u)"]
        if self.features:
            text.append(f"feature = chunk * {self.width} + tl.arange(0, {self.width})")
        for s, _ in self.features:
            k = s.index
            text += [f"{part}{k} = tl.zeros((BM, {self.width}), tl.float32)" for part in ("total", "lost")]
            if s.kind == "distance" and not self.pairs.careful:
                text += [f"{part}{k} = tl.zeros((BM,), tl.float32)" for part in ("sum_total", "sum_lost")]
        for d in self.scalars:
            text += [f"scalar_{part}{d.symbol.index} = tl.zeros((BM,), tl.float32)" for part in ("total", "lost")]
        for d in self.theta:
            text += [f"theta_{part}{d.symbol.index} = tl.zeros((BM,), tl.float32)" for part in ("total", "lost")]
        return text

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
            first = [
                self._side("v", "right", "j", "stop"),
                "v_high, v_low = _split(v)",
                "w = _dot(u_high, u_low, tl.trans(v_high), tl.trans(v_low))",
            ]
            rest = [
                f"for more in range({self.count}, t, {self.count}):",
                f"    more_c = more + tl.arange(0, {self.count})",
                "    " + self._side("more_u", "left", "i", "n", "more_c"),
                "    " + self._side("more_v", "right", "j", "stop", "more_c"),
                "    u_more, u_rest = _split(more_u)",
                "    v_more, v_rest = _split(more_v)",
                "    w += _dot(u_more, u_rest, tl.trans(v_more), tl.trans(v_rest))",
            ]
            return first + rest
        text = []
        for r in range(self.count):
            text.append(f"v{r} = tl.load(right + j.to(tl.int64) * {self.count} + {r}, mask=j < stop, other=0.0)")
            term = f"u{r}[:, None] * v{r}[None, :]"
            text.append(f"w = {term}" if r == 0 else f"w += {term}")
        return text

    def tile(self) -> list[str]:
        """What a tile adds to each sum."""
        profile = self.pairs.profile
        names = [f"t{k}" for k in range(profile.tile_count)]
        text = []
        if names:
            text.append(f"{', '.join(names)} = partials({', '.join(profile.inputs)})")
            text += [f"w{k} = w * t{k}" for k in range(len(names))]
        for s, d in self.features:
            text += self._feature(s, self._weighted(d))
        for group, members in (("scalar", self.scalars), ("theta", self.theta)):
            for d in members:
                k = d.symbol.index
                text.append(
                    f"{group}_total{k}, {group}_lost{k} = "
                    f"_add_compensated({group}_total{k}, {group}_lost{k}, tl.sum({self._weighted(d)}, 1))"
                )
        return text

    def _feature(self, s: TileStatistic, weighted: str) -> list[str]:
        """Sum over the tile of c v, or of c (u - v) column by column when careful, eqs. (M-24) and (M-25)."""
        k = s.index
        if s.kind == "distance" and self.pairs.careful:
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
        text = [
            f"pulled = {pulled}",
            f"v = tl.load(cols + (c{k} + feature).to(tl.int64)[None, :] * cols_stride + j[:, None], "
            f"mask=(feature < d{k})[None, :], other=0.0)",
            "v_high, v_low = _split(v)",
            f"w_high, w_low = _split(pulled)",
            f"total{k}, lost{k} = _add_compensated(total{k}, lost{k}, _dot(w_high, w_low, v_high, v_low))",
        ]
        if s.kind == "distance":
            text.append(
                f"sum_total{k}, sum_lost{k} = _add_compensated(sum_total{k}, sum_lost{k}, tl.sum(pulled, 1))"
            )
        return text

    def closing(self) -> list[str]:
        """Scale the sums and store them: (splits, members, n, d), (splits, members, n), one row of theta sums."""
        text = ["place = (split * (tl.num_programs(0) // (blocks * splits * chunks)) + member).to(tl.int64) * n"]
        for s, d in self.features:
            text += self._store_features(s, d)
        text.append("to_theta += ((member * splits + split).to(tl.int64) * blocks + block) * THETA")
        if self.scalars or self.theta:
            text.append("if chunk == 0:")
        for d in self.scalars:
            k = d.symbol.index
            value = f"(scalar_total{k} - scalar_lost{k}) * {float_text(d.scalar)}"
            text.append(f"    tl.store(h{k} + place + i, {value}, mask=i < n)")
        for d in self.theta:
            k = d.symbol.index
            value = f"tl.sum(theta_total{k}.to(tl.float64) - theta_lost{k}.to(tl.float64), 0) * ({d.scalar})"
            text.append(f"    tl.store(to_theta + {k}, {value})")
        return text

    def _store_features(self, s: TileStatistic, d: Derivative) -> list[str]:
        k = s.index
        total = f"total{k} - lost{k}"
        text = []
        if s.kind == "distance" and not self.pairs.careful:
            text.append(
                f"u = tl.load(rows + (c{k} + feature).to(tl.int64)[None, :] * rows_stride + i[:, None], "
                f"mask=(feature < d{k})[None, :], other=0.0)"
            )
            total = f"(u * sum_total{k}[:, None] - total{k}) - (u * sum_lost{k}[:, None] - lost{k})"
        factor = 2 if s.kind == "distance" else 1
        text.append(f"gradient = ({total}) * ({factor}.0 * {float_text(d.scalar)})")
        text.append(
            f"tl.store(g{k} + (place + i)[:, None] * d{k} + feature[None, :], gradient, "
            f"mask=(i < n)[:, None] & (feature < d{k})[None, :])"
        )
        return text


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
    text = lines([*opening, *pairs.hoisted(), *gradient.hoisted(), "for first in range(start, stop, BN):"])
    text += "\n" + lines(["j = first + tl.arange(0, BN)", *pairs.tile(), *gradient.weight(), *gradient.tile()], 1)
    text += "\n" + lines(gradient.closing())
    arguments = [*given, *gradient.outputs, "blocks", "splits", "split_columns", "chunks"]
    return kernel_text("gradient", pairs, arguments, ["ROUTE", "BM", "BN", "THETA"], text)
