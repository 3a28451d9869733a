"""Comparisons of strategies."""

from __future__ import annotations

import numpy as np

from . import _hushflow
from ._frames import Columns
from .strategy import Objective


class Comparison(Columns):
    """Strategies and their errors, best first.

    The columns are `strategy`, `sensitivity`, `rmse`, `max_error` and `state_bytes` (NaN for a
    strategy that is only compared). All errors are for a noise multiplier of 1 and records of norm 1
    that are added or removed.
    """

    lower_bound: float | None
    """Proven lower bound of the rmse of every strategy; None if unknown."""

    omissions: dict[str, str]
    """Strategies that are left out, with the reason."""


def plan(
    *,
    workload: str = "prefix",
    horizon: int,
    participation: str = "1",
    objective: Objective = "rmse",
    all: bool = False,
) -> Comparison:
    """Compares all strategies for a workload over `horizon` epochs. Reads no data.

    With `all`, also those that take long. `objective` is what counts as best. Ctrl-C stops it; what
    was found is kept for the next time.
    """
    rows, lower_bound, omissions = _hushflow.plan(
        workload=workload,
        horizon=horizon,
        participation=participation,
        objective=objective,
        all=all,
    )
    found = Comparison(
        {
            "strategy": np.array([row[0] for row in rows]),
            "sensitivity": np.array([row[1] for row in rows]),
            "rmse": np.array([row[2] for row in rows]),
            "max_error": np.array([row[3] for row in rows]),
            "state_bytes": np.array([np.nan if row[4] is None else row[4] for row in rows]),
        }
    )
    found.lower_bound, found.omissions = lower_bound, dict(omissions)
    return found
