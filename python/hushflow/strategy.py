"""Strategies: how the noise of the epochs is correlated.

Every function makes the strategy of its name for a workload and a number of epochs, without data
and without spending any budget. It takes the keywords of `parse`. Some search for seconds; results
are saved for later calls.

>>> import hushflow as hf
>>> s = hf.strategy.blt(buffers=5, workload="prefix", horizon=365)
>>> s.name, s.horizon
('blt:5', 365)
>>> s.lower_bound <= s.rmse <= hf.strategy.identity(horizon=365).rmse
True
>>> hf.strategy.parse("no-such-strategy", horizon=10)
Traceback (most recent call last):
    ...
hushflow.StrategyError: unknown strategy `no-such-strategy`; expected one of ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypedDict

from ._arguments import checked
from ._hushflow import Strategy, strategy_names

if TYPE_CHECKING:
    from typing_extensions import Unpack

Objective = Literal["rmse", "max"]


class Setting(TypedDict, total=False):
    """What every strategy is made for, with the defaults of `parse`."""

    workload: str
    horizon: int | None
    participation: str
    objective: Objective


__all__ = [
    "Objective",
    "Setting",
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
    "banded_inverse_fractional_root",
    "banded_inverse_optimal",
    "banded_toeplitz_optimal",
    "banded_optimal",
    "optimal",
    "coa",
]


def names() -> dict[str, str]:
    """Returns how each strategy is written, such as `blt:b`, with a line of help."""
    return dict(strategy_names())


@checked
def parse(
    name: str,
    *,
    workload: str = "prefix",
    horizon: int | None = None,
    participation: str = "1",
    objective: Objective = "rmse",
) -> Strategy:
    """Returns the strategy with this name on the command line.

    `name` may also be `normalized-…`, for columns of norm 1, or `file:PATH`, for a strategy saved by
    `hushflow optimize` or a matrix in a CSV file. A strategy that is fitted is fitted to
    `participation`, such as `"20x100"`, and to `objective`.

    Without a horizon the result is only a name and a workload. Whatever takes it, such as
    `hushflow.torch.PrivateAdam`, makes the strategy for its own number of steps.

    Raises StrategyError, or ParameterError for the other arguments.
    """
    return Strategy(
        name, workload=workload, horizon=horizon, participation=participation, objective=objective
    )


def identity(**setting: Unpack[Setting]) -> Strategy:
    """Fresh noise on every epoch."""
    return parse("identity", **setting)


@checked
def blt(buffers: int = 5, **setting: Unpack[Setting]) -> Strategy:
    """B buffers, fitted: constant memory, near the best Toeplitz C."""
    return parse(f"blt:{buffers}", **setting)


@checked
def variable_blt(buffers: int = 4, **setting: Unpack[Setting]) -> Strategy:
    """B buffers that vary with time, fitted: constant memory, near the best C."""
    return parse(f"variable-blt:{buffers}", **setting)


@checked
def comb_blt(buffers: int, **setting: Unpack[Setting]) -> Strategy:
    """B buffers and a delay line: near the best C for participations at one gap."""
    return parse(f"comb-blt:{buffers}", **setting)


@checked
def power_law(buffers: int = 2, **setting: Unpack[Setting]) -> Strategy:
    """B buffers for the running average, fitted."""
    return parse(f"power-law:{buffers}", **setting)


@checked
def banded_inverse_square_root(bands: int, **setting: Unpack[Setting]) -> Strategy:
    """A square root whose inverse has b coefficients."""
    return parse(f"banded-inverse-square-root:{bands}", **setting)


@checked
def banded_square_root(bands: int, **setting: Unpack[Setting]) -> Strategy:
    """The first b coefficients of square-root."""
    return parse(f"banded-square-root:{bands}", **setting)


@checked
def variable_banded(bands: int, **setting: Unpack[Setting]) -> Strategy:
    """B bands that vary near both ends, fitted: for windows, near the best C."""
    return parse(f"variable-banded:{bands}", **setting)


def square_root(**setting: Unpack[Setting]) -> Strategy:
    """The Toeplitz square root of the workload, full history."""
    return parse("square-root", **setting)


def log_perturbed_root(**setting: Unpack[Setting]) -> Strategy:
    """For running sums without a horizon."""
    return parse("log-perturbed-root", **setting)


def matrix_square_root(**setting: Unpack[Setting]) -> Strategy:
    """The square root of the whole workload, dense."""
    return parse("matrix-square-root", **setting)


def tree_optimal_decoder(**setting: Unpack[Setting]) -> Strategy:
    """The encoder of `tree` with the best decoder, in causal form."""
    return parse("tree-optimal-decoder", **setting)


def tree(**setting: Unpack[Setting]) -> Strategy:
    """The binary tree, for comparison: `run` can't use it."""
    return parse("tree", **setting)


def honaker(**setting: Unpack[Setting]) -> Strategy:
    """The same, sums estimated from all nodes below, for comparison."""
    return parse("honaker", **setting)


def fft_optimal_decoder(**setting: Unpack[Setting]) -> Strategy:
    """The encoder of `fft` with the best decoder, in causal form."""
    return parse("fft-optimal-decoder", **setting)


def fft(**setting: Unpack[Setting]) -> Strategy:
    """The Fourier mechanism, for comparison: `run` can't use it."""
    return parse("fft", **setting)


@checked
def banded_inverse_fractional_root(bands: int, **setting: Unpack[Setting]) -> Strategy:
    """A root of the best degree whose inverse has b coefficients: γ-BIFR."""
    return parse(f"banded-inverse-fractional-root:{bands}", **setting)


@checked
def banded_inverse_optimal(bands: int, **setting: Unpack[Setting]) -> Strategy:
    """The optimum whose inverse has b coefficients: BandInvMF, λCGD."""
    return parse(f"banded-inverse-optimal:{bands}", **setting)


@checked
def banded_toeplitz_optimal(bands: int, **setting: Unpack[Setting]) -> Strategy:
    """The Toeplitz optimum with b bands."""
    return parse(f"banded-toeplitz-optimal:{bands}", **setting)


@checked
def banded_optimal(bands: int, **setting: Unpack[Setting]) -> Strategy:
    """The optimum with b bands."""
    return parse(f"banded-optimal:{bands}", **setting)


def optimal(**setting: Unpack[Setting]) -> Strategy:
    """The certified optimum for the participation."""
    return parse("optimal", **setting)


def coa(**setting: Unpack[Setting]) -> Strategy:
    """The certified optimum for single participation."""
    return parse("coa", **setting)
