"""Private training with Adam, for training loops of Python.

>>> import hushflow as hf, numpy as np
>>> plan = hf.training.plan(participation="2x5", epsilon=4.0, delta=1e-6)
>>> weights = np.zeros(3)
>>> opt = hf.training.PrivateAdam([weights], lr=0.1, clip_norm=0.5, strategy=hf.strategy.blt(2), plan=plan)
>>> opt.step(np.ones((100, 3), dtype=np.float32))
>>> opt.next_step, 0 < opt.spent() < 4
(2, True)
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from . import _hushflow
from ._arguments import checked, found
from ._batch import read_array
from ._errors import BatchError, ParameterError, StateError
from ._hushflow import TrainingPlan
from ._owned import Owned, Turns
from ._types import Path
from .noise import Neighbours
from .strategy import Strategy, parse

Method = Literal["jme", "batch-squares", "joint-clip", "dp-adam", "dp-adam-bc", "scale-then-privatise"]

__all__ = ["Method", "PrivateAdam", "TrainingPlan", "plan"]


@checked
def plan(
    participation: str,
    *,
    epsilon: float,
    delta: float,
    batch_size: int | None = None,
    neighbours: Neighbours = "replace-one-in-place",
    method: Method = "dp-adam",
) -> TrainingPlan:
    """Returns the plan of a training run that is (epsilon, delta)-private as a whole.

    `participation` is the number of passes over the data and of steps in a pass, such as `"5x50"`. A
    record takes part at most once in a pass, and always at the same step of the pass: cut the records
    into batches once, in a public order, and take the batches in the same order in every pass.
    `batch_size` is the public number of records of a batch, by which sums are divided; by default
    that of the first step. The variants of Adam (`method`) are those of docs/training.md.

    Raises ParameterError.
    """
    return TrainingPlan(participation, epsilon, delta, batch_size, neighbours, method)


class PrivateAdam(Owned):
    """Adam whose parameters don't reveal any single record.

    Parameters
    ----------
    params : arrays or tensors
        Parameters of the model: arrays of numpy, or tensors of torch in the memory of the processor,
        of floats. They are changed in place.
    lr : float
        Learning rate.
    clip_norm : float
        Largest norm of the gradient of a record; longer ones are scaled down.
    strategy : Strategy or str
        How noise is correlated over the steps. One without a horizon is made for the plan.
    plan : TrainingPlan
        The promise.
    journal : path, optional
        A file in which the number of each step is durable before its noise is drawn. With it, no
        other process draws a step a second time, whatever state it loads.
    seed : int, optional
        Draws the noise from a seed, for simulations: not private.

    Other threads may use the object; steps then take turns. A fork of the process may not.
    """

    _instead = "two of them would draw different noise for the same step; use state_dict()"

    @checked
    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        *,
        clip_norm: float,
        strategy: Strategy | str,
        plan: TrainingPlan,
        journal: Path | None = None,
        seed: int | None = None,
    ) -> None:
        if not isinstance(plan, TrainingPlan):
            raise ParameterError(f"plan: found {type(plan).__name__}, expected what hushflow.training.plan() returns")
        self.plan = plan
        """The promise."""
        if not isinstance(params, Iterable):
            raise ParameterError(f"params: found {found(params)}, expected arrays or tensors")
        self._params = [_array(value, f"parameter {place}") for place, value in enumerate(params)]
        if not self._params or not sum(array.size for array in self._params):
            raise ParameterError("params: found no parameters")
        if not all(array.flags.writeable for array in self._params):
            raise ParameterError("params: found an array that can't be written to")
        self._strategy = parse(strategy) if isinstance(strategy, str) else strategy
        self._lr, self._clip_norm, self._seed = lr, clip_norm, seed
        self._journal = None if journal is None else os.fspath(journal)
        self._turns = Turns("optimiser")
        """A thread that begins the run, steps, loads, saves or writes parameters has its turn: two
        runs, or a step between another one and its parameters, would break the promise."""
        self._run: _hushflow.PrivateAdam | None = None
        if plan.batch_size is not None:
            self._run = self._begun(plan.batch_size)

    def _begun(self, batch_size: int) -> _hushflow.PrivateAdam:
        """Returns a new run. It needs the turn, and at most one may be used."""
        flat = np.concatenate([array.ravel() for array in self._params]).astype(np.float64)
        return _hushflow.PrivateAdam(
            flat, self.plan, self._strategy, batch_size, self._lr, self._clip_norm, self._journal, self._seed
        )

    def step(self, per_example_gradients: Any) -> None:
        """Takes a step with one gradient for each record of the batch.

        The gradients have the shape (batch, parameters), float32, row after row in memory; they are
        not copied, except block by block. A batch may have fewer records than the plan's, not more.
        Gradients that are not finite count as zero.

        Raises BatchError for other gradients. None of them count. Raises StateError if the step was
        drawn already by another copy of the run.
        """
        if not hasattr(per_example_gradients, "detach"):
            per_example_gradients = read_array(per_example_gradients)
        gradients = _array(per_example_gradients, "the gradients", BatchError)
        if gradients.ndim != 2 or gradients.dtype != np.float32:
            raise BatchError(
                f"found gradients of shape {gradients.shape} and type {gradients.dtype}, expected (batch, parameters) "
                "and float32"
            )
        size = sum(array.size for array in self._params)
        if gradients.shape[1] != size:
            raise BatchError(f"found gradients of {gradients.shape[1]} values, expected (batch, {size})")
        if not gradients.flags.c_contiguous:
            raise BatchError("the gradients are not row after row in memory: expected order C")
        with self._turns.next():
            if self._run is None:
                self._run = self._begun(len(gradients))
            self._run.step(np.require(gradients, requirements="A"))
            self._write(self._run)

    def _write(self, run: _hushflow.PrivateAdam) -> None:
        """Writes the parameters of the last step. It needs the turn."""
        start, values = 0, run.parameters
        for array in self._params:
            array[...] = values[start : start + array.size].reshape(array.shape)
            start += array.size

    @property
    def next_step(self) -> int:
        """The next step; the first is 1."""
        return 1 if self._run is None else self._run.next_step

    @property
    def noise_multiplier(self) -> float | None:
        """Standard deviation of the noise divided by the sensitivity; None before the first step
        if the plan has no batch size."""
        return None if self._run is None else self._run.noise_multiplier

    @property
    def private(self) -> bool:
        """False if the noise is drawn from a seed: such a run gives no privacy protection."""
        return self._seed is None

    def spent(self) -> float:
        """Returns ε of the passes that have begun, for the δ of the plan; 0 before the first step."""
        return 0.0 if self._run is None else self._run.spent()

    def state_dict(self) -> dict[str, Any]:
        """Returns the state after the last step. **It is private**: it holds sums or noise.

        Keep it where the data are kept. A copy that goes on from it takes each later step once: a
        step that this object or another copy has drawn is refused. Between processes a journal does
        that. Without one, load only the newest state, and only if nothing of later steps was seen.
        """
        with self._turns.next():
            run = self._run
            return {
                "batch_size": None if run is None else run.batch_size,
                "state": None if run is None else run.save(),
            }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on after a state of the same plan, strategy and parameters.

        Raises StateError for another state, and is then as before. Without its own journal the next
        step is refused.
        """
        unknown = StateError("found no state of PrivateAdam: expected what state_dict() returned")
        if not isinstance(state_dict, Mapping) or not {"batch_size", "state"} <= state_dict.keys():
            raise unknown
        batch_size, state = state_dict["batch_size"], state_dict["state"]
        if (batch_size is None) != (state is None):
            raise unknown
        is_size = type(batch_size) is int and 0 < batch_size < 2**32
        if batch_size is not None and not (is_size and isinstance(state, bytes)):
            raise unknown
        with self._turns.next():
            if batch_size is None:
                if self.next_step > 1:
                    raise StateError("the state is older than the first step: begin a new run instead")
                return
            if self._run is not None and self._run.batch_size != batch_size:
                raise StateError(f"the state is for batches of {batch_size} records, not of {self._run.batch_size}")
            run = self._begun(batch_size) if self._run is None else self._run
            try:
                run.restore(state)
            except BaseException:
                # The traceback would keep it, and with it the journal.
                del run
                raise
            self._run = run
            self._write(run)

    def __repr__(self) -> str:
        return f"PrivateAdam({self.plan.participation}, epsilon={self.plan.epsilon}, next_step={self.next_step})"


def _array(value: Any, what: str, error: type[Exception] = ParameterError) -> npt.NDArray[Any]:
    """Returns an array that shares the memory of an array or tensor."""
    if hasattr(value, "detach"):
        value = value.detach()
        if value.device.type != "cpu":
            raise error(f"{what}: found a tensor on {value.device.type}, expected one in the memory of the processor")
        try:
            value = value.numpy()
        except TypeError:
            kind = f"{value.dtype} and {value.layout}"
            raise error(f"{what}: found a tensor of {kind}, expected a dense one of float32") from None
    masked = isinstance(value, np.ma.MaskedArray)
    if masked or not isinstance(value, np.ndarray) or value.dtype.kind != "f":
        found = value.dtype if isinstance(value, np.ndarray) and not masked else type(value).__name__
        raise error(f"{what}: found {found}, expected an array or tensor of floats")
    return value
