"""Columns of every library: missing names, odd times, and errors that hold no value of a row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas
import polars
import pyarrow
import pytest

import hushflow as hf
from hushflow import _batch

SPOILT = pyarrow.Array.from_buffers(
    pyarrow.string(), 1, [None, pyarrow.py_buffer(np.array([0, 7], np.int32)), pyarrow.py_buffer(b"SECRET\xff")]
)


@pytest.mark.parametrize(
    "column",
    [
        np.ma.masked_array(["SECRET1", "b"], mask=[False, True]),
        SPOILT,
        pyarrow.chunked_array([SPOILT]),
        pandas.Series(["SECRET"]),
        ["SECRET\udcff"],
        [("SECRET",)],
    ],
)
def test_values_stay_out_of_errors(column: Any) -> None:
    for read in (_batch.numbers, _batch.times, _batch.names, _batch.KeyNumbers(["a"]).of):
        try:
            read(column, "x")
        except hf.BatchError as error:
            assert "SECRET" not in repr(error) + repr(error.__context__) + repr(error.__cause__)


def test_failing_lazy_frame_is_a_batch_error() -> None:
    frame = polars.LazyFrame({"a": ["SECRET"]}).with_columns(polars.col("a").cast(polars.Float64, strict=True))
    with pytest.raises(hf.BatchError, match="can't be collected") as raised:
        _batch.Table(frame, ["a"])
    assert "SECRET" not in repr(raised.value) + repr(raised.value.__context__)


@pytest.mark.parametrize(
    "column",
    [
        ["u", None, "v"],
        np.array(["u", None, "v"], dtype=object),
        pandas.Series(["u", None, "v"]),
        pandas.Series(["u", pandas.NA, "v"], dtype="string"),
        pandas.Series(["u", None, "v"], dtype="category"),
        polars.Series(["u", None, "v"]),
        polars.Series(["u", None, "v"], dtype=polars.Categorical),
        pyarrow.array(["u", None, "v"]),
        pyarrow.array(["u", None, "v"]).dictionary_encode(),
        pyarrow.chunked_array([pyarrow.array(["u", None, "v"]).dictionary_encode()]),
    ],
)
def test_missing_names_are_left_out(column: Any) -> None:
    assert _batch.names(column, "x") == ["u", "", "v"]
    assert _batch.KeyNumbers(["u", "v"]).of(column, "x").tolist() == [0, _batch.UNLISTED, 1]


@pytest.mark.parametrize(
    "column",
    [
        pandas.Series([7, None, 8], dtype="Int64"),
        polars.Series([7, None, 8]),
        pyarrow.array([7, None, 8]),
        pyarrow.array([7, None, 8]).dictionary_encode(),
    ],
)
def test_whole_numbers_name_keys_and_entities(column: Any) -> None:
    assert _batch.names(column, "x") == ["7", "", "8"]
    assert _batch.KeyNumbers(["7", "8"]).of(column, "x").tolist() == [0, _batch.UNLISTED, 1]
    np.testing.assert_array_equal(_batch.numbers(column, "x"), [7.0, np.nan, 8.0])


@pytest.mark.parametrize("column", [[], pandas.Series([], dtype=object), polars.Series([]), pyarrow.array([])])
def test_empty_columns_name_nothing(column: Any) -> None:
    assert _batch.names(column, "x") == []
    assert _batch.KeyNumbers(["a"]).of(column, "x").tolist() == []


def test_errors_give_the_row_of_a_wrong_name() -> None:
    with pytest.raises(hf.BatchError, match="row 1: found a value of type float, expected text"):
        _batch.names(["u", 1.5], "x")


@pytest.mark.parametrize("unit", ["Y", "D", "h", "s", "ms"])
def test_times_beyond_the_range_are_refused(unit: str) -> None:
    with pytest.raises(hf.BatchError, match="row 1: found a time too far from 1970"):
        _batch.times(np.array([1, 2**60], dtype=f"datetime64[{unit}]"), "x")


def test_zoned_times_are_converted() -> None:
    times = pandas.date_range("2020-01-01", periods=2, freq="h", tz="Europe/Oslo")
    expected = np.array(["2019-12-31T23", "2020-01-01T00"], dtype="datetime64[us]").view(np.int64)
    for column in (times, pandas.Series(times)):
        np.testing.assert_array_equal(_batch.times(column, "x"), expected)
