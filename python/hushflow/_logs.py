"""Public logs: views, releases as they come, and runs of pipelines."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _hushflow
from ._arguments import checked
from ._chart import Curve, svg
from ._errors import ParameterError, StateError, quoted
from ._frames import Columns, column_of
from ._hushflow import Pipeline
from ._types import Path, ViewOptions

_hushflow.load_numpy()

Floats = npt.NDArray[np.float64]


class View(Columns):
    """A view of a log: a row for every epoch and key.

    The columns are `epoch`, `start` (UTC, if epochs are times), `key`, `count`, `count_noise` and
    those of the estimate, such as `mean_delay` and `mean_lower_delay`, as in `hushflow tail --format
    csv`. An unknown number is NaN.
    """


@dataclass(frozen=True, eq=False)
class Release:
    """One epoch of a log, under a view. All of it is public.

    Dictionaries have an entry for each key, or for `all` without keys. The release that `close_epoch`
    returns reads the log when it is asked for one of them.
    """

    epoch: int
    columns: list[str]
    _read: Callable[[], str] = field(repr=False)

    @cached_property
    def lines(self) -> dict[str, dict[str, Any]]:
        """All fields of each key, as in `hushflow tail --json`."""
        return {line["key"]: line for line in map(json.loads, self._read().splitlines())}

    @property
    def start(self) -> str | None:
        """When it began, RFC 3339; None if epochs are counted."""
        return next((line.get("start") for line in self.lines.values()), None)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Release):
            return NotImplemented
        return (self.epoch, self.columns, self.lines) == (other.epoch, other.columns, other.lines)

    def __reduce__(self) -> Any:
        return _release, (self.columns, self.epoch, "\n".join(map(json.dumps, self.lines.values())))

    @property
    def count(self) -> dict[str, float]:
        """Number of records, with noise, weighted by the workload."""
        return {key: float(line["count"]) for key, line in self.lines.items()}

    @property
    def mean(self) -> dict[str, Floats]:
        """Mean of each column, of shape (columns,); NaN where there is none."""
        return self._each("mean")

    @property
    def covariance(self) -> dict[str, Floats]:
        """Covariance, of shape (columns, columns); NaN where there is none."""
        size = len(self.columns)
        return {key: _array(line.get("covariance"), (size, size)) for key, line in self.lines.items()}

    @checked
    def interval(self, of: str = "mean") -> dict[str, Floats]:
        """Returns both ends of the intervals of the view.

        `of` is `mean`, of shape (columns, 2), `covariance`, of shape (columns, columns, 2), or
        `count`, of shape (2,).
        """
        size = len(self.columns)
        if of == "mean":
            return self._each("mean_interval", 2)
        if of == "covariance":
            shape: tuple[int, ...] = (size, size, 2)
        elif of == "count":
            shape = (2,)
        else:
            raise ParameterError(f'interval: found {quoted(of)}, expected "mean", "covariance" or "count"')
        return {key: _array(line.get(f"{of}_interval"), shape) for key, line in self.lines.items()}

    def _each(self, name: str, *inner: int) -> dict[str, Floats]:
        shape = (len(self.columns), *inner)
        return {
            key: _array(None if line.get(name) is None else [line[name][c] for c in self.columns], shape)
            for key, line in self.lines.items()
        }


def _array(value: Any, shape: tuple[int, ...]) -> Floats:
    found = np.full(shape, np.nan)
    if value is not None:
        _fill(found, value)
    return found


def _fill(array: Floats, value: Any) -> None:
    """Copies nested lists; null stays NaN."""
    for index, inner in enumerate(value):
        if isinstance(inner, list):
            _fill(array[index], inner)
        elif inner is not None:
            array[index] = inner


class Log:
    """The public log of a state directory, or a copy of it.

    It reads nothing else, and takes no lock: a run may be at work. Views cost no privacy.
    """

    @checked
    def __init__(self, directory: Path) -> None:
        self._log = _hushflow.Log(directory)
        header = json.loads(self._log.parameters())
        self.parameters: dict[str, Any] = header["parameters"]
        """The public parameters, as in the header of the log."""
        self.private: bool = header["private"]
        """False if the noise was drawn from a seed: such releases protect nobody."""
        self.horizon: int = header["horizon"]
        """Number of epochs."""

    @property
    def directory(self) -> str:
        """The directory."""
        return str(self._log.directory)

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return [column["name"] for column in self.parameters["columns"]]

    @property
    def keys(self) -> list[str]:
        """The keys; `all` alone without keys."""
        key = self.parameters.get("key")
        return list(key["values"]) if key else ["all"]

    @checked
    def view(
        self,
        workload: str | None = None,
        *,
        estimate: str | None = None,
        regress: str | None = None,
        settings: Mapping[str, object] | None = None,
        covariance: str | None = None,
        level: float = 0.95,
        joint: bool = False,
        population: bool = False,
        missing_at_random: bool = False,
        total: bool = False,
        keys: Sequence[str] | None = None,
        since: int = 1,
    ) -> View:
        """Returns a view of all releases from the epoch `since` on.

        `workload` is how epochs are weighted, such as `prefix`, `window:7` or `matrix:weights.csv`;
        by default that of the release. `estimate` is one of `[[views]]`, such as `gaussian`,
        `moments`, `adam` or `pca`, and `settings` are its fields there:
        `view(estimate="pca", settings={"components": 2})`. `regress` is a regression such as
        `"arr_delay~dep_delay"`. `covariance` is how a noisy estimate becomes a covariance:
        `floor`, `nearest`, `shrink` or `raw`. `level`, `joint`, `population` and
        `missing_at_random` are about the intervals. `total` shows the sum over keys.
        """
        found = self._log.view(
            _options(
                workload, estimate, regress, settings, covariance, level, joint, population,
                missing_at_random, total, keys, since,
            )
        )  # fmt: skip
        if "start" in found:
            found["start"] = found["start"].view("datetime64[us]")
        return View(
            {name: values if isinstance(values, np.ndarray) else column_of(values) for name, values in found.items()}
        )

    @checked
    def follow(
        self,
        workload: str | None = None,
        *,
        estimate: str | None = None,
        settings: Mapping[str, object] | None = None,
        covariance: str | None = None,
        level: float = 0.95,
        joint: bool = False,
        population: bool = False,
        total: bool = False,
        keys: Sequence[str] | None = None,
        since: int = 1,
    ) -> Iterator[Release]:
        """Yields every release from the epoch `since` on, and waits for later ones.

        Ends after the last epoch of the horizon. The arguments are those of `view`.
        """
        options = _options(
            workload, estimate, None, settings, covariance, level, joint, population, False, total, keys, since
        )
        return self._releases(options)

    def _releases(self, options: ViewOptions) -> Iterator[Release]:
        releases = self._log.follow(options)
        try:
            for epoch, lines in releases:
                yield _release(self.columns, epoch, lines)
        finally:
            releases.stop()

    @checked
    def release(
        self,
        epoch: int | None = None,
        *,
        workload: str | None = None,
        covariance: str | None = None,
        level: float = 0.95,
        joint: bool = False,
        population: bool = False,
    ) -> Release | None:
        """Returns an epoch, by default the newest; None if it has not been published."""
        options = _options(
            workload, None, None, None, covariance, level, joint, population, False, False, None, 1
        )
        found = self._log.lines(options, epoch)
        return None if found is None else _release(self.columns, *found)

    def _published(self, epoch: int) -> Release:
        """An epoch that is published, to be read later."""
        options = _options(None, None, None, None, None, 0.95, False, False, False, False, None, 1)

        def read() -> str:
            found = self._log.lines(options, epoch)
            if found is None:
                raise StateError(f"epoch {epoch} was published, and is not in the log any more")
            return found[1]

        return Release(epoch, self.columns, read)

    @checked
    def plot(
        self, column: str, *, workload: str | None = None, level: float = 0.95, axes: Any = None
    ) -> Any:
        """Draws the mean of a column for every key over the epochs, with its intervals.

        Returns the axes of matplotlib, by default those of a new figure. Raises ImportError without
        matplotlib.
        """
        if column not in self.columns:
            raise ParameterError(f"there is no column {quoted(column)}: expected one of {', '.join(self.columns)}")
        try:
            from matplotlib import pyplot
        except ImportError:
            raise ImportError("plot() needs matplotlib: install it") from None
        view = self.view(workload, level=level)
        if f"mean_{column}" not in view:
            raise ParameterError("this log has no means with intervals to draw")
        axes = pyplot.figure().add_subplot() if axes is None else axes
        steps = view["start"] if "start" in view else view["epoch"]
        for key in self.keys:
            rows = view["key"] == key
            ends = [view[f"mean_{end}_{column}"][rows] for end in ("lower", "upper")]
            # Markers show epochs whose neighbours have no mean.
            marker = "." if rows.sum() <= 50 else ""
            (line,) = axes.plot(steps[rows], view[f"mean_{column}"][rows], marker=marker, label=key)
            axes.fill_between(steps[rows], *ends, color=line.get_color(), alpha=0.2, linewidth=0)
        axes.tick_params(axis="x", rotation=30 if "start" in view else 0)
        axes.set_ylabel(f"mean of {column}")
        axes.legend()
        return axes

    def verify(self) -> dict[str, Any]:
        """Checks the log: checksums, order, hash chain and guarantee.

        In a state directory it also checks that the log holds exactly what was committed. Returns
        `private`, `committed` (None for a log alone), `published`, `generations` and `chain`.

        Raises StateError with the first problem.
        """
        return self._log.verify()

    def _repr_html_(self) -> str:
        """Draws the means of all columns with their intervals as SVG; before there are any, the newest
        rows of the view."""
        view = self.view()
        drawn = [column for column in self.columns if view.rows and f"mean_{column}" in view]
        if not drawn:
            rows = slice(-len(self.keys), None)
            return View({name: values[rows] for name, values in view.items()})._repr_html_()
        epochs = view["key"] == self.keys[0]
        steps = view["start" if "start" in view else "epoch"][epochs]
        parts = [f"<div>{html.escape(repr(self))}</div>"]
        for column in drawn:
            names = [f"{name}_{column}" for name in ("mean", "mean_lower", "mean_upper")]
            rows_of = {key: view["key"] == key for key in self.keys}
            curves = [Curve(key, *(view[name][rows] for name in names)) for key, rows in rows_of.items()]
            labels = [str(step).removesuffix("T00:00:00.000000") for step in steps]
            parts.append(f"<div>{svg(f'mean of {column}', labels, curves)}</div>")
        return "".join(parts)

    def __repr__(self) -> str:
        return f"Log({self.directory!r}: {self.parameters['name']}, {self.horizon} epochs)"


def _release(columns: list[str], epoch: int, lines: str) -> Release:
    return Release(epoch, columns, lambda: lines)


def _options(
    workload: str | None,
    estimate: str | None,
    regress: str | None,
    settings: Mapping[str, object] | None,
    covariance: str | None,
    level: float,
    joint: bool,
    population: bool,
    missing_at_random: bool,
    total: bool,
    keys: Sequence[str] | None,
    since: int,
) -> ViewOptions:
    if total and keys is not None:
        raise ParameterError("keys and total: found both, expected one of them: the total is over all keys")
    if keys is not None and not len(keys):
        raise ParameterError("keys: found an empty list, expected at least one key, or None for all of them")
    return {
        "workload": workload,
        "estimate": estimate,
        "regress": regress,
        "settings": None if settings is None else _json(settings),
        "covariance": covariance,
        "level": level,
        "joint": joint,
        "population": population,
        "missing_at_random": missing_at_random,
        "total": total,
        "keys": None if keys is None else list(keys),
        "since": since,
    }


def _json(settings: Mapping[str, object]) -> str:
    try:
        return json.dumps(dict(settings), allow_nan=False)
    except (TypeError, ValueError):
        raise ParameterError(
            "settings: expected fields by name, whose values are text, finite numbers, or lists of them"
        ) from None


@checked
def open_log(directory: Path) -> Log:
    """Opens the public log in a state directory, or a copy of it.

    Raises StateError if there is none.
    """
    return Log(directory)


@dataclass(frozen=True)
class RunSummary:
    """Result of a run."""

    log: Log
    """What it published."""
    epochs: range
    """The epochs that it committed."""
    generation: int
    """Number of the run in the state directory."""


@checked
def run(pipeline: Pipeline | Path, *, state: Path | None = None, workers: int = 1) -> RunSummary:
    """Runs a pipeline until its source ends, as `hushflow run` does.

    Run it again to continue where it stopped: no epoch is published twice. Ctrl-C stops it cleanly
    after the last committed epoch. Problems of the first rows, such as misspelt keys, are
    warnings to the logger `hushflow`, before anything is spent. They are private, as the rows are.
    """
    if not isinstance(pipeline, Pipeline):
        pipeline = Pipeline(pipeline)
    directory, first, end, generation = _hushflow.run(pipeline, state=state, workers=workers)
    return RunSummary(Log(directory), range(first, end), generation)
