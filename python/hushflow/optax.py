"""Correlated noise as a gradient transformation of optax. Needs jax and optax."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._arguments import checked
from ._errors import ParameterError
from .noise import CorrelatedNoise

__all__ = ["add_noise"]


@checked
def add_noise(noise: CorrelatedNoise, *, batch_size: int) -> Any:
    """Returns an `optax.GradientTransformation` that adds the noise of the next step to updates.

    The updates must be sums of clipped gradients divided by `batch_size`; so is the noise. Its state
    is the number of steps. The update must not be under `jax.jit`: the noise is drawn outside of it,
    once for each step.

    Raises ParameterError for updates of another number of values, and RunError if a state is not the
    newest one, for its step was drawn already.
    """
    import jax
    import optax

    def init(params: Any) -> int:
        return 0

    def update(updates: Any, state: int, params: Any = None) -> tuple[Any, int]:
        leaves, tree = jax.tree_util.tree_flatten(updates)
        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            raise ParameterError("add_noise is under jax.jit, which would draw the noise once: call its update outside")
        size = sum(leaf.size for leaf in leaves)
        if size != noise.dimension:
            raise ParameterError(f"found updates of {size} values, but the noise is for {noise.dimension}")
        start, values, noisy = 0, noise(state + 1) / batch_size, []
        for leaf in leaves:
            own = values[start : start + leaf.size].reshape(leaf.shape)
            noisy.append(leaf + own.astype(np.dtype(leaf.dtype)))
            start += leaf.size
        return jax.tree_util.tree_unflatten(tree, noisy), state + 1

    return optax.GradientTransformation(init, update)
