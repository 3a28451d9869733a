"""Arrays of other libraries, and numpy as the extension loads it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hushflow as hf


class Array:
    """An array of a library that numpy can read."""

    def __init__(self, values: Any) -> None:
        self._values = values

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self._values


class Exported:
    """An array of a library whose memory numpy can share by DLPack alone."""

    def __init__(self, values: Any) -> None:
        self._values = values

    def __dlpack__(self, **arguments: Any) -> Any:
        return self._values.__dlpack__(**arguments)

    def __dlpack_device__(self) -> Any:
        return self._values.__dlpack_device__()


class Unreadable:
    """An array that isn't in this machine's memory."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        raise TypeError("3.14159 can't be read")


class Named(Array):
    """A table whose columns have names."""

    columns = ("y", "x")


def of_torch(values: Any) -> Any:
    torch = pytest.importorskip("torch", reason="torch is not there")
    tensor = torch.from_numpy(np.array(values))
    return tensor.requires_grad_(tensor.is_floating_point())


def of_jax(values: Any) -> Any:
    jax = pytest.importorskip("jax", reason="jax is not there")
    jax.config.update("jax_enable_x64", True)
    return jax.numpy.asarray(values)


KINDS = [Array, Exported, of_torch, of_jax]


@pytest.mark.parametrize("of", KINDS)
def test_arrays_are_tables(tmp_path: Path, of: Any) -> None:
    rows = np.random.default_rng(2).normal(0, 1, (500, 2))
    mean: dict[str, Any] = {"corruption": 0.01, "epsilon": 8.0, "delta": 1e-4, "scale": 1.0, "seed": 4}
    assert hf.robust_mean(of(rows), **mean).report == hf.robust_mean(rows, **mean).report
    covariance: dict[str, Any] = {"bounds": (-4, 4), "rho": 1.0, "seed": 4}
    expected = hf.private_covariance(rows, **covariance).covariance
    for table in (of(rows), of(rows.astype(np.float32)), {"0": of(rows[:, 0]), "1": of(rows[:, 1])}):
        np.testing.assert_allclose(hf.private_covariance(table, **covariance).covariance, expected, atol=1e-6)


@pytest.mark.parametrize("of", KINDS)
def test_arrays_are_batches(tmp_path: Path, of: Any) -> None:
    rows = np.random.default_rng(2).normal(0, 1, (500, 2))
    found = []
    bounds = {"x": (-4, 4), "y": (-4, 4)}
    for number, table in enumerate([rows, of(rows)]):
        state = tmp_path / str(number)
        with hf.ContinualMoments(bounds, epsilon=1.0, delta=1e-6, horizon=2, seed=5, state=state) as stream:
            stream.partial_fit(table)
            found.append(stream.close_epoch().mean["all"].tolist())
            with pytest.raises(hf.BatchError, match=r"shape \(3, 3\).*no record of the batch was counted"):
                stream.partial_fit(of(np.zeros((3, 3))))
    assert found[0] == found[1]
    keyed = []
    for number, kind in enumerate([np.asarray, of]):
        state = tmp_path / f"keyed-{number}"
        batch = {"x": kind(rows[:, 0]), "y": kind(rows[:, 1]), "key": kind(np.arange(500) % 2)}
        with hf.ContinualMoments(
            bounds, key="key", keys=["0", "1"], epsilon=1.0, delta=1e-6, horizon=2, seed=5, state=state
        ) as stream:
            stream.partial_fit(batch)
            keyed.append(stream.close_epoch().mean["1"].tolist())
    assert keyed[0] == keyed[1]


def test_memory_of_arrays_is_shared() -> None:
    from hushflow._batch import array_of

    rows = np.zeros((5, 2), np.float32)
    for of in KINDS[:2]:
        assert np.shares_memory(array_of(of(rows)), rows)
    torch = pytest.importorskip("torch", reason="torch is not there")
    tensor = torch.zeros(5, 2, requires_grad=True)
    assert array_of(tensor).ctypes.data == tensor.data_ptr()


@pytest.mark.parametrize("of", [Array, Exported, of_jax])
def test_arrays_are_gradients(of: Any) -> None:
    weights = []
    gradients = np.random.default_rng(2).normal(0, 1, (50, 3)).astype(np.float32)
    for values in (gradients, of(gradients)):
        weights.append(np.zeros(3))
        plan = hf.training.plan(participation="2x5", epsilon=4.0, delta=1e-6)
        opt = hf.training.PrivateAdam(weights[-1:], lr=0.1, clip_norm=0.5, strategy="identity", plan=plan, seed=1)
        opt.step(values)
    assert weights[0].tolist() == weights[1].tolist()
    with pytest.raises(hf.ParameterError, match="parameter 0: found "):
        # It would be changed in a copy.
        hf.training.PrivateAdam([of(np.zeros(3))], lr=0.1, clip_norm=0.5, strategy="identity", plan=plan)


def test_unreadable_arrays_are_refused(tmp_path: Path) -> None:
    with hf.ContinualMoments({"x": (0, 1)}, epsilon=1.0, delta=1e-6, horizon=2, state=tmp_path / "state") as stream:
        stream.partial_fit(np.zeros((3, 1)))
        for batch in (Unreadable(), {"x": Unreadable()}, Named(np.zeros((3, 1))), {"x": Array(np.zeros((3, 1)))}):
            with pytest.raises(hf.BatchError, match="no record of the batch was counted") as refused:
                stream.partial_fit(batch)
            assert "3.14159" not in str(refused.value) and refused.value.__context__ is None
    with pytest.raises(hf.BatchError, match="the values of the Unreadable can't be read"):
        hf.robust_mean(Unreadable(), corruption=0.01, epsilon=1.0, delta=1e-6)


INTERRUPTED = """
import signal, sys
import hushflow as hf

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "numpy.lib":
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Finder())
strategy = hf.strategy.identity(horizon=4)
for call in range(2):
    try:
        shape = strategy.matrix().shape
        for _ in range(1000):
            pass
        print(shape)
    except KeyboardInterrupt:
        print("interrupted")
"""


def test_an_interrupt_while_numpy_is_loaded() -> None:
    """Ctrl-C at the extension's first use of numpy is a KeyboardInterrupt, and the next call works."""
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=False)
    assert done.stdout == "interrupted\n(4, 4)\n" and done.returncode == 0, done.stderr
    assert "panicked" not in done.stderr
