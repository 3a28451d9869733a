"""The mean and the covariance of a table, against the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import polars
import pyarrow
import pytest

import hushflow as hf

from .conftest import ROOT, Command

DIGITS = ROOT / "examples/data/digits_8x8.csv"
CANCER = ROOT / "examples/data/breast_cancer.csv"


def test_mean_is_that_of_the_command(hushflow: Command) -> None:
    table = pandas.read_csv(CANCER)
    columns = [name for name in table.columns if table[name].dtype.kind == "f"][:3]
    flags = ["--epsilon", 8, "--delta", "1e-4", "--corruption", "0.01", "--seed", 4, "--columns", ",".join(columns)]
    expected = json.loads(hushflow("mean", CANCER, *flags, "--json"))
    arguments = {"corruption": 0.01, "epsilon": 8.0, "delta": 1e-4, "seed": 4}
    for form in (table[columns], polars.from_pandas(table[columns]), table[columns].to_numpy()):
        found = hf.robust_mean(form, **arguments)  # type: ignore[arg-type]
        assert found.method == expected["method"] and found.spent == expected["spent"]
        assert not found.private
        assert found.report["refusal"] == expected["refusal"]
        if expected["mean"] is not None:
            assert found.mean is not None and found.noise is not None
            assert found.mean.tolist() == expected["mean"] and found.noise.tolist() == expected["noise"]


def test_covariance_is_that_of_the_command(hushflow: Command) -> None:
    table = pandas.read_csv(DIGITS)
    columns = list(table.columns[10:14])
    flags = ["--rho", "0.1", "--bounds", "0:16", "--seed", 4, "--columns", ",".join(columns)]
    expected = json.loads(hushflow("covariance", DIGITS, *flags, "--json"))
    found = hf.private_covariance(table, columns=columns, bounds=(0, 16), rho=0.1, seed=4)
    assert found.covariance.tolist() == expected["covariance"]
    assert found.epsilon == expected["guarantee"]["epsilon"] and found.rho == 0.1
    assert found.columns == columns and found.mean is None
    flags = ["--epsilon", "0.5", "--delta", "1e-6", "--bounds", "0:16", "--seed", 4, "--columns", ",".join(columns)]
    more = ["--method", "ssp-tight", "--centre", "0.2", "--neighbours", "zero-out"]
    expected = json.loads(hushflow("covariance", DIGITS, *flags, *more, "--json"))
    found = hf.private_covariance(
        table, columns=columns, bounds=[(0, 16)] * 4, epsilon=0.5, delta=1e-6, seed=4,
        method="ssp-tight", centre=0.2, neighbours="zero-out",
    )  # fmt: skip
    assert found.rho == expected["rho"] and found.mean is not None
    assert found.mean.tolist() == expected["mean"]


def test_ledger_is_charged_before_the_answer(tmp_path: Path) -> None:
    rows = np.random.default_rng(2).normal(size=(4000, 2))
    ledger = {"ledger": tmp_path / "ledger", "data_set": "points"}
    hf.robust_mean(rows, corruption=0.01, epsilon=1.0, delta=1e-6, scale=1.0, **ledger)  # type: ignore[arg-type]
    hf.private_covariance(rows, bounds=(-4, 4), rho=0.1, **ledger)  # type: ignore[arg-type]
    found = hf.ledger(tmp_path / "ledger")
    assert found.entries == 2 and found.spent is not None and found.spent > 1.0
    with pytest.raises(hf.ParameterError, match="data_set"):
        hf.private_covariance(rows, bounds=(-4, 4), rho=0.1, ledger=tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_wrong_arguments_are_named() -> None:
    rows = np.zeros((50, 2))
    with pytest.raises(hf.ParameterError, match="method: "):
        hf.robust_mean(rows, corruption=0.01, epsilon=1.0, delta=1e-6, method="blub")
    with pytest.raises(hf.ParameterError, match="scale: found 3 numbers for 2"):
        hf.robust_mean(rows, corruption=0.01, epsilon=1.0, delta=1e-6, scale=[1.0] * 3)
    with pytest.raises(hf.ParameterError, match="epsilon: "):
        hf.robust_mean(rows, corruption=0.01, epsilon=-1.0, delta=1e-6)
    with pytest.raises(hf.ParameterError, match="expected rho, or epsilon and delta"):
        hf.private_covariance(rows, bounds=(0, 1))
    with pytest.raises(hf.ParameterError, match="bounds: "):
        hf.private_covariance(rows, bounds=(1, 0), rho=0.1)
    with pytest.raises(hf.BatchError, match="row 3"):
        gap = rows.copy()
        gap[3, 1] = np.nan
        hf.private_covariance(gap, bounds=(0, 1), rho=0.1)
    with pytest.raises(hf.BatchError, match="expected numbers"):
        hf.robust_mean({"x": ["a"]}, corruption=0.01, epsilon=1.0, delta=1e-6)
    wrongs: list[tuple[dict[str, Any], str]] = [
        ({"missing": "drop"}, 'missing: found "drop"'),
        ({"columns": "x"}, 'columns: found "x"'),
        ({"range": -1.0}, "range: found -1.0"),
        ({"range": float("nan")}, "range: found nan"),
    ]
    for wrong, message in wrongs:
        with pytest.raises(hf.ParameterError, match=message):
            hf.robust_mean(rows, corruption=0.01, epsilon=1.0, delta=1e-6, **wrong)
    with pytest.raises(hf.BatchError, match=r"shape \(50,\), expected \(rows, columns\)"):
        hf.robust_mean(rows[:, 0], corruption=0.01, epsilon=1.0, delta=1e-6)


def test_tables_without_names_of_text_are_read() -> None:
    rows = np.random.default_rng(1).normal(0, 1, (500, 2))
    tables = [pandas.DataFrame(rows), pyarrow.table({"0": rows[:, 0], "1": rows[:, 1]}).to_reader(), rows]
    found = [hf.private_covariance(table, bounds=(-4, 4), rho=1.0, seed=1) for table in tables]
    assert all(one.columns == ["0", "1"] for one in found)
    assert all((one.covariance == found[0].covariance).all() for one in found)


def test_rows_with_missing_values_are_left_out(hushflow: Command, tmp_path: Path) -> None:
    rows = np.random.default_rng(3).normal(0, 1, (3000, 2))
    rows[::7, 0], rows[::11, 1] = np.nan, np.nan
    complete = rows[np.isfinite(rows).all(axis=1)]
    mean: dict[str, Any] = {"corruption": 0.01, "epsilon": 4.0, "delta": 1e-6, "scale": 1.0, "seed": 4}
    found = hf.robust_mean(rows, **mean, missing="skip")
    assert found.report == hf.robust_mean(complete, **mean).report != hf.robust_mean(rows, **mean).report
    covariance: dict[str, Any] = {"bounds": (-4, 4), "rho": 1.0, "seed": 4}
    of_complete = hf.private_covariance(complete, **covariance).covariance
    np.testing.assert_array_equal(hf.private_covariance(rows, **covariance, missing="skip").covariance, of_complete)
    # As the command does.
    table = tmp_path / "table.csv"
    pandas.DataFrame(rows, columns=["x", "y"]).to_csv(table, index=False)
    flags = ["--corruption", 0.01, "--epsilon", 4, "--delta", "1e-6", "--scale", 1, "--seed", 4, "--missing", "skip"]
    assert found.mean is not None and found.mean.tolist() == json.loads(hushflow("mean", table, *flags, "--json"))["mean"]
    # The number of complete rows is not private: no ledger can pay for it.
    for release in (hf.robust_mean, hf.private_covariance):
        arguments = mean if release is hf.robust_mean else covariance
        with pytest.raises(hf.ParameterError, match='^missing: "skip" .* does not cover: use "keep"'):
            release(rows, **arguments, missing="skip", ledger=tmp_path / "ledger", data_set="points")
    assert not (tmp_path / "ledger").exists()
