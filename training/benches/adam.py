"""One step of the mechanism that adam.rs measures, in efficient numpy.

A step clips 16 gradients, sums them and their squares, adds Gaussian noise correlated by a buffered
Toeplitz strategy (as C^-1 Z, which needs no encoder), and takes an Adam step with bias correction
and a floor under v. The code is vectorised and in place. It works on blocks of columns that fit in
the cache, and sums over the batch are matrix products. Gradients have single precision, as trainers
have them; values correlated over time have double precision.

    python3 training/benches/adam.py [sfc64 | chacha20 | aes | system | floating]

The noise is a discrete Gaussian by the algorithm of mechanism/src/noise, in vectorised integers. It
is exact, except for cells that occur once in 2^36 draws. The argument selects its random bits:

- sfc64, the default: numpy's fastest generator. Its output can be predicted from earlier output.
- chacha20, aes: cryptographic generators of OpenSSL, by the package `cryptography`. A private release
  needs one of these or the next.
- system: the operating system's generator, the only one that comes with Python.
- floating: numpy's floating-point sampler. It is another mechanism: its values leak their summands.
"""

import decimal
import os
import sys
import time

import numpy as np

DIMENSION, BATCH, STEPS = 1_000_000, 16, 12
CLIP_NORM, NOISE, LEARNING_RATE = 1.0, 2.0, 1e-3
DECAYS, WEIGHTS = np.array([0.9, 0.99, 0.999]), np.array([0.2, 0.1, 0.05])
BETA = (0.9, 0.999)

rng = np.random.Generator(np.random.SFC64(1))
gradients = rng.standard_normal((BATCH, DIMENSION), dtype=np.float32)
buffers = np.zeros((3, 2, DIMENSION))
averages = np.zeros((2, DIMENSION))
parameters = np.zeros(DIMENSION)

# A block of columns goes through the whole step while it is in the processor's second cache.
BLOCK = 1 << 13
noise, scratch = np.empty((2, BLOCK)), np.empty((2, BLOCK))
SOURCE = (sys.argv[1:] or ["sfc64"])[0]
exact_noise = np.empty(0 if SOURCE == "floating" else 2 * DIMENSION)
squares = np.empty((BATCH, BLOCK), dtype=np.float32)
sums = np.empty((2, BLOCK), dtype=np.float32)


decimal.getcontext().prec = 40
SHARES = [int((decimal.Decimal(-h * h) / 8192).exp() * 2**47 / 81) for h in range(1024)]
CUMULATIVE = np.cumsum(np.array(SHARES, dtype=np.uint64))
GUIDE = np.searchsorted(CUMULATIVE, np.arange(4096, dtype=np.uint64) << np.uint64(35), side="right").clip(0, 1023)
WIDTH, CHUNK = np.uint64(3_000_000_019), 1 << 14


class Keystream:
    """Random words from a stream cipher of OpenSSL."""

    def __init__(self, name):
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        key, nonce = os.urandom(32), os.urandom(16)
        ciphers = {
            "chacha20": lambda: Cipher(algorithms.ChaCha20(key, nonce), None),
            "aes": lambda: Cipher(algorithms.AES(key), modes.CTR(nonce)),
        }
        self.encryptor = ciphers[name]().encryptor()
        self.zeros, self.room = bytes(16 * CHUNK), bytearray(16 * CHUNK + 16)

    def words(self, number):
        self.encryptor.update_into(memoryview(self.zeros)[:8 * number], self.room)
        return np.frombuffer(self.room, dtype=np.uint64, count=number)


def generator():
    """What gives random words."""
    match SOURCE:
        case "sfc64" | "floating":
            return rng.bit_generator.random_raw
        case "system":
            return lambda number: np.frombuffer(os.urandom(8 * number), dtype=np.uint64)
        case name:
            return Keystream(name).words


