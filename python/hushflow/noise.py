"""Correlated noise for trainers that add it themselves.

>>> import hushflow as hf
>>> s = hf.strategy.blt(3, horizon=100, participation="2x50")
>>> noise = hf.noise.correlated(s, dimension=1000, noise_multiplier=2.6)
>>> noise(1).shape
(1000,)
>>> noise(1)
Traceback (most recent call last):
    ...
hushflow.RunError: step: found 1, expected 2: each step is drawn once, in order
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from ._arguments import checked
from ._errors import ParameterError
from ._hushflow import NoiseStream, load_numpy
from ._owned import Owned
from .strategy import Strategy, parse

load_numpy()

Floats = npt.NDArray[np.float64]
Neighbours = Literal["zero-out", "replace-one-in-place"]

__all__ = ["CorrelatedNoise", "Neighbours", "correlated"]


class CorrelatedNoise(Owned):
    """Rows of C⁻¹z, step by step, where z is exact discrete Gaussian noise. See `correlated`.

    Other threads may use the object. A fork of the process may not.
    """

    _instead = "two of them would draw different noise for the same step; save the model instead, and begin a new run"

    @checked
    def __init__(
        self,
        strategy: Strategy,
        dimension: int,
        noise_multiplier: float,
        *,
        clip_norm: float = 1.0,
        neighbours: Neighbours = "zero-out",
        seed: int | None = None,
    ) -> None:
        if not isinstance(strategy, Strategy):
            raise ParameterError(f"strategy: found {type(strategy).__name__}, expected a strategy")
        self.strategy = strategy
        """The strategy."""
        self.noise_multiplier = noise_multiplier
        """Standard deviation of z divided by the sensitivity."""
        _find_memory(strategy, dimension)
        self._stream = NoiseStream(strategy, dimension, noise_multiplier, clip_norm, neighbours, seed)
        self._deviations: Floats | None = None

    @checked
    def __call__(self, step: int) -> Floats:
        """Draws the noise of a step, of shape (dimension,); the first step is 1.

        Raises RunError for any step but the next: a step is drawn once.
        """
        return self._stream.draw(step)

    def _draw_next(self) -> Floats:
        """Draws the noise of the next step, whatever other threads draw."""
        return self._stream.draw(None)

    @property
    def dimension(self) -> int:
        """Number of coordinates."""
        return self._stream.dimension

    @property
    def horizon(self) -> int:
        """Number of steps."""
        return self._stream.horizon

    @property
    def next_step(self) -> int:
        """The number of the next step."""
        return self._stream.next_step

    @property
    def sensitivity(self) -> float:
        """Largest distance between the encoded sums of neighbouring data sets, over all steps."""
        return self._stream.sensitivity

    @property
    def private(self) -> bool:
        """False if the noise is drawn from a seed: such noise gives no privacy protection."""
        return self._stream.private

    @property
    def standard_deviations(self) -> Floats:
        """Standard deviation of the noise of each step in a coordinate, of shape (horizon,)."""
        if self._deviations is None:
            self._deviations = self._stream.standard_deviations()
            self._deviations.flags.writeable = False
        return self._deviations

    def __repr__(self) -> str:
        return f"CorrelatedNoise({self.strategy!r}, dimension={self.dimension}, next_step={self.next_step})"


def _find_memory(strategy: Strategy, dimension: int) -> None:
    """Raises ParameterError unless there is memory for a step and for the state of the strategy."""
    problem = f"dimension: found {dimension!r}, expected a number of values that memory has room for"
    if not isinstance(dimension, (int, np.integer)):
        raise ParameterError(problem)
    size = int(dimension) * (8 + (strategy.state_bytes or 0))
    try:
        np.empty(size, dtype=np.uint8)
    except (MemoryError, ValueError):
        raise ParameterError(problem) from None


@checked
def correlated(
    strategy: Strategy | str,
    dimension: int,
    noise_multiplier: float,
    seed: int | None = None,
    *,
    clip_norm: float = 1.0,
    neighbours: Neighbours = "zero-out",
    horizon: int | None = None,
    participation: str = "1",
) -> CorrelatedNoise:
    """Returns noise for the sums of clipped gradients: call it with each step, in order.

    The noise of step t is row t of C⁻¹z. Each coordinate of z has the standard deviation
    `noise_multiplier` times the sensitivity of the strategy for records of norm `clip_norm`, under
    the participation of the strategy. `neighbours` are data sets that differ in one record, which is
    blanked ("zero-out") or replaced in place; replacement takes twice the noise. `horizon` and
    `participation` are for a strategy given by name.

    z is an exact discrete Gaussian. Adding it to sums of floats gives no exact guarantee;
    `hushflow.torch.PrivateAdam` gives one, because it adds integers. Seeded noise gives no privacy protection.

    Raises ParameterError or StrategyError.
    """
    if isinstance(strategy, str):
        strategy = parse(strategy, horizon=horizon, participation=participation)
    return CorrelatedNoise(
        strategy, dimension, noise_multiplier, clip_norm=clip_norm, neighbours=neighbours, seed=seed
    )
