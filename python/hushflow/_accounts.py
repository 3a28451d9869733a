"""Guarantees, noise levels and ledgers."""

from __future__ import annotations

from typing import NamedTuple

from . import _hushflow
from ._arguments import checked
from ._types import Path


class Calibration(NamedTuple):
    """A noise multiplier and its guarantee."""

    epsilon: float
    delta: float
    noise_multiplier: float
    """Standard deviation of the noise divided by the sensitivity."""
    rho: float
    """ρ of zero-concentrated differential privacy."""
    mu: float
    """μ of Gaussian differential privacy."""


@checked
def calibrate(
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    noise_multiplier: float | None = None,
) -> Calibration:
    """Computes ε, δ or the noise multiplier of Gaussian noise from the other two.

    Exact for continuous noise; a run uses slightly more, never less.

    Raises ParameterError unless two of the three are given.
    """
    found = _hushflow.calibrate(
        epsilon=epsilon, delta=delta, noise_multiplier=noise_multiplier
    )
    return Calibration(*found)


class Budget(NamedTuple):
    """What a ledger has spent, and what is left."""

    entries: int
    """Number of publications."""
    spent: float | None
    """ε of all of them together at `delta`; None if they have no guarantee together."""
    problem: str | None
    """Why they have none, such as an entry whose noise was drawn from a seed."""
    delta: float
    """δ at which `spent` is stated."""
    epsilon: float | None
    """ε of the budget; None without a budget."""
    left: float | None
    """The largest ε of one more publication, at the budget's δ; None without a budget."""
    data_set: str | None
    """Name of the data."""
    path: str
    """Directory of the ledger."""


@checked
def ledger(directory: Path, *, delta: float | None = None) -> Budget:
    """Returns what a ledger has spent: the one in a directory, or that of a state directory.

    Raises LedgerError if there is none.
    """
    found = _hushflow.ledger(directory, delta=delta)
    epsilon = found["budget"][0] if found["budget"] else None
    return Budget(
        entries=found["entries"],
        spent=found["spent"],
        problem=found["problem"],
        delta=found["delta"],
        epsilon=epsilon,
        left=found["left"],
        data_set=found["data_set"],
        path=str(found["path"]),
    )
