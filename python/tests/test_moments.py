"""Compares streams from Python with those of the command, before and after a kill."""

from __future__ import annotations

import copy
import csv
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import polars
import pyarrow
import pytest

import hushflow as hf

from .conftest import Command, Rows

Make = Callable[..., hf.ContinualMoments]
COLUMNS = {"dep_delay": (-60.0, 240.0), "arr_delay": (-90.0, 270.0)}
KEYS = ["EWR", "JFK", "LGA"]


def moments(state: Path, **parameters: Any) -> hf.ContinualMoments:
    """A stream of the flights, with noise from a seed."""
    usual: dict[str, Any] = {
        "columns": COLUMNS,
        "key": "origin",
        "keys": KEYS,
        "epsilon": 1.0,
        "delta": 1e-6,
        "strategy": "square-root",
        "horizon": 5,
        "start": "2013-01-02T00:00:00Z",
        "seed": 11,
        "state": state,
    }
    return hf.ContinualMoments(**(usual | parameters))


def write_pipeline(state: Path, days: list[Rows], path: Path, **parameters: Any) -> Path:
    """Writes the days to a CSV file, which arrive as they happen, and its pipeline."""
    data = path.with_suffix(".csv")
    with data.open("w") as file:
        writer = csv.writer(file)
        writer.writerow(["time", "arrival", "tailnum", "origin", "dep_delay", "arr_delay"])
        for day in days:
            rows = zip(*(day[name] for name in ["event_time", "event_time", "tailnum", "origin", *COLUMNS]), strict=True)
            writer.writerows(sorted(rows))
    path.write_text(moments(state, **parameters).to_toml(path=str(data)))
    return path


def in_order(day: Rows) -> Rows:
    """The rows in the order of the file."""
    order = sorted(range(len(day["origin"])), key=lambda row: [day[name][row] for name in ["event_time", "event_time", "tailnum"]])
    return {name: [values[row] for row in order] for name, values in day.items()}


def numbers(day: Rows) -> dict[str, Any]:
    """A day as arrays."""
    return {name: np.array(day[name], dtype=float) for name in COLUMNS} | {
        name: np.array(day[name]) for name in ["origin", "event_time", "tailnum"]
    }


def lines(hushflow: Command, state: Path) -> str:
    """All releases, as the command shows them."""
    return hushflow("tail", state, "--view", "moments", "--format", "csv")


@pytest.fixture(scope="module")
def expected(hushflow: Command, days: list[Rows], tmp_path_factory: pytest.TempPathFactory) -> str:
    """The releases of the command."""
    directory = tmp_path_factory.mktemp("expected")
    path = write_pipeline(directory / "state", days, directory / "flights.toml")
    hushflow("run", path, "--state", directory / "state", "--quiet")
    return lines(hushflow, directory / "state")


FORMS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "arrays": lambda day: day,
    "lists": lambda day: {name: values.tolist() for name, values in day.items()},
    "pandas": pandas.DataFrame,
    "pandas, nullable": lambda day: pandas.DataFrame(day).convert_dtypes(),
    "pandas, categories": lambda day: pandas.DataFrame(day).astype({"origin": "category"}),
    "polars": polars.DataFrame,
    "polars, lazy": lambda day: polars.DataFrame(day).lazy(),
    "pyarrow": lambda day: pyarrow.table({name: values.tolist() for name, values in day.items()}),
    "pyarrow, chunks": lambda day: pyarrow.concat_tables(
        [pyarrow.table({name: values[part].tolist() for name, values in day.items()}) for part in (slice(9), slice(9, None))]
    ),
    "pyarrow, dictionary": lambda day: pyarrow.table(
        {name: pyarrow.array(values.tolist()) for name, values in day.items() if name != "origin"}
        | {"origin": pyarrow.array(day["origin"].tolist()).dictionary_encode()}
    ),
    "stream": lambda day: Stream(polars.DataFrame(day)),
    "structured array": lambda day: pandas.DataFrame(day).to_records(index=False),
    "float32, strided": lambda day: day
    | {name: np.repeat(day[name].astype(np.float32), 2)[::-2][::-1] for name in COLUMNS},
}


