"""Tests private Adam in training loops of Python."""

from __future__ import annotations

import copy
import pickle
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import hushflow as hf

METHODS: list[hf.training.Method] = [
    "jme", "batch-squares", "joint-clip", "dp-adam", "dp-adam-bc", "scale-then-privatise",
]  # fmt: skip
SIZE = 12


def made(weights: np.ndarray, strategy: Any = None, journal: Path | None = None, **plan: Any) -> hf.training.PrivateAdam:
    promise = hf.training.plan(**{"participation": "2x3", "epsilon": 8.0, "delta": 1e-6, **plan})
    strategy = hf.strategy.blt(2) if strategy is None else strategy
    return hf.training.PrivateAdam(
        [weights], lr=0.05, clip_norm=1.0, strategy=strategy, plan=promise, seed=4, journal=journal
    )


def gradients(step: int, weights: np.ndarray) -> np.ndarray:
    targets = (np.arange(20)[:, None] + np.arange(SIZE) + step) % 7 / 7
    return (weights - targets).astype(np.float32)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("strategy", ["blt:2", "identity", "square-root"])
def test_a_restored_run_continues_like_the_original(method: hf.training.Method, strategy: str) -> None:
    whole, weights = made(whole_weights := np.ones(SIZE), strategy, method=method), np.ones(SIZE)
    for step in range(6):
        whole.step(gradients(step, whole_weights))
    first = made(weights, strategy, method=method)
    for step in range(3):
        first.step(gradients(step, weights))
    state, later = first.state_dict(), np.zeros(SIZE)
    second = made(later, strategy, method=method)
    second.load_state_dict(state)
    assert np.array_equal(later, weights) and second.next_step == 4
    for step in range(3, 6):
        second.step(gradients(step, later))
    assert np.array_equal(later, whole_weights)
    before = weights.copy()
    with pytest.raises(hf.StateError, match="step 4 of this run was drawn already"):
        first.step(gradients(3, weights))
    assert np.array_equal(weights, before)
    with pytest.raises(hf.RunError, match="ends after 6 steps"):
        second.step(gradients(6, later))


def test_training_learns_and_reports_its_spending() -> None:
    """Targets have the mean 3/7; 300 steps at this noise come close with a fixed seed."""
    weights = np.ones(SIZE)
    opt = made(weights, participation="20x15")
    assert (opt.spent(), opt.noise_multiplier, opt.next_step) == (0.0, None, 1)
    spent = []
    for step in range(300):
        opt.step(np.tile(gradients(step % 15, weights), (50, 1)))
        spent.append(opt.spent())
    assert np.abs(weights - 3 / 7).mean() < 0.2
    assert len(set(spent)) == 20 and sorted(spent) == spent and 7.9 < spent[-1] <= 8


def test_plans_show_their_promise() -> None:
    plan = hf.training.plan("2x5", epsilon=4.0, delta=1e-6)
    assert repr(plan) == 'TrainingPlan("2x5", epsilon=4.0, delta=1e-6)'
    plan = hf.training.plan("2x5", epsilon=4.0, delta=1e-6, batch_size=20)
    assert repr(plan) == 'TrainingPlan("2x5", epsilon=4.0, delta=1e-6, batch_size=20)'


def test_the_noise_matches_the_plan() -> None:
    opt = made(np.ones(SIZE), "identity", batch_size=20, participation="1x4", neighbours="zero-out")
    calibrated = hf.calibrate(epsilon=8, delta=1e-6).noise_multiplier
    assert opt.noise_multiplier == pytest.approx(calibrated, rel=1e-3)


