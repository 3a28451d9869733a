"""Columns that data frames take as they are."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[Any]


class Columns(dict[str, Column]):
    """Columns of equal length, by name.

    pandas, polars and pyarrow take it as it is: `pl.DataFrame(columns)`.
    """

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(next(iter(self.values()), ()))

    def to_frame(self) -> Any:
        """Returns a data frame of polars, or else of pandas. Raises ImportError without either."""
        if find_spec("polars"):
            import polars

            return polars.DataFrame(dict(self))
        if find_spec("pandas"):
            import pandas

            return pandas.DataFrame(dict(self))
        raise ImportError("to_frame() needs polars or pandas: install one of them")

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Exports the columns to Arrow, by pyarrow or else by polars.

        Raises ImportError without either.
        """
        if find_spec("pyarrow"):
            import pyarrow

            table: Any = pyarrow.table({name: _plain(self[name]) for name in self})
        elif find_spec("polars"):
            import polars

            table = polars.DataFrame(dict(self))
        else:
            raise ImportError("Arrow streams need pyarrow or polars: install one of them")
        return table.__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        names = ", ".join(self)
        return f"{type(self).__name__}({self.rows} rows: {names})"

    def _repr_html_(self) -> str:
        if find_spec("polars") or find_spec("pandas"):
            return str(self.to_frame()._repr_html_())
        return f"<pre>{self!r}</pre>"


def _plain(column: Column) -> Any:
    """Text as a list: not every version of pyarrow reads it from numpy."""
    return column.tolist() if column.dtype.kind == "U" else column


def column_of(values: Any) -> Column:
    """Returns words as an array of text, and numbers as they are."""
    return np.asarray(values) if len(values) else np.asarray(values, dtype="U1")
