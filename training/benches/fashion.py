"""Trains by private Adam with Opacus and jax_privacy, on the task of docs/training.md.

The same images, model, (epsilon, delta), grid and seeds as the example `train_adam`: Fashion-MNIST
halved to 14 x 14 pixels, softmax regression. The packages choose the noise, the batches and, for
BandMF, the correlation of noise. Gradients have a closed form, which is checked against the packages
on one batch. Every method tries the same clip norms, learning rates and schedules on the last sixth
of the training images. The best one is tested once, on three other seeds.

    pip install numpy==2.4.6 opacus==1.6.0 torch==2.15.0 jax-privacy==2.0.0 dp-accounting==0.6.0
    apt install dataset-fashion-mnist
    python3 training/benches/fashion.py [EPSILON]

Neighbours are those of the packages: a record is added or removed (Opacus), or blanked
(jax_privacy). Records that are replaced, as in hushflow's guarantee, cost twice the noise.
"""

import gzip
import itertools
import sys
import warnings

import numpy as np

EPSILON, DELTA = float((sys.argv[1:] or ["1.7"])[0]), 1e-6
FOLDER = "/usr/share/datasets/fashion-mnist/"
CLASSES, TUNING_SEED, SEEDS = 10, 1000, (1, 2, 3)
CLIP_NORMS, LEARNING_RATES = (0.5, 1.0, 3.0), (0.003, 0.01, 0.03, 0.1, 0.3)
# Passes over the records, and steps in each.
SCHEDULES = ((5, 50), (5, 10), (20, 5), (60, 1))


def idx(name):
    with gzip.open(FOLDER + name) as file:
        data = file.read()
    shape = [int.from_bytes(data[4 + 4 * i : 8 + 4 * i], "big") for i in range(data[3])]
    return np.frombuffer(data, np.uint8, offset=4 + 4 * len(shape)).reshape(shape)


def images(part):
    """Grey levels and a constant for the bias, and the classes."""
    levels = idx(f"{part}-images-idx3-ubyte.gz").reshape(-1, 14, 2, 14, 2).mean((2, 4)) / 255
    inputs = np.hstack([levels.reshape(len(levels), -1), np.ones((len(levels), 1))])
    return inputs.astype(np.float32), idx(f"{part}-labels-idx1-ubyte.gz")


def clipped_sum(weights, inputs, labels, norms, clip_norm):
    """Sum of the clipped gradients `(softmax(W x) - e_c) x^T`, whose norms are products."""
    errors = inputs @ weights.T
    errors = np.exp(errors - errors.max(1, keepdims=True))
    errors /= errors.sum(1, keepdims=True)
    errors[np.arange(len(labels)), labels] -= 1
    lengths = np.linalg.norm(errors, axis=1) * norms
    errors *= np.minimum(1, clip_norm / np.maximum(lengths, 1e-12))[:, None]
    return errors.T @ inputs


class Adam:
    def __init__(self, learning_rate):
        self.learning_rate, self.steps, self.m, self.v = learning_rate, 0, 0.0, 0.0

    def update(self, gradient):
        self.steps += 1
        self.m = 0.9 * self.m + 0.1 * gradient
        self.v = 0.999 * self.v + 0.001 * gradient * gradient
        m, v = self.m / (1 - 0.9**self.steps), self.v / (1 - 0.999**self.steps)
        return -self.learning_rate * m / (np.sqrt(v) + 1e-8)


class Opacus:
    """Poisson batches, independent noise."""

    name = "Opacus DP-Adam"

    def __init__(self, passes, steps):
        from opacus.accountants.utils import get_noise_multiplier

        self.rate, self.steps = 1 / steps, passes * steps
        budget = {"target_epsilon": EPSILON, "target_delta": DELTA, "sample_rate": self.rate}
        self.noise = get_noise_multiplier(**budget, steps=self.steps, accountant="prv")

    def batches(self, records, seed):
        random = np.random.default_rng(seed)
        for _ in range(self.steps):
            yield np.flatnonzero(random.random(records) < self.rate)

    def noises(self, shape, seed):
        random = np.random.default_rng([seed, 1])
        for _ in range(self.steps):
            yield self.noise * random.standard_normal(shape, np.float32)


class JaxPrivacy:
    """Cyclic Poisson batches, and noise correlated by an optimised banded Toeplitz matrix."""

    bands = 1
    name = "jax_privacy DP-Adam"

    def __init__(self, passes, steps):
        from jax_privacy.experimental.execution_plan import BandMFExecutionPlanConfig

        bands = min(self.bands, steps)
        self.config = BandMFExecutionPlanConfig.default(
            num_bands=bands, iterations=passes * steps, epsilon=EPSILON, delta=DELTA, sampling_prob=bands / steps
        )
        self.plan, self.steps = self.config.plan, passes * steps
        strategy = np.asarray(self.config.strategy, float)
        event = self.plan.dp_event
        while not hasattr(event, "noise_multiplier"):
            event = event.event
        self.noise = event.noise_multiplier
        self.column = strategy / np.linalg.norm(strategy)

    def batches(self, records, seed):
        return self.plan.batch_selection_strategy.batch_iterator(records, rng=seed)

    def noises(self, shape, seed):
        """C^-1 Z, as the plan's privatiser has it (see check)."""
        random, history = np.random.default_rng([seed, 1]), []
        for _ in range(self.steps):
            noise = self.noise * random.standard_normal(shape, np.float32)
            for coefficient, earlier in zip(self.column[1:], reversed(history)):
                noise = noise - np.float32(coefficient) * earlier
            history.append(noise / np.float32(self.column[0]))
            yield history[-1]