def test_a_journal_holds_across_processes(tmp_path: Path) -> None:
    program = f"""
import numpy as np, pickle, sys
import hushflow as hf
plan = hf.training.plan("2x3", epsilon=8.0, delta=1e-6)
weights = np.ones({SIZE})
opt = hf.training.PrivateAdam([weights], lr=0.05, clip_norm=1.0, strategy="blt:2", plan=plan, journal={str(tmp_path / "journal")!r})
gradients = np.ones((20, {SIZE}), dtype=np.float32)
if sys.argv[1] == "first":
    opt.step(gradients)
    pickle.dump(opt.state_dict(), open({str(tmp_path / "old")!r}, "wb"))
    opt.step(gradients)
    pickle.dump(opt.state_dict(), open({str(tmp_path / "new")!r}, "wb"))
else:
    if sys.argv[1] != "none":
        opt.load_state_dict(pickle.load(open({str(tmp_path)!r} + "/" + sys.argv[1], "rb")))
    opt.step(gradients)
    print(opt.next_step)
"""

    def run(argument: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-c", program, argument], capture_output=True, text=True, check=False)

    assert run("first").returncode == 0
    assert "step 2 of this run was drawn already" in run("old").stderr
    assert "belongs to another run" in run("none").stderr
    assert run("new").stdout == "4\n"
    assert "step 3 of this run was drawn already" in run("new").stderr


def test_gradients_need_not_be_aligned() -> None:
    plan = hf.training.plan("1x2", epsilon=8.0, delta=1e-6)
    values = np.random.default_rng(1).normal(0, 1, (5, 3)).astype(np.float32)
    shifted = np.frombuffer(b"." + values.tobytes(), dtype=np.float32, offset=1).reshape(values.shape)
    assert not shifted.flags.aligned
    found = []
    for gradients in (values, shifted):
        found.append(np.zeros(3))
        hf.torch.PrivateAdam([found[-1]], lr=0.1, clip_norm=1.0, strategy="identity", plan=plan, seed=1).step(gradients)
    assert (found[0] == found[1]).all()


def test_parameters_keep_their_shapes_and_types() -> None:
    several: list[np.ndarray] = [np.ones((2, 3), dtype=np.float32), np.ones(4)[::2], np.ones(())]
    plan = hf.training.plan("1x2", epsilon=8.0, delta=1e-6)
    opt = hf.torch.PrivateAdam(several, lr=0.1, clip_norm=1.0, strategy="identity", plan=plan)
    opt.step(np.zeros((5, 9), dtype=np.float32))
    assert [array.shape for array in several] == [(2, 3), (2,), ()]
    assert all((array != 1).all() for array in several) and opt.private


MALFORMED: list[tuple[Any, str]] = [
    (np.zeros((3, SIZE)), "found gradients of shape .* float64"),
    (np.zeros(SIZE, dtype=np.float32), "found gradients of shape"),
    (np.zeros((3, SIZE + 1), dtype=np.float32), "found gradients of 13 values"),
    (np.zeros((21, SIZE), dtype=np.float32), "at most 20 more records"),
    (np.zeros((SIZE, 3), dtype=np.float32).T, "row after row in memory"),
    (np.zeros((3, 2 * SIZE), dtype=np.float32)[:, ::2], "row after row in memory"),
    (np.zeros((3, SIZE), dtype=int), "found int64"),
    (np.zeros((3, SIZE), dtype=object), "found object"),
    ([[0.0] * SIZE], "found list"),
    (np.ma.masked_array(np.zeros((3, SIZE), np.float32)), "found MaskedArray"),
    (None, "found NoneType"),
]


@pytest.mark.parametrize(("batch", "message"), MALFORMED)
def test_malformed_gradients_are_refused_and_spend_nothing(batch: Any, message: str) -> None:
    opt = made(weights := np.ones(SIZE), batch_size=20)
    with pytest.raises(hf.BatchError, match=message):
        opt.step(batch)
    assert opt.next_step == 1 and opt.spent() == 0 and (weights == 1).all()
    opt.step(np.full((20, SIZE), np.nan, dtype=np.float32))
    assert opt.next_step == 2


def test_wrong_arguments_are_named() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"participation": "1"}, 'participation: found "1", expected passes'),
        ({"participation": "5x50\\+"}, "participation: "),
        ({"participation": "blub"}, "participation: "),
        ({"epsilon": -1.0}, "epsilon: "),
        ({"delta": 2.0}, "delta: "),
        ({"batch_size": 0}, "batch_size: found 0"),
        ({"neighbours": "replace-one"}, "neighbours: found"),
        ({"method": "adam"}, 'method: found "adam", expected one of jme'),
    ]
    for wrong, message in cases:
        with pytest.raises(hf.ParameterError, match=message):
            made(np.ones(SIZE), **wrong)
    with pytest.raises(hf.ParameterError, match="needs public batch sizes"):
        made(np.ones(SIZE), batch_size=20, method="batch-squares", neighbours="zero-out")
    with pytest.raises(hf.ParameterError, match="params: found no parameters"):
        made(np.ones(0))
    with pytest.raises(hf.ParameterError, match="parameter 0: found int64"):
        made(np.ones(SIZE, dtype=int))
    with pytest.raises(hf.ParameterError, match="can't be written to"):
        made(np.broadcast_to(np.ones(1), SIZE))
    with pytest.raises(hf.StrategyError, match="unknown strategy"):
        made(np.ones(SIZE), "blub")
    short = hf.strategy.square_root(horizon=5)
    with pytest.raises(hf.ParameterError, match="the horizon is 6 steps, but the strategy ends after 5"):
        made(np.ones(SIZE), short, batch_size=20)


