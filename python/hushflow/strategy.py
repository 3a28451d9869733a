"""Strategies: how the noise of the epochs is correlated.

Every function makes the strategy of its name for a workload and a number of epochs, without data
and without spending any budget. Some search for seconds; results are kept for the next time.

>>> import hushflow as hf
>>> s = hf.strategy.blt(buffers=5, workload="prefix", horizon=365)
>>> s.name, s.horizon
('blt:5', 365)
>>> s.lower_bound <= s.rmse <= hf.strategy.identity(horizon=365).rmse
True
>>> hf.strategy.parse("no-such-strategy", horizon=10)
Traceback (most recent call last):
    ...
hushflow.StrategyError: no strategy is called `no-such-strategy`; expected one of ...
"""

from __future__ import annotations

from typing import Literal

from ._hushflow import Strategy, strategy_names

Objective = Literal["rmse", "max"]

__all__ = [
    "Objective",
    "Strategy",
    "names",
    "parse",
    "identity",
    "blt",
    "variable_blt",
    "comb_blt",
    "power_law",
    "banded_inverse_square_root",
    "banded_square_root",
    "variable_banded",
    "square_root",
    "log_perturbed_root",
    "matrix_square_root",
    "tree_optimal_decoder",
    "tree",
    "honaker",
    "fft_optimal_decoder",
    "fft",
    "banded_inverse_optimal",
    "banded_toeplitz_optimal",
    "banded_optimal",
    "optimal",
    "coa",
]


def names() -> dict[str, str]:
    """Returns how each strategy is written, such as `blt:b`, with a line of help."""
    return dict(strategy_names())


def parse(
    name: str,
    *,
    workload: str = "prefix",
    horizon: int,
    participation: str = "1",
    objective: Objective = "rmse",
) -> Strategy:
    """Returns the strategy that is written so on the command line.

    `name` may also be `normalized-…`, for columns of norm 1, or `file:PATH`, for a strategy saved by
    `hushflow optimize` or a matrix in a CSV file. A strategy that is fitted is fitted to
    `participation`, such as `"20x100"`, and to `objective`.

    Raises StrategyError, or ParameterError for the other arguments.
    """
    return Strategy(
        name, workload=workload, horizon=horizon, participation=participation, objective=objective
    )


def identity(
    *,
    workload: str = "prefix",
    horizon: int,
    participation: str = "1",
    objective: Objective = "rmse",
) -> Strategy:
    """Fresh noise on every epoch."""
    return parse(
        "identity",
        workload=workload,
        horizon=horizon,
        participation=participation,
        objective=objective,
    )


def blt(
    buffers: int = 5,
    *,
    workload: str = "prefix",
    horizon: int,
    participation: str = "1",
    objective: Objective = "rmse",
) -> Strategy:
    """B buffers, fitted: constant memory, near the best Toeplitz C."""
    return parse(
        f"blt:{buffers}",
        workload=workload,
        horizon=horizon,
        participation=participation,
        objective=objective,
    )


def variable_blt(
    buffers: int = 4,
    *,
    workload: str = "prefix",
    horizon: int,
    participation: str = "1",
    objective: Objective = "rmse",
) -> Strategy:
    """B buffers that vary with time, fitted: constant memory, near the best C."""
    return parse(
        f"variable-blt:{buffers}",
        workload=workload,
        horizon=horizon,
        participation=participation,
        objective=objective,
    )


def comb_blt(
    buffers: int,
    *,
    workload: str = "prefix",
    horizon: int,
    participation: str = "1",
    objective: Objective = "rmse",
) -> Strategy:
    """B buffers and a delay line: near the best C for participations at one gap."""
    return parse(
        f"comb-blt:{buffers}",
        workload=workload,
        horizon=horizon,
        participation=participation,
        objective=objective,
    )


def power_law(
    buffers: int = 2,
    *,
    workload: str = "prefix",
    horizon: int,
    participation: str = "1",
    objective: Objective = "rmse",
) -> Strategy:
    """B buffers for the running average, fitted."""
    return parse(
        f"power-law:{buffers}",
        workload=workload,
        horizon=horizon,
        participation=participation,
        objective=objective,
    )


def banded_inverse_square_root(
    bands: int,
    *,
    workload: str = "prefix",
    horizon: int,
    participation: str = "1",
    objective: Objective = "rmse",
) -> Strategy:
    """A square root whose inverse has b coefficients."""
    return parse(
        f"banded-inverse-square-root:{bands}",
        workload=workload,
        horizon=horizon,
        participation=participation,
        objective=objective,
    )


def banded_square_root(
    bands: int,
    *,
    workload: str = "prefix",
    horizon: int,
    participation: str = "1",
    objective: Objective = "rmse",
) -> Strategy:
    """The first b coefficients of square-root."""
    return parse(
        f"banded-square-root:{bands}",
        workload=workload,
        horizon=horizon,
        participation=participation,
        objective=objective,
    )


