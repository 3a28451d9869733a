"""Compares strategies, comparisons and calibration with the command."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import numpy as np
import pytest

import hushflow as hf

from .conftest import Command


def test_every_strategy_has_a_function() -> None:
    for usage, about in hf.strategy.names().items():
        word, _, number = usage.partition(":")
        make = getattr(hf.strategy, word.replace("-", "_"))
        assert make.__name__ in hf.strategy.__all__
        first = next(iter(inspect.signature(make).parameters.values()))
        assert (first.kind is first.POSITIONAL_OR_KEYWORD) == bool(number), usage
        assert about[1:] in make.__doc__


@pytest.mark.parametrize("name", ["identity", "square-root", "blt:3", "banded-square-root:4", "tree"])
@pytest.mark.parametrize("participation", ["1", "4x8"])
def test_errors_are_those_of_plan(hushflow: Command, name: str, participation: str) -> None:
    arguments = ["--workload", "prefix", "--horizon", 64, "--strategy", name, "--participation", participation]
    expected = json.loads(hushflow("plan", *arguments, "--json"))
    found = hf.strategy.parse(name, horizon=64, participation=participation)
    assert found.rmse == pytest.approx(expected["rmse"], rel=1e-9)
    assert found.max_error == pytest.approx(expected["max_error"], rel=1e-9)
    assert found.sensitivity() == pytest.approx(expected["sensitivity"], rel=1e-9)
    assert found.lower_bound <= found.rmse * (1 + 1e-9)


def test_comparison_has_the_rows_of_plan(hushflow: Command) -> None:
    expected = json.loads(hushflow("plan", "--workload", "average", "--horizon", 32, "--json"))
    found = hf.plan(workload="average", horizon=32)
    rows = {row["strategy"]: row["rmse"] for row in expected["strategies"]}
    assert dict(zip(found["strategy"].tolist(), found["rmse"].tolist(), strict=True)) == pytest.approx(rows, rel=1e-9)
    assert (np.diff(found["rmse"]) >= 0).all()
    assert found.lower_bound is not None and found.lower_bound <= found["rmse"][0] * (1 + 1e-9)
    assert set(found.omissions) == {left["strategy"] for left in expected["omissions"]}
    assert found.to_frame().shape == (len(rows), 5)


def test_noise_of_columns_is_that_of_plan(hushflow: Command, tmp_path: Path) -> None:
    columns = {"a": (-60.0, 240.0), "b": (0.0, 1.0)}
    found = hf.plan(columns=columns, horizon=16, epsilon=1.0, delta=1e-6)
    path = tmp_path / "pipeline.toml"
    stream = hf.ContinualMoments(columns, epsilon=1.0, delta=1e-6, workload="prefix", horizon=16, start="2000-01-01")
    path.write_text(stream.to_toml())
    lines = {line["strategy"]: line for line in json.loads(hushflow("plan", path, "--json"))["strategies"]}
    assert set(lines) == set(found["strategy"].tolist())
    for row, name in enumerate(found["strategy"].tolist()):
        assert found["rmse"][row] == pytest.approx(lines[name]["rmse"], rel=1e-9)
        assert found["first_noise"][row] == lines[name]["last_noise"]["first"]
        assert found["noise_multiplier"][row] == lines[name]["noise_multiplier"]
    assert list(hf.plan(columns=columns, horizon=4)) == ["strategy", "sensitivity", "rmse", "max_error", "state_bytes"]
    with pytest.raises(hf.ParameterError, match="epsilon and delta: expected columns"):
        hf.plan(horizon=4, epsilon=1.0, delta=1e-6)
    with pytest.raises(hf.ParameterError, match="delta: it is missing"):
        hf.plan(columns=columns, horizon=4, epsilon=1.0)
    with pytest.raises(hf.PipelineError, match="lower"):
        hf.plan(columns={"a": (1.0, 0.0)}, horizon=4, epsilon=1.0, delta=1e-6)


def test_sensitivity_is_that_of_the_matrix() -> None:
    strategy = hf.strategy.square_root(horizon=50)
    matrix = strategy.matrix()
    assert matrix.shape == (50, 50) and (np.triu(matrix, 1) == 0).all()
    assert strategy.sensitivity() == pytest.approx(np.linalg.norm(matrix, axis=0).max(), rel=1e-9)
    assert strategy.sensitivity("2x25") == pytest.approx(np.linalg.norm(matrix[:, 0] + matrix[:, 25]), rel=1e-9)
    work = np.tril(np.ones((50, 50))) @ np.linalg.inv(matrix)
    assert strategy.rmse == pytest.approx(
        strategy.sensitivity() * np.linalg.norm(work) / np.sqrt(50), rel=1e-9
    )
    assert strategy.matrix(3).shape == (3, 3)


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(hf.StrategyError, match="unknown strategy `blub`"):
        hf.strategy.parse("blub", horizon=4)
    with pytest.raises(hf.ParameterError, match="workload: "):
        hf.strategy.identity(workload="blub", horizon=4)
    with pytest.raises(hf.ParameterError, match="participation: "):
        hf.strategy.identity(horizon=4).sensitivity("blub")
    with pytest.raises(hf.ParameterError, match="horizon: found 0"):
        hf.strategy.identity(horizon=0)
    with pytest.raises(hf.ParameterError, match="steps: found 5"):
        hf.strategy.identity(horizon=4).matrix(5)


def test_calibration_is_that_of_the_command(hushflow: Command) -> None:
    for given in [
        {"epsilon": 1.0, "delta": 1e-6},
        {"noise_multiplier": 4.0, "delta": 1e-6},
        {"noise_multiplier": 4.0, "epsilon": 2.0},
    ]:
        flags = [flag for name, value in given.items() for flag in (f"--{name.replace('_', '-')}", value)]
        expected = json.loads(hushflow("calibrate", *flags, "--json"))
        found = hf.calibrate(**given)._asdict()
        assert found == {name: expected[name] for name in found}
    with pytest.raises(hf.ParameterError, match="found 1 of epsilon"):
        hf.calibrate(epsilon=1.0)
    with pytest.raises(hf.ParameterError, match="delta: "):
        hf.calibrate(epsilon=1.0, delta=2.0)
