"""Text that loads rows and forms the pair statistics of a tile, shared by every kernel template.

A kernel owns a block of BM rows and visits tiles of BN columns. Each statistic has one of four routes:

    unrolled   direct differences (or products) of up to UNROLLED columns, the rows' part kept in registers
    loop       the same for any number of columns, in a loop
    dot        one tensor-core product in 3xTF32, |u|^2 + |v|^2 - 2 u.v for distances, eq. (M-22)
    dots       the same in a loop over DOT_CHUNK columns at a time

`careful` text forms every distance by differences of split features, eq. (M-60). Row features come packed and
padded to whole tiles (see `packing`), so that their loads need no mask; columns of a dot are padded inside the tile.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from flashgp.foundations.form import Form
from flashgp.pairwise.triton.profile_source import ProfileSource

UNROLLED = 8  # columns up to which differences are unrolled: about as many instructions as a product (not yet measured)
DOT_CHUNK = 64  # columns of one tensor-core product; more are taken in a loop
MIN_DOT = 16  # the tensor cores' smallest inner size here


@dataclass(frozen=True)
class TileStatistic:
    """Formation of a statistic: kind; index in the form; route; size, columns unrolled or of the padded dot."""

    kind: str
    index: int
    route: str
    size: int


def power_of_two(size: int, least: int = MIN_DOT, most: int = DOT_CHUNK) -> int:
    """The smallest power of two from `least` to `most` that holds size columns (most, when a loop is needed)."""
    width = least
    while width < size and width < most:
        width *= 2
    return width


def tile_statistics(
    form: Form, columns: Sequence[int], bounded_slope: dict[int, bool], careful: bool
) -> tuple[TileStatistic, ...]:
    """The route of each statistic for feature tables of that many columns; equal results share a kernel."""
    chosen = []
    for index, (kind, width) in enumerate(zip(form.statistics, columns, strict=True)):
        if kind == "match":
            chosen.append(TileStatistic(kind, index, "match", 0))
        elif width <= UNROLLED:
            chosen.append(TileStatistic(kind, index, "unrolled", width))
        elif kind == "distance" and (careful or not bounded_slope[index]):
            chosen.append(TileStatistic(kind, index, "loop", 0))
        else:
            chosen.append(TileStatistic(kind, index, "dots" if width > DOT_CHUNK else "dot", power_of_two(width)))
    return tuple(chosen)


class PairText:
    """Arguments, hoisted loads and tile lines of one form with given routes.

    Methods return lines without indentation. `rows_prefix` of the names: x for what the rows give, y for the columns.
    """

    # Packed features and codes of both sides, their strides, theta, the zero limits of distances, and the switch.
    ARGUMENTS = (
        "rows", "cols", "row_codes", "col_codes", "theta", "limits", "route",
        "rows_stride", "cols_stride", "row_codes_stride", "col_codes_stride",
        "rows_member", "cols_member", "row_codes_member", "col_codes_member",
        "theta_member", "limits_member", "route_member", "n", "m", "scalars_at",
    )  # fmt: skip

    def __init__(self, form: Form, profile: ProfileSource, statistics: Sequence[TileStatistic], careful: bool) -> None:
        self.form, self.profile, self.statistics, self.careful = form, profile, statistics, careful
        self.floating = [s for s in statistics if s.kind != "match"]

    @property
    def arguments(self) -> list[str]:
        """The kernel's arguments; c{k} is the first packed channel of statistic k and d{k} its columns."""
        return [*self.ARGUMENTS, *(f"{letter}{s.index}" for s in self.floating for letter in "cd")]

    def opening(self) -> list[str]:
        """Choose the member of the batch; leave when the other route serves it, eq. (M-61)."""
        lines = ["if tl.load(route + member * route_member) != ROUTE:", "    return"]
        lines += [
            f"{name} += member.to(tl.int64) * {name}_member"
            for name in ("rows", "cols", "row_codes", "col_codes", "theta", "limits")
        ]
        return lines + [f"p{k} = tl.load(theta + {k})" for k in range(self.form.parameter_count)]

    def hoisted(self) -> list[str]:
        """Code that serves the block of rows i in every tile."""
        lines: list[str] = []
        for s in self.statistics:
            k = s.index
            if s.route == "match":
                lines.append(f"x{k} = tl.load(row_codes + {self._codes(k)} * row_codes_stride + i)")
            elif s.route == "unrolled":
                lines += self._unrolled(s, "x", "rows", "i")
            elif s.route in ("dot", "dots"):
                lines.append(f"z{k} = tl.load(limits + {k})")
                lines.append(f"f{k} = tl.arange(0, {s.size})")
                if s.kind == "distance":
                    lines.append(f"xx{k} = tl.load({self.channel('rows', f'c{k} + 2 * d{k}')} + i)")
                if s.route == "dot":
                    lines.append(self._features(s, "x", "rows", "i", "0", columns_last=True))
        for a in range(self.form.scalar_count):
            lines.append(f"a{a} = tl.load({self.channel('rows', f'scalars_at + {a}')} + i)[:, None]")
        return lines

    def tile(self) -> list[str]:
        """The statistics of the tile i x j: q, s or m with their index; b with the columns' row scalars."""
        form = {"match": self._match, "unrolled": self._direct, "loop": self._loop, "dot": self._dot, "dots": self._dot}
        lines: list[str] = []
        for s in self.statistics:
            lines += form[s.route](s)
        for b in range(self.form.scalar_count):
            lines.append(f"b{b} = tl.load({self.channel('cols', f'scalars_at + {b}')} + j)[None, :]")
        return lines

    @staticmethod
    def channel(side: str, number: str) -> str:
        """Address of a packed channel; 64-bit, since channels times rows may pass 2^31."""
        return f"{side} + ({number}).to(tl.int64) * {side}_stride"

    def name(self, s: TileStatistic) -> str:
        """q0, s1 or m2."""
        return {"distance": "q", "product": "s", "match": "m"}[s.kind] + str(s.index)

    def _codes(self, index: int) -> int:
        return sum(s.kind == "match" for s in self.statistics[:index])

    def _unrolled(self, s: TileStatistic, letter: str, side: str, points: str) -> list[str]:
        k = s.index
        lines = [f"{letter}{k}_{c} = tl.load({self.channel(side, f'c{k} + {c}')} + {points})" for c in range(s.size)]
        if self.careful and s.kind == "distance":
            lines += [
                f"{letter}{k}_{c}_low = tl.load({self.channel(side, f'c{k} + d{k} + {c}')} + {points})"
                for c in range(s.size)
            ]
        return lines

    def _features(self, s: TileStatistic, letter: str, side: str, points: str, first: str, columns_last: bool) -> str:
        """A (points, columns) or (columns, points) tile of features, columns past the table's zero."""
        k = s.index
        column = f"{first} + f{k}" if first != "0" else f"f{k}"
        by_column, by_point = ("[None, :]", "[:, None]") if columns_last else ("[:, None]", "[None, :]")
        return (
            f"{letter}{k}_high, {letter}{k}_low = _split(tl.load({side} + (c{k} + {column}).to(tl.int64){by_column} * "
            f"{side}_stride + {points}{by_point}, mask=({column} < d{k}){by_column}, other=0.0))"
        )

    def _match(self, s: TileStatistic) -> list[str]:
        k = s.index
        return [
            f"y{k} = tl.load(col_codes + {self._codes(k)} * col_codes_stride + j)",
            f"m{k} = (x{k}[:, None] == y{k}[None, :]).to(tl.float32)",
        ]

    def _direct(self, s: TileStatistic) -> list[str]:
        k = s.index
        lines = self._unrolled(s, "y", "cols", "j")
        if s.size == 0:
            return [f"{self.name(s)} = tl.zeros((BM, BN), tl.float32)"]
        for c in range(s.size):
            x, y = f"x{k}_{c}[:, None]", f"y{k}_{c}[None, :]"
            if s.kind == "product":
                term = f"{x} * {y}"
            else:
                e = f"e{k}_{c}"
                lines.append(f"{e} = {x} - {y}")
                if self.careful:
                    lines.append(f"{e} += x{k}_{c}_low[:, None] - y{k}_{c}_low[None, :]")
                term = f"{e} * {e}"
            lines.append(f"{self.name(s)} = {term}" if c == 0 else f"{self.name(s)} += {term}")
        return lines

    def _loop(self, s: TileStatistic) -> list[str]:
        k = s.index
        return [
            f"q{k} = tl.zeros((BM, BN), tl.float32)",
            f"for column in range(0, d{k}):",
            *("    " + line for line in self.difference(s)),
            f"    q{k} += e * e",
        ]

    def difference(self, s: TileStatistic) -> list[str]:
        """e, the difference of one column of both sides, from split features when careful, eq. (M-60)."""
        k = s.index
        lines = [
            f"e = tl.load({self.channel('rows', f'c{k} + column')} + i)[:, None]"
            f" - tl.load({self.channel('cols', f'c{k} + column')} + j)[None, :]"
        ]
        if self.careful:
            lines.append(
                f"e = e + (tl.load({self.channel('rows', f'c{k} + d{k} + column')} + i)[:, None]"
                f" - tl.load({self.channel('cols', f'c{k} + d{k} + column')} + j)[None, :])"
            )
        return lines

    def _dot(self, s: TileStatistic) -> list[str]:
        k = s.index
        dot = f"_dot(x{k}_high, x{k}_low, y{k}_high, y{k}_low)"
        if s.route == "dots":
            lines = [
                f"s{k} = tl.zeros((BM, BN), tl.float32)",
                f"for column in range(0, d{k}, {s.size}):",
                "    " + self._features(s, "x", "rows", "i", "column", columns_last=True),
                "    " + self._features(s, "y", "cols", "j", "column", columns_last=False),
                f"    s{k} += {dot}",
            ]
        else:
            lines = [self._features(s, "y", "cols", "j", "0", columns_last=False), f"s{k} = {dot}"]
        if s.kind == "distance":
            lines += [
                f"yy{k} = tl.load({self.channel('cols', f'c{k} + 2 * d{k}')} + j)",
                f"q{k} = (xx{k}[:, None] - s{k}) + (yy{k}[None, :] - s{k})",
                f"q{k} = tl.where(q{k} > z{k}, q{k}, 0.0)",  # equal rows: exactly 0, eq. (M-22)
            ]
        return lines
