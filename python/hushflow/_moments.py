"""Moments of a stream whose records come from the program, published epoch by epoch."""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import date, datetime, timezone
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from . import _arguments, _batch, _fields, _hushflow
from ._accounts import Budget, ledger
from ._errors import ParameterError, RunError, StateError, quoted
from ._hushflow import Pipeline, Strategy
from ._logs import Log, Release
from ._owned import Owned
from ._types import Path

Floats = npt.NDArray[np.float64]


class ContinualMoments(Owned):
    """Count, mean and covariance of a stream of records, published after every epoch.

    The whole history of releases is (epsilon, delta)-differentially private. It is the same dataflow,
    log and ledger as that of `hushflow run`: `hushflow run`
    can continue a directory begun here, and the reverse.

    Parameters
    ----------
    columns : mapping from names to bounds
        Public lower and upper bound of each column. Values outside are clipped.
    histograms : mapping from names of columns to bins, optional
        Number of bins between the bounds of a column, or their edges. Counts of these bins are
        released too: read them with estimate="histogram" or "quantiles".
    key, keys : str, sequence of str
        Column of public groups, and all of them. Rows with other keys are left out.
    epsilon, delta : float
        The guarantee of all releases together.
    state : path
        The state directory. The first batch or epoch opens and locks it.
    anchor : path, optional
        An existing directory elsewhere. It records the progress, so that a restored old state
        directory is refused.
    strategy : Strategy or str, optional
        How noise is correlated over time. A Strategy also gives workload and horizon.
    workload : str, default "prefix"
        The workload for which the strategy is chosen.
    horizon : int
        Number of epochs, unless a Strategy has it.
    start, every : str, default today and "1d"
        The start of the first epoch, and their length. A log that exists keeps its start.
    epoch_rows : int, optional
        Epochs of this number of rows, which close by themselves, instead of epochs of time. Every
        row of a batch counts towards it, even one that is left out. `partial_fit` returns once the
        epochs that it has filled are published.
    neighbours : "replace-one", "replace-one-in-place" or "zero-out"
        The neighbour relation of the guarantee.
    time : str, optional
        Column of event times. Without it, rows join the oldest open epoch. With it they join their
        own epoch. Rows of closed epochs join the oldest open one, and rows ahead of the clock the
        newest open one.
    allowed_lateness : str, optional
        How long an epoch stays open after its end, such as "6h"; needs `time`. Longer than an epoch,
        it keeps several open.
    entity : str, optional
        Column of the person or thing that is protected with all its records, with `participations`,
        `min_separation` and `records_per_epoch` as in the section [entity] of pipeline files.
    missing : "reject", "skip" or "by-column"
        What happens to rows with a missing value: an error, left out, or counted for the columns that
        they have.
    second_moments : "full", "diagonal" or "none"
    clip_norm : float, optional
        Largest norm of a record after scaling the bounds to [-1, 1].
    ledger, data_set, budget : path, str, (float, float)
        The ledger that all publications over the same data share, the name of the data (by default
        `name`), and the (epsilon, delta) of all of them together.
    name : str, default "moments"
    workers : int, default 1
        Threads.
    seed : int, optional
        Draws the noise from a seed, for simulations: not private.

    Attributes with a trailing underscore are released, so they are public. They are those of the last
    closed epoch. Other threads may use the object; batches and epochs then take turns.

    Examples
    --------
    >>> import hushflow as hf, numpy as np, tempfile
    >>> state = tempfile.mkdtemp() + "/state"
    >>> m = hf.ContinualMoments({"delay": (-60, 240)}, epsilon=1.0, delta=1e-6, horizon=7, state=state)
    >>> for day in range(2):
    ...     _ = m.partial_fit(np.full((1000, 1), 12.0))
    ...     release = m.close_epoch()
    >>> release.epoch, abs(float(m.mean_["all"][0]) - 12) < 15
    (2, True)
    >>> m.close()
    """

    _instead = "two of them would publish the same epochs with different noise; make another one with get_params()"

    def __init__(
        self,
        columns: Mapping[str, tuple[float, float]] | None = None,
        *,
        histograms: Mapping[str, int | Sequence[float]] | None = None,
        key: str | None = None,
        keys: Sequence[str] | None = None,
        epsilon: float | None = None,
        delta: float | None = None,
        state: Path | None = None,
        anchor: Path | None = None,
        strategy: Strategy | str | None = None,
        workload: str | None = None,
        horizon: int | None = None,
        start: str | date | datetime | None = None,
        every: str = "1d",
        epoch_rows: int | None = None,
        neighbours: Literal["replace-one", "replace-one-in-place", "zero-out"] = "replace-one",
        time: str | None = None,
        allowed_lateness: str | None = None,
        entity: str | None = None,
        participations: int | None = None,
        min_separation: int | None = None,
        records_per_epoch: int | None = None,
        missing: Literal["reject", "skip", "by-column"] = "reject",
        second_moments: Literal["full", "diagonal", "none"] = "full",
        clip_norm: float | None = None,
        ledger: Path | None = None,
        data_set: str | None = None,
        budget: tuple[float, float] | None = None,
        name: str = "moments",
        workers: int = 1,
        seed: int | None = None,
        pipeline: Pipeline | Path | None = None,
    ) -> None:
        self.columns = columns
        self.histograms = histograms
        self.key = key
        self.keys = keys
        self.epsilon = epsilon
        self.delta = delta
        self.state = state
        self.anchor = anchor
        self.strategy = strategy
        self.workload = workload
        self.horizon = horizon
        self.start = start
        self.every = every
        self.epoch_rows = epoch_rows
        self.neighbours = neighbours
        self.time = time
        self.allowed_lateness = allowed_lateness
        self.entity = entity
        self.participations = participations
        self.min_separation = min_separation
        self.records_per_epoch = records_per_epoch
        self.missing = missing
        self.second_moments = second_moments
        self.clip_norm = clip_norm
        self.ledger = ledger
        self.data_set = data_set
        self.budget = budget
        self.name = name
        self.workers = workers
        self.seed = seed
        self.pipeline = pipeline
        self._reset()

    def _reset(self) -> None:
        self._opening, self._process = threading.RLock(), os.getpid()
        self._session: _hushflow.Session | None = None
        self._directory: str | None = None
        self._fitted: Pipeline | None = None
        self._numbers: _batch.KeyNumbers | None = None
        self._closed = False

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _PARAMETERS or "_opening" not in vars(self):
            super().__setattr__(name, value)
            return
        with self._lock():
            if self._session is not None:
                raise RunError(_OPEN)
            super().__setattr__(name, value)
            self._directory = self._fitted = None

    @classmethod
    def from_pipeline(
        cls, pipeline: Pipeline | Path, *, state: Path | None = None, workers: int = 1
    ) -> ContinualMoments:
        """Publishes what a pipeline file describes, with records from the program.

        The file's source, views and sinks are not used. Its columns of times, keys and entities name
        those of the batches.
        """
        return cls(pipeline=pipeline, state=state, workers=workers)

    # Parameters, as in scikit-learn.

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Returns the parameters as given."""
        return {name: getattr(self, name) for name in _PARAMETERS}

    def set_params(self, **parameters: Any) -> ContinualMoments:
        """Changes parameters, before the directory is open."""
        unknown = [name for name in parameters if name not in _PARAMETERS]
        if unknown:
            raise ParameterError(
                f"there is no parameter {quoted(unknown[0])}: expected one of {', '.join(_PARAMETERS)}"
            )
        with self._lock():
            if self._session is not None:
                raise RunError(_OPEN)
            for name, value in parameters.items():
                setattr(self, name, value)
            self._closed = False
        return self

    # The pipeline.

    def to_toml(self, *, path: str = "-", format: str = "csv", arrival: str | None = None) -> str:
        """Returns the pipeline file with which `hushflow run` continues this publication.

        `path` and `format` are those of its source. Its rows need a column `arrival` with the time at
        which they became known, and one with event times. By default these are `arrival`, and the
        parameter `time` or else `time`, with underscores after a name that another column has. With
        `epoch_rows` neither is needed. Change nothing else: the log belongs to these parameters.
        """
        self._check()
        columns = _fields.mapping("columns", _fields.given("columns", self.columns))
        histograms = _fields.mapping("histograms", {} if self.histograms is None else self.histograms)
        strategy = self.strategy
        horizon, workload = self.horizon, self.workload
        if isinstance(strategy, Strategy):
            if strategy.horizon is not None and horizon not in (None, strategy.horizon):
                raise ParameterError(
                    f"horizon: found {horizon}, but the strategy is for {strategy.horizon} epochs"
                )
            if workload not in (None, strategy.workload):
                raise ParameterError(
                    f"workload: found {quoted(workload)}, but the strategy is for {quoted(strategy.workload)}"
                )
            horizon = horizon if strategy.horizon is None else strategy.horizon
            workload, strategy = strategy.workload, strategy.name
        if (self.key is None) != (self.keys is None):
            raise ParameterError("key and keys: expected both or none: the column, and all of its keys")
        limits = (self.participations, self.min_separation, self.records_per_epoch)
        if self.entity is None and any(limit is not None for limit in limits):
            raise ParameterError("participations, min_separation and records_per_epoch need entity")
        taken = [*columns, self.key, self.entity, self.time, arrival]

        def free(name: str) -> str:
            while name in taken:
                name += "_"
            return name

        timed = (self.start, self.time, self.allowed_lateness)
        if self.epoch_rows is not None and any(given is not None for given in timed):
            raise ParameterError("epoch_rows: found start, time or allowed_lateness, which are for epochs of time")
        tables: dict[str, dict[str, Any]] = {
            "source": {
                "path": path,
                "format": format,
                "missing": self.missing,
                "malformed": "reject" if self.missing == "reject" else "skip",
            },
            "key": {"column": self.key, "values": None if self.keys is None else _fields.listed("keys", self.keys)},
            "entity": {
                "column": self.entity,
                "participations": self.participations,
                "min_separation": self.min_separation,
                "records_per_epoch": self.records_per_epoch,
            },
            "epochs": {
                "records": self.epoch_rows,
                "horizon": _fields.given("horizon", horizon),
            }
            if self.epoch_rows is not None
            else {
                "time": free("time") if self.time is None else self.time,
                "arrival": free("arrival") if arrival is None else arrival,
                "start": self._start(),
                "length": self.every,
                "allowed_lateness": self.allowed_lateness,
                "horizon": _fields.given("horizon", horizon),
            },
            "privacy": {
                "epsilon": _fields.given("epsilon", self.epsilon),
                "delta": _fields.given("delta", self.delta),
                "neighbours": self.neighbours,
                "unit": None if self.entity is None else "entity",
                "second_moments": self.second_moments,
                "clip_norm": self.clip_norm,
            },
            "release": {"strategy": strategy, "workload": workload},
            "ledger": {
                "directory": None if self.ledger is None else _fields.absolute("ledger", self.ledger),
                "data_set": self.name if self.data_set is None and self.ledger is not None else self.data_set,
            },
            "state": {"anchor": None if self.anchor is None else _fields.absolute("anchor", self.anchor)},
            "simulation": {"seed": self.seed},
        }
        lines = [f"name = {_fields.toml('name', self.name)}"]
        for column, bounds in columns.items():
            lower, upper = _fields.pair("columns", bounds, f"the bounds of {quoted(column)} are not a pair of numbers")
            lines += ["", "[[columns]]", f"name = {_fields.toml('columns', column)}"]
            lines += [f"lower = {lower!r}", f"upper = {upper!r}"]
        for column, bins in histograms.items():
            is_number = isinstance(bins, (int, np.integer)) and not isinstance(bins, bool)
            counts = f"bins = {bins}" if is_number else f"edges = {_fields.edges(column, bins)}"
            lines += ["", "[[histograms]]", f"column = {_fields.toml('histograms', column)}", counts]
        for title, fields in tables.items():
            found = [(name, value) for name, value in fields.items() if value is not None]
            written = [f"{name} = {_fields.toml(_GIVEN_AS.get(name, name), value)}" for name, value in found]
            if title == "ledger" and self.budget is not None:
                epsilon, delta = _fields.pair("budget", self.budget)
                written.append(f"budget = {{ epsilon = {epsilon!r}, delta = {delta!r} }}")
            if written:
                lines += ["", f"[{title}]", *written]
        return "\n".join(lines) + "\n"

    def _start(self) -> str:
        """The start of the first epoch: the given one, that of the log, or today."""
        if self.start is not None:
            return _fields.start(self.start)
        state = _fields.absolute("state", _fields.given("state", self.state))
        try:
            epochs = Log(state).parameters["epochs"]["schedule"]
            micros = epochs["by-time"]["start"]
        except (StateError, KeyError):
            return datetime.now(timezone.utc).date().isoformat()
        return f"{np.datetime64(int(micros), 'us')}Z"

    def _check(self) -> None:
        for name in _PARAMETERS:
            _arguments.check(name, ContinualMoments.__init__.__annotations__[name], getattr(self, name))

    def _pipeline(self) -> Pipeline:
        if self._fitted is None:
            given = self.pipeline
            self._check()
            if given is None:
                self._fitted = Pipeline("ContinualMoments", self.to_toml())
            else:
                self._fitted = given if isinstance(given, Pipeline) else Pipeline(given)
        return self._fitted

    def _state(self) -> str:
        """The state directory: an absolute path, because the process may change its directory later."""
        if self._directory is None:
            given = self._pipeline().state if self.state is None else self.state
            self._directory = _fields.absolute("state", _fields.given("state", given))
        return self._directory

    def _lock(self) -> AbstractContextManager[Any]:
        """The lock of opening and closing. That of a fork is new: a thread of the parent may have held it."""
        if self._process != os.getpid():
            self._opening, self._process = threading.RLock(), os.getpid()
        return self._opening

    def _open(self) -> _hushflow.Session:
        with self._lock():
            if self._closed:
                raise RunError("it is closed: open it again to continue after the last committed epoch")
            if self._session is None:
                pipeline = self._pipeline()
                if pipeline.key is not None:
                    self._numbers = _batch.KeyNumbers(pipeline.key[1])
                self._session = _hushflow.Session(pipeline, state=self._state(), workers=self.workers)
            return self._session

    # The stream.

    def partial_fit(self, X: Any, y: None = None) -> ContinualMoments:
        """Adds a batch of records to the open epoch, or with `time` to those of their times.

        `X` is a data frame of pandas, polars or pyarrow, a dictionary of arrays, a structured array,
        anything with `__arrow_c_stream__`, or, without key, entity and time, an array of shape (rows,
        columns), which can be one of torch, jax or another library that numpy can read.

        Raises BatchError for a malformed batch. None of its rows count.
        """
        session, pipeline = self._open(), self._pipeline()
        names = [name for name, _, _ in pipeline.columns]
        table = _batch.Table(X, names)
        numbers, timed = self._numbers, self.time or (self.pipeline is not None and pipeline.time)
        session.push(
            [_batch.numbers(table.column(name), name) for name in names],
            keys=None
            if pipeline.key is None or numbers is None
            else numbers.of(table.column(pipeline.key[0]), pipeline.key[0]),
            times=_batch.times(table.column(timed), timed) if timed else None,
            entities=None
            if pipeline.entity is None
            else _batch.names(table.column(pipeline.entity), pipeline.entity),
        )
        return self

    def close_epoch(self) -> Release:
        """Closes the oldest open epoch, and returns its release once it is durable and published.

        An epoch without records is released too. Ctrl-C during the wait does not cancel the
        epoch: `epoch_` is the last published one.
        """
        epoch = self._open().close_epoch()
        return self.log_._published(epoch)

    def close(self) -> None:
        """Unlocks the directory. Records of epochs that are not closed are forgotten."""
        with self._lock():
            self._closed = True
            if self._session is not None:
                self._session.close()

    def __enter__(self) -> ContinualMoments:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # What is released.

    @property
    def log_(self) -> Log:
        """The public log."""
        return Log(self._state())

    @property
    def epoch_(self) -> int:
        """The last published epoch; 0 before the first.

        Opens the directory, unless it does not exist or this is closed: an epoch that was durable
        when a process was killed is published then, and its records must not be sent again.
        """
        if not self._closed and os.path.exists(self._state()):
            return self._open().committed
        try:
            release = self.log_.release()
        except StateError:
            return 0
        return release.epoch if release else 0

    def _last(self) -> Release:
        release = self.log_.release()
        if release is None:
            raise RunError("no epoch is published yet: call close_epoch()")
        return release

    @property
    def count_(self) -> dict[str, float]:
        """Number of records of each key, with noise; of `all` without keys."""
        return self._last().count

    @property
    def mean_(self) -> dict[str, Floats]:
        """Mean of each key, of shape (columns,); NaN where there is none."""
        return self._last().mean

    @property
    def covariance_(self) -> dict[str, Floats]:
        """Covariance of each key, of shape (columns, columns); NaN where there is none."""
        return self._last().covariance

    @_arguments.checked
    def interval_(
        self, of: str = "mean", *, level: float = 0.95, joint: bool = False, population: bool = False
    ) -> dict[str, Floats]:
        """Returns both ends of confidence intervals of `mean`, `covariance` or `count` by key.

        With `joint` the intervals of a key hold simultaneously. With `population` they are about the
        population from which the records are drawn.
        """
        release = self.log_.release(level=level, joint=joint, population=population)
        if release is None:
            raise RunError("no epoch is published yet: call close_epoch()")
        return release.interval(of)

    @property
    def budget_(self) -> Budget:
        """What the ledger has spent, and what is left of its budget."""
        return ledger(self._state())

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open" if self._session is not None else "not open yet"
        where = "" if self.state is None else f"state={str(self.state)!r}, "
        return f"ContinualMoments({where}{state})"


_OPEN = "parameters can't change once the publication is open: make another one"

_GIVEN_AS = {"records": "epoch_rows", "length": "every", "values": "keys"}
"""Parameters whose fields have other names."""

_PARAMETERS = [name for name in inspect.signature(ContinualMoments.__init__).parameters if name != "self"]
