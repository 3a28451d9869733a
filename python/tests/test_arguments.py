"""Wrong arguments: an exception of the package that names them, and says what was found and expected."""

from __future__ import annotations

import logging
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hushflow as hf

from .conftest import ROOT

TABLE = np.random.default_rng(1).normal(0, 1, (2000, 2))
STRATEGY = hf.strategy.identity(horizon=3)


def stream(tmp_path: Path, **parameters: Any) -> hf.ContinualMoments:
    given: dict[str, Any] = {"columns": {"x": (0, 1)}, "epsilon": 1.0, "delta": 1e-6, "horizon": 2, "state": tmp_path / "state"}
    return hf.ContinualMoments(**given | parameters)


def mean(**parameters: Any) -> hf.MeanEstimate:
    return hf.robust_mean(TABLE, **{"corruption": 0.01, "epsilon": 4, "delta": 1e-6, **parameters})


def plan(**parameters: Any) -> hf.training.TrainingPlan:
    return hf.training.plan("1x2", **{"epsilon": 1.0, "delta": 1e-6, **parameters})


def noise(**parameters: Any) -> hf.noise.CorrelatedNoise:
    return hf.noise.correlated(**{"strategy": STRATEGY, "dimension": 2, "noise_multiplier": 1.0, **parameters})


CASES: list[tuple[Callable[[], Any], str]] = [
    (lambda: hf.run("x.toml", workers=-1), "workers: found -1, expected a whole number from 1 to 256"),
    (lambda: hf.run("x.toml", workers="2"), 'workers: found "2", expected a whole number from 1 to 256'),  # type: ignore[arg-type]
    (lambda: hf.run(None), "pipeline: found None, expected a Pipeline or a path"),  # type: ignore[arg-type]
    (lambda: hf.run({}), "pipeline: found dict, expected a Pipeline or a path"),  # type: ignore[arg-type]
    (lambda: hf.Pipeline("\ud800"), "path: found text that is not Unicode, expected a path"),
    (lambda: hf.Pipeline("x", 3), "text: found 3, expected text"),  # type: ignore[arg-type]
    (lambda: hf.open_log(3), "directory: found 3, expected a path"),  # type: ignore[arg-type]
    (lambda: hf.plan(horizon=-1), "horizon: found -1, expected a whole number of at least 1"),
    (lambda: hf.plan(horizon=2.5), "horizon: found 2.5, expected a whole number of at least 1"),  # type: ignore[arg-type]
    (lambda: hf.plan(horizon=3, all=None), "all: found None, expected True or False"),  # type: ignore[arg-type]
    (lambda: STRATEGY.matrix(-1), "steps: found -1, expected a whole number of at least 0"),
    (lambda: STRATEGY.matrix(10**30), "steps: found 1000000000000000000000000000000, expected a whole number below 2^64"),
    (lambda: STRATEGY.sensitivity(3), "participation: found 3, expected text"),  # type: ignore[arg-type]
    (lambda: hf.Strategy(3), "name: found 3, expected text"),  # type: ignore[arg-type]
    (lambda: hf.strategy.parse(3), "name: found 3, expected text"),  # type: ignore[arg-type]
    (lambda: hf.strategy.blt(2, horizon=-1), "horizon: found -1"),
    (lambda: hf.calibrate(epsilon="1", delta=1e-6), 'epsilon: found "1", expected a number'),  # type: ignore[arg-type]
    (lambda: hf.calibrate(epsilon=10**400, delta=1e-6), "epsilon: found a number too large, expected a number"),
    (lambda: plan(batch_size=-1), "batch_size: found -1, expected a whole number of at least 1"),
    (lambda: plan(method=3), "method: found 3, expected text"),
    (lambda: noise()(-1), "step: found -1, expected a whole number of at least 0"),
    (lambda: noise()(10**30), "step: found 1000000000000000000000000000000, expected a whole number below 2^64"),
    (lambda: noise(seed=-1), "seed: found -1, expected a whole number of at least 0"),
    (lambda: noise(strategy=3), "strategy: found 3, expected a Strategy or text"),
    (lambda: noise(noise_multiplier=1e300), "noise_multiplier: found 1e300, whose noise can't be drawn: choose one nearer to 1"),
    (lambda: hf.training.PrivateAdam([np.ones(2)], lr=0.1, clip_norm=None, strategy="identity", plan=plan()), "clip_norm: found None, expected a number"),  # type: ignore[arg-type]
    (lambda: hf.training.PrivateAdam([np.ones(2)], lr=0.1, clip_norm=1.0, strategy=3, plan=plan()), "strategy: found 3, expected a Strategy or text"),  # type: ignore[arg-type]
    (lambda: mean(missing=TABLE), "missing: found ndarray, expected text"),
    (lambda: mean(seed=-1), "seed: found -1"),
    (lambda: mean(scale={}), "scale: found dict, expected text or a number or a list of numbers"),
    (lambda: mean(ledger=3), "ledger: found 3, expected a path"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), CASES, ids=[message for _, message in CASES])
