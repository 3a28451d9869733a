"""Histograms and quantiles of columns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import hushflow as hf


def test_bins_and_quantiles_of_a_column(tmp_path: Path) -> None:
    moments = hf.ContinualMoments(
        {"age": (0, 100)}, histograms={"age": 20}, epsilon=20.0, delta=1e-6, horizon=3, seed=1, state=tmp_path / "state"
    )
    ages = np.random.default_rng(0).uniform(0, 60, 5000)
    moments.partial_fit({"age": ages})
    moments.close_epoch()
    view = moments.log_.view(estimate="histogram")
    exact, _ = np.histogram(ages, 20, (0, 100))
    for bin, count in enumerate(exact):
        of = f"age_{5 * bin}..{5 * bin + 5}"
        assert abs(view[f"bin_count_{of}"][-1] - count) < 6 * view[f"bin_count_noise_{of}"][-1]
    median = moments.log_.view(estimate="quantiles", settings={"quantiles": [0.5]})
    assert median["quantile_lower_age_0.5"][-1] <= np.median(ages) <= median["quantile_upper_age_0.5"][-1]


def test_other_columns_have_none(tmp_path: Path) -> None:
    moments = hf.ContinualMoments(
        {"age": (0, 100)},
        histograms={"size": [0, 1, 2]},
        epsilon=1.0,
        delta=1e-6,
        horizon=3,
        seed=1,
        state=tmp_path / "state",
    )
    with pytest.raises(hf.ParameterError, match="size"):
        moments.partial_fit({"age": [1.0]})
