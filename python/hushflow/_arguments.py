"""Checks of arguments, by their annotations. Errors name the argument, what was found, and what is expected.

Only text and numbers are quoted: any other object may hold rows, so its type is named.
"""

from __future__ import annotations

import functools
import operator
import os
from collections.abc import Callable, Mapping
from decimal import Decimal
from itertools import chain
from typing import Any, TypeVar, cast

from ._errors import ParameterError, quoted
from ._hushflow import Pipeline, Strategy

Function = TypeVar("Function", bound=Callable[..., Any])

_RANGES = {"workers": (1, 256), "horizon": (1, 2**64 - 1), "batch_size": (1, 2**32 - 1), "bands": (1, 2**64 - 1)}
"""Least and largest value of whole numbers; of others 0 and 2⁶⁴ - 1."""


def checked(function: Function) -> Function:
    """Checks the arguments of a function before every call."""
    code, kinds = function.__code__, function.__annotations__
    names = code.co_varnames[: code.co_argcount]

    @functools.wraps(function)
    def call(*positional: Any, **named: Any) -> Any:
        for name, value in chain(zip(names, positional, strict=False), named.items()):
            if name in kinds:
                check(name, kinds[name], value)
        return function(*positional, **named)

    return cast(Function, call)


def check(name: str, annotation: str, value: Any) -> None:
    """Raises ParameterError unless a value fits an annotation. Annotations that are not known fit all."""
    kinds = _parts(annotation)
    if any(_fits(name, kind, value) for kind in kinds):
        return
    expected = [_expected(name, kind, value) for kind in kinds if kind != "None"]
    raise ParameterError(f"{name}: found {found(value)}, expected {' or '.join(dict.fromkeys(expected))}")


@functools.cache
def _parts(annotation: str) -> tuple[str, ...]:
    """Splits a union, and names every kind of text `str`."""
    parts: list[str] = []
    depth, start = 0, 0
    for place, sign in enumerate(annotation + "|"):
        depth += (sign == "[") - (sign == "]")
        if sign == "|" and depth == 0:
            parts.append(annotation[start:place].strip())
            start = place + 1
    texts = ("Literal[", "Objective", "Neighbours", "Method", "Missing")
    return tuple("str" if part.startswith(texts) else part for part in parts)


def _fits(name: str, kind: str, value: Any) -> bool:
    test = _TESTS.get(kind)
    return test is None or test(name, value)


def _is_whole(name: str, value: Any) -> bool:
    try:
        least, most = _RANGES.get(name, (0, 2**64 - 1))
        return least <= operator.index(value) <= most
    except TypeError:
        return False


def _is_number(_name: str, value: Any) -> bool:
    if isinstance(value, (str, bytes, bytearray)):
        return False
    try:
        float(value)
    except Exception:  # Arrays and objects of other libraries raise their own.
        return False
    return True


def _is_text(_name: str, value: Any) -> bool:
    return isinstance(value, str) and _is_unicode(value)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_path(_name: str, value: Any) -> bool:
    try:
        path = os.fspath(value)
        return isinstance(path, str) and bool(os.fsencode(path)) and "\0" not in path
    except (TypeError, UnicodeEncodeError):
        return False


def _is_list(inner: Callable[[str, Any], bool]) -> Callable[[str, Any], bool]:
    def test(name: str, value: Any) -> bool:
        if isinstance(value, (str, bytes, Mapping)):
            return False
        if not (hasattr(value, "__len__") and hasattr(value, "__getitem__")):
            return False
        try:
            return all(inner(name, item) for item in value)
        except Exception:  # As above.
            return False

    return test


_TESTS: dict[str, Callable[[str, Any], bool]] = {
    "None": lambda _name, value: value is None,
    "int": _is_whole,
    "float": _is_number,
    "bool": lambda _name, value: type(value).__name__ in ("bool", "bool_"),
    "str": _is_text,
    "Path": _is_path,
    "Sequence[str]": _is_list(_is_text),
    "Sequence[float]": _is_list(_is_number),
    "Strategy": lambda _name, value: isinstance(value, Strategy),
    "Pipeline": lambda _name, value: isinstance(value, Pipeline),
}

_EXPECTED = {
    "float": "a number",
    "bool": "True or False",
    "str": "text",
    "Path": "a path",
    "Sequence[str]": "a list of text",
    "Sequence[float]": "a list of numbers",
    "Strategy": "a Strategy",
    "Pipeline": "a Pipeline",
}


def _expected(name: str, kind: str, value: Any) -> str:
    if kind != "int":
        return _EXPECTED[kind]
    least, most = _RANGES.get(name, (0, 2**64 - 1))
    if most < 2**16:
        return f"a whole number from {least} to {most}"
    too_large = isinstance(value, int) and value > most
    return f"a whole number below 2^{most.bit_length()}" if too_large else f"a whole number of at least {least}"


def found(value: Any) -> str:
    """Describes a value that was refused."""
    if isinstance(value, str):
        if not _is_unicode(value):
            return "text that is not Unicode"
        return quoted(value if len(value) <= 60 else value[:60] + "…")
    if value is None or isinstance(value, (bool, float)) or (isinstance(value, int) and abs(value) < 10**40):
        return repr(value)
    if isinstance(value, (int, Decimal)):
        return "a number too large"
    try:
        return repr(operator.index(value))
    except Exception:  # As above.
        return type(value).__name__
