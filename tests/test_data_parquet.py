"""Parquet files that are read in batches: columns, and every kind of file that cannot be read."""

from pathlib import Path

import numpy
import pyarrow
import pyarrow.parquet
import pytest
import torch

import flashgp as fgp
from flashgp.data.table_parts import ParquetParts
from flashgp.foundations.errors import DomainError, ShapeError
from flashgp.sources.survey import surveyed
from inference.plain_gp import data, model


def written(path: Path, **columns: object) -> Path:
    pyarrow.parquet.write_table(pyarrow.table(columns), path, row_group_size=7)
    return path


def parts(folder: Path, n: int = 40, files: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = data(n)
    for number, (part, target) in enumerate(zip(x.tensor_split(files), y.tensor_split(files), strict=True)):
        written(folder / f"part-{number}.parquet", a=part[:, 0].numpy(), b=part[:, 1].numpy(), y=target.numpy())
    return x, y


def test_the_rows_are_those_of_all_files_in_their_order(tmp_path: Path) -> None:
    x, y = parts(tmp_path)
    rows = fgp.data.parquet(tmp_path / "part-*.parquet", target="y", batch_rows=5)
    assert (rows.count, rows.columns, len(rows.paths)) == (40, ("a", "b"), 3)
    survey = surveyed(rows, None, 10, seed=0)
    found, targets, _ = next(survey.blocks(40))
    assert torch.equal(found, x)
    assert torch.equal(targets, y)
    assert "40 rows of 3 Parquet files" in repr(rows)


def test_columns_are_chosen_and_ordered_and_targets_may_be_several(tmp_path: Path) -> None:
    x, _ = parts(tmp_path)
    rows = fgp.data.parquet([tmp_path / "part-1.parquet", str(tmp_path / "part-[02].parquet")], target=["y", "a"])
    _, found, targets, _ = next(rows.batches())
    assert found.shape[1] == 1
    assert numpy.array_equal(targets[:, 1], x.tensor_split(3)[1][:, 0])
    chosen = fgp.data.parquet(tmp_path / "part-*.parquet", target="y", columns=["b", "a"])
    _, found, *_ = next(chosen.batches())
    assert numpy.array_equal(found[:, 1], x.tensor_split(3)[0][:, 0])


def test_integers_booleans_decimals_and_an_index_of_pandas(tmp_path: Path) -> None:
    import decimal

    path = written(
        tmp_path / "t.parquet", i=[1, 2, 3], b=[True, False, True], d=[decimal.Decimal("1.5")] * 3,
        y=numpy.ones(3, "f"), __index_level_0__=[0, 1, 2],
    )  # fmt: skip
    rows = fgp.data.parquet(path, target="y")
    assert rows.columns == ("i", "b", "d")
    assert next(rows.batches())[1].tolist() == [[1.0, 1.0, 1.5], [2.0, 0.0, 1.5], [3.0, 1.0, 1.5]]


def test_a_file_that_is_cut_off_is_named(tmp_path: Path) -> None:
    parts(tmp_path)
    cut = tmp_path / "part-1.parquet"
    content = cut.read_bytes()
    for broken in (content[:-20], content[:3], b"a,b,y\n1,2,3\n"):
        cut.write_bytes(broken)
        with pytest.raises(DomainError, match=r"part-1\.parquet.*whole Parquet file"):
            fgp.data.parquet(tmp_path / "part-*.parquet", target="y")
    # What only reading finds: the pages are damaged, the footer is whole.
    cut.write_bytes(content[:4] + bytes(300) + content[304:])
    rows = fgp.data.parquet(tmp_path / "part-*.parquet", target="y")
    with pytest.raises(DomainError, match=r"part-1\.parquet"):
        list(rows.batches())


def test_columns_that_differ_between_files_are_named(tmp_path: Path) -> None:
    x, _ = parts(tmp_path)
    z = x[:5, 0].numpy()
    other = tmp_path / "part-3.parquet"
    for columns, text in (
        ({"a": z, "y": z}, r"part-3\.parquet.*one column 'b'"),
        ({"a": z, "b": z, "c": z, "y": z}, r"part-3\.parquet.*'c'"),
        ({"a": z, "b": ["x"] * 5, "y": z}, r"column 'b' of .*part-3\.parquet.*numbers"),
        ({"a": z, "b": z}, r"part-3\.parquet.*one column 'y'"),
    ):
        written(other, **columns)
        with pytest.raises(DomainError, match=text):
            fgp.data.parquet(tmp_path / "part-*.parquet", target="y")


def test_values_that_are_missing_or_no_numbers_are_named(tmp_path: Path) -> None:
    for cells, text in (
        ([1.0, None, 2.0], "no value in row 1"),
        ([1.0, 2.0, float("nan")], "no value in row 2"),
        ([float("inf"), 2.0, 3.0], "inf in row 0"),
        ([2**53 + 1, 2, 3], "9007199254740993 in row 0"),
    ):
        rows = fgp.data.parquet(written(tmp_path / "t.parquet", a=cells, y=[1.0, 2.0, 3.0]), target="y")
        with pytest.raises(DomainError, match=rf"column 'a' of .*t\.parquet.*{text}"):
            list(rows.batches())


def test_files_and_names_that_are_not_there(tmp_path: Path) -> None:
    parts(tmp_path)
    path = tmp_path / "part-0.parquet"
    for wrong, options, error in (
        (tmp_path / "none-*.parquet", {"target": "y"}, DomainError),
        ([], {"target": "y"}, DomainError),
        (path, {"target": "z"}, DomainError),
        (path, {"target": []}, DomainError),
        (path, {"target": "y", "columns": ["a", "a"]}, DomainError),
        (path, {"target": "y", "columns": ["a", "y"]}, DomainError),
        (path, {"target": ["a", "b", "y"]}, ShapeError),
        (path, {"target": "y", "batch_rows": 0}, DomainError),
        (path, {"target": None}, DomainError),
        (path, {"target": "y", "columns": 1}, DomainError),
        (path, {"target": "y", "columns": ["a"], "row_variance": ["b", "a"]}, DomainError),
        (5, {"target": "y"}, DomainError),
        ([path, 5], {"target": "y"}, DomainError),
        (b"part-0.parquet", {"target": "y"}, DomainError),
    ):
        with pytest.raises(error):
            fgp.data.parquet(wrong, **options)


def test_a_file_that_is_written_between_passes_is_found(tmp_path: Path) -> None:
    x, y = parts(tmp_path)
    rows = fgp.data.parquet(tmp_path / "part-*.parquet", target="y")
    survey = surveyed(rows, None, 10, seed=0)
    written(tmp_path / "part-1.parquet", a=x[:9, 0].numpy(), b=x[:9, 1].numpy(), y=y[:9].numpy())
    with pytest.raises(DomainError, match="same rows in every pass"):
        list(survey.blocks(10))


def test_a_file_that_is_named_twice_would_count_double(tmp_path: Path) -> None:
    parts(tmp_path)
    (tmp_path / "link.parquet").symlink_to(tmp_path / "part-1.parquet")
    for other in ("part-1.parquet", "link.parquet"):
        with pytest.raises(DomainError, match=f"{other}.* twice"):
            fgp.data.parquet([tmp_path / "part-*.parquet", tmp_path / other], target="y")
    with pytest.raises(DomainError, match="twice"):
        fgp.TableModel().fit([tmp_path / "part-1.parquet"] * 2, target="y")


def test_columns_whose_squares_overflow_have_no_standard_units() -> None:
    x, y = torch.tensor([[1e200], [-1e200], [3.0]], dtype=torch.float64), torch.arange(3.0)
    with pytest.raises(DomainError, match=r"'0 of x'.*other units"):
        fgp.data.standardised([(x, y)])
    with pytest.raises(DomainError, match=r"'y'.*other units"):
        fgp.data.standardised([(y[:, None], x[:, 0])])


def test_conditioning_on_files_is_conditioning_on_their_rows(tmp_path: Path) -> None:
    x, y = parts(tmp_path)
    read = model().condition(fgp.data.parquet(tmp_path / "part-*.parquet", target="y"), inducing=12)
    held = model().condition(x, y, approximation="sparse", inducing=12)
    assert read.predict(x).mean == pytest.approx(held.predict(x).mean, rel=1e-10)


def test_rows_in_standard_units_and_answers_back_in_those_of_the_table() -> None:
    """By (M-164), and a posterior that is one of the standardised table."""
    x, y = data(80)
    x = x * torch.tensor([1e6, 1e-3]) + torch.tensor([3e7, 0.0])
    rows = fgp.data.standardised([(a, 50.0 * b + 7.0) for a, b in zip(x.split(30), y.split(30), strict=True)])
    found, targets, _ = next(surveyed(rows, None, 10, seed=0).blocks(80))
    assert found.mean(0) == pytest.approx(torch.zeros(2), abs=1e-9)
    assert found.std(0, correction=0) == pytest.approx(torch.ones(2), rel=1e-9)
    assert targets.std(correction=0) == pytest.approx(1.0, rel=1e-12)
    assert rows.scaling.target.shift == pytest.approx(float(50.0 * y.mean() + 7.0), rel=1e-12)
    post = model().condition(rows, inducing=20)
    held = model().condition(found, targets, approximation="sparse", inducing=20)
    assert post.predict(rows.scaling.x(x)).mean == pytest.approx(held.predict(found).mean, rel=1e-9)
    assert "in standard units" in repr(rows)


def test_a_column_of_known_noise_variances(tmp_path: Path) -> None:
    x, y = data(40)
    v = y.square() + 0.01
    for number, index in enumerate(torch.arange(40).tensor_split(3)):
        columns = {"a": x[index, 0].numpy(), "b": x[index, 1].numpy(), "y": y[index].numpy(), "v": v[index].numpy()}
        written(tmp_path / f"part-{number}.parquet", **columns)
    rows = fgp.data.parquet(tmp_path / "part-*.parquet", target="y", row_variance="v")
    assert rows.columns == ("a", "b")
    found, wanted = model().condition(rows, inducing=12), model().condition([(x, y, v)], inducing=12)
    assert found.predict(x).mean == pytest.approx(wanted.predict(x).mean, rel=1e-10)
    assert found.bound.lower == pytest.approx(wanted.bound.lower, rel=1e-10)
    scaled = fgp.data.standardised([(x, 5.0 * y, 25.0 * v)])
    (variance,) = next(scaled.batches())[3].values()
    assert variance == pytest.approx(v / y.var(correction=0), rel=1e-12)
    with pytest.raises(DomainError, match="different columns"):
        fgp.data.parquet(tmp_path / "part-*.parquet", target="y", row_variance="y")
    with pytest.raises(DomainError, match="'w'"):
        fgp.data.parquet(tmp_path / "part-*.parquet", target="y", row_variance="w")


def test_weights_are_a_column_for_likelihoods_that_find_sites(tmp_path: Path) -> None:
    path = written(tmp_path / "rows.parquet", a=numpy.arange(6.0), y=[0.0, 1.0] * 3, w=[1.0, 2.0, 0.0] * 2)
    rows = fgp.data.parquet(path, target="y", row_weight="w")
    assert rows.columns == ("a",)
    gp = fgp.GP(fgp.kernels.RBF(), likelihood=fgp.likelihoods.Bernoulli())
    x = torch.arange(6, dtype=torch.float64).unsqueeze(-1)
    y, weight = (torch.tensor(column * 2, dtype=torch.float64) for column in ([0.0, 1.0, 0.0], [1.0, 2.0, 0.0]))
    y[3:] = 1.0 - y[:3]
    found, wanted = gp.condition(rows, inducing=x), gp.condition([(x, y, weight)], inducing=x)
    torch.testing.assert_close(found.predict(x).mean, wanted.predict(x).mean)
    (_, _, _, kept), *_ = fgp.data.standardised(rows).batches()
    numpy.testing.assert_array_equal(kept["row_weight"], weight)  # a weight has no unit
    with pytest.raises(DomainError, match="`row_weight` is not what rows of this likelihood may bring"):
        fgp.GP(gp.kernel).condition(rows, inducing=2)
    with pytest.raises(DomainError, match="`exposure` is not what rows of this likelihood may bring"):
        gp.condition(fgp.data.parquet(path, target="y", exposure="w"), inducing=2)
    with pytest.raises(DomainError, match="`exposure` must be the name of one column"):
        fgp.data.parquet(path, target="y", exposure=weight)


def test_columns_that_change_after_the_first_look_are_found(tmp_path: Path) -> None:
    """Which would be read as another column, or as codes of text."""
    x, y = (t[:9].numpy() for t in data(9))
    for columns, text in (
        ({"a": x[:, 0], "y": y}, "'b' no more"),
        ({"a": x[:, 0], "b": ["u", "v", "w"] * 3, "y": y}, "'b'.*must hold numbers"),
    ):
        path = written(tmp_path / "t.parquet", a=x[:, 0], b=x[:, 1], y=y)
        rows, table = fgp.data.parquet(path, target="y"), ParquetParts(path)
        written(path, **columns)
        with pytest.raises(DomainError, match=rf"t\.parquet.*{text}|column {text}"):
            list(rows.batches())
        if "b" not in columns:
            with pytest.raises(DomainError, match=rf"t\.parquet.*{text}"):
                list(table.parts())
