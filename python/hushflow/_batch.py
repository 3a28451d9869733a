"""Batches: columns out of data frames, arrays and dictionaries."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, timezone
from decimal import Decimal
from fractions import Fraction
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _hushflow
from ._errors import BatchError, quoted

_hushflow.load_numpy()

Floats = npt.NDArray[np.float64]

UNLISTED = 2**32 - 1
"""Number of a key that is not listed: its rows are left out."""

NOTHING = "no record of the batch was counted"


def refuse(problem: str) -> BatchError:
    """Returns the error for a batch."""
    return BatchError(f"{problem}; {NOTHING}")


def attempt(problem: str, work: Callable[[], Any]) -> Any:
    """Returns what `work` returns. Errors of other libraries may hold values of rows, so only their
    kind is named, and they are not the context of the one that is raised."""
    try:
        return work()
    except (BatchError, ImportError):
        raise
    except Exception as error:
        kind = type(error).__name__
    raise refuse(f"{problem} ({kind})")


def array_of(value: Any) -> Any:
    """Returns an array of torch, jax or another library as one of numpy, which shares its memory where
    numpy can. Returns anything else as it is."""
    if type(value).__module__.partition(".")[0] in ("pandas", "polars", "pyarrow") or hasattr(value, "columns"):
        # As an array it would lose its missing values or the names of its columns.
        return value
    if hasattr(value, "detach") and hasattr(value, "cpu"):
        value = value.detach().cpu()
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "__array__"):
        return np.asarray(value)
    return np.from_dlpack(value) if hasattr(value, "__dlpack__") else value


def read_array(data: Any) -> Any:
    """Returns what `array_of` does, or refuses the batch."""
    return attempt(f"the values of the {type(data).__name__} can't be read", lambda: array_of(data))


def read_arrow(data: Any) -> Any:
    """Returns the table of an Arrow stream, which can be read once, by pyarrow or else by polars."""
    problem = "the Arrow stream can't be read"
    if find_spec("pyarrow"):
        import pyarrow

        return attempt(problem, lambda: pyarrow.table(data))
    if find_spec("polars"):
        import polars

        return attempt(problem, lambda: polars.DataFrame(data))
    raise ImportError("Arrow streams need pyarrow or polars: install one of them")


class Table:
    """The columns of a batch, whatever it is made of."""

    def __init__(self, data: Any, names: Sequence[str]) -> None:
        self._names = list(names)
        self._listed: list[Any] | None = None
        """The columns of a table of pyarrow, in which a name can stand twice."""
        self._data = self._table(data)

    def _table(self, data: Any) -> Any:
        if isinstance(data, np.ndarray):
            if data.dtype.names is None:
                return self._array(data)
            return {name: data[name] for name in data.dtype.names}
        if isinstance(data, Mapping):
            return data
        module = type(data).__module__.partition(".")[0]
        if module == "polars" and hasattr(data, "collect"):
            return attempt("the lazy frame can't be collected", data.collect)
        if module in ("pandas", "polars") and hasattr(data, "columns"):
            return data
        if module == "pyarrow" and hasattr(data, "column"):
            self._listed = list(data.schema.names)
            return dict(zip(self._listed, data.columns, strict=True))
        if hasattr(data, "__arrow_c_stream__"):
            return self._table(read_arrow(data))
        if isinstance(data, (list, tuple)):
            return self._array(self._rows(data))
        array = read_array(data)
        if isinstance(array, np.ndarray):
            return self._table(array)
        raise refuse(
            f"found {type(data).__name__}, expected a data frame, an array of shape (rows, "
            f"{len(self._names)}), a dictionary of columns, or anything with __arrow_c_stream__"
        )

    def _rows(self, data: Any) -> npt.NDArray[Any]:
        rows: npt.NDArray[Any] = attempt(
            "found a list that is not a table of numbers", lambda: np.asarray(data, dtype=np.float64)
        )
        return rows

    def _array(self, data: npt.NDArray[Any]) -> Mapping[str, npt.NDArray[Any]]:
        if data.ndim != 2 or data.shape[1] != len(self._names):
            raise refuse(
                f"found an array of shape {data.shape}, expected (rows, {len(self._names)}): "
                f"the columns {', '.join(map(str, self._names))}"
            )
        return {name: data[:, index] for index, name in enumerate(self._names)}

    def column(self, name: str) -> Any:
        """Returns a column, as it is or as an array."""
        columns = getattr(self._data, "columns", None) if self._listed is None else self._listed
        if columns is not None and list(columns).count(name) > 1:
            raise refuse(f"there are several columns {quoted(name)}")
        try:
            values = self._data[name]
        except Exception:
            # Each kind of table has its own.
            pass
        else:
            return attempt(f"column {quoted(name)} can't be read", lambda: array_of(values))
        raise refuse(f"there is no column {quoted(name)}")


def _decoded(values: Any) -> Any:
    """Returns a column without Arrow's encoding by a dictionary, whose missing values get lost in
    an array."""
    if type(values).__module__.partition(".")[0] == "pyarrow" and hasattr(values, "type"):
        import pyarrow

        if pyarrow.types.is_dictionary(values.type):
            return values.cast(values.type.value_type)
    return values


def _missing_as_nan(values: Any) -> npt.NDArray[Any]:
    """Returns an array, with NaN for what pandas and Arrow mark as missing."""
    if isinstance(values, np.ma.MaskedArray):
        return np.ma.filled(values.astype(np.float64), np.nan)
    values = _decoded(values)
    module = type(values).__module__.partition(".")[0]
    if module == "pandas" and getattr(values.dtype, "na_value", None) is not None:
        if values.dtype.kind in "iufb" and values.isna().any():
            found: npt.NDArray[Any] = values.to_numpy(dtype=np.float64, na_value=np.nan)
            return found
    if module == "pyarrow" and hasattr(values, "combine_chunks"):
        if values.num_chunks == 1:
            # Without a copy.
            values = values.chunk(0)
        else:
            return np.asarray(values.to_numpy())
    if module == "pyarrow" and hasattr(values, "to_numpy"):
        return np.asarray(values.to_numpy(zero_copy_only=False))
    if module in ("pandas", "polars") and hasattr(values, "to_numpy"):
        return np.asarray(values.to_numpy())
    return np.asarray(values)


def _is_missing(value: Any) -> bool:
    try:
        return value is None or bool(value != value)
    except TypeError:
        # pandas.NA equals nothing, and is neither true nor false.
        return True


def _texts(values: Any, name: str) -> list[str | None]:
    """Returns a column of text, None where it is missing. Whole numbers are written out."""

    def read() -> list[Any]:
        plain = _decoded(values)
        module = type(plain).__module__.partition(".")[0]
        if module == "pyarrow":
            return list(plain.to_pylist())
        if module == "polars":
            return list(plain.to_list())
        if module == "pandas":
            return list(plain.astype(object))
        if isinstance(plain, (list, tuple)):
            return list(plain)
        if isinstance(plain, np.ma.MaskedArray):
            return [None if value is np.ma.masked else value for value in plain.tolist()]
        return list(_vector(plain, name).tolist())

    listed = attempt(f"column {quoted(name)} can't be read", read)
    if all(type(value) is str for value in listed):
        return list(listed)
    texts: list[str | None] = []
    for row, value in enumerate(listed):
        if isinstance(value, str):
            texts.append(str(value))
        elif isinstance(value, (int, np.integer)) and not isinstance(value, bool):
            texts.append(str(int(value)))
        elif attempt(f"column {quoted(name)}, row {row}: the value can't be read", lambda: _is_missing(value)):
            texts.append(None)
        else:
            kind = type(value).__name__
            raise refuse(f"column {quoted(name)}, row {row}: found a value of type {kind}, expected text")
    return texts


def _vector(values: Any, name: str) -> npt.NDArray[Any]:
    found: npt.NDArray[Any] = attempt(f"column {quoted(name)} can't be read", lambda: _missing_as_nan(values))
    if found.ndim != 1:
        raise refuse(f"column {quoted(name)}: found an array of shape {found.shape}, expected (rows,)")
    return found


def numbers(values: Any, name: str) -> Floats:
    """Returns a column of numbers, NaN where one is missing."""
    found = _vector(values, name)
    if found.dtype.kind == "O":
        # What a list with None becomes.
        found = np.array([_number(value, name, row) for row, value in enumerate(found)], dtype=np.float64)
    if found.dtype.kind not in "iufb":
        raise refuse(f"column {quoted(name)}: found values of dtype {found.dtype}, expected numbers")
    with np.errstate(over="ignore"):
        # Columns of packed records are not aligned: only a copy of them is.
        return np.require(found, np.float64, "A")


def _number(value: Any, name: str, row: int) -> float:
    """Returns a number of a column of objects, NaN where it is missing."""
    if value is None or type(value).__name__ == "NAType":
        return math.nan
    if type(value) in (int, float, Decimal, Fraction) or isinstance(value, (np.integer, np.floating)):
        try:
            return float(value)
        except (OverflowError, ValueError):
            # A signalling NaN is the only other one.
            pass
        raise refuse(f"column {quoted(name)}, row {row}: found a number too large for float64")
    kind = type(value).__name__
    raise refuse(f"column {quoted(name)}, row {row}: found a value of type {kind}, expected a number")


MANY = 10_000
"""Keys from which pyarrow finds the distinct ones faster, with its import."""


def _whole_numbers(values: Any) -> npt.NDArray[Any] | None:
    """Returns a column as an array if it holds whole numbers, and none is missing."""
    module = type(values).__module__.partition(".")[0]
    if module == "pyarrow" and hasattr(values, "null_count"):
        import pyarrow

        are_whole = values.null_count == 0 and pyarrow.types.is_integer(values.type)
    elif module == "polars":
        are_whole = values.dtype.is_integer() and values.null_count() == 0
    elif module == "pandas" and hasattr(values, "isna"):
        are_whole = getattr(values.dtype, "kind", "") in "iu" and not values.isna().any()
    else:
        are_whole = type(values) is np.ndarray and values.ndim == 1 and values.dtype.kind in "iu"
    return _missing_as_nan(values) if are_whole else None


def _factorised(values: Any) -> tuple[Any, npt.NDArray[np.intp]] | None:
    """Returns the distinct values of a column and the place of that of each row, -1 where it is
    missing. None for columns in which they are not found faster than one by one."""
    module = type(values).__module__.partition(".")[0]
    numbers = _whole_numbers(values)
    if numbers is not None and numbers.dtype.kind in "iu":
        least, most = (numbers.min(), numbers.max()) if numbers.size else (0, 0)
        if int(most) - int(least) >= numbers.size:
            return np.unique(numbers, return_inverse=True)
        # All integers between them, without a sort. Small ones are places themselves, and need no copy.
        if 0 <= int(least) and int(most) < numbers.size:
            return [str(value) for value in range(int(most) + 1)], numbers
        # Differences are exact modulo 2⁶⁴.
        places = np.subtract(numbers, least, dtype=np.uint64, casting="unsafe").astype(np.intp)
        return [str(value) for value in range(int(least), int(most) + 1)], places
    if module == "pandas" and str(values.dtype) == "category":
        return values.cat.categories, np.asarray(values.cat.codes)
    if len(values) > MANY and type(values).__name__ in ("Series", "ndarray", "list") and find_spec("pyarrow"):
        import pyarrow

        values, module = pyarrow.array(values.to_arrow() if module == "polars" else values), "pyarrow"
    if module == "pyarrow" and hasattr(values, "dictionary_encode"):
        whole = values.combine_chunks() if hasattr(values, "combine_chunks") else values
        encoded = whole.dictionary_encode()
        return encoded.dictionary, encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    if module == "polars" and str(values.dtype) in ("String", "Categorical"):
        distinct = values.unique()
        return distinct, np.asarray(
            values.replace_strict(distinct, range(len(distinct)), default=None).to_numpy()
        )
    return None


class KeyNumbers(dict[Any, int]):
    """Numbers of the listed keys; that of all others is UNLISTED."""

    def __init__(self, keys: Sequence[str]) -> None:
        super().__init__((key, number) for number, key in enumerate(keys))

    def __missing__(self, key: Any) -> int:
        return UNLISTED

    def of(self, values: Any, name: str) -> npt.NDArray[np.uint32]:
        """Returns the number of each key. Numbers match keys that are written like them."""
        try:
            found = _factorised(values)
            if found is not None:
                distinct, places = found
                # The last one is that of missing keys, whose place is -1.
                numbers = [*map(self.__getitem__, _texts(distinct, name)), UNLISTED]
                return np.array(numbers, dtype=np.uint32)[places]
        except Exception:
            # One by one, they name the row.
            pass
        return np.fromiter(map(self.__getitem__, _texts(values, name)), dtype=np.uint32)


def times(values: Any, name: str) -> npt.NDArray[np.int64]:
    """Returns times as microseconds since 1970. Times without a zone are UTC."""
    module = type(values).__module__.partition(".")[0]
    if module == "pandas" and getattr(values.dtype, "tz", None) is not None:
        values = values.to_series() if hasattr(values, "to_series") else values
        values = values.dt.tz_convert("UTC").dt.tz_localize(None)
    found = _vector(values, name)
    if found.dtype.kind in "OUT":
        found = np.array([_time(value, name, row) for row, value in enumerate(found.tolist())])
        found = found.astype("datetime64[us]")
    if found.dtype.kind != "M":
        raise refuse(f"time {quoted(name)}: found values of dtype {found.dtype}, expected datetime64 or text")
    if np.isnat(found).any():
        row = int(np.flatnonzero(np.isnat(found))[0])
        raise refuse(f"time {quoted(name)}, row {row}: found no time")
    # Rounded down, as text with more digits is.
    micros = found.astype("datetime64[us]")
    if np.datetime_data(found.dtype)[0] in _COARSE and (micros.astype(found.dtype) != found).any():
        row = int(np.flatnonzero(micros.astype(found.dtype) != found)[0])
        raise refuse(f"time {quoted(name)}, row {row}: found a time too far from 1970")
    return np.ascontiguousarray(micros.view(np.int64))


_COARSE = ("Y", "M", "W", "D", "h", "m", "s", "ms")
"""Units whose times can exceed 64 bits in microseconds."""


def _time(value: Any, name: str, row: int) -> datetime:
    try:
        if isinstance(value, str):
            value = datetime.fromisoformat(value.strip().replace("Z", "+00:00"))
        elif isinstance(value, date) and not isinstance(value, datetime):
            value = datetime(value.year, value.month, value.day)
        if isinstance(value, datetime):
            return value.astimezone(timezone.utc).replace(tzinfo=None) if value.tzinfo else value
    except (ValueError, OverflowError):
        pass
    raise refuse(f"time {quoted(name)}, row {row}: expected a time such as 2013-01-01T05:00:00Z")


def names(values: Any, name: str) -> list[str]:
    """Returns the names of entities; empty where one is missing."""
    listed = [text or "" for text in _texts(values, name)]
    try:
        "".join(listed).encode()
        return listed
    except UnicodeEncodeError:
        pass
    raise refuse(f"entity {quoted(name)}: found text that is not Unicode")
