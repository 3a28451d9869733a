"""Malformed batches: an exception that says what and where, and nothing counted."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import polars
import pyarrow
import pytest

import hushflow as hf

ROWS = 6
Batch = dict[str, Any]
Change = Callable[[Batch, random.Random], Any]


def good() -> Batch:
    """A batch that counts."""
    return {
        "x": np.linspace(-1, 1, ROWS),
        "y": np.arange(ROWS),
        "key": np.array(["a", "b", "other"] * 2),
        "at": np.array(["2026-01-01T10:00:00"] * ROWS, dtype="datetime64[us]"),
        "who": np.array([f"person {row}" for row in range(ROWS)]),
    }


def of_column(*values: Any) -> Change:
    """Puts one of these into a column of numbers."""

    def change(batch: Batch, rng: random.Random) -> Batch:
        value = rng.choice(values)
        return batch | {rng.choice("xy"): value(rng) if callable(value) else value}

    return change


def with_value(*values: Any) -> Change:
    """Puts one of these into a row of a column of numbers."""

    def change(batch: Batch, rng: random.Random) -> Batch:
        name = rng.choice("xy")
        column: Any = batch[name].astype(float).tolist()
        column[rng.randrange(ROWS)] = rng.choice(values)
        return batch | {name: rng.choice([list, pandas.Series, np.array])(column)}

    return change


def of_other(name: str, *values: Any) -> Change:
    return lambda batch, rng: batch | {name: rng.choice(values)}


def frozen(values: Any) -> np.ndarray:
    """A read-only array."""
    array = np.array(values)
    array.flags.writeable = False
    return array


MALFORMED: dict[str, Change] = {
    "too long or short": lambda batch, rng: batch
    | {rng.choice(["x", "y", "key", "at", "who"]): batch["x" if rng.random() < 0.1 else "key"][: rng.randrange(ROWS)]},
    "absent": lambda batch, rng: {name: batch[name] for name in rng.sample(sorted(batch), rng.randrange(len(batch)))},
    "shape": of_column(
        3.0, np.zeros((ROWS, 1)), np.zeros((1, ROWS)), np.zeros((2, 3, 1)), np.float64(1), None, [[1.0]] * ROWS
    ),
    "dtype": of_column(
        ["1"] * ROWS,
        np.zeros(ROWS, dtype=complex),
        np.zeros(ROWS, dtype="datetime64[s]"),
        np.zeros(ROWS, dtype="V8"),
        np.array([object()] * ROWS),
        np.array(["x"] * ROWS, dtype="S1"),
        [{}] * ROWS,
        pandas.Series(["x"] * ROWS),
        polars.Series([[1.0]] * ROWS),
        polars.Series(["x"] * ROWS),
        pyarrow.array([b"x"] * ROWS),
        pyarrow.array([{"a": 1}] * ROWS),
    ),
    "missing or infinite": with_value(np.nan, np.inf, -np.inf, None),
    "masked": lambda batch, rng: batch | {"x": np.ma.masked_array(batch["x"], mask=[rng.random() < 0.5] * (ROWS - 1) + [True])},
    "null": of_column(
        polars.Series([1.0] * (ROWS - 1) + [None]),
        pyarrow.array([1] * (ROWS - 1) + [None]),
        pandas.array([1] * (ROWS - 1) + [None], dtype="Int64"),
    ),
    "arrow": of_column(
        pyarrow.chunked_array([[1.0] * 3, [2.0, None, 3.0]]),
        pyarrow.chunked_array([[1.0] * 3, [2.0]]),
        pyarrow.chunked_array([["x"] * 3, ["y"] * 3]),
        pyarrow.chunked_array([], type=pyarrow.float64()),
        pyarrow.array([1.0, None] * 3).dictionary_encode(),
        pyarrow.chunked_array([pyarrow.array(["x"] * 3).dictionary_encode()] * 2),
        pyarrow.nulls(ROWS),
        pyarrow.array([[1.0]] * ROWS),
        pyarrow.array([None] * ROWS, type=pyarrow.float64()),
    ),
    "read-only with a gap": lambda batch, rng: batch | {rng.choice("xy"): frozen([1.0] * (ROWS - 1) + [np.nan])[:: rng.choice([1, -1])]},
    "huge": of_column(lambda rng: [10 ** rng.randrange(400, 999)] * ROWS, [1e400] * ROWS),
    "negative stride with a gap": lambda batch, rng: batch | {"x": np.array([np.nan, *batch["x"][1:]])[::-1]},
    "keys": of_other("key", np.zeros(ROWS), np.zeros((ROWS, 2)), [["a"]] * ROWS, [{}] * ROWS, 3, np.zeros(ROWS, complex)),
    "times": of_other(
        "at",
        np.zeros(ROWS),
        ["yesterday"] * ROWS,
        [None] * ROWS,
        np.array(["NaT"] * ROWS, dtype="datetime64[us]"),
        ["2026-13-01"] * ROWS,
        [7.5] * ROWS,
        np.zeros((ROWS, 2), dtype="datetime64[us]"),
    ),
    "entities": of_other("who", np.zeros(ROWS), [None] * ROWS, ["x"] * (ROWS - 1) + [" "], [3.5] * ROWS, [b"x"] * ROWS),
    "no table": lambda batch, rng: rng.choice(
        [None, 3, "text", b"bytes", object(), np.zeros(5), np.zeros((ROWS, 2)), [], [[1.0, 2.0]] * 3, [1, "x"], {}, set(), iter([])]
    ),
}


FRAMED = ["absent", "missing or infinite"]
"""What stays malformed in a data frame. Frames repair or refuse the other batches."""


def frame(batch: Batch, rng: random.Random) -> Any:
    """The batch as another kind of table."""
    kinds: list[Callable[[Any], Any]] = [pandas.DataFrame, polars.DataFrame, pyarrow.table]
    return rng.choice(kinds)(batch) if batch else batch


PARAMETERS: dict[str, Any] = {
    "columns": {"x": (-1, 1), "y": (0, 10)},
    "key": "key",
    "keys": ["a", "b"],
    "time": "at",
    "entity": "who",
    "participations": 2,
    "start": "2026-01-01",
    "horizon": 3,
    "epsilon": 1.0,
    "delta": 1e-6,
    "strategy": "identity",
    "seed": 3,
}


def test_malformed_batches_count_nothing(tmp_path: Path) -> None:
    attacked = hf.ContinualMoments(**PARAMETERS, state=tmp_path / "attacked")
    attacked.partial_fit(good())
    rng = random.Random(17)
    refused = 0
    while refused < 1500:
        kind = rng.choice(list(MALFORMED))
        batch = MALFORMED[kind](good(), rng)
        if kind in FRAMED and rng.random() < 0.5:
            batch = frame(batch, rng)
        try:
            attacked.partial_fit(batch)
        except hf.BatchError as error:
            refused += 1
            assert "no record of the batch was counted" in str(error)
            assert "person" not in str(error)
        else:
            pytest.fail(f"{kind}: {batch!r} was counted")
    attacked.partial_fit(good())
    attacked.close_epoch()
    clean = hf.ContinualMoments(**PARAMETERS, state=tmp_path / "clean")
    clean.partial_fit(good()).partial_fit(good())
    clean.close_epoch()
    view = {"estimate": "moments"}
    one, other = (stream.log_.view(**view) for stream in (attacked, clean))  # type: ignore[arg-type]
    for name in one:
        np.testing.assert_array_equal(one[name], other[name])
    attacked.close()
    clean.close()


def test_unusual_batches_count(tmp_path: Path) -> None:
    """Read-only, strided, byte-swapped, Fortran-ordered and empty arrays are as good as others."""
    rows = np.random.default_rng(1).uniform(0, 1, (100, 2))
    halves = [rows[:30], rows[30:]]
    forms = [
        frozen(rows),
        frozen(rows[::-1])[::-1],
        pyarrow.table({name: pyarrow.chunked_array([half[:, i] for half in halves]) for i, name in enumerate("xy")}),
        pyarrow.table({name: pyarrow.array(rows[:, i]).dictionary_encode() for i, name in enumerate("xy")}),
        np.asfortranarray(rows),
        rows[::-1][::-1],
        rows.astype(">f8"),
        np.repeat(rows, 3, axis=0)[::3],
        rows.tolist(),
        {"x": rows[:, 0], "y": rows[::-1, 1][::-1]},
        polars.DataFrame(rows, schema=["x", "y"]),
    ]
    packed = np.zeros(len(rows), dtype=[("flag", "i1"), ("x", "f8"), ("y", "f8")])
    packed["x"], packed["y"] = rows.T
    forms += [packed, {"x": rows[:, 0].astype(object), "y": list(rows[:, 1])}]
    assert not packed["x"].flags.aligned
    counts = []
    for number, form in enumerate(forms):
        stream = hf.ContinualMoments(
            {"x": (0, 1), "y": (0, 1)}, epsilon=1.0, delta=1e-6, horizon=2, seed=5, state=tmp_path / str(number)
        )
        stream.partial_fit(np.zeros((0, 2))).partial_fit(form)
        release = stream.close_epoch()
        counts.append([release.count["all"], *release.mean["all"]])
        stream.close()
    np.testing.assert_array_equal(counts, [counts[0]] * len(forms))


@pytest.mark.parametrize("dtype", ["int8", "uint64", "float16", "float32", "longdouble", "bool"])
def test_numbers_of_any_width_count(tmp_path: Path, dtype: str) -> None:
    with hf.ContinualMoments({"x": (0, 1)}, epsilon=1.0, delta=1e-6, horizon=2, state=tmp_path / "s") as stream:
        stream.partial_fit({"x": np.ones(10, dtype=dtype)})
        assert stream.close_epoch().epoch == 1


@pytest.mark.parametrize("twice", ["x", "key", "at", "who"])
@pytest.mark.parametrize("kind", ["pandas", "pyarrow", "stream"])
def test_columns_of_one_name_are_refused(tmp_path: Path, kind: str, twice: str) -> None:
    table = pyarrow.table(good())
    table = table.append_column(twice, table[twice])
    frame = pandas.DataFrame(good())
    tables = {"pandas": pandas.concat([frame, frame[[twice]]], axis=1), "pyarrow": table, "stream": table.to_reader()}
    with hf.ContinualMoments(**PARAMETERS, state=tmp_path / "state") as stream:
        with pytest.raises(hf.BatchError, match=f'there are several columns "{twice}"; no record of the batch was counted'):
            stream.partial_fit(tables[kind])


WRONG: list[tuple[str, Any]] = [
    ("columns", ["x"]),
    ("columns", {"x": (0, 10**400)}),
    ("columns", {"\ud800": (0, 1)}),
    ("histograms", ["x"]),
    ("histograms", {"x": 1.5}),
    ("histograms", {"x": [0, 1, "b"]}),
    ("keys", "EWR"),
    ("keys", {"EWR", "JFK"}),
    ("keys", (key for key in "ab")),
    ("keys", [None]),
    ("state", ""),
    ("state", 3),
    ("anchor", ""),
    ("ledger", ""),
    ("ledger", b"ledger"),
    ("start", np.datetime64("2026-01-01")),
    ("start", pandas.NaT),
    ("every", pandas.Timedelta("1D")),
    ("budget", 3),
    ("budget", ("a", "b")),
    ("name", None),
]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_parameters_of_wrong_types_are_named(tmp_path: Path, name: str, value: Any) -> None:
    stream = hf.ContinualMoments(**({**PARAMETERS, "state": tmp_path / "state"} | {name: value}))
    assert repr(stream).endswith("not open yet)")
    with pytest.raises(hf.ParameterError, match=f"^{name}: "):
        stream.partial_fit(good())