class Stream:
    """An object with an Arrow stream alone."""

    def __init__(self, frame: polars.DataFrame) -> None:
        self._frame = frame

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._frame.__arrow_c_stream__(requested_schema)


@pytest.mark.parametrize("form", FORMS)
def test_releases_agree_with_the_command(
    hushflow: Command, days: list[Rows], expected: str, tmp_path: Path, form: str
) -> None:
    with moments(tmp_path / "state", workers=2 if form == "polars" else 1) as stream:
        for day in days:
            batch = numbers(day)
            half = len(batch["origin"]) // 2
            for part in (slice(half), slice(half, None)):
                stream.partial_fit(FORMS[form]({name: values[part] for name, values in batch.items()}))
            stream.close_epoch()
    assert lines(hushflow, tmp_path / "state") == expected
    hushflow("verify", tmp_path / "state")


@pytest.mark.parametrize("form", ["text", "datetime64", "pandas", "polars, zone"])
def test_event_times_determine_epochs(
    hushflow: Command, days: list[Rows], expected: str, tmp_path: Path, form: str
) -> None:
    """Times in any format and any zone."""
    whole = {name: np.concatenate([numbers(day)[name] for day in days]) for name in numbers(days[0])}
    times = whole["event_time"]
    stamps = np.array([time.removesuffix("Z") for time in times], dtype="datetime64[s]")
    batch: Any = whole
    if form == "datetime64":
        batch = whole | {"event_time": stamps}
    elif form == "pandas":
        zoned = pandas.Series(stamps).dt.tz_localize("UTC").dt.tz_convert("America/New_York")
        batch = pandas.DataFrame(whole).assign(event_time=zoned)
    elif form == "polars, zone":
        batch = polars.DataFrame(whole | {"event_time": stamps.astype("datetime64[ms]")})
        batch = batch.with_columns(polars.col("event_time").dt.replace_time_zone("UTC"))
    with moments(tmp_path / "state", time="event_time") as stream:
        for day in range(5):
            start, end = (np.datetime64(f"2013-01-{first + day:02}") for first in (2, 3))
            chosen = (stamps >= start) & (stamps < end)
            part = batch.filter(chosen) if isinstance(batch, polars.DataFrame) else (
                batch[chosen] if isinstance(batch, pandas.DataFrame) else {n: v[chosen] for n, v in batch.items()}
            )
            stream.partial_fit(part)
            stream.close_epoch()
    assert lines(hushflow, tmp_path / "state").splitlines()[1:] == expected.splitlines()[1:]


def test_command_continues_a_stream(hushflow: Command, days: list[Rows], expected: str, tmp_path: Path) -> None:
    state = tmp_path / "state"
    path = write_pipeline(state, days, tmp_path / "flights.toml")
    with moments(state) as stream:
        for day in days[:2]:
            stream.partial_fit(numbers(day)).close_epoch()
        stream.partial_fit(numbers(days[2]))
    hushflow("run", path, "--state", state, "--quiet")
    assert lines(hushflow, state) == expected


def test_stream_continues_a_run(hushflow: Command, days: list[Rows], expected: str, tmp_path: Path) -> None:
    state = tmp_path / "state"
    path = write_pipeline(state, days[:2], tmp_path / "flights.toml")
    hushflow("run", path, "--state", state, "--quiet")
    with hf.ContinualMoments.from_pipeline(path, state=state) as stream:
        assert stream.epoch_ == 2
        for day in days[2:]:
            stream.partial_fit(numbers(day) | {"time": numbers(day)["event_time"]}).close_epoch()
        with pytest.raises(hf.RunError, match="all 5 epochs are published"):
            stream.close_epoch()
        with pytest.raises(hf.RunError, match="all 5 epochs are published"):
            stream.partial_fit(numbers(days[4]) | {"time": numbers(days[4])["event_time"]})
    assert lines(hushflow, state) == expected
    # The start is that of the log.
    assert moments(state, start=None).epoch_ == 5
    assert "start = \"2013-01-02T00:00:00.000000Z\"" in moments(state, start=None).to_toml()