class BandMF(JaxPrivacy):
    bands = 8
    name = "jax_privacy BandMF Adam, at most 8 bands"


def train(method, training, test, clip_norm, learning_rate, steps, seed):
    inputs, labels = training
    norms = np.linalg.norm(inputs, axis=1)
    weights, adam = np.zeros((CLASSES, inputs.shape[1]), np.float32), Adam(learning_rate)
    for batch, noise in zip(method.batches(len(labels), seed), method.noises(weights.shape, seed)):
        total = clipped_sum(weights, inputs[batch], labels[batch], norms[batch], clip_norm)
        weights = weights + adam.update((total + clip_norm * noise) * (steps / len(labels))).astype(np.float32)
    return 100 * np.mean((test[0] @ weights.T).argmax(1) == test[1])


def check(inputs, labels):
    """The packages clip and sum the same gradients, and BandMF has the noise of its plan."""
    import jax
    import jax_privacy
    import torch
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    weights = np.random.default_rng(1).standard_normal((CLASSES, inputs.shape[1]), np.float32) / 10
    own = clipped_sum(weights, inputs, labels, np.linalg.norm(inputs, axis=1), 1.0)

    model = GradSampleModule(torch.nn.Linear(inputs.shape[1], CLASSES, bias=False), loss_reduction="sum")
    with torch.no_grad():
        next(model.parameters()).copy_(torch.from_numpy(weights))
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer = DPOptimizer(sgd, noise_multiplier=0.0, max_grad_norm=1.0, expected_batch_size=1)
    loss = torch.nn.functional.cross_entropy
    loss(model(torch.from_numpy(inputs)), torch.from_numpy(labels).long(), reduction="sum").backward()
    optimizer.pre_step()
    assert np.allclose(next(model.parameters()).grad.numpy(), own, atol=1e-4)

    def cross_entropy(weights, inputs, labels):
        scores = inputs @ weights.T
        return (jax.nn.logsumexp(scores, axis=1) - scores[jax.numpy.arange(len(labels)), labels]).sum()

    gradient = jax_privacy.clipped_grad(cross_entropy, l2_clip_norm=1.0, batch_argnums=(1, 2))
    assert np.allclose(gradient(weights, inputs, labels.astype(np.int32)), own, atol=1e-4)

    method = BandMF(5, 10)
    transform = method.plan.noise_addition_transform
    zeros = np.zeros(20_000, np.float32)
    state, theirs = transform.init(zeros), []
    for _ in range(20):
        noise, state = transform.update(zeros, state)
        theirs.append(np.asarray(noise))
    ours = np.stack([noise for noise, _ in zip(method.noises(20_000, 1), range(20))])
    deviations = np.std(np.stack(theirs), axis=1) / np.std(ours, axis=1)
    assert np.allclose(deviations, 1, atol=0.03), deviations


def main():
    warnings.filterwarnings("ignore")
    training, test = images("train"), images("t10k")
    kept = len(training[1]) * 5 // 6
    tuning, validation = [tuple(part[rows] for part in training) for rows in (slice(kept), slice(kept, None))]
    check(tuning[0][:200], tuning[1][:200])
    for kind in (Opacus, JaxPrivacy, BandMF):
        tries = []
        for passes, steps in SCHEDULES:
            method = kind(passes, steps)
            for clip_norm, learning_rate in itertools.product(CLIP_NORMS, LEARNING_RATES):
                setting = (clip_norm, learning_rate, steps)
                accuracy = train(method, tuning, validation, *setting, TUNING_SEED)
                tries.append((accuracy, passes, setting, method))
        for limit in (5, 60):
            allowed = [entry for entry in tries if entry[1] <= limit]
            accuracy, passes, setting, method = max(allowed, key=lambda entry: entry[0])
            tested = [train(method, training, test, *setting, seed) for seed in SEEDS]
            mean, deviation = np.mean(tested), np.std(tested, ddof=1)
            clip_norm, learning_rate, steps = setting
            print(
                f"{kind.name:42} {passes}x{steps} noise {method.noise:.3f} clip {clip_norm} rate {learning_rate}"
                f"  validation {accuracy:.2f}  test {mean:.2f} ± {deviation:.2f}  ({len(allowed)} tries)",
                flush=True,
            )


if __name__ == "__main__":
    main()
