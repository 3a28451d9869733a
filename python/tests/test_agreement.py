"""Compares strategies with those of jax_privacy, entry by entry: skipped where it is not installed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hushflow as hf

jax = pytest.importorskip("jax", reason="jax is not there")
banded = pytest.importorskip("jax_privacy.matrix_factorization.banded", reason="jax_privacy is not there")
buffered = pytest.importorskip("jax_privacy.matrix_factorization.buffered_toeplitz")
dense = pytest.importorskip("jax_privacy.matrix_factorization.dense")
toeplitz = pytest.importorskip("jax_privacy.matrix_factorization.toeplitz")
jax.config.update("jax_enable_x64", True)

HORIZON = 32


def check(strategy: hf.Strategy, theirs: Any, streaming_inverse: Any) -> None:
    """Their matrix is ours, and their streaming inverse takes our white noise to our correlated noise."""
    theirs = np.asarray(theirs)
    assert np.abs(theirs - strategy.matrix()).max() < 1e-6
    noise = hf.noise.correlated(strategy, 8, 1.0, seed=1)
    drawn = np.array([noise(step) for step in range(1, HORIZON + 1)])
    state, white = streaming_inverse.init_multiply(jax.numpy.zeros(8)), theirs @ drawn
    for step in range(HORIZON):
        found, state = streaming_inverse.multiply_next(jax.numpy.asarray(white[step]), state)
        assert np.abs(np.asarray(found) - drawn[step]).max() < 1e-6 * np.abs(drawn).max()


@pytest.mark.parametrize(("bands", "name"), [(HORIZON, "square-root"), (4, "banded-square-root:4")])
def test_square_roots_agree(bands: int, name: str) -> None:
    coefficients = np.asarray(toeplitz.optimal_max_error_strategy_coefs(HORIZON))[:bands]
    theirs = toeplitz.materialize_lower_triangular(coefficients, HORIZON)
    check(hf.strategy.parse(name, horizon=HORIZON), theirs, toeplitz.inverse_as_streaming_matrix(coefficients))


def test_banded_inverses_agree() -> None:
    noising = np.asarray(toeplitz.optimal_max_error_noising_coefs(HORIZON))[:4]
    coefficients = toeplitz.inverse_coef(noising, HORIZON)
    theirs = toeplitz.materialize_lower_triangular(coefficients, HORIZON)
    strategy = hf.strategy.parse("banded-inverse-square-root:4", horizon=HORIZON)
    check(strategy, theirs, toeplitz.inverse_as_streaming_matrix(coefficients))


@pytest.mark.parametrize(
    ("bands", "name"), [(HORIZON, "normalized-square-root"), (4, "normalized-banded-square-root:4")]
)
def test_normalized_columns_agree(bands: int, name: str) -> None:
    theirs = banded.ColumnNormalizedBanded.default(HORIZON, bands)
    strategy = hf.strategy.parse(name, horizon=HORIZON)
    check(strategy, theirs.materialize(), theirs.inverse_as_streaming_matrix())


@pytest.mark.parametrize("buffers", [1, 3, 5])
def test_buffers_agree(buffers: int, tmp_path: Path) -> None:
    file = tmp_path / "blt.json"
    arguments = ["--method", f"blt:{buffers}", "--workload", "prefix", "--horizon", str(HORIZON), "--output", str(file)]
    subprocess.run([sys.executable, "-m", "hushflow", "optimize", *arguments], check=True, capture_output=True)
    fitted = json.loads(file.read_text())["strategy"]["fitted"]["buffered"]["buffers"]["toeplitz"]
    decays, weights = ([buffer[field] for buffer in fitted] for field in ("decay", "weight"))
    theirs = buffered.BufferedToeplitz.build(decays, weights)
    strategy = hf.strategy.parse(f"file:{file}", horizon=HORIZON)
    check(strategy, theirs.materialize(HORIZON), theirs.inverse_as_streaming_matrix())
    assert np.abs(np.linalg.inv(strategy.matrix()) - np.asarray(theirs.inverse().materialize(HORIZON))).max() < 1e-6


def error(matrix: np.ndarray) -> float:
    """The total error of running sums at sensitivity 1."""
    decoder = np.tril(np.ones(matrix.shape)) @ np.linalg.inv(matrix)
    return float(np.linalg.norm(decoder) * np.linalg.norm(matrix, axis=0).max())


def test_optima_have_the_same_error() -> None:
    ours = hf.strategy.banded_toeplitz_optimal(4, horizon=HORIZON).matrix()
    coefficients = np.asarray(toeplitz.optimize_banded_toeplitz(HORIZON, 4))
    theirs = np.asarray(toeplitz.materialize_lower_triangular(coefficients, HORIZON))
    assert ours[:4, 0] / np.linalg.norm(ours[:, 0]) == pytest.approx(coefficients / np.linalg.norm(coefficients), abs=1e-3)
    assert error(ours) == pytest.approx(error(theirs), rel=1e-6)


def test_the_optimum_is_at_least_as_good() -> None:
    """Their search stops a few millionths of the error before the optimum."""
    ours, theirs = hf.strategy.parse("optimal", horizon=16).matrix(), np.asarray(dense.optimize(16))
    assert error(theirs) * (1 - 1e-5) < error(ours) < error(theirs) * (1 + 1e-8)
    assert np.abs(ours - theirs).max() < 1e-2