@pytest.mark.parametrize("workers", [1, 2])
def test_epochs_of_rows_agree_with_the_command(
    hushflow: Command, days: list[Rows], tmp_path: Path, workers: int
) -> None:
    """Rows with other keys count for the length of an epoch."""
    rows: dict[str, Any] = {"strategy": "identity", "epoch_rows": 700, "start": None, "keys": ["EWR", "JFK"]}
    path = write_pipeline(tmp_path / "of the command", days, tmp_path / "flights.toml", **rows)
    hushflow("run", path, "--state", tmp_path / "of the command", "--quiet")
    written = [in_order(day) for day in days]
    whole = {name: np.concatenate([numbers(day)[name] for day in written]) for name in numbers(days[0])}
    assert len(whole["origin"]) > 3500
    start = 0
    for until in (300, 1800, 3500):
        with moments(tmp_path / "state", workers=workers, **rows) as stream:
            with pytest.raises(hf.BatchError, match=f"only {3500 - start} more fill the 5 epochs"):
                stream.partial_fit({name: values[start:3501] for name, values in whole.items()})
            stream.partial_fit({name: values[start:until] for name, values in whole.items()})
            assert stream.epoch_ == min(until // 700, 5)
            if until < 3500:
                with pytest.raises(hf.RunError, match="epochs of 700 rows close by themselves"):
                    stream.close_epoch()
            # Rows of epochs that are not published are sent again.
            start = 700 * stream.epoch_
    assert lines(hushflow, tmp_path / "state") == lines(hushflow, tmp_path / "of the command")
    with pytest.raises(hf.ParameterError, match="epoch_rows: found start, time or allowed_lateness"):
        moments(tmp_path / "state", **(rows | {"time": "event_time"})).to_toml()


def test_keys_have_bounds_of_their_own(hushflow: Command, days: list[Rows], tmp_path: Path) -> None:
    path = write_pipeline(tmp_path / "of the command", days, tmp_path / "flights.toml")
    bounds = 'name = "dep_delay"\nbounds = { JFK = [-20, 30] }'
    path.write_text(path.read_text().replace('name = "dep_delay"', bounds))
    hushflow("run", path, "--state", tmp_path / "of the command", "--quiet")
    with hf.ContinualMoments.from_pipeline(path, state=tmp_path / "state") as stream:
        for day in days:
            stream.partial_fit(numbers(day) | {"time": numbers(day)["event_time"]}).close_epoch()
    assert lines(hushflow, tmp_path / "state") == lines(hushflow, tmp_path / "of the command")


KILLED = """
import json, sys
import hushflow as hf
parameters, days = json.load(sys.stdin)
stream = hf.ContinualMoments(**parameters)
for day in days:
    stream.partial_fit({name: [float(value) for value in values] if "delay" in name else values for name, values in day.items()})
    print(stream.close_epoch().epoch, flush=True)
stream.partial_fit({"dep_delay": [1.0], "arr_delay": [1.0], "origin": ["JFK"]})
print("waiting", flush=True)
sys.stdin.read()
import time; time.sleep(600)
"""


@pytest.mark.parametrize("killed_after", [1, 3])
def test_command_resumes_after_a_kill(
    hushflow: Command, days: list[Rows], expected: str, tmp_path: Path, killed_after: int
) -> None:
    state = tmp_path / "state"
    path = write_pipeline(state, days, tmp_path / "flights.toml")
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None and process.stdout is not None
    parameters = moments(Path(str(state))).get_params() | {"state": str(state)}
    process.stdin.write(json.dumps([parameters, days[:killed_after]]))
    process.stdin.close()
    read = [process.stdout.readline().strip() for _ in range(killed_after + 1)]
    assert read == [*map(str, range(1, killed_after + 1)), "waiting"]
    # What was returned is durable.
    assert hf.open_log(state).verify()["committed"] == killed_after
    process.send_signal(signal.SIGKILL)
    process.wait()
    hushflow("run", path, "--state", state, "--quiet")
    assert lines(hushflow, state) == expected
    hushflow("verify", state)


def test_durable_epoch_is_not_sent_again(tmp_path: Path) -> None:
    state = tmp_path / "state"
    stream = moments(state, key=None, keys=None)
    stream.close_epoch()
    size = os.path.getsize(state / "public.log")
    stream.close_epoch()
    stream.close()
    # As after a kill between the commit of the second epoch and its publication.
    os.truncate(state / "public.log", size)
    last = hf.open_log(state).release()
    assert last is not None and last.epoch == 1
    again = moments(state, key=None, keys=None)
    assert again.epoch_ == 2
    assert again.close_epoch().epoch == 3


def test_first_epoch_needs_no_batch(tmp_path: Path) -> None:
    assert moments(tmp_path / "state").close_epoch().epoch == 1


def test_entities_are_bounded_as_by_the_command(hushflow: Command, days: list[Rows], tmp_path: Path) -> None:
    limits = {"entity": "tailnum", "participations": 2, "min_separation": 2, "horizon": 6}
    path = write_pipeline(tmp_path / "one", days, tmp_path / "flights.toml", **limits)
    hushflow("run", path, "--state", tmp_path / "one", "--quiet")
    with moments(tmp_path / "two", workers=2, **limits) as stream:
        for day in days:
            stream.partial_fit(numbers(in_order(day)))
            stream.close_epoch()
    assert lines(hushflow, tmp_path / "two") == lines(hushflow, tmp_path / "one")


@pytest.mark.parametrize("missing", ["skip", "by-column"])
@pytest.mark.parametrize("neighbours", ["replace-one", "replace-one-in-place"])
def test_missing_values_count_as_in_the_command(
    hushflow: Command, days: list[Rows], tmp_path: Path, missing: str, neighbours: str
) -> None:
    gaps: list[Rows] = []
    for day in days:
        copied = {name: list(values) for name, values in day.items()}
        for row in range(0, len(copied["origin"]), 3):
            copied["dep_delay"][row] = ""
            if row % 2:
                copied["arr_delay"][row] = ""
        gaps.append(copied)
    parameters = {"missing": missing, "neighbours": neighbours}
    path = write_pipeline(tmp_path / "one", gaps, tmp_path / "flights.toml", **parameters)
    hushflow("run", path, "--state", tmp_path / "one", "--quiet")
    with moments(tmp_path / "two", **parameters) as stream:
        for day in gaps:
            batch: dict[str, Any] = {name: [float(v) if v else None for v in day[name]] for name in COLUMNS}
            stream.partial_fit(batch | {"origin": day["origin"]})
            stream.close_epoch()
    assert lines(hushflow, tmp_path / "two") == lines(hushflow, tmp_path / "one")


def test_released_attributes_agree_with_the_log(days: list[Rows], tmp_path: Path) -> None:
    stream = moments(tmp_path / "state", seed=None, ledger=tmp_path / "ledger", data_set="flights", budget=(2.0, 1e-6))
    with pytest.raises(hf.StateError):
        _ = stream.mean_
    assert stream.epoch_ == 0
    stream.partial_fit(numbers(days[0]))
    with pytest.raises(hf.RunError, match="no epoch is published yet"):
        _ = stream.count_
    release = stream.close_epoch()
    assert stream.epoch_ == release.epoch == 1
    assert stream.log_.private
    for key in KEYS:
        true = np.column_stack([numbers(days[0])[name] for name in COLUMNS])[numbers(days[0])["origin"] == key]
        # At least ten deviations of the noise.
        assert abs(stream.count_[key] - len(true)) < 500
        assert stream.mean_[key].shape == (2,) and stream.covariance_[key].shape == (2, 2)
        assert stream.interval_("mean", level=0.9)[key].shape == (2, 2)
        np.testing.assert_array_equal(stream.mean_[key], release.mean[key])
    budget = stream.budget_
    assert budget.entries == 1 and budget.data_set == "flights" and budget.epsilon == 2.0
    assert budget.spent is not None and 0.9 < budget.spent <= 1.0
    assert budget.left is not None and 0.5 < budget.left < 2.0
    with pytest.raises(hf.LedgerError, match="budget"):
        moments(tmp_path / "more", seed=None, epsilon=1.9, ledger=tmp_path / "ledger", data_set="flights").partial_fit(
            numbers(days[0])
        )
    stream.close()
    with pytest.raises(hf.RunError, match="it is closed"):
        stream.close_epoch()


def test_an_anchor_refuses_a_restored_directory(tmp_path: Path, days: list[Rows]) -> None:
    def stream() -> hf.ContinualMoments:
        return moments(tmp_path / "state", anchor=tmp_path / "anchor")

    (tmp_path / "anchor").mkdir()
    with stream() as first:
        first.partial_fit(numbers(days[0]))
        first.close_epoch()
    shutil.copytree(tmp_path / "state", tmp_path / "backup")
    with stream() as second:
        second.close_epoch()
    shutil.rmtree(tmp_path / "state")
    (tmp_path / "backup").rename(tmp_path / "state")
    with pytest.raises(hf.StateError, match="anchor"):
        stream().partial_fit(numbers(days[0]))


def test_parameters_of_an_open_publication_stay(tmp_path: Path, days: list[Rows]) -> None:
    stream = moments(tmp_path / "state")
    stream.epsilon = 0.5
    stream.partial_fit(numbers(days[0]))
    for change in (lambda: setattr(stream, "epsilon", 1.0), lambda: stream.set_params(columns={})):
        with pytest.raises(hf.RunError, match="parameters can't change once the publication is open"):
            change()
    assert stream.epsilon == 0.5
    stream.close()


def test_data_are_named_after_the_publication(tmp_path: Path) -> None:
    with moments(tmp_path / "state", ledger=tmp_path / "ledger", name="delays") as stream:
        stream.close_epoch()
        assert stream.budget_.data_set == "delays"
    with pytest.raises(hf.LedgerError, match="delays"):
        moments(tmp_path / "more", ledger=tmp_path / "ledger", name="others").close_epoch()


def test_a_ledger_with_a_seeded_entry_says_why_it_has_no_guarantee(tmp_path: Path, days: list[Rows]) -> None:
    stream = moments(tmp_path / "state", ledger=tmp_path / "ledger", data_set="flights")
    stream.partial_fit(numbers(days[0]))
    stream.close_epoch()
    budget = stream.budget_
    assert budget.entries == 1 and budget.spent is None and budget.left is None
    assert budget.problem is not None and "seed" in budget.problem
    stream.close()


def test_a_strategy_without_a_horizon_is_made_for_the_stream(tmp_path: Path) -> None:
    strategy = hf.strategy.blt(3, workload="average")
    assert strategy.horizon is None and strategy.name == "blt:3"
    with pytest.raises(hf.StrategyError, match="the strategy `blt:3` needs a horizon"):
        _ = strategy.rmse
    text = moments(tmp_path / "state", strategy=strategy).to_toml()
    assert 'strategy = "blt:3"' in text and 'workload = "average"' in text and "horizon = 5" in text


def test_parameters_follow_scikit_learn(tmp_path: Path) -> None:
    stream = moments(tmp_path / "state")
    parameters = stream.get_params()
    assert hf.ContinualMoments(**parameters).get_params() == parameters
    assert stream.set_params(epsilon=0.5).get_params()["epsilon"] == 0.5
    with pytest.raises(hf.ParameterError, match='no parameter "blub"'):
        stream.set_params(blub=1)
    strategy = hf.strategy.blt(2, horizon=9, workload="average")
    pipeline = hf.Pipeline("flights", stream.to_toml())
    for parameter in (strategy, pipeline):
        # scikit-learn's clone copies every parameter.
        assert copy.deepcopy(parameter) is parameter and copy.copy(parameter) is parameter
    text = moments(tmp_path / "state", strategy=strategy, horizon=None).to_toml()
    assert 'strategy = "blt:2"' in text and 'workload = "average"' in text and "horizon = 9" in text
    with pytest.raises(hf.ParameterError, match="horizon: found 5"):
        moments(tmp_path / "state", strategy=strategy).to_toml()
    with pytest.raises(hf.ParameterError, match="epsilon: it is missing"):
        moments(tmp_path / "state", epsilon=None).partial_fit({})
    with pytest.raises(hf.PipelineError, match="epsilon"):
        moments(tmp_path / "state", epsilon=-1.0).partial_fit({})
    with pytest.raises(hf.PipelineError, match="lower"):
        moments(tmp_path / "state", columns={"x": (1.0, 0.0)}).partial_fit({})


def test_names_with_any_letters_are_quoted(tmp_path: Path) -> None:
    name, key = 'a "b"\\ \t\x7f é \U0001f6e9', "k\x01"
    stream = moments(tmp_path / "state", columns={name: (0, 1)}, key=key, keys=["'\"", "\\"])
    stream.partial_fit({name: [0.5], key: ["\\"]})
    stream.close_epoch()
    assert stream.log_.columns == [name] and stream.log_.keys == ["'\"", "\\"]
    stream.close()


def test_second_stream_of_a_directory_is_refused(days: list[Rows], tmp_path: Path) -> None:
    with moments(tmp_path / "state") as stream:
        stream.partial_fit(numbers(days[0]))
        with pytest.raises(hf.StateError):
            moments(tmp_path / "state").partial_fit(numbers(days[0]))
        stream.close_epoch()
    with moments(tmp_path / "state") as stream:
        assert stream.partial_fit(numbers(days[1])).close_epoch().epoch == 2
    with pytest.raises(hf.HushflowError), moments(tmp_path / "state", epsilon=0.5) as stream:
        stream.partial_fit(numbers(days[0]))


def test_threads_and_streams_take_turns(days: list[Rows], tmp_path: Path) -> None:
    batch = numbers(days[0])
    rows = len(batch["origin"])
    whole = moments(tmp_path / "whole")
    for _ in range(8):
        whole.partial_fit(batch)
    whole.close_epoch()
    shared = moments(tmp_path / "shared")
    threads = [threading.Thread(target=shared.partial_fit, args=(batch,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    shared.close_epoch()
    assert shared.count_ == whole.count_ and sum(whole.count_.values()) > 6 * rows
    np.testing.assert_array_equal(shared.mean_["JFK"], whole.mean_["JFK"])
    shared.close()
    whole.close()


def test_copies_are_refused_and_nothing_private_is_shown(days: list[Rows], tmp_path: Path) -> None:
    stream = moments(tmp_path / "state").partial_fit(numbers(days[0]))
    for copied in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="can't be pickled"):
            copied(stream)
    assert repr(stream) == f"ContinualMoments(state={str(tmp_path / 'state')!r}, open)"
    stream.close()
    assert "closed" in repr(stream)


FORKED = """
import os, sys
import hushflow as hf
stream = hf.ContinualMoments({"x": (0, 1)}, epsilon=1.0, delta=1e-6, horizon=3, state=sys.argv[1])
stream.partial_fit({"x": [0.5]})
# As if another thread was at work.
stream._opening.acquire()
child = os.fork()
if child == 0:
    try:
        stream.partial_fit({"x": [0.5]})
    except hf.ForkError as error:
        assert isinstance(error, RuntimeError) and "fork" in str(error)
        try:
            stream.epoch_
        except hf.ForkError:
            pass
        else:
            os._exit(2)
        del stream
        os._exit(42)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
stream._opening.release()
assert stream.close_epoch().epoch == 1
"""


def test_fork_is_detected(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORKED, str(tmp_path / "state")]
    subprocess.run(command, check=True, timeout=60)
    assert hf.open_log(tmp_path / "state").verify()["committed"] == 1


def test_forgotten_stream_unlocks_its_directory(tmp_path: Path) -> None:
    stream = moments(tmp_path / "state")
    stream.partial_fit({"dep_delay": [1.0], "arr_delay": [1.0], "origin": ["JFK"]})
    del stream
    with moments(tmp_path / "state") as stream:
        assert stream.close_epoch().epoch == 1


def test_state_of_other_users_stays_hidden(days: list[Rows], tmp_path: Path) -> None:
    with moments(tmp_path / "state") as stream:
        stream.partial_fit(numbers(days[0])).close_epoch()
    assert (os.stat(tmp_path / "state").st_mode & 0o077) == 0


def test_a_release_is_read_when_it_is_asked_for(tmp_path: Path) -> None:
    with hf.ContinualMoments({"x": (0, 1)}, epsilon=1.0, delta=1e-6, horizon=3, state=tmp_path / "s") as stream:
        stream.partial_fit(np.ones((10, 1)))
        release = stream.close_epoch()
        assert "lines" not in vars(release) and repr(release) == "Release(epoch=1, columns=['x'])"
        stream.partial_fit(np.zeros((10, 1)))
        later = stream.close_epoch()
        # Later epochs change nothing about it, and it is read once.
        same = stream.log_.release(1)
        assert release == same and release != later and release.lines is release.lines
        assert pickle.loads(pickle.dumps(release)) == release


def test_the_directory_stays_when_the_process_changes_its_own(
    tmp_path: Path, days: list[Rows], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with moments(Path("state")) as stream:
        stream.partial_fit(numbers(days[0])).close_epoch()
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        assert stream.epoch_ == 1 and stream.log_.verify()["committed"] == 1
        stream.partial_fit(numbers(days[1]))
        assert stream.close_epoch().epoch == 2
    assert stream.epoch_ == 2


def test_published_streams_take_no_more_rows(tmp_path: Path) -> None:
    with moments(tmp_path / "state", horizon=2) as stream:
        stream.close_epoch()
        stream.close_epoch()
    with moments(tmp_path / "state", horizon=2) as stream:
        with pytest.raises(hf.RunError, match="all 2 epochs are published: a longer stream needs a new publication"):
            stream.partial_fit({"dep_delay": [1.0], "arr_delay": [1.0], "origin": ["JFK"]})


def test_a_batch_that_fills_the_queue_equals_small_ones(tmp_path: Path) -> None:
    values = np.random.default_rng(3).uniform(-1, 1, 1_200_000)
    means = []
    for name, parts, workers in (("whole", 1, 1), ("workers", 1, 2), ("parts", 300, 1)):
        stream = hf.ContinualMoments(
            {"x": (-1.0, 1.0)}, epsilon=1.0, delta=1e-6, horizon=1, seed=2,
            state=tmp_path / name, workers=workers,
        )  # fmt: skip
        for part in np.array_split(values, parts):
            stream.partial_fit({"x": part})
        stream.close_epoch()
        means.append(float(stream.mean_["all"][0]))
    assert means[0] == means[1] == means[2] == pytest.approx(values.mean(), abs=1e-3)


def test_columns_may_have_the_names_of_times(hushflow: Command, tmp_path: Path) -> None:
    """The command continues with other names for the times."""
    parameters: dict[str, Any] = {"columns": {"time": (0, 1), "arrival": (0, 1)}, "key": None, "keys": None, "horizon": 2}
    with moments(tmp_path / "state", **parameters) as stream:
        stream.partial_fit({"time": [0.5], "arrival": [0.5]}).close_epoch()
        text = stream.to_toml(path=str(tmp_path / "rows.csv"))
    assert 'time = "time_"' in text and 'arrival = "arrival_"' in text
    (tmp_path / "rows.csv").write_text(
        "time,arrival,time_,arrival_\n0.5,0.5,2013-01-03T01:00:00Z,2013-01-03T01:00:00Z\n"
    )
    (tmp_path / "rows.toml").write_text(text)
    hushflow("run", tmp_path / "rows.toml", "--state", tmp_path / "state", "--quiet")
    assert hf.open_log(tmp_path / "state").verify()["committed"] == 2
