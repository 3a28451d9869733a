"""Exceptions. Their messages are those of the `hushflow` command."""

from __future__ import annotations

import json
from typing import Any, NamedTuple


def quoted(name: Any) -> str:
    """Writes a name as the command does: text in double quotes."""
    return json.dumps(name, ensure_ascii=False) if isinstance(name, str) else repr(name)


class HushflowError(Exception):
    """Base class of the errors of this package."""


class ParameterError(HushflowError, ValueError):
    """An argument, or a parameter of a publication, is invalid."""


class StrategyError(ParameterError):
    """A strategy does not exist, or can't be built for the workload and horizon."""


class BatchError(ParameterError):
    """A batch of records is malformed. None of its records was counted."""


class Problem(NamedTuple):
    """A problem in a pipeline file."""

    line: int
    """The line number, starting at 1."""
    column: int
    """The column in characters, starting at 1."""
    field: str
    """The dotted name of the field; empty for a syntax error."""
    message: str
    """What was found, what was expected and how to fix it."""


class PipelineError(HushflowError, ValueError):
    """A pipeline file is invalid, or can't be read.

    `file` is its path, `problems` are all of its problems in order, and `line` and `column` are those
    of the first one (0 if the file can't be read).
    """

    def __init__(
        self, message: str, file: str = "", problems: list[tuple[int, int, str, str]] | None = None
    ) -> None:
        super().__init__(message)
        self.file = file
        self.problems = [Problem(*problem) for problem in problems or []]
        self.line, self.column = self.problems[0][:2] if self.problems else (0, 0)


class SourceError(HushflowError):
    """The source of a run can't be read."""


class StateError(HushflowError):
    """A state directory or its log can't be used."""


class LedgerError(HushflowError):
    """A ledger can't be used, or has too little budget left."""


class RunError(HushflowError):
    """A run ended before the end of its source."""


class ForkError(HushflowError, RuntimeError):
    """A publication, noise or an optimiser was used in a forked child of the process that opened it."""
