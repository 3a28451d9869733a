"""Optimal strategies in numpy, for `benches/optimize.rs`: the same dual, the same stopping gap of 1e-6.

`twin` is line by line the method of `mechanism/src/optimize`: the same start, Newton steps by preconditioned
conjugate gradients, Armijo's rule. `fixed_point` is the published road to the same optimum (Choquette-Choo et al.
2023, Corollary 3.1; single participation only), and `primal` the published COA with the closed-form preconditioner:
Newton steps in the n^2 entries of X (Yuan et al. 2016), started from the column-normalised V^(1/2).

Run by hand: `python optimize.py [n]`. Threads are OpenBLAS's default, one for each core.
"""

import sys
import time

import numpy as np

GAP = 1e-6


def prefix(n):
    i = np.arange(n)
    return (n - np.maximum.outer(i, i)).astype(float)


def all_ranges(n):
    i = np.arange(1, n + 1)
    return np.minimum.outer(i, i) * (n + 1.0 - np.maximum.outer(i, i))


def value(gram, form):
    """tr(form gram^-1), infinite where gram is not definite."""
    try:
        lower = np.linalg.cholesky(gram)
    except np.linalg.LinAlgError:
        return np.inf
    half = np.linalg.inv(lower)
    return np.sum((half @ form) * half)


def project(blocks):
    blocks = (blocks + blocks.transpose(0, 2, 1)) / 2
    members = blocks.shape[1]
    mean = np.einsum("cii->c", blocks) / members
    blocks[:, range(members), range(members)] = mean[:, None]
    return blocks


class Dual:
    """The dual for n = count * gap steps: multipliers are one block for each set of steps that a record takes part in."""

    def __init__(self, form, count, gap):
        n = len(form)
        order = np.arange(n).reshape(count, gap).T.ravel()
        self.form = form[np.ix_(order, order)] * (n / np.trace(form))
        self.n, self.members, self.classes = n, count, gap
        self.across = np.arange(n).reshape(gap, count)

    def times(self, matrix, blocks):
        if self.members == 1:
            return matrix * blocks[:, 0, 0]
        tall = matrix.reshape(self.n, self.classes, self.members).transpose(1, 0, 2)
        return (tall @ blocks).transpose(1, 0, 2).reshape(self.n, self.n)

    def blocks_of(self, matrix):
        return matrix[self.across[:, :, None], self.across[:, None, :]].copy()

    def blocks_of_product(self, left, right):
        if self.members == 1:
            return np.einsum("ai,ai->i", left, right)[:, None, None]
        tall = [m.reshape(self.n, self.classes, self.members).transpose(1, 0, 2) for m in (left, right)]
        return tall[0].transpose(0, 2, 1) @ tall[1]

    def start(self):
        deviation = np.sqrt(np.diag(self.form)).reshape(self.classes, self.members)
        correlation = 0.9 * self.blocks_of(self.form) / (deviation[:, :, None] * deviation[:, None, :])
        correlation[:, range(self.members), range(self.members)] = 1
        return self.look(correlation * (deviation.sum(1) ** 1.5)[:, None, None])

    def look(self, multipliers):
        """The point at these multipliers, scaled as is best: (multipliers, roots, s, vectors)."""
        try:
            roots = np.linalg.cholesky(multipliers)
        except np.linalg.LinAlgError:
            return None
        if np.any(multipliers[:, 0, 0] <= 0):
            return None
        values, vectors = np.linalg.eigh(self.times(self.times(self.form, roots).T, roots))
        values = np.sqrt(np.maximum(values, 0))
        scale = values.sum() / multipliers[:, 0, 0].sum()
        return multipliers * scale**2, roots * scale, values * scale, vectors

    def value(self, point):
        return point[2].sum() ** 2 / point[0][:, 0, 0].sum()

    def primal(self, point):
        """The feasible objective that belongs to a point, the gradient of the dual there, and what transforms to it."""
        _, roots, s, vectors = point
        transform = self.times(vectors.T, np.linalg.inv(roots))
        half = np.sqrt(s)[:, None] * transform
        gram = half.T @ half
        seen = self.blocks_of(gram)
        trace = np.einsum("cii->c", seen)
        gram[self.across[:, :, None], self.across[:, None, :]] = seen * np.eye(self.members)
        scale = np.repeat(1 / np.sqrt(trace), self.members)
        gradient = project(seen)
        gradient[:, range(self.members), range(self.members)] -= 1 / self.members
        return value(gram * np.outer(scale, scale), self.form), gradient, transform


def twin(form, count, gap):
    """Dual Newton-CG."""
    dual = Dual(form, count, gap)
    times, blocks_of_product = dual.times, dual.blocks_of_product
    point = dual.start()
    objective, bound, eigendecompositions = np.inf, 0.0, 1
    while True:
        multipliers, roots, s, vectors = point
        here = dual.value(point)
        bound = max(bound, here)
        reached, gradient, transform = dual.primal(point)
        objective = min(objective, reached)
        if objective / bound - 1 <= GAP:
            return objective, bound, eigendecompositions
        weight = np.outer(s, s) / np.add.outer(s, s)
        shadow = times(vectors.T, roots.transpose(0, 2, 1)) / np.sqrt(s)[:, None]
        inverse = blocks_of_product(shadow, shadow)

        def curvature(direction):
            inner = weight * (times(transform, direction) @ transform.T)
            return project(blocks_of_product(transform, inner @ transform))

        def precondition(residual):
            return project(2 * inverse @ residual @ multipliers)

        ascent, residual = 0 * gradient, gradient
        search = precondition(residual)
        energy = np.sum(residual * search)
        enough = min(max(energy * min(energy / here, 0.01), 0.01 * GAP * here), 0.01 * energy)
        for _ in range(60):
            if energy <= enough:
                break
            image = curvature(search)
            length = energy / np.sum(search * image)
            ascent, residual = ascent + length * search, residual - length * image
            following = precondition(residual)
            next_energy = np.sum(residual * following)
            search, energy = following + next_energy / energy * search, next_energy
        rise, length = np.sum(gradient * ascent), 1.0
        while True:
            point = dual.look(multipliers + length * ascent)
            if point is not None:
                eigendecompositions += 1
                if dual.value(point) >= here + 1e-4 * length * rise:
                    break
            length /= 2