def in_threads(number: int, work: Callable[[], Any]) -> list[hf.HushflowError]:
    """Lets threads begin at once, and returns what they raised."""
    barrier = threading.Barrier(number)
    raised: list[hf.HushflowError] = []

    def one() -> None:
        barrier.wait()
        try:
            work()
        except hf.HushflowError as error:
            raised.append(error)

    threads = [threading.Thread(target=one) for _ in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


def test_threads_share_one_run() -> None:
    """A second run would release the only step again, with other noise."""
    plan = hf.training.plan("1x1", epsilon=8.0, delta=1e-6)
    for _ in range(30):
        opt = hf.training.PrivateAdam([np.ones(2)], lr=0.1, clip_norm=1.0, strategy="identity", plan=plan)
        raised = in_threads(2, partial(opt.step, np.ones((5, 2), dtype=np.float32)))
        assert [str(error) for error in raised] == ["the optimiser ends after 1 steps"] and opt.next_step == 2


class SlowToWrite(np.ndarray):
    """Parameters whose first write waits for a step of another thread, for a moment."""

    written: ClassVar[threading.Event]
    other: ClassVar[threading.Event]

    def __setitem__(self, place: Any, value: Any) -> None:
        if not self.written.is_set():
            self.written.set()
            self.other.wait(0.3)
        super().__setitem__(place, value)


def test_parameters_are_those_of_the_newest_step() -> None:
    """A thread that writes late must not bring back the parameters of an older step."""
    whole = np.ones(SIZE)
    shared = np.ones(SIZE).view(SlowToWrite)
    SlowToWrite.written, SlowToWrite.other = threading.Event(), threading.Event()
    opt, alone = made(shared), made(whole)
    batch = np.full((20, SIZE), 0.5, dtype=np.float32)

    def second() -> None:
        SlowToWrite.written.wait(10)
        opt.step(batch)
        SlowToWrite.other.set()

    thread = threading.Thread(target=second)
    thread.start()
    opt.step(batch)
    thread.join()
    for _ in range(2):
        alone.step(batch)
    assert opt.next_step == 3 and np.array_equal(shared, whole)


def test_a_fork_cannot_begin_the_run() -> None:
    opt = made(weights := np.ones(SIZE))
    child = os.fork()
    if child == 0:
        for work in (lambda: opt.step(gradients(0, weights)), opt.state_dict):
            try:
                work()
            except hf.ForkError:
                continue
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_refused_state_or_batch_leaves_the_optimiser_as_it_was(tmp_path: Path) -> None:
    """It knows no size of batches yet, and holds no journal."""
    opt = made(weights := np.ones(SIZE))
    opt.step(gradients(0, weights))
    state = opt.state_dict()
    fresh = made(later := np.zeros(SIZE), journal=tmp_path / "journal")
    for wrong in ({**state, "batch_size": 7}, {**state, "state": b"x"}, {**state, "batch_size": 0}, {**state, "batch_size": "20"}):
        with pytest.raises(hf.StateError):
            fresh.load_state_dict(wrong)
    with pytest.raises(hf.BatchError, match="order C"):
        fresh.step(np.zeros((SIZE, 3), dtype=np.float32).T)
    assert fresh.next_step == 1 and fresh.noise_multiplier is None and (later == 0).all()
    fresh.load_state_dict(state)
    assert np.array_equal(later, weights) and fresh.next_step == 2
    with pytest.raises(hf.StateError):
        fresh.load_state_dict({**state, "state": b"x"})
    fresh.step(gradients(1, weights))
    assert fresh.next_step == 3


def test_every_flipped_bit_of_a_state_is_found() -> None:
    opt = made(weights := np.ones(SIZE))
    opt.step(gradients(0, weights))
    state, other = opt.state_dict(), made(np.ones(SIZE))
    for bit in range(0, 8 * len(state["state"]), 83):
        damaged = bytearray(state["state"])
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(hf.StateError):
            other.load_state_dict({**state, "state": bytes(damaged)})
    other.load_state_dict(state)


def test_states_that_do_not_fit_are_refused() -> None:
    opt = made(np.ones(SIZE))
    assert opt.state_dict() == {"batch_size": None, "state": None}
    opt.step(gradients(0, np.ones(SIZE)))
    state = opt.state_dict()
    for other in (made(np.ones(SIZE), epsilon=7.0), made(np.ones(SIZE), "identity"), made(np.ones(SIZE - 1))):
        with pytest.raises(hf.StateError, match="of another plan, strategy or number of parameters"):
            other.load_state_dict(state)
    with pytest.raises(hf.StateError, match="for batches of 20 records, not of 10"):
        made(np.ones(SIZE), batch_size=10).load_state_dict(state)
    with pytest.raises(hf.StateError, match="it is damaged"):
        made(np.ones(SIZE)).load_state_dict({**state, "state": state["state"][:-1]})
    with pytest.raises(hf.StateError, match="found no state of PrivateAdam"):
        opt.load_state_dict({})
    with pytest.raises(hf.StateError, match="found no state of PrivateAdam"):
        opt.load_state_dict({**state, "state": None})
    with pytest.raises(hf.ParameterError, match="plan: found NoneType"):
        hf.torch.PrivateAdam([np.ones(2)], lr=0.1, clip_norm=1.0, strategy="identity", plan=None)  # type: ignore[arg-type]
    for copied in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match="a PrivateAdam can't be pickled or copied"):
            copied(opt)


def test_models_of_torch() -> None:
    torch = pytest.importorskip("torch", reason="torch is not there")
    model = torch.nn.Linear(3, 1)
    plan = hf.training.plan(participation="5x50", epsilon=1.7, delta=1e-6)
    opt = hf.torch.PrivateAdam(model.parameters(), lr=0.1, clip_norm=0.5, strategy=hf.strategy.blt(3), plan=plan)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    opt.step(torch.ones((100, 4)))
    assert all((old != new).all() for old, new in zip(before, model.parameters(), strict=True))
    assert 0 < opt.spent() < 1.7