def test_wrong_arguments_are_named(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(hf.ParameterError) as raised:
        call()
    assert str(raised.value).startswith(message)


class Odd:
    """An object that can't even be printed or compared."""

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        raise RuntimeError

    def __eq__(self, other: object) -> bool:
        raise RuntimeError


ODD: list[Any] = [
    None, -1, 10**30, 10**400, 1.5, float("nan"), 1e300, "", "\ud800", "\0", b"x", [], [None], ["\ud800"], {"a": 1}, (1, 2),
    set(), Odd(), TABLE, TABLE[0], np.int64(-1), np.datetime64("NaT"), np.array(["a"]), range(3), int, lambda: 0,
]  # fmt: skip

FUNCTIONS: dict[str, tuple[Callable[..., Any], list[str]]] = {
    "calibrate": (lambda **given: hf.calibrate(**{"epsilon": 1.0, "delta": 1e-6} | given), ["epsilon", "delta"]),
    "plan": (plan, ["epsilon", "delta", "batch_size", "neighbours", "method"]),
    "noise": (noise, ["strategy", "dimension", "noise_multiplier", "seed", "clip_norm", "neighbours"]),
    "mean": (mean, ["corruption", "epsilon", "columns", "method", "scale", "range", "missing", "seed", "data_set"]),
    "strategy": (lambda **given: hf.strategy.blt(**{"buffers": 2} | given), ["buffers", "workload", "participation", "objective"]),
    "pipeline": (lambda **given: hf.Pipeline(**{"path": "x", "text": ""} | given), ["path", "text"]),
    "stream": (
        lambda **given: stream(Path("nowhere"), **given).to_toml(),
        [name for name in hf.ContinualMoments().get_params() if name not in ("pipeline", "state")],
    ),
}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_no_argument_raises_an_exception_of_another_package(function: str) -> None:
    call, names = FUNCTIONS[function]
    for name in names:
        for value in ODD:
            try:
                call(**{name: value})
            except hf.HushflowError as error:
                # No values of an array.
                assert len(str(error)) < 900, name


PARAMETERS: list[tuple[dict[str, Any], str]] = [
    ({"workers": -1}, "workers: found -1, expected a whole number from 1 to 256"),
    ({"workers": "2"}, 'workers: found "2"'),
    ({"seed": -1}, "seed: found -1, expected a whole number of at least 0"),
    ({"missing": TABLE}, "missing: found ndarray, expected text"),
    ({"strategy": 3}, "strategy: found 3, expected a Strategy or text"),
    ({"entity": {}}, "entity: found dict, expected text"),
    ({"pipeline": {}}, "pipeline: found dict, expected a Pipeline or a path"),
    ({"pipeline": "\ud800"}, "pipeline: found text that is not Unicode"),
    ({"epsilon": "1"}, 'epsilon: found "1", expected a number'),
]


@pytest.mark.parametrize(("given", "message"), PARAMETERS, ids=[message for _, message in PARAMETERS])
def test_wrong_parameters_are_named_and_can_be_mended(tmp_path: Path, given: dict[str, Any], message: str) -> None:
    publication = stream(tmp_path, **given)
    with pytest.raises(hf.ParameterError) as raised:
        publication.partial_fit(np.zeros((2, 1)))
    assert str(raised.value).startswith(message) and not (tmp_path / "state").exists()
    publication.set_params(**{name: getattr(stream(tmp_path), name) for name in given})
    with publication.partial_fit(np.zeros((2, 1))):
        pass


def test_a_parameter_that_is_set_after_a_refusal_counts(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("no directory")
    publication = stream(tmp_path, seed=3)
    with pytest.raises(hf.StateError):
        publication.partial_fit(np.zeros((2, 1)))
    publication.columns, publication.state = {"x": (0, 1), "y": (0, 1)}, tmp_path / "other"
    with publication.partial_fit(np.zeros((2, 2))):
        assert publication.log_.columns == ["x", "y"]


def test_views_name_wrong_arguments(tmp_path: Path) -> None:
    with stream(tmp_path) as publication:
        publication.partial_fit(np.zeros((2, 1))).close_epoch()
        log = publication.log_
        wrong: list[tuple[dict[str, Any], str]] = [
            ({"keys": "a"}, 'keys: found "a", expected a list of text'),
            ({"keys": []}, "keys: found an empty list, expected at least one key"),
            ({"since": -1}, "since: found -1, expected a whole number of at least 0"),
            ({"level": "x"}, 'level: found "x", expected a number'),
            ({"joint": 3}, "joint: found 3, expected True or False"),
        ]
        for given, message in wrong:
            for call in (log.view, log.follow):
                with pytest.raises(hf.ParameterError) as raised:
                    call(**given)
                assert str(raised.value).startswith(message)
        with pytest.raises(hf.ParameterError, match="epoch: found -1"):
            log.release(-1)
        with pytest.raises(hf.ParameterError, match="level: found None"):
            publication.interval_(level=None)  # type: ignore[arg-type]
        assert log.view(keys=np.array(["all"])).rows == 1  # type: ignore[arg-type]


OBJECTS: list[tuple[list[Any], str]] = [
    ([1, 2, "x"], 'column "x", row 2: found a value of type str, expected a number'),
    ([1, 10**400, "x"], 'column "x", row 1: found a number too large for float64'),
    ([[1], 2, 3], 'column "x", row 0: found a value of type list, expected a number'),
]


@pytest.mark.parametrize(("values", "message"), OBJECTS)
def test_columns_of_objects_name_the_first_bad_row(tmp_path: Path, values: list[Any], message: str) -> None:
    column = np.empty(len(values), dtype=object)
    column[:] = values
    with stream(tmp_path) as publication, pytest.raises(hf.BatchError) as raised:
        publication.partial_fit({"x": column})
    assert str(raised.value) == f"{message}; no record of the batch was counted"
    with pytest.raises(hf.BatchError) as raised:
        mean_of = {"x": column}
        hf.robust_mean(mean_of, corruption=0.01, epsilon=4, delta=1e-6)
    assert str(raised.value) == message


def test_decimals_and_fractions_are_numbers(tmp_path: Path) -> None:
    counted = []
    for number, column in enumerate([[0.5, 0.25, 1.0] * 50, [Decimal("0.5"), Fraction(1, 4), 1] * 50]):
        with stream(tmp_path, seed=3, state=tmp_path / str(number)) as publication:
            counted.append(publication.partial_fit({"x": np.array(column, dtype=object)}).close_epoch().mean["all"])
    assert np.array_equal(counted[0], counted[1])


def test_warnings_of_a_run_go_to_the_logger(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    text = (ROOT / "examples/flights.toml").read_text()
    assert "EWR" in text
    pipeline = hf.Pipeline(str(ROOT / "examples/flights.toml"), text.replace("EWR", "EWX"))
    with caplog.at_level(logging.WARNING, logger="hushflow"):
        hf.run(pipeline, state=tmp_path / "state")
    assert any("EWX" in record.getMessage() for record in caplog.records if record.name == "hushflow")
    assert capfd.readouterr() == ("", "")


def test_the_system_is_not_locked_up_for_a_ledger(tmp_path: Path) -> None:
    with pytest.raises(hf.LedgerError) as raised:
        stream(tmp_path, ledger="/").partial_fit(np.zeros((2, 1)))
    assert "chmod" not in str(raised.value)
