"""Reads the files of a sink of tables by pyarrow, and compares them with the view of the log."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.feather
import pyarrow.parquet
import pytest

import hushflow as hf

from .conftest import FLIGHTS, ROOT, Command


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_tables_of_a_sink_are_the_view_of_the_log(
    hushflow: Command, tmp_path: Path, form: str
) -> None:
    text = (ROOT / "examples/flights.toml").read_text()
    text = text.replace("data/flights_jan2013.csv", str(FLIGHTS))
    sink = f'\n[[sinks]]\npath = "out"\nformat = "{form}"\nrotate = "10 epochs"\n'
    pipeline = tmp_path / "flights.toml"
    pipeline.write_text(text + sink)
    try:
        hushflow("run", pipeline, "--state", tmp_path / "state", "--quiet")
    except AssertionError as error:
        if "built without" in str(error):
            pytest.skip(f"this build can't write {form}")
        raise
    files = sorted((tmp_path / "out").iterdir())
    assert [file.name for file in files] == [
        f"epochs-{first:010}-{first + 9:010}.{form}" for first in (1, 11, 21, 31)
    ]
    if form == "parquet":
        tables = [pyarrow.parquet.read_table(file) for file in files]
    else:
        tables = [pyarrow.feather.read_table(file) for file in files]
    about = [json.loads(table.schema.metadata[b"hushflow"]) for table in tables]
    assert [found["epoch"] for found in about] == [10, 20, 30, 32]
    assert all(found["private"] for found in about)
    table = pyarrow.concat_tables([table.replace_schema_metadata() for table in tables])
    view = hf.open_log(tmp_path / "state").view()
    views = table.column("view").to_pylist()
    table = table.filter(pyarrow.array([view == views[0] for view in views]))
    assert table.column("epoch").type == pyarrow.int64()
    assert table.column("start").type == pyarrow.timestamp("us", "UTC")
    assert table.column("key").to_pylist() == list(view["key"])
    for name in view:
        found = table.column(name)
        if pyarrow.types.is_floating(found.type):
            numbers = np.array([np.nan if number is None else number for number in found.to_pylist()])
            np.testing.assert_array_equal(numbers, view[name])
