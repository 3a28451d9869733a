"""Fixtures: the command, and the flights of January 2013."""

from __future__ import annotations

import csv
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FLIGHTS = ROOT / "examples/data/flights_jan2013.csv"

Command = Callable[..., str]


@pytest.fixture(scope="session")
def hushflow() -> Command:
    """The command, built beside the package; HUSHFLOW_BINARY names another one."""
    binary = Path(os.environ.get("HUSHFLOW_BINARY", ROOT / "target/debug/hushflow"))
    if not binary.exists():
        pytest.skip(f"{binary} is not built: cargo build, or name another with HUSHFLOW_BINARY")

    def run(*arguments: object, check: bool = True) -> str:
        command = [str(binary), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0 or not check, done.stderr
        return done.stdout if check else done.stderr

    return run


Rows = dict[str, list[str]]


@pytest.fixture(scope="session")
def days() -> list[Rows]:
    """The flights of each of five days, by the day of departure."""
    with FLIGHTS.open() as file:
        rows = [row for row in csv.DictReader(file) if row["arr_delay"] and row["dep_delay"]]
    found: list[Rows] = []
    for day in range(2, 7):
        start, end = f"2013-01-{day:02}T00:00:00Z", f"2013-01-{day + 1:02}T00:00:00Z"
        of_day = [row for row in rows if start <= row["event_time"] < end]
        found.append({name: [row[name] for row in of_day] for name in rows[0]})
    return found
