"""The robust mean and the private covariance of a whole table."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from . import _batch, _hushflow
from ._arguments import checked, found
from ._errors import BatchError, ParameterError, quoted
from ._types import Path

Floats = npt.NDArray[np.float64]
Missing = Literal["keep", "skip", "reject"]


@dataclass(frozen=True)
class MeanEstimate:
    """A private mean. All of it is public."""

    columns: list[str]
    mean: Floats | None
    """Mean of each column; None for a refusal."""
    noise: Floats | None
    """Standard deviation of the noise of each mean. The error has other parts too."""
    refusal: str | None
    """Why there is no mean."""
    spent: float
    """ε spent at the requested δ, also for a refusal."""
    method: str
    private: bool
    report: dict[str, Any] = field(repr=False)
    """All fields, as in `hushflow mean --json`."""


@dataclass(frozen=True)
class CovarianceEstimate:
    """A private covariance. All of it is public."""

    columns: list[str]
    covariance: Floats
    """Second moments about `mean`, or about the middle of the bounds."""
    noise: Floats
    """Standard deviation of the noise of each entry; NaN where an entry was not measured."""
    mean: Floats | None
    """The private mean; None without `centre`."""
    rows: float
    rho: float
    epsilon: float
    """ε that follows from `rho` at `delta`."""
    delta: float
    private: bool
    report: dict[str, Any] = field(repr=False)
    """All fields, as in `hushflow covariance --json`."""


def _table(table: Any, columns: Sequence[Any] | None, missing: str) -> tuple[Floats, list[str]]:
    try:
        return _rows(table, columns, missing)
    except BatchError as error:
        problem = str(error).removesuffix(f"; {_batch.NOTHING}")
    raise BatchError(problem)


def _rows(table: Any, columns: Sequence[Any] | None, missing: str) -> tuple[Floats, list[str]]:
    if missing not in ("keep", "skip", "reject"):
        raise ParameterError(f'missing: found {quoted(missing)}, expected "keep", "skip" or "reject"')
    named = None if columns is None else _names(columns)
    if hasattr(table, "__arrow_c_stream__") and not any(hasattr(table, name) for name in ("columns", "keys")):
        table = _batch.read_arrow(table)
    table = _batch.read_array(table)
    labels = _labels(table) if named is None else named
    if not labels:
        raise _batch.refuse("found no columns")
    read = _batch.Table(table, labels)
    names = [str(label) for label in labels]
    vectors = [_batch.numbers(read.column(label), name) for label, name in zip(labels, names, strict=True)]
    if len({len(vector) for vector in vectors}) > 1:
        raise _batch.refuse("the columns differ in length")
    rows = np.column_stack(vectors)
    incomplete = ~np.isfinite(rows).all(axis=1)
    if missing == "reject" and incomplete.any():
        row = int(np.flatnonzero(incomplete)[0])
        name = names[int(np.flatnonzero(~np.isfinite(rows[row]))[0])]
        raise _batch.refuse(
            f'column {quoted(name)}, row {row}: expected a finite number; missing = "keep" counts such rows in the '
            'middle, and "skip" leaves them out'
        )
    if missing == "skip":
        return rows[~incomplete], names
    rows[incomplete] = np.nan
    return rows, names


def _names(columns: Any) -> list[Any]:
    """Returns the labels of the wanted columns."""
    if isinstance(columns, Iterable) and not isinstance(columns, (str, bytes)):
        labels = list(columns)
        if all(isinstance(label, Hashable) for label in labels):
            return labels
    raise ParameterError(f"columns: found {found(columns)}, expected a list of names")


def _labels(table: Any) -> list[Any]:
    """Returns the labels of all columns. Those of pandas need not be text."""
    if isinstance(table, np.ndarray):
        if table.dtype.names is not None:
            return list(table.dtype.names)
        if table.ndim != 2:
            raise _batch.refuse(f"found an array of shape {table.shape}, expected (rows, columns)")
        return [str(index) for index in range(table.shape[1])]
    for labels in (getattr(table, "column_names", None), getattr(table, "columns", None)):
        if labels is not None:
            return list(labels)
    if hasattr(table, "keys"):
        return list(table.keys())
    if isinstance(table, (list, tuple)) and table and isinstance(table[0], (list, tuple)):
        return [str(index) for index in range(len(table[0]))]
    raise _batch.refuse("the columns have no names: name them with columns")


@checked
def robust_mean(
    table: Any,
    *,
    corruption: float,
    epsilon: float,
    delta: float,
    columns: Sequence[Any] | None = None,
    method: str = "auto",
    scale: str | float | Sequence[float] = "auto",
    range: float | None = None,
    missing: Missing = "keep",
    seed: int | None = None,
    ledger: Path | None = None,
    data_set: str | None = None,
) -> MeanEstimate:
    """Returns the mean of the columns of a table. A share of the rows may be corrupt.

    Neighbours are tables with the same number of rows that differ in one row. Every answer, also a
    refusal, is private and costs the same budget. `scale` is the standard deviation of clean values:
    numbers, `auto`, or `whiten` for correlated columns. `range` bounds every mean, in scales around 0,
    for the methods `tukey` and `resilience`. A row with a missing value counts in the
    middle; with missing = "reject" it is an error, and with "skip" it is left out. The guarantee then
    covers only the complete rows, so a ledger refuses "skip". `ledger` and `data_set` name the ledger that is
    charged before the answer is returned; by default it is that of HUSHFLOW_LEDGER or the user's
    configuration, if there is one. With `seed` the answer is a simulation without privacy protection.

    Raises ParameterError, BatchError for the table, and LedgerError.
    """
    if isinstance(range, (int, float)) and not 0 < range < np.inf:
        raise ParameterError(f"range: found {range}, expected a finite number above 0")
    rows, names = _table(table, columns, missing)
    report = json.loads(
        _hushflow.robust_mean(
            rows,
            corruption=corruption,
            epsilon=epsilon,
            delta=delta,
            method=method,
            scale=scale.tolist() if isinstance(scale, np.ndarray) else scale,
            range=range,
            skips=missing == "skip",
            seed=seed,
            ledger=ledger,
            data_set=data_set,
        )
    )
    refusal = report["refusal"]
    return MeanEstimate(
        columns=names,
        mean=None if report["mean"] is None else np.array(report["mean"]),
        noise=None if report["noise"] is None else np.array(report["noise"]),
        refusal=refusal["message"] if refusal else None,
        spent=report["spent"],
        method=report["method"],
        private=report["private"],
        report=report,
    )


@checked
def private_covariance(
    table: Any,
    *,
    bounds: tuple[float, float] | Sequence[tuple[float, float]],
    rho: float | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    columns: Sequence[Any] | None = None,
    method: str = "shrunk",
    neighbours: Literal["replace-one", "zero-out"] = "replace-one",
    centre: float | None = None,
    missing: Missing = "reject",
    seed: int | None = None,
    ledger: Path | None = None,
    data_set: str | None = None,
) -> CovarianceEstimate:
    """Returns the covariance of the columns of a table; a row is a record.

    `bounds` are public: a pair for all columns, or one for each. The budget is `rho`, or `epsilon` and
    `delta`. `centre` is the share of it for a private mean; without it the answer is about the middle
    of the bounds. The other arguments are those of `robust_mean`.

    Raises ParameterError, BatchError for the table, and LedgerError.
    """
    rows, names = _table(table, columns, missing)
    each = _bounds(bounds, len(names))
    report = json.loads(
        _hushflow.private_covariance(
            rows,
            names,
            each,
            rho=rho,
            epsilon=epsilon,
            delta=delta,
            method=method,
            neighbours=neighbours,
            centre=centre,
            skips=missing == "skip",
            seed=seed,
            ledger=ledger,
            data_set=data_set,
        )
    )
    mean = report["mean"]
    return CovarianceEstimate(
        columns=names,
        covariance=np.array(report["covariance"]),
        noise=np.array(report["covariance_noise"], dtype=np.float64),
        mean=None if mean is None else np.array(mean),
        rows=report["rows"],
        rho=report["rho"],
        epsilon=report["epsilon"],
        delta=report["delta"],
        private=report["private"],
        report=report,
    )


def _bounds(bounds: Any, columns: int) -> list[tuple[float, float]]:
    try:
        found = np.asarray(bounds, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise ParameterError("bounds: expected pairs of numbers") from None
    if found.shape == (2,):
        found = np.tile(found, (columns, 1))
    if found.shape != (columns, 2):
        raise ParameterError(f"bounds: expected a pair of numbers, or one for each of {columns} columns")
    if not (np.isfinite(found).all() and (found[:, 0] < found[:, 1]).all()):
        raise ParameterError("bounds: expected finite numbers, the first of a pair below the second")
    return [(float(lower), float(upper)) for lower, upper in found]
