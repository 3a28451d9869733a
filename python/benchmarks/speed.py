"""Measures the speed of the package relative to its peers, in turns in one process.

    pip install -r python/benchmarks/requirements.txt ./python
    python python/benchmarks/speed.py [stream | noise | import]

`stream` sends eight batches of 10^6 rows of eight columns with 100 keys, and closes the epoch. The
baseline is numpy with the same sums (counts, values and products by key) and floating-point noise. The
operators in Rust are measured by `cargo bench --bench ingestion`, where 100 keys are a case.

`noise` draws correlated noise of 10^6 coordinates. The baseline is jax_privacy with the same
coefficients, on the processor, compiled.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import hushflow as hf

ROWS, COLUMNS, KEYS, BATCHES, TURNS = 10**6, 8, 100, 8, 5
DIMENSION, STEPS = 10**6, 20


def seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def in_turns(**works: Callable[[], Any]) -> dict[str, float]:
    """Returns the fastest time of each, after one turn that is not measured."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(TURNS + 1):
        for name, work in works.items():
            taken = seconds(work)
            if turn > 0:
                times[name].append(taken)
    return {name: min(taken) for name, taken in times.items()}


def numpy_epoch(values: Any, keys: Any, rng: np.random.Generator) -> list[Any]:
    """One epoch of sums and noise."""
    sums = [np.bincount(keys, minlength=KEYS).astype(float)]
    clipped = np.clip(values, -4, 4).T.copy()
    for left in range(COLUMNS):
        sums.append(np.bincount(keys, clipped[left], KEYS))
        sums += [np.bincount(keys, clipped[left] * clipped[right], KEYS) for right in range(left, COLUMNS)]
    return [total + rng.normal(0, 10, KEYS) for total in sums]


def stream() -> None:
    import pyarrow

    rng = np.random.default_rng(0)
    values, keys = rng.normal(0, 1, (ROWS, COLUMNS)), rng.integers(0, KEYS, ROWS)
    columns = {f"x{number}": np.ascontiguousarray(values[:, number]) for number in range(COLUMNS)}
    arrays = columns | {"key": keys}
    texts = pyarrow.table(columns | {"key": pyarrow.array(keys.astype(str))})
    moments = hf.ContinualMoments(
        dict.fromkeys(columns, (-4.0, 4.0)), key="key", keys=[str(key) for key in range(KEYS)], epsilon=1.0,
        delta=1e-6, strategy="identity", horizon=4 * (TURNS + 1), state=tempfile.mkdtemp(dir="/dev/shm") + "/state",
    )  # fmt: skip

    def publish(batch: Any) -> None:
        for _ in range(BATCHES):
            moments.partial_fit(batch)
        moments.close_epoch()

    found = in_turns(
        arrays=lambda: publish(arrays),
        arrow=lambda: publish(pyarrow.table(arrays)),
        arrow_texts=lambda: publish(texts),
        numpy=lambda: [numpy_epoch(values, keys, rng) for _ in range(BATCHES)],
    )
    moments.close()
    for name, taken in found.items():
        speed = BATCHES * ROWS / taken / 1e6
        print(f"stream {name:<12} {speed:6.2f} million records/s, {found['numpy'] / taken:5.2f} times numpy")


def noise() -> None:
    import jax
    from jax_privacy.matrix_factorization import toeplitz

    strategy = hf.strategy.banded_toeplitz_optimal(8, horizon=STEPS * (TURNS + 1))
    drawn = hf.noise.correlated(strategy, dimension=DIMENSION, noise_multiplier=1.0)
    coefficients = strategy.matrix()[:8, 0]
    inverse = toeplitz.inverse_as_streaming_matrix(jax.numpy.asarray(coefficients))
    shape = jax.numpy.zeros(DIMENSION)
    state, key = inverse.init_multiply(shape), jax.random.key(0)

    @jax.jit
    def step(key: Any, state: Any) -> Any:
        key, used = jax.random.split(key)
        row, state = inverse.multiply_next(jax.random.normal(used, (DIMENSION,)), state)
        return key, state, row

    def peer() -> None:
        nonlocal key, state
        for _ in range(STEPS):
            key, state, row = step(key, state)
        row.block_until_ready()

    found = in_turns(hushflow=lambda: [drawn(drawn.next_step) for _ in range(STEPS)], jax_privacy=peer)
    for name, taken in found.items():
        per_step, ratio = taken / STEPS * 1e3, found["jax_privacy"] / taken
        print(f"noise {name:<12} {per_step:7.1f} ms a step, {ratio:5.2f} times jax_privacy")


def importing() -> None:
    run = lambda module: subprocess.run([sys.executable, "-c", f"import {module}"], check=True)  # noqa: E731
    found = in_turns(hushflow=lambda: run("hushflow"), numpy=lambda: run("numpy"), nothing=lambda: run("sys"))
    for name, taken in found.items():
        print(f"import {name:<12} {(taken - found['nothing']) * 1e3:6.0f} ms")


if __name__ == "__main__":
    works = {"stream": stream, "noise": noise, "import": importing}
    for chosen in sys.argv[1:] or works:
        works[chosen]()
