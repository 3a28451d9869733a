"""Tests the keys of a batch in every form of a column."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas
import polars
import pyarrow
import pytest

import hushflow as hf
from hushflow._batch import MANY, UNLISTED, KeyNumbers

NUMBERED: dict[str, Callable[[npt.NDArray[np.int64]], Any]] = {
    "signed": lambda keys: keys,
    "unsigned": lambda keys: (keys + 7).astype(np.uint64),
    "few bits": lambda keys: keys.astype(np.int8),
    "few": lambda keys: keys[:5],
    "masked": lambda keys: np.ma.array(keys, mask=keys == 5),
    "text": lambda keys: keys.astype(str),
    "pyarrow": pyarrow.array,
    "pyarrow, chunks": lambda keys: pyarrow.chunked_array([keys[:9], keys[9:]]),
    "pyarrow, missing": lambda keys: pyarrow.array([None if key == 5 else str(key) for key in keys]),
    "polars": lambda keys: polars.Series(keys),
    "polars, text": lambda keys: polars.Series(keys).cast(polars.String),
    "polars, missing": lambda keys: polars.Series([None if key == 5 else str(key) for key in keys]),
    "polars, categories": lambda keys: polars.Series(keys).cast(polars.String).cast(polars.Categorical),
    "pandas": pandas.Series,
    "pandas, categories": lambda keys: pandas.Series([None if key == 5 else str(key) for key in keys], dtype="category"),
}


@pytest.mark.parametrize("form", NUMBERED)
def test_keys_of_any_form_have_their_numbers(form: str) -> None:
    keys = np.random.default_rng(0).integers(-7, 9, 1000)
    shift = 7 if form == "unsigned" else 0
    listed = {str(key + shift): number for number, key in enumerate([3, -2, 0, 8])}
    found = KeyNumbers(list(listed)).of(NUMBERED[form](keys), "k")
    np.testing.assert_array_equal(found, [listed.get(str(key + shift), UNLISTED) for key in keys[: len(found)]])


@pytest.mark.parametrize("form", [list, np.array, pandas.Series, polars.Series])
def test_many_keys_of_text_have_their_numbers(form: Callable[[list[Any]], Any]) -> None:
    keys = np.random.default_rng(0).integers(0, 9, MANY + 1).astype(str).tolist()
    listed = [str(key) for key in range(8)]
    found = KeyNumbers(listed).of(form(keys), "k")
    np.testing.assert_array_equal(found, [int(key) if key in listed else UNLISTED for key in keys])
    if form is not np.array:
        keys[5] = None
        assert KeyNumbers(listed).of(form(keys), "k")[5] == UNLISTED


@pytest.mark.parametrize("wrong", [2.5, b"3", True, [1]])
def test_a_wrong_key_among_many_is_named_with_its_row(wrong: Any) -> None:
    keys: list[Any] = ["1"] * (MANY + 7)
    keys[MANY] = wrong
    for form in (list, pandas.Series):
        with pytest.raises(hf.BatchError, match=f'column "k", row {MANY}: found a value of type {type(wrong).__name__}'):
            KeyNumbers(["1"]).of(form(keys), "k")


def test_keys_far_apart_have_their_numbers() -> None:
    keys = np.array([2**62, -(2**62), 0, 2**62], dtype=np.int64)
    found = KeyNumbers([str(2**62), "0"]).of(keys, "k")
    np.testing.assert_array_equal(found, [0, UNLISTED, 1, 0])


def test_a_key_of_another_type_is_named_with_its_row() -> None:
    for keys in (pyarrow.array([1.0, 2.5]), polars.Series([1.0, 2.5]), pandas.Series([1.0, 2.5], dtype="category")):
        with pytest.raises(hf.BatchError, match='column "k", row 0: found a value of type float'):
            KeyNumbers(["1"]).of(keys, "k")
