"""Measures the speed of the package relative to its peers, in turns in one process: in seconds and in
processor time of all threads, which depends less on what else the machine does.

    pip install -r python/benchmarks/requirements.txt ./python
    python python/benchmarks/speed.py [stream | noise | import]

`stream` sends eight batches of 10^6 rows of eight columns with 100 keys, and closes the epoch. The
baselines are numpy with the same sums (counts, values and products by key) and floating-point noise: one
call of `bincount` for each sum, or one product of matrices for each key. The operators in Rust are
measured by `cargo bench --bench ingestion`, where 100 keys are a case.

`noise` draws correlated noise of 10^6 coordinates, by four buffers. The peers are jax_privacy, on the
processor, compiled, Opake with PyTorch, on the processor, and the same recursion in numpy. Their noise is
in floating point, from generators that are not cryptographic.
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
DIMENSION, BUFFERS, STEPS = 10**6, 4, 20


Times = tuple[float, float]
"""Seconds, and seconds of processor time."""


def measured(work: Callable[[], Any]) -> Times:
    start, used = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - start, time.process_time() - used


def in_turns(**works: Callable[[], Any]) -> dict[str, Times]:
    """Returns the least times of each, after one turn that is not measured."""
    times: dict[str, list[Times]] = {name: [] for name in works}
    for turn in range(TURNS + 1):
        for name, work in works.items():
            taken = measured(work)
            if turn > 0:
                times[name].append(taken)
    return {name: (min(t for t, _ in taken), min(used for _, used in taken)) for name, taken in times.items()}


def compared(found: dict[str, Times], name: str, peer: str) -> str:
    """How many times as fast as a peer it is."""
    seconds, used = (theirs / ours for ours, theirs in zip(found[name], found[peer], strict=True))
    return f"{seconds:5.2f} times {peer}, {used:5.2f} times by processor time"


def numpy_epoch(values: Any, keys: Any, rng: np.random.Generator) -> list[Any]:
    """One epoch of sums and noise."""
    sums = [np.bincount(keys, minlength=KEYS).astype(float)]
    clipped = np.clip(values, -4, 4).T.copy()
    for left in range(COLUMNS):
        sums.append(np.bincount(keys, clipped[left], KEYS))
        sums += [np.bincount(keys, clipped[left] * clipped[right], KEYS) for right in range(left, COLUMNS)]
    return [total + rng.normal(0, 10, KEYS) for total in sums]


def numpy_epoch_by_key(values: Any, keys: Any, rng: np.random.Generator) -> list[Any]:
    """The same sums, key by key."""
    clipped, sums = np.clip(values, -4, 4), []
    for key in range(KEYS):
        rows = clipped[keys == key]
        sums.append(np.concatenate(([len(rows)], rows.sum(axis=0), (rows.T @ rows)[np.triu_indices(COLUMNS)])))
    return [total + rng.normal(0, 10, len(total)) for total in sums]


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
        numpy_by_key=lambda: [numpy_epoch_by_key(values, keys, rng) for _ in range(BATCHES)],
    )
    moments.close()
    for name, (taken, _) in found.items():
        speed = BATCHES * ROWS / taken / 1e6
        print(f"stream {name:<12} {speed:6.2f} million records/s, {compared(found, name, 'numpy')}, "
              f"{compared(found, name, 'numpy_by_key')}")


def noise() -> None:
    import jax
    import torch
    from jax_privacy.matrix_factorization.buffered_toeplitz import BufferedToeplitz

    strategy = hf.strategy.blt(BUFFERS, horizon=STEPS * (TURNS + 1))
    drawn = hf.noise.correlated(strategy, dimension=DIMENSION, noise_multiplier=1.0)
    decays, weights = np.array([0.99, 0.9, 0.6, 0.2]), np.array([0.02, 0.08, 0.2, 0.1])
    inverse = BufferedToeplitz.build(decays, weights, dtype="float32").inverse_as_streaming_matrix()
    state, key = inverse.init_multiply(jax.numpy.zeros(DIMENSION, dtype="float32")), jax.random.key(0)

    @jax.jit
    def step(key: Any, state: Any) -> Any:
        key, used = jax.random.split(key)
        row, state = inverse.multiply_next(jax.random.normal(used, (DIMENSION,), "float32"), state)
        return key, state, row

    def in_jax() -> None:
        nonlocal key, state
        for _ in range(STEPS):
            key, state, row = step(key, state)
            row.block_until_ready()

    # It adds the noise to gradients.
    from opake.dpftrl.noise import blt_strategy, mf_gaussian_noise
    from opake.random import key as opake_key
    from opake.types import ClippedPytree

    gradients = ClippedPytree(torch.zeros(DIMENSION), max_norm=1.0)
    add_noise, opake_state = mf_gaussian_noise(
        gradients.pytree, blt_strategy(max_buffers=BUFFERS), n_steps=STEPS * (TURNS + 1), noise_multiplier=1.0,
        max_participations=1, key=opake_key(0),
    )  # fmt: skip

    def in_opake() -> None:
        nonlocal opake_state
        for _ in range(STEPS):
            _, opake_state = add_noise(gradients, opake_state)

    rng, buffers = np.random.default_rng(0), np.zeros((BUFFERS, DIMENSION))

    def in_numpy() -> None:
        for _ in range(STEPS):
            row = rng.standard_normal(DIMENSION) - buffers.sum(axis=0)
            for buffer, decay, weight in zip(buffers, decays, weights, strict=True):
                buffer *= decay
                buffer += weight * row

    def in_hushflow() -> None:
        for _ in range(STEPS):
            drawn(drawn.next_step)

    found = in_turns(hushflow=in_hushflow, jax_privacy=in_jax, opake=in_opake, numpy=in_numpy)
    for name, (taken, used) in found.items():
        each = 1e9 / STEPS / DIMENSION
        print(f"noise {name:<12} {taken * each:5.1f} ns a coordinate and step, {used * each:5.1f} ns of processor time")
    for peer in ("jax_privacy", "opake", "numpy"):
        print(f"noise {'hushflow':<12} {compared(found, 'hushflow', peer)}")


def importing() -> None:
    run = lambda module: subprocess.run([sys.executable, "-c", f"import {module}"], check=True)  # noqa: E731
    found = in_turns(hushflow=lambda: run("hushflow"), numpy=lambda: run("numpy"), nothing=lambda: run("sys"))
    for name, (taken, _) in found.items():
        print(f"import {name:<12} {(taken - found['nothing'][0]) * 1e3:6.0f} ms")


if __name__ == "__main__":
    works = {"stream": stream, "noise": noise, "import": importing}
    for chosen in sys.argv[1:] or works:
        works[chosen]()
