"""Types of arguments."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypedDict

Path = str | os.PathLike[str]


class ViewOptions(TypedDict):
    workload: str | None
    estimate: str | None
    regress: str | None
    settings: str | None
    covariance: str | None
    level: float
    joint: bool
    population: bool
    missing_at_random: bool
    total: bool
    keys: Sequence[str] | None
    since: int