def gradient_ascent(form, count, gap, seconds=120):
    """The dual by its gradient (Choquette-Choo et al. 2023, Corollary 3.1): steps of Barzilai and Borwein, Armijo's rule."""
    dual, begin = Dual(form, count, gap), time.perf_counter()
    point = dual.start()
    objective, bound, eigendecompositions, before, length = np.inf, 0.0, 1, None, 1.0
    while True:
        multipliers, here = point[0], dual.value(point)
        bound = max(bound, here)
        reached, gradient, _ = dual.primal(point)
        objective = min(objective, reached)
        if objective / bound - 1 <= GAP or time.perf_counter() - begin > seconds:
            return objective, bound, eigendecompositions
        if before is not None:
            moved, turned = multipliers - before[0], before[1] - gradient
            length = abs(np.sum(moved * moved) / np.sum(moved * turned))
        before, rise = (multipliers, gradient), np.sum(gradient * gradient)
        while True:
            point = dual.look(multipliers + length * gradient)
            if point is not None:
                eigendecompositions += 1
                if dual.value(point) >= here + 1e-4 * length * rise:
                    break
            length /= 4


def fixed_point(form, limit=1000):
    """y <- diag((diag(y)^(1/2) V diag(y)^(1/2))^(1/2))."""
    y, objective, bound = np.diag(form) ** 0.75, np.inf, 0.0
    for steps in range(1, limit):
        root = np.sqrt(y)
        values, vectors = np.linalg.eigh(root[:, None] * form * root)
        s = np.sqrt(np.maximum(values, 0))
        bound = max(bound, s.sum() ** 2 / y.sum())
        gram = (vectors * s) @ vectors.T
        scale = 1 / np.sqrt(np.diag(gram))
        objective = min(objective, value(gram * np.outer(scale, scale), form))
        if objective / bound - 1 <= GAP:
            break
        y = np.diag(gram).copy()
    return objective, bound, steps


def primal(form):
    """Newton-CG in the entries of X with a unit diagonal, closed-form preconditioner, certificate by the dual."""
    n = len(form)
    values, vectors = np.linalg.eigh(form)
    x = (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T
    x /= np.sqrt(np.outer(np.diag(x), np.diag(x)))
    bound, eigendecompositions = 0.0, 1
    while True:
        lower = np.linalg.cholesky(x)
        inverse_lower = np.linalg.inv(lower)
        z = inverse_lower.T @ inverse_lower
        spectrum, q = np.linalg.eigh(inverse_lower @ form @ inverse_lower.T)
        eigendecompositions += 1
        objective, m, t = spectrum.sum(), z @ form @ z, lower @ q
        weight = np.add.outer(spectrum, spectrum)
        y = np.diag(m)

        def off(matrix):
            matrix = (matrix + matrix.T) / 2
            np.fill_diagonal(matrix, 0)
            return matrix

        def curvature(direction):
            half = z @ direction @ m
            return off(half + half.T)

        def precondition(residual):
            return off(t @ ((t.T @ residual @ t) / weight) @ t.T)

        descent, residual = np.zeros((n, n)), off(m)
        search = precondition(residual)
        energy = np.sum(residual * search)
        enough = energy * min(0.01, energy / objective)
        while energy > enough:
            image = curvature(search)
            length = energy / np.sum(search * image)
            descent, residual = descent + length * search, residual - length * image
            following = precondition(residual)
            next_energy = np.sum(residual * following)
            search, energy = following + next_energy / energy * search, next_energy
        if np.sum(off(m) * descent) < 10 * GAP * objective:
            for y in (np.diag(m), np.diag(m - z @ descent @ m - m @ descent @ z)):
                root = np.sqrt(np.maximum(y, 0))
                s = np.sqrt(np.maximum(np.linalg.eigvalsh(root[:, None] * form * root), 0))
                eigendecompositions += 1
                bound = max(bound, s.sum() ** 2 / y.sum())
        if bound and objective / bound - 1 <= GAP:
            return objective, bound, eigendecompositions
        length = 1.0
        while value(x + length * descent, form) > objective - 1e-4 * length * np.sum(m * descent):
            length /= 2
        x = x + length * descent


def timed(name, method, *arguments):
    start = time.perf_counter()
    objective, bound, steps = method(*arguments)
    seconds = time.perf_counter() - start
    print(f"{name:28} {seconds:8.2f} s  {steps:4} eigendecompositions  gap {objective / bound - 1:.1e}", flush=True)


if __name__ == "__main__":
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 1024
    for name, form in [("prefix", prefix(n)), ("all-range", all_ranges(n))]:
        timed(f"coa {name} twin", twin, form, 1, n)
        timed(f"coa {name} primal", primal, form)
        timed(f"coa {name} fixed point", fixed_point, form)
    timed(f"multi-epoch 16x{n // 16} twin", twin, prefix(n), 16, n // 16)
    timed(f"multi-epoch 16x{n // 16} gradient", gradient_ascent, prefix(n), 16, n // 16)
