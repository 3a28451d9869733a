"""The compiled module. Use the package `hushflow` instead: this may change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, final

import numpy as np
import numpy.typing as npt

from ._types import Path, ViewOptions

__version__: str

__all__ = [
    "Follow",
    "Log",
    "NoiseStream",
    "Pipeline",
    "PrivateAdam",
    "Session",
    "Strategy",
    "TrainingPlan",
    "__version__",
    "calibrate",
    "command",
    "ledger",
    "load_numpy",
    "plan",
    "private_covariance",
    "robust_mean",
    "run",
    "strategy_names",
]

_Floats = npt.NDArray[np.float64]

@final
class Strategy:
    """A strategy for a workload and a horizon.

    All errors are for a noise multiplier of 1 and records of norm 1 that are added or removed.
    """

    def __new__(
        cls,
        name: str,
        *,
        workload: str = "prefix",
        horizon: int | None = None,
        participation: str = "1",
        objective: str = "rmse",
    ) -> Strategy: ...
    @property
    def name(self) -> str:
        """The name, as on the command line."""
    @property
    def workload(self) -> str:
        """The workload for which it was made."""
    @property
    def horizon(self) -> int | None:
        """Number of epochs; None for a strategy that has no horizon yet."""
    @property
    def participation(self) -> str:
        """How often a record or entity takes part, such as `20x100`."""
    @property
    def runs(self) -> bool:
        """Whether a stream can use it; others are only compared."""
    @property
    def state_bytes(self) -> int | None:
        """Bytes that an encoder keeps per coordinate; None if it only compares."""
    @property
    def rmse(self) -> float:
        """Root mean squared error over the epochs, under its participation."""
    @property
    def max_error(self) -> float:
        """Largest standard deviation of the error of an epoch, under its participation."""
    @property
    def lower_bound(self) -> float:
        """Proven lower bound of the rmse of every strategy."""
    def sensitivity(self, participation: str | None = None) -> float:
        """Returns the sensitivity under a participation such as `20x100`; by default its own."""
    def matrix(self, steps: int | None = None) -> _Floats:
        """Returns C for the first steps, by default all, as an array of shape (rows, steps)."""
    def __copy__(self) -> Strategy: ...
    def __deepcopy__(self, _memo: object) -> Strategy: ...

@final
class NoiseStream:
    def __new__(
        cls,
        strategy: Strategy,
        dimension: int,
        noise_multiplier: float,
        clip_norm: float,
        neighbours: str,
        seed: int | None,
    ) -> NoiseStream: ...
    @property
    def private(self) -> bool: ...
    @property
    def dimension(self) -> int: ...
    @property
    def horizon(self) -> int: ...
    @property
    def next_step(self) -> int: ...
    @property
    def sensitivity(self) -> float: ...
    def standard_deviations(self) -> _Floats: ...
    def draw(self, step: int | None) -> _Floats: ...

@final
class TrainingPlan:
    """The promise of a training run: see `hushflow.training.plan`."""

    def __new__(
        cls,
        participation: str,
        epsilon: float,
        delta: float,
        batch_size: int | None,
        neighbours: str,
        method: str,
    ) -> TrainingPlan: ...
    @property
    def sized(self) -> bool: ...
    @property
    def horizon(self) -> int:
        """Number of steps."""
    @property
    def batch_size(self) -> int | None:
        """Number of records in a step; None if the first step sets it."""
    @property
    def participation(self) -> str:
        """Number of passes and of steps per pass, such as `5x50`."""
    @property
    def epsilon(self) -> float:
        """ε of the whole run."""
    @property
    def delta(self) -> float:
        """δ of the whole run."""

@final
class PrivateAdam:
    def __new__(
        cls,
        parameters: _Floats,
        plan: TrainingPlan,
        strategy: Strategy,
        batch_size: int,
        learning_rate: float,
        clip_norm: float,
        journal: Path | None,
        seed: int | None,
    ) -> PrivateAdam: ...
    @property
    def private(self) -> bool: ...
    @property
    def parameters(self) -> _Floats: ...
    @property
    def next_step(self) -> int: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def noise_multiplier(self) -> float: ...
    def step(self, gradients: npt.NDArray[np.float32]) -> None: ...
    def spent(self) -> float: ...
    def save(self) -> bytes: ...
    def restore(self, state: bytes) -> None: ...

def command(arguments: Sequence[str]) -> int: ...
def strategy_names() -> list[tuple[str, str]]: ...
def plan(
    *,
    workload: str = "prefix",
    horizon: int,
    participation: str = "1",
    objective: str = "rmse",
    all: bool = False,
) -> tuple[
    list[tuple[str, float, float, float, int | None]], float | None, list[tuple[str, str]]
]: ...
def calibrate(
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    noise_multiplier: float | None = None,
) -> tuple[float, float, float, float, float]: ...
def ledger(directory: Path, *, delta: float | None = None) -> dict[str, Any]: ...
def load_numpy() -> None:
    """Imports numpy and prepares the extension for its arrays. Idempotent.

    Call it before the first array is passed to the extension: a Ctrl-C then can't come at a moment at
    which the extension can't answer it.
    """

def robust_mean(
    rows: _Floats,
    *,
    corruption: float,
    epsilon: float,
    delta: float,
    method: str,
    scale: str | float | Sequence[float],
    range: float | None,
    skips: bool,
    seed: int | None,
    ledger: Path | None,
    data_set: str | None,
) -> str: ...
def private_covariance(
    rows: _Floats,
    names: Sequence[str],
    bounds: Sequence[tuple[float, float]],
    *,
    rho: float | None,
    epsilon: float | None,
    delta: float | None,
    method: str,
    neighbours: str,
    centre: float | None,
    skips: bool,
    seed: int | None,
    ledger: Path | None,
    data_set: str | None,
) -> str: ...
@final
class Pipeline:
    """A pipeline file that has been read and checked.

    Raises PipelineError with all problems of the file.
    """

    def __new__(cls, path: Path, text: str | None = None) -> Pipeline: ...
    @property
    def name(self) -> str:
        """The name of the releases."""
    @property
    def columns(self) -> list[tuple[str, float, float]]:
        """Name, lower and upper bound of each column."""
    @property
    def key(self) -> tuple[str, list[str]] | None:
        """Name of the key column, and the keys."""
    @property
    def entity(self) -> str | None:
        """Name of the column of entities, if they are protected."""
    @property
    def time(self) -> str | None:
        """Name of the column of event times."""
    @property
    def horizon(self) -> int:
        """Number of epochs."""
    @property
    def state(self) -> str | None:
        """Its state directory."""
    def __copy__(self) -> Pipeline: ...
    def __deepcopy__(self, _memo: object) -> Pipeline: ...

def run(
    pipeline: Pipeline, *, state: Path | None = None, workers: int = 1
) -> tuple[str, int, int, int]: ...
@final
class Log:
    def __new__(cls, directory: Path) -> Log: ...
    @property
    def directory(self) -> str: ...
    def parameters(self) -> str: ...
    def view(self, options: ViewOptions) -> dict[str, Any]: ...
    def lines(
        self, options: ViewOptions, epoch: int | None = None
    ) -> tuple[int, str] | None: ...
    def follow(self, options: ViewOptions) -> Follow: ...
    def verify(self) -> dict[str, Any]: ...

@final
class Follow:
    def __iter__(self) -> Iterator[tuple[int, str]]: ...
    def __next__(self) -> tuple[int, str]: ...
    def stop(self) -> None: ...

@final
class Session:
    def __new__(
        cls, pipeline: Pipeline, *, state: Path | None = None, workers: int = 1
    ) -> Session: ...
    def push(
        self,
        columns: Sequence[_Floats],
        *,
        keys: npt.NDArray[np.uint32] | None = None,
        times: npt.NDArray[np.int64] | None = None,
        entities: Sequence[str] | None = None,
    ) -> None: ...
    def close_epoch(self) -> int: ...
    def close(self) -> None: ...
    @property
    def epoch(self) -> int: ...
    @property
    def committed(self) -> int: ...
    @property
    def horizon(self) -> int: ...
