"""Parameters as fields of a pipeline file. Errors name the parameter."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import date, datetime, timezone
from typing import Any

import numpy as np

from ._arguments import found
from ._errors import ParameterError, quoted


def given(name: str, value: Any) -> Any:
    """Returns a value that must not be missing."""
    if value is None:
        raise ParameterError(f"{name}: it is missing")
    return value


def mapping(name: str, value: Any) -> Mapping[str, Any]:
    """Returns a dictionary."""
    if not isinstance(value, Mapping):
        raise ParameterError(f"{name}: found {type(value).__name__}, expected a dictionary from names of columns")
    return value


def listed(name: str, value: Any) -> list[Any]:
    """Returns a list, of what has an order and can be read again."""
    if isinstance(value, (str, bytes, Mapping)) or not all(hasattr(value, of) for of in ("__len__", "__getitem__")):
        raise ParameterError(f"{name}: found {type(value).__name__}, expected a list of text")
    return list(value)


def absolute(name: str, value: Any) -> str:
    """Returns an absolute path."""
    if not isinstance(value, (str, os.PathLike)) or not os.fspath(value):
        raise ParameterError(f"{name}: found {value!r}, expected a path")
    return str(os.path.abspath(os.fsdecode(value)))


def pair(name: str, values: Any, problem: str = "expected a pair of numbers") -> tuple[float, float]:
    """Returns two numbers."""
    try:
        first, second = values
        return float(first), float(second)
    except (TypeError, ValueError, OverflowError):
        raise ParameterError(f"{name}: {problem}") from None


def edges(column: str, values: Any) -> list[float]:
    """Returns the edges of the bins of a column."""
    try:
        return [float(edge) for edge in values]
    except (TypeError, ValueError, OverflowError):
        raise ParameterError(f"histograms: {quoted(column)} has neither a number of bins nor a list of edges") from None


def start(value: Any) -> str:
    """Writes the start of the first epoch."""
    if isinstance(value, str):
        return value
    if isinstance(value, date) and value == value:  # pandas.NaT is a date that equals nothing.
        if not isinstance(value, datetime):
            return value.isoformat()
        try:
            zoned = value if value.tzinfo else value.replace(tzinfo=timezone.utc)
            return zoned.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")
        except OverflowError:
            pass
    expected = "expected text such as 2013-01-01, a date or a datetime"
    raise ParameterError(f"start: found {found(value)}, {expected}")


def toml(name: str, value: Any) -> str:
    """Writes a value of TOML. `name` is that of its parameter."""
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(toml(name, inner) for inner in value) + "]"
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ParameterError(f"{name}: found text that is not Unicode") from None
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, np.integer)):
        return str(int(value))
    if isinstance(value, (float, np.floating)):
        return repr(float(value))
    raise ParameterError(f"{name}: found {type(value).__name__}, expected text or a number")
