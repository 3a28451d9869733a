"""Batches: columns out of data frames, arrays and dictionaries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime, timezone
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt

from ._errors import BatchError

Floats = npt.NDArray[np.float64]

UNLISTED = 2**32 - 1
"""Number of a key that is not listed: its rows are left out."""

NOTHING = "nothing of the batch was counted"


def refuse(problem: str) -> BatchError:
    """Returns the error for a batch."""
    return BatchError(f"{problem}; {NOTHING}")


class Table:
    """The columns of a batch, whatever it is made of."""

    def __init__(self, data: Any, names: Sequence[str]) -> None:
        self._names = list(names)
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
            return data.collect()
        if module in ("pandas", "polars") and hasattr(data, "columns"):
            return data
        if module == "pyarrow" and hasattr(data, "column"):
            return dict(zip(data.schema.names, data.columns, strict=True))
        if hasattr(data, "__arrow_c_stream__"):
            return self._arrow(data)
        if isinstance(data, (list, tuple)):
            return self._array(self._rows(data))
        raise refuse(
            f"found {type(data).__name__}, expected a data frame, an array of shape (rows, "
            f"{len(self._names)}), a dictionary of columns, or anything with __arrow_c_stream__"
        )

    def _rows(self, data: Any) -> npt.NDArray[Any]:
        try:
            return np.asarray(data, dtype=np.float64)
        except (TypeError, ValueError):
            raise refuse("found a list that is no table of numbers") from None

    def _array(self, data: npt.NDArray[Any]) -> Mapping[str, npt.NDArray[Any]]:
        if data.ndim != 2 or data.shape[1] != len(self._names):
            raise refuse(
                f"found an array of shape {data.shape}, expected (rows, {len(self._names)}): "
                f"the columns {', '.join(self._names)}"
            )
        return {name: data[:, index] for index, name in enumerate(self._names)}

    def _arrow(self, data: Any) -> Any:
        try:
            if find_spec("pyarrow"):
                import pyarrow

                return self._table(pyarrow.table(data))
            if find_spec("polars"):
                import polars

                return polars.DataFrame(data)
        except BatchError:
            raise
        except Exception as error:
            raise refuse(f"the Arrow stream can't be read: {error}") from None
        raise ImportError("Arrow streams need pyarrow or polars: install one of them")

    def column(self, name: str) -> Any:
        """Returns a column, as it is."""
        try:
            return self._data[name]
        except (KeyError, IndexError, ValueError, TypeError):
            pass
        except Exception as error:
            # Polars raises an exception of its own.
            if type(error).__name__ != "ColumnNotFoundError":
                raise refuse(f"column {name!r} can't be read: {error}") from None
        raise refuse(f"there is no column {name!r}")


def _missing_as_nan(values: Any) -> npt.NDArray[Any]:
    """Returns an array, with NaN for what pandas and Arrow mark as missing."""
    if isinstance(values, np.ma.MaskedArray):
        return np.ma.filled(values.astype(np.float64), np.nan)
    module = type(values).__module__.partition(".")[0]
    if module == "pandas" and getattr(values.dtype, "na_value", None) is not None:
        if values.dtype.kind in "iufb" and values.isna().any():
            found: npt.NDArray[Any] = values.to_numpy(dtype=np.float64, na_value=np.nan)
            return found
    if module == "pyarrow" and hasattr(values, "combine_chunks"):
        return np.asarray(values.to_numpy())
    if module == "pyarrow" and hasattr(values, "to_numpy"):
        return np.asarray(values.to_numpy(zero_copy_only=False))
    if module in ("pandas", "polars") and hasattr(values, "to_numpy"):
        return np.asarray(values.to_numpy())
    return np.asarray(values)


def _vector(values: Any, name: str) -> npt.NDArray[Any]:
    if hasattr(values, "detach") and hasattr(values, "cpu"):
        values = values.detach().cpu().numpy()
    try:
        found = _missing_as_nan(values)
    except Exception as error:
        raise refuse(f"column {name!r} can't be read: {error}") from None
    if found.ndim != 1:
        raise refuse(f"column {name!r}: found an array of shape {found.shape}, expected (rows,)")
    return found


def numbers(values: Any, name: str) -> Floats:
    """Returns a column of numbers, NaN where one is missing."""
    found = _vector(values, name)
    if found.dtype.kind == "O" and all(value is None or type(value) in (int, float) for value in found):
        # What a list with None becomes.
        try:
            found = np.array([np.nan if value is None else float(value) for value in found])
        except OverflowError:
            raise refuse(f"column {name!r}: found a number too large for float64") from None
    if found.dtype.kind not in "iufb":
        raise refuse(f"column {name!r}: found values of dtype {found.dtype}, expected numbers")
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(found, dtype=np.float64)


class KeyNumbers(dict[Any, int]):
    """Numbers of the listed keys; that of all others is UNLISTED."""

    def __init__(self, keys: Sequence[str]) -> None:
        super().__init__((key, number) for number, key in enumerate(keys))

    def __missing__(self, key: Any) -> int:
        return UNLISTED

    def of(self, values: Any, name: str) -> npt.NDArray[np.uint32]:
        """Returns the number of each key. Numbers match keys that are written like them."""
        found = _vector(values, name)
        if found.dtype.kind in "iu":
            found = found.astype("U")
        if found.dtype.kind not in "OUT":
            raise refuse(f"key {name!r}: found values of dtype {found.dtype}, expected text")
        wrong = refuse(f"key {name!r}: found a value that is no text")
        try:
            numbers = np.fromiter(map(self.__getitem__, found.tolist()), dtype=np.uint32, count=len(found))
        except TypeError:
            raise wrong from None
        unlisted = found[numbers == UNLISTED] if found.dtype.kind == "O" else ()
        # A missing key is None or NaN.
        if not all(value is None or isinstance(value, str) or value != value for value in unlisted):
            raise wrong
        return numbers


def times(values: Any, name: str) -> npt.NDArray[np.int64]:
    """Returns times as microseconds since 1970. Times without a zone are UTC."""
    module = type(values).__module__.partition(".")[0]
    if module == "pandas" and getattr(values.dtype, "tz", None) is not None:
        values = values.dt.tz_convert("UTC").dt.tz_localize(None)
    found = _vector(values, name)
    if found.dtype.kind in "OUT":
        found = np.array([_time(value, name, row) for row, value in enumerate(found.tolist())])
        found = found.astype("datetime64[us]")
    if found.dtype.kind != "M":
        raise refuse(f"time {name!r}: found values of dtype {found.dtype}, expected datetime64 or text")
    if np.isnat(found).any():
        row = int(np.flatnonzero(np.isnat(found))[0])
        raise refuse(f"time {name!r}, row {row}: found no time")
    # Rounded down, as text with more digits is.
    return np.ascontiguousarray(found.astype("datetime64[us]").view(np.int64))


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
    raise refuse(f"time {name!r}, row {row}: expected a time such as 2013-01-01T05:00:00Z")


def names(values: Any, name: str) -> list[str]:
    """Returns the names of entities; empty where one is missing."""
    found = _vector(values, name)
    if found.dtype.kind in "iu":
        return [str(value) for value in found.tolist()]
    if found.dtype.kind not in "OUT":
        raise refuse(f"entity {name!r}: found values of dtype {found.dtype}, expected text")
    listed = ["" if value is None or value != value else value for value in found.tolist()]
    if not all(isinstance(value, str) for value in listed):
        raise refuse(f"entity {name!r}: found a value that is no text")
    return listed
