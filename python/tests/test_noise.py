"""Tests correlated noise for other trainers: its matrix, its deviation, and that each step is drawn once."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
import threading
from typing import Any

import numpy as np
import pytest

import hushflow as hf

STRATEGIES = ["identity", "blt:3", "square-root", "banded-square-root:4", "banded-inverse-square-root:4"]


def rows(noise: hf.noise.CorrelatedNoise) -> np.ndarray:
    return np.array([noise(step) for step in range(1, noise.horizon + 1)])


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_strategy_makes_the_noise_white(name: str) -> None:
    """24 mean squares of 20,000 numbers within 6 deviations: a false alarm below 1e-6."""
    strategy = hf.strategy.parse(name, horizon=24, participation="2x12")
    noise = hf.noise.correlated(strategy, 20_000, 2.6, seed=5)
    white = strategy.matrix() @ rows(noise)
    deviation = 2.6 * strategy.sensitivity()
    assert noise.sensitivity == pytest.approx(strategy.sensitivity(), rel=1e-4)
    squares = (white**2).mean(axis=1) / (2.6 * noise.sensitivity) ** 2
    assert np.abs(squares - 1).max() < 6 * np.sqrt(2 / 20_000)
    expected = np.linalg.norm(np.linalg.inv(strategy.matrix()), axis=1) * deviation
    assert noise.standard_deviations == pytest.approx(expected, rel=1e-4)


def test_a_step_is_drawn_once_and_in_order() -> None:
    noise = hf.noise.correlated("blt:2", 3, 1.0, horizon=3)
    with pytest.raises(hf.RunError, match="step: found 2, expected 1"):
        noise(2)
    first = noise(1)
    for step in [0, 1, 3]:
        with pytest.raises(hf.RunError, match=f"step: found {step}, expected 2: each step is drawn once, in order"):
            noise(step)
    assert noise.next_step == 2 and not np.array_equal(noise(2), first)
    noise(3)
    with pytest.raises(hf.RunError, match="ends after 3 steps"):
        noise(4)


def test_threads_share_the_steps() -> None:
    noise, drawn = hf.noise.correlated("identity", 50_000, 1.0, horizon=1), []

    def draw() -> None:
        try:
            drawn.append(noise(1))
        except hf.RunError:
            pass

    threads = [threading.Thread(target=draw) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(drawn) == 1


def test_seeds_repeat_and_fresh_noise_does_not() -> None:
    def drawn(seed: int | None) -> np.ndarray:
        noise = hf.noise.correlated("blt:2", 4, 1.0, seed, horizon=5)
        assert noise.private == (seed is None)
        return rows(noise)

    assert np.array_equal(drawn(7), drawn(7)) and not np.array_equal(drawn(7), drawn(8))
    assert not np.array_equal(drawn(None), drawn(None))


def in_a_fork(noise: hf.noise.CorrelatedNoise, queue: multiprocessing.Queue[str]) -> None:
    try:
        noise(1)
        queue.put("drawn")
    except hf.ForkError as error:
        queue.put(str(error))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_copies_and_forks_are_refused() -> None:
    noise = hf.noise.correlated("identity", 2, 1.0, horizon=2)
    for copied in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="a CorrelatedNoise can't be pickled or copied"):
            copied(noise)
    context = multiprocessing.get_context("fork")
    queue: multiprocessing.Queue[str] = context.Queue()
    process = context.Process(target=in_a_fork, args=(noise, queue))
    process.start()
    assert "this process is a fork of the one that opened the noise" in queue.get(timeout=60)
    process.join()
    noise(1)


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(hf.StrategyError, match="the strategy `identity` needs a horizon"):
        hf.noise.correlated("identity", 1, 1.0)
    with pytest.raises(hf.StrategyError, match="can't run"):
        hf.noise.correlated("tree", 1, 1.0, horizon=8)
    usual = {"strategy": "identity", "dimension": 1, "noise_multiplier": 1.0, "horizon": 8}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"dimension": 0}, "dimension: found 0"),
        ({"dimension": 2**62}, "dimension: found 4611686018427387904"),
        ({"dimension": 1.5}, "dimension: found 1.5"),
        ({"strategy": 3}, "strategy: found 3"),
        ({"noise_multiplier": 0.0}, "noise_multiplier"),
        ({"noise_multiplier": float("nan")}, "noise_multiplier"),
        ({"clip_norm": -1.0}, "clip_norm"),
        ({"neighbours": "replace"}, "neighbours: found"),
    ]
    for wrong, message in cases:
        with pytest.raises(hf.ParameterError, match=message):
            made: Any = hf.noise.correlated
            made(**{**usual, **wrong})


def test_replaced_records_have_twice_the_noise() -> None:
    blanked, replaced = (
        hf.noise.correlated("blt:2", 1, 1.0, horizon=9, neighbours=neighbours, clip_norm=0.5).standard_deviations
        for neighbours in ("zero-out", "replace-one-in-place")
    )
    assert replaced == pytest.approx(2 * blanked, rel=1e-4)


def test_noise_is_added_to_updates_of_optax() -> None:
    jax = pytest.importorskip("jax", reason="jax is not there")
    optax = pytest.importorskip("optax", reason="optax is not there")
    noise, same = (hf.noise.correlated("blt:2", 5, 1.0, seed=3, horizon=4) for _ in range(2))
    transformation = optax.chain(hf.optax.add_noise(noise, batch_size=10), optax.scale(-1.0))
    params = {"a": jax.numpy.ones((2, 2)), "b": jax.numpy.ones(1)}
    state = transformation.init(params)
    for step in range(1, 5):
        old = state
        updates, state = transformation.update(params, old)
        expected = -(1 + same(step) / 10)
        found = np.concatenate([np.ravel(updates["a"]), updates["b"]])
        assert found == pytest.approx(expected, rel=1e-5, abs=1e-6)
        with pytest.raises(hf.RunError):
            transformation.update(params, old)
    with pytest.raises(hf.ParameterError, match="under jax.jit"):
        jax.jit(transformation.update)(params, state)
    with pytest.raises(hf.ParameterError, match="found updates of 2 values"):
        transformation.update(jax.numpy.ones(2), state)


def test_noise_is_added_to_gradients_of_torch() -> None:
    torch = pytest.importorskip("torch", reason="torch is not there")
    noise, same = (hf.noise.correlated("blt:2", 5, 1.0, seed=3, horizon=4) for _ in range(2))
    parameters = [torch.zeros(2, 2, requires_grad=True), torch.zeros(1, requires_grad=True)]
    optimizer = torch.optim.SGD(parameters, lr=1.0)
    with pytest.raises(hf.ParameterError, match="the optimizer has 4 parameters"):
        hf.torch.add_noise(torch.optim.SGD(parameters[:1], lr=1.0), noise, batch_size=10)
    handle = hf.torch.add_noise(optimizer, noise, batch_size=10)
    with pytest.raises(hf.ParameterError, match="has no gradient"):
        optimizer.step()
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    found = np.concatenate([parameter.detach().numpy().ravel() for parameter in parameters])
    assert found == pytest.approx(-(1 + same(1) / 10), rel=1e-5)
    handle.remove()
    optimizer.step()
    assert noise.next_step == 2
