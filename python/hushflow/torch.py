"""Training of PyTorch models. This module does not import torch.

`PrivateAdam` takes `model.parameters()`. `add_noise` adds correlated noise to any optimizer.
"""

from __future__ import annotations

from typing import Any

from ._arguments import checked
from ._errors import ParameterError
from .noise import CorrelatedNoise
from .training import PrivateAdam

__all__ = ["PrivateAdam", "add_noise"]


@checked
def add_noise(optimizer: Any, noise: CorrelatedNoise, *, batch_size: int) -> Any:
    """Adds the noise of the next step to the gradients before every step of a torch optimizer.

    The gradients must be sums of clipped gradients divided by `batch_size`, as the noise is. Returns
    the handle of the hook; its `remove()` method removes the hook.

    Raises ParameterError if the number of parameters is not the dimension of the noise, or if a
    parameter has no gradient.
    """
    _check(_parameters(optimizer), noise)

    def hook(optimizer: Any, *_arguments: Any) -> None:
        parameters = _parameters(optimizer)
        _check(parameters, noise)
        if any(parameter.grad is None for parameter in parameters):
            raise ParameterError("a parameter has no gradient, but every one needs it: no noise was drawn")
        start, values = 0, noise._draw_next() / batch_size
        for parameter in parameters:
            own = values[start : start + parameter.numel()].reshape(tuple(parameter.shape))
            parameter.grad.add_(parameter.grad.new_tensor(own))
            start += parameter.numel()

    return optimizer.register_step_pre_hook(hook)


def _parameters(optimizer: Any) -> list[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _check(parameters: list[Any], noise: CorrelatedNoise) -> None:
    size = sum(parameter.numel() for parameter in parameters)
    if size != noise.dimension:
        raise ParameterError(f"the optimizer has {size} parameters, but the noise is for {noise.dimension}")
