"""Comparisons of strategies."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from . import _hushflow
from ._arguments import checked
from ._command import report
from ._errors import ParameterError
from ._frames import Columns
from ._hushflow import Pipeline
from ._moments import ContinualMoments
from .strategy import Objective


class Comparison(Columns):
    """Strategies and their errors, best first.

    The columns are `strategy`, `sensitivity`, `rmse`, `max_error` and `state_bytes` (NaN for a
    strategy that is only compared). All errors are for a noise multiplier of 1 and records of norm 1
    that are added or removed.

    For columns with epsilon and delta, `noise_multiplier` follows, and the standard deviations of the
    noise after the last epoch: `count_noise`, of the number of records, and `first_noise`, of the sum
    of a column in units of half the distance of its bounds.
    """

    lower_bound: float | None
    """Proven lower bound of the rmse of every strategy; None if unknown."""

    omissions: dict[str, str]
    """Strategies that are left out, with the reason."""


@checked
def plan(
    *,
    workload: str = "prefix",
    horizon: int,
    participation: str = "1",
    objective: Objective = "rmse",
    all: bool = False,
    columns: Mapping[str, tuple[float, float]] | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    neighbours: Literal["replace-one", "replace-one-in-place", "zero-out"] = "replace-one",
) -> Comparison:
    """Compares all strategies for a workload over `horizon` epochs. Reads no data.

    With `all`, also those that take long. `objective` is what counts as best. The order does not
    depend on `columns`, names with bounds as for ContinualMoments; with epsilon and delta they add the
    noise that a publication has. Ctrl-C stops it; what was found is kept for the next time.
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
    if epsilon is not None or delta is not None:
        if columns is None or participation != "1":
            raise ParameterError("epsilon and delta: expected columns, and participation \"1\"")
        stream = ContinualMoments(
            columns, epsilon=epsilon, delta=delta, workload=workload, horizon=horizon, start="2000-01-01",
            neighbours=neighbours,
        )  # fmt: skip
        _add_noise(found, stream.to_toml(), objective, all)
    return found


def _add_noise(found: Comparison, pipeline: str, objective: Objective, all: bool) -> None:
    Pipeline("plan", pipeline)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "plan.toml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(pipeline)
        words = ["--objective", objective, *(["--all"] if all else [])]
        lines = {line["strategy"]: line for line in report("plan", path, *words)["strategies"]}

    def numbers(of: Any) -> Any:
        values = [of(lines[name]) if name in lines else None for name in found["strategy"].tolist()]
        return np.array([np.nan if value is None else value for value in values], dtype=np.float64)

    found["noise_multiplier"] = numbers(lambda line: line["noise_multiplier"])
    for name in ("count", "first"):
        found[f"{name}_noise"] = numbers(lambda line: (line["last_noise"] or {}).get(name))
