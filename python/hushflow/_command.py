"""Reports of the command, as values."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from ._arguments import checked
from ._errors import RunError
from ._hushflow import Pipeline
from ._types import Path

REPORTS = (0, 4)
"""Exit statuses with a report: no problem, or a run would stop or publish little."""


def report(*words: str, text: str | None = None) -> dict[str, Any]:
    """Runs the command with `--json`, with `text` as its input, and returns what it prints.

    Raises RunError with the command's error message.
    """
    command = [sys.executable, "-m", "hushflow", *words, "--json"]
    done = subprocess.run(command, input=text or "", capture_output=True, text=True, check=False)
    if done.returncode in REPORTS and done.stdout:
        found: dict[str, Any] = json.loads(done.stdout)
        return found
    raise RunError(done.stderr.strip().removeprefix("error: "))


@checked
def check(pipeline: Path, *, state: Path | None = None, rows: int | None = None) -> dict[str, Any]:
    """Reads the source of a pipeline file as a run does, and publishes nothing.

    Returns the report of `hushflow check --json`: records by epoch and key, and `problems`, an empty
    list if a run would publish what the file describes. **It is private**: exact counts, for the
    operator alone. `rows` limits the number of rows read from each source.

    Raises PipelineError for a bad file, and RunError if its source can't be read.
    """
    Pipeline(pipeline)
    words = ["check", os.fspath(pipeline)]
    words += [] if state is None else ["--state", os.fspath(state)]
    words += [] if rows is None else ["--rows", str(rows)]
    return report(*words)
