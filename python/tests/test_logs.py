"""Compares runs, views and followers with the command."""

from __future__ import annotations

import csv
import io
import json
import signal
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pandas
import polars
import pyarrow
import pytest

import hushflow as hf
from hushflow import _chart

from .conftest import FLIGHTS, ROOT, Command

SEEDED = "\n[simulation]\nseed = 7\n"


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pipeline of the flights, with noise from a seed."""
    path = tmp_path_factory.mktemp("pipeline") / "flights.toml"
    text = (ROOT / "examples/flights.toml").read_text()
    path.write_text(text.replace("data/flights_jan2013.csv", str(FLIGHTS)) + SEEDED)
    return path


@pytest.fixture(scope="module")
def state(pipeline: Path) -> Path:
    """The state directory of a run from Python."""
    state = pipeline.parent / "state"
    done = hf.run(pipeline, state=state, workers=2)
    assert done.epochs == range(1, 33) and done.generation == 1 and done.log.horizon == 32
    return state


def test_run_publishes_what_the_command_publishes(hushflow: Command, pipeline: Path, state: Path) -> None:
    other = pipeline.parent / "other"
    hushflow("run", pipeline, "--state", other, "--quiet")
    arguments = ["--view", "moments", "--format", "csv"]
    assert hushflow("tail", state, *arguments) == hushflow("tail", other, *arguments)
    hushflow("verify", state)
    again = hf.run(pipeline, state=state)
    assert again.generation == 2 and not again.epochs


@pytest.mark.parametrize(
    ("arguments", "flags"),
    [
        ({}, []),
        ({"workload": "window:7"}, ["--workload", "window:7"]),
        ({"total": True, "since": 20, "level": 0.99}, ["--total", "--since", "20", "--level", "0.99"]),
        ({"estimate": "moments", "keys": ["JFK"]}, ["--view", "moments", "--key", "JFK"]),
        ({"estimate": "adam"}, ["--view", "adam"]),
        (
            {"estimate": "adam", "settings": {"beta1": 0.8, "beta2": 0.99}},
            ["--view", "adam", "--beta1", "0.8", "--beta2", "0.99"],
        ),
        ({"estimate": "pca", "settings": {"components": 2}}, ["--pca", "2"]),
        ({"regress": "arr_delay~dep_delay"}, ["--regress", "arr_delay~dep_delay"]),
        (
            {"covariance": "shrink", "joint": True, "population": True},
            ["--covariance", "shrink", "--joint", "--population"],
        ),
    ],
)
def test_view_has_the_columns_of_tail(
    hushflow: Command, state: Path, arguments: dict[str, object], flags: list[str]
) -> None:
    expected = list(csv.DictReader(io.StringIO(hushflow("tail", state, *flags, "--format", "csv"))))
    found = hf.open_log(state).view(**arguments)  # type: ignore[arg-type]
    assert list(found) == [name for name in expected[0] if name != "view"]
    assert found.rows == len(expected)
    for name, values in found.items():
        texts = [row[name] for row in expected]
        if name == "start":
            assert [f"{value}Z" for value in values.astype("datetime64[s]")] == texts
        elif values.dtype.kind == "f":
            np.testing.assert_array_equal(values, [float(text) if text else np.nan for text in texts])
        else:
            assert [str(value) for value in values] == texts


def test_view_becomes_any_frame(state: Path) -> None:
    view = hf.open_log(state).view("window:7")
    frame = polars.DataFrame(view)
    assert frame.columns == list(view) and frame.height == view.rows
    assert polars.DataFrame(pyarrow.table(view)).equals(frame)
    assert pandas.DataFrame(view)["mean_dep_delay"].tolist() == pytest.approx(view["mean_dep_delay"], nan_ok=True)
    assert view.to_frame().equals(frame)
    assert "<table" in view._repr_html_()


def test_releases_are_the_lines_of_tail(hushflow: Command, state: Path) -> None:
    lines = [json.loads(line) for line in hushflow("tail", state, "--last", 1, "--json").splitlines()]
    release = hf.open_log(state).release()
    assert release is not None and release.epoch == 32 and release.columns == ["dep_delay", "arr_delay"]
    for line in lines:
        key = line["key"]
        assert release.count[key] == line["count"]
        assert release.mean[key].tolist() == [line["mean"][column] for column in release.columns]
        assert release.covariance[key].tolist() == line["covariance"]
        assert release.interval("count")[key].tolist() == line["count_interval"]
        assert release.interval("covariance")[key].tolist() == line["covariance_interval"]
        assert release.interval()[key].shape == (2, 2)
    assert hf.open_log(state).release(33) is None
    earlier = hf.open_log(state).release(5)
    assert earlier is not None and earlier.epoch == 5 and earlier.start == "2013-01-05T05:00:00Z"
    with pytest.raises(hf.ParameterError, match='interval: found "median"'):
        release.interval("median")


def test_follow_yields_every_epoch_once(state: Path) -> None:
    log = hf.open_log(state)
    assert [release.epoch for release in log.follow(since=3)] == list(range(3, 33))
    first = next(iter(log.follow("window:7", keys=["LGA"])))
    assert first.epoch == 1 and list(first.mean) == ["LGA"]


def test_verify_finds_a_changed_byte(state: Path, tmp_path: Path) -> None:
    report = hf.open_log(state).verify()
    assert report["committed"] == report["published"] == 32 and report["private"] is False
    copy = tmp_path / "copy"
    copy.mkdir()
    log = bytearray((state / "public.log").read_bytes())
    (copy / "public.log").write_bytes(log)
    assert hf.open_log(copy).verify() == report | {"committed": None, "generations": 1}
    log[len(log) // 2] ^= 1
    (copy / "public.log").write_bytes(log)
    with pytest.raises(hf.StateError, match="checksum"):
        hf.open_log(copy).verify()


def test_errors_have_the_messages_of_the_command(hushflow: Command, state: Path, tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text((ROOT / "examples/flights.toml").read_text().replace("horizon", "horizont"))
    with pytest.raises(hf.PipelineError) as caught:
        hf.run(path)
    assert str(caught.value) in hushflow("run", path, check=False)
    assert caught.value.file == str(path)
    assert (caught.value.line, caught.value.column) == caught.value.problems[0][:2]
    assert "epochs.horizont" in [problem.field for problem in caught.value.problems]
    assert isinstance(caught.value, ValueError)
    with pytest.raises(hf.PipelineError, match="can't be read"):
        hf.run(tmp_path / "none.toml")
    with pytest.raises(hf.StateError) as missing:
        hf.open_log(tmp_path)
    assert str(missing.value) in hushflow("tail", tmp_path, check=False)
    log = hf.open_log(state)
    for arguments, name in [
        ({"workload": "blub"}, "workload"),
        ({"estimate": "blub"}, "estimate"),
        ({"estimate": "adam", "workload": "prefix"}, "workload"),
        ({"estimate": "adam", "settings": {"beta3": 0.9}}, "beta3: unknown field"),
        ({"settings": {"beta1": 0.9}}, "settings"),
        ({"estimate": "adam", "settings": {"beta1": float("nan")}}, "settings: expected fields by name"),
        ({"estimate": "adam", "settings": 3}, "settings: expected fields by name"),
        ({"estimate": "pca"}, "components"),
        ({"regress": "blub"}, "regress"),
        ({"covariance": "blub"}, "covariance"),
        ({"level": 1.5}, "level"),
        ({"keys": ["XXX"]}, "keys"),
        ({"keys": ["JFK"], "total": True}, "keys and total: found both"),
    ]:
        with pytest.raises(hf.ParameterError, match=name):
            log.view(**arguments)  # type: ignore[arg-type]
    with pytest.raises(hf.ParameterError, match="workers"):
        hf.run(ROOT / "examples/flights.toml", state=tmp_path, workers=0)


def test_ctrl_c_stops_a_run_cleanly(hushflow: Command, tmp_path: Path) -> None:
    """A run that waits for a pipe ends at SIGINT, and the next run continues."""
    text = (ROOT / "examples/flights.toml").read_text()
    path = tmp_path / "flights.toml"
    path.write_text(text.replace('path = "data/flights_jan2013.csv"', 'path = "-"\nformat = "csv"'))
    program = f"import hushflow as hf; hf.run({str(path)!r}, state={str(tmp_path / 'state')!r})"
    command = [sys.executable, "-c", program]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    lines = FLIGHTS.read_text().splitlines(keepends=True)
    process.stdin.writelines(lines[:20_000])
    process.stdin.flush()
    log, deadline = tmp_path / "state/public.log", time.monotonic() + 60
    while not log.exists() or log.stat().st_size < 3_000:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert "KeyboardInterrupt" in err and not out
    assert 0 < hf.open_log(tmp_path / "state").verify()["committed"] < 32


def test_other_threads_continue_during_a_run(pipeline: Path, tmp_path: Path) -> None:
    ticks: list[float] = []
    done = threading.Event()

    def tick() -> None:
        while not done.is_set():
            ticks.append(time.monotonic())
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    start = len(ticks)
    hf.run(pipeline, state=tmp_path / "state")
    count = len(ticks) - start
    done.set()
    thread.join()
    # A run takes some 20 ms at least. If it held the interpreter, there would be one tick at most.
    assert count > 2


def test_plot_draws_every_key(state: Path) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    log = hf.open_log(state)
    axes = log.plot("dep_delay", workload="window:7")
    assert [line.get_label() for line in axes.lines] == log.keys and len(axes.collections) == 3
    # A line through a single epoch is invisible without a marker.
    assert all(line.get_marker() == "." for line in axes.lines)
    with pytest.raises(hf.ParameterError, match='no column "blub"'):
        log.plot("blub")


def test_notebooks_show_curves_with_their_bands(state: Path) -> None:
    log = hf.open_log(state)
    drawn = log._repr_html_()
    assert "Log(" in drawn and drawn.count("<svg") == len(log.columns)
    root = ElementTree.fromstring(f"<div>{drawn}</div>")
    name = "{http://www.w3.org/2000/svg}"
    for picture, column in zip(root.iter(f"{name}svg"), log.columns, strict=True):
        texts = [text.text for text in picture.iter(f"{name}text")]
        assert f"mean of {column}" in texts and set(log.keys) < set(texts)
        view = log.view()
        for number, key in enumerate(log.keys):
            colour = _chart.COLOURS[number]
            lines = [path for path in picture.iter(f"{name}path") if path.get("stroke") == colour]
            bands = [path for path in picture.iter(f"{name}path") if path.get("fill") == colour]
            means = view[f"mean_{column}"][view["key"] == key]
            # A path has a point for each mean, and two for each interval.
            assert sum(path.get("d", "").count("L") + 1 for path in lines) >= np.isfinite(means).sum() > 0
            assert bands


def test_a_log_without_means_is_shown_as_a_table(tmp_path: Path) -> None:
    stream = hf.ContinualMoments({"x": (0, 1)}, epsilon=1.0, delta=1e-6, horizon=2, state=tmp_path / "state")
    stream.partial_fit(np.zeros((3, 1)))
    shown = stream.log_._repr_html_()
    assert "<svg" not in shown and "epoch" in shown
    stream.close()


def test_curves_have_gaps_names_and_few_points() -> None:
    values = np.sin(np.arange(5000) / 100)
    values[1000:2000] = np.nan
    curves = [_chart.Curve(f"<{number}>", values, values - 1, values + 1) for number in range(10)]
    picture = _chart.svg("a & b", [str(step) for step in range(5000)], curves)
    root = ElementTree.fromstring(picture)
    paths = [path for path in root if path.get("fill") == "none"]
    assert len(paths) == 2 * len(_chart.COLOURS) and "nan" not in picture
    assert sum(path.get("d", "").count("L") for path in paths) < len(_chart.COLOURS) * _chart.POINTS
    assert "a & b (and 2 more keys)" in [text.text for text in root] and "<0>" in [text.text for text in root]
    empty = _chart.svg("none", ["1"], [_chart.Curve("x", *[np.array([np.nan])] * 3)])
    assert "nan" not in empty


def test_nothing_is_printed(pipeline: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    hf.run(pipeline, state=tmp_path / "state")
    hf.open_log(tmp_path / "state").view()
    assert capfd.readouterr() == ("", "")