def variable_banded(
    bands: int,
    *,
    workload: str = "prefix",
    horizon: int,
    participation: str = "1",
    objective: Objective = "rmse",
) -> Strategy:
    """B bands that vary near both ends, fitted: for windows, near the best C."""
    return parse(
        f"variable-banded:{bands}",
        workload=workload,
        horizon=horizon,
        participation=participation,
        objective=objective,
    )


def square_root(
    *,
    workload: str = "prefix",
    horizon: int,
    participation: str = "1",
    objective: Objective = "rmse",
) -> Strategy:
    """The Toeplitz square root of the workload, full history."""
    return parse(
        "square-root",
        workload=workload,
        horizon=horizon,
        participation=participation,
        objective=objective,
    )


def log_perturbed_root(
    *,
    workload: str = "prefix",
    horizon: int,
    participation: str = "1",
    objective: Objective = "rmse",
) -> Strategy:
    """For running sums without a horizon."""
    return parse(
        "log-perturbed-root",
        workload=workload,
        horizon=horizon,
        participation=participation,
        objective=objective,
    )


def matrix_square_root(
    *,
    workload: str = "prefix",
    horizon: int,
    participation: str = "1",
    objective: Objective = "rmse",
) -> Strategy:
    """The square root of the whole workload, dense."""
    return parse(
        "matrix-square-root",
        workload=workload,
        horizon=horizon,
        participation=participation,
        objective=objective,
    )


def tree_optimal_decoder(
    *,
    workload: str = "prefix",
    horizon: int,
    participation: str = "1",
    objective: Objective = "rmse",
) -> Strategy:
    """The encoder of `tree` with the best decoder, in causal form."""
    return parse(
        "tree-optimal-decoder",
        workload=workload,
        horizon=horizon,
        participation=participation,
        objective=objective,
    )


def tree(
    *,
    workload: str = "prefix",
    horizon: int,
    participation: str = "1",
    objective: Objective = "rmse",
) -> Strategy:
    """The binary tree, for comparison: `run` can't use it."""
    return parse(
        "tree",
        workload=workload,
        horizon=horizon,
        participation=participation,
        objective=objective,
    )


def honaker(
    *,
    workload: str = "prefix",
    horizon: int,
    participation: str = "1",
    objective: Objective = "rmse",
) -> Strategy:
    """The same, sums estimated from all nodes below, for comparison."""
    return parse(
        "honaker",
        workload=workload,
        horizon=horizon,
        participation=participation,
        objective=objective,
    )


def fft_optimal_decoder(
    *,
    workload: str = "prefix",
    horizon: int,
    participation: str = "1",
    objective: Objective = "rmse",
) -> Strategy:
    """The encoder of `fft` with the best decoder, in causal form."""
    return parse(
        "fft-optimal-decoder",
        workload=workload,
        horizon=horizon,
        participation=participation,
        objective=objective,
    )


def fft(
    *,
    workload: str = "prefix",
    horizon: int,
    participation: str = "1",
    objective: Objective = "rmse",
) -> Strategy:
    """The Fourier mechanism, for comparison: `run` can't use it."""
    return parse(
        "fft",
        workload=workload,
        horizon=horizon,
        participation=participation,
        objective=objective,
    )


def banded_inverse_optimal(
    bands: int,
    *,
    workload: str = "prefix",
    horizon: int,
    participation: str = "1",
    objective: Objective = "rmse",
) -> Strategy:
    """The optimum whose inverse has b coefficients: BandInvMF, λCGD."""
    return parse(
        f"banded-inverse-optimal:{bands}",
        workload=workload,
        horizon=horizon,
        participation=participation,
        objective=objective,
    )


def banded_toeplitz_optimal(
    bands: int,
    *,
    workload: str = "prefix",
    horizon: int,
    participation: str = "1",
    objective: Objective = "rmse",
) -> Strategy:
    """The Toeplitz optimum with b bands."""
    return parse(
        f"banded-toeplitz-optimal:{bands}",
        workload=workload,
        horizon=horizon,
        participation=participation,
        objective=objective,
    )


def banded_optimal(
    bands: int,
    *,
    workload: str = "prefix",
    horizon: int,
    participation: str = "1",
    objective: Objective = "rmse",
) -> Strategy:
    """The optimum with b bands."""
    return parse(
        f"banded-optimal:{bands}",
        workload=workload,
        horizon=horizon,
        participation=participation,
        objective=objective,
    )


def optimal(
    *,
    workload: str = "prefix",
    horizon: int,
    participation: str = "1",
    objective: Objective = "rmse",
) -> Strategy:
    """The certified optimum for the participation."""
    return parse(
        "optimal",
        workload=workload,
        horizon=horizon,
        participation=participation,
        objective=objective,
    )


def coa(
    *,
    workload: str = "prefix",
    horizon: int,
    participation: str = "1",
    objective: Objective = "rmse",
) -> Strategy:
    """The certified optimum for single participation."""
    return parse(
        "coa",
        workload=workload,
        horizon=horizon,
        participation=participation,
        objective=objective,
    )