def discrete_gaussian(out):
    """Discrete Gaussian of sigma = 64 WIDTH, in units of sigma: bin, offset, rejection, sign."""
    done = 0
    while done < len(out):
        first, second = random_words(2 * min(CHUNK, len(out) - done)).reshape(2, -1)
        bins = GUIDE[first >> np.uint64(52)]
        uniform = first >> np.uint64(17)
        bins += uniform >= CUMULATIVE[bins]
        late = np.flatnonzero(uniform >= CUMULATIVE[bins.clip(0, 1023)])
        bins[late] = np.searchsorted(CUMULATIVE, uniform[late], side="right")
        offset = (second >> np.uint64(32)) * WIDTH
        kept = (bins < 1024) & ((offset & np.uint64(0xFFFFFFFF)) >= np.uint64(2**32) % WIDTH)
        offset >>= np.uint64(32)
        # exp(-e) with e = f (2h + f) / 8192: 16 bits of a uniform number nearly always suffice.
        high = (second >> np.uint64(48)).astype(np.int64) + 2
        squeeze = ((first >> np.uint64(1)) & np.uint64(0xFFFF)).astype(np.int64)
        open_ = np.flatnonzero(kept & (squeeze <= (high * ((bins << 17) + high)) >> 29))
        kept[open_] = accepted(bins[open_], offset[open_], squeeze[open_])
        magnitude = bins * np.int64(WIDTH) + offset.astype(np.int64)
        negative = (first & np.uint64(1)).astype(bool)
        kept &= ~(negative & (magnitude == 0))
        drawn = np.where(negative, -magnitude, magnitude)[kept]
        out[done:done + len(drawn)] = drawn
        done += len(drawn)
    np.multiply(out, 1 / (64 * float(WIDTH)), out=out)


def accepted(bins, offset, squeeze):
    """Von Neumann's comparisons, beginning with 16 bits of the first uniform number; 48 more follow."""
    fraction = offset / float(WIDTH)
    previous = (squeeze + rng.random(len(squeeze))) / 65536
    odd, result = np.zeros(len(bins), bool), previous >= fraction * (2 * bins + fraction) / 8192
    left = np.flatnonzero(~result)
    while len(left):
        following = rng.random(len(left))
        ended = following > previous[left]
        result[left[ended]] = odd[left[ended]]
        previous[left], left = following, left[~ended]
        odd[left] = ~odd[left]
    return result


def clip_factors():
    """What brings gradients to the clip norm, and its squares."""
    norms = np.sqrt(np.array([gradient @ gradient for gradient in gradients]))
    factors = np.minimum(1, CLIP_NORM / norms).astype(np.float32)
    return factors, factors * factors


def correlated_noise(noise, scratch, buffers, columns):
    """The next row of C^-1 Z for both moments: x = z - sum of buffers; each buffer forgets and takes in x."""
    if SOURCE != "floating":
        noise[:] = exact_noise[2 * columns.start:2 * columns.stop].reshape(noise.shape)
    else:
        rng.standard_normal(out=noise)
    np.multiply(noise, NOISE, out=noise)
    for buffer in buffers:
        np.subtract(noise, buffer, out=noise)
    for buffer, decay, weight in zip(buffers, DECAYS, WEIGHTS):
        np.multiply(buffer, decay, out=buffer)
        np.multiply(noise, weight, out=scratch)
        np.add(buffer, scratch, out=buffer)


def step(t):
    factors, squared_factors = clip_factors()
    # Draws in blocks; rejected draws of a block are drawn again with the next one.
    discrete_gaussian(exact_noise)
    for start in range(0, DIMENSION, BLOCK):
        columns = slice(start, min(start + BLOCK, DIMENSION))
        block(t, gradients[:, columns], factors, squared_factors, columns)


def block(t, gradients, factors, squared_factors, columns):
    length = gradients.shape[1]
    noise_, scratch_, squares_, (total, squared) = (
        array.ravel()[: array.shape[0] * length].reshape(-1, length) for array in (noise, scratch, squares, sums)
    )
    np.dot(factors, gradients, out=total)
    np.square(gradients, out=squares_)
    np.dot(squared_factors, squares_, out=squared)
    correlated_noise(noise_, scratch_, buffers[:, :, columns], columns)
    np.add(noise_[0], total, out=noise_[0])
    np.add(noise_[1], squared, out=noise_[1])
    for average, beta, row in zip(averages[:, columns], BETA, noise_):
        np.multiply(average, beta, out=average)
        np.multiply(row, (1 - beta) / BATCH, out=row)
        np.add(average, row, out=average)
    first, second = averages[:, columns]
    update = scratch_[0]
    np.multiply(second, 1 / (1 - BETA[1] ** t), out=update)
    np.maximum(update, 1e-2, out=update)
    np.sqrt(update, out=update)
    np.add(update, 1e-8, out=update)
    np.divide(first, update, out=update)
    np.multiply(update, LEARNING_RATE / (1 - BETA[0] ** t), out=update)
    np.subtract(parameters[columns], update, out=parameters[columns])


random_words = generator()
times = []
for t in range(1, STEPS + 1):
    start = time.perf_counter()
    step(t)
    times.append(time.perf_counter() - start)
print(f"{1000 * min(times):.1f} ms fastest, {1000 * sorted(times)[STEPS // 2]:.1f} ms median a step")
