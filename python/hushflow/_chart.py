"""Curves with bands as SVG, for notebooks."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

WIDTH, HEIGHT = 640, 240
LEFT, RIGHT, TOP, BOTTOM = 70, 630, 28, 210

POINTS = 500
"""Most points of a curve: more can't be told apart."""

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#754c24", "#787878")
"""Colours that most people can distinguish (Okabe and Ito), and two more. One for each curve."""


@dataclass(frozen=True)
class Curve:
    """A line and its band. NaN leaves a gap."""

    name: str
    middle: Floats
    lower: Floats
    upper: Floats


def svg(title: str, steps: Sequence[str], curves: Sequence[Curve]) -> str:
    """Draws curves over the steps, which are equally far apart."""
    shown = curves[: len(COLOURS)]
    places = np.unique(np.linspace(0, len(steps) - 1, min(len(steps), POINTS)).round().astype(int))
    low, high = _range(shown)
    x = LEFT + (RIGHT - LEFT) * (places + 0.5) / len(steps)

    def y(values: Floats) -> Floats:
        return BOTTOM - (BOTTOM - TOP) * (values - low) / (high - low)

    omitted = len(curves) - len(shown)
    more = f" (and {omitted} more keys)" if omitted else ""
    parts = [_text(LEFT, TOP - 12, title + more, "start")]
    for tick in np.linspace(low, high, 5):
        height = float(y(np.array(tick)))
        parts.append(
            f'<path d="M{LEFT} {height:.1f}H{RIGHT}" stroke="currentColor" stroke-opacity="0.15"/>'
            + _text(LEFT - 6, height + 4, f"{tick:.4g}", "end")
        )
    parts.append(_text(LEFT, BOTTOM + 18, steps[0], "start") + _text(RIGHT, BOTTOM + 18, steps[-1], "end"))
    for number, (curve, colour) in enumerate(zip(shown, COLOURS, strict=False)):
        middle, lower, upper = (values[places] for values in (curve.middle, curve.lower, curve.upper))
        for run in _runs(np.isfinite(lower) & np.isfinite(upper)):
            band = np.concatenate([_points(x[run], y(upper[run])), _points(x[run], y(lower[run]))[::-1]])
            parts.append(f'<path d="{_path(band)}Z" fill="{colour}" fill-opacity="0.2"/>')
        for run in _runs(np.isfinite(middle)):
            line = _path(_points(x[run], y(middle[run])))
            parts.append(f'<path d="{line}" fill="none" stroke="{colour}" stroke-width="1.5" stroke-linecap="round"/>')
        parts.append(_text(RIGHT - 8, TOP + 12 + 14 * number, curve.name, "end", colour))
    inner = "".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'height="{HEIGHT}" font-family="sans-serif" font-size="12" fill="currentColor">{inner}</svg>'
    )


def _range(curves: Sequence[Curve]) -> tuple[float, float]:
    ends = np.concatenate([values for curve in curves for values in (curve.middle, curve.lower, curve.upper)])
    ends = ends[np.isfinite(ends)]
    if not ends.size:
        return 0.0, 1.0
    low, high = float(ends.min()), float(ends.max())
    return (low, high) if low < high else (low - 1.0, high + 1.0)


def _runs(known: npt.NDArray[np.bool_]) -> list[slice]:
    """Runs of known values."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], known, [False]]).astype(np.int8)))
    return [slice(start, end) for start, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)]


def _points(x: Floats, y: Floats) -> Floats:
    return np.column_stack([x, y])


def _path(points: Floats) -> str:
    start = points[:1].repeat(2, axis=0) if len(points) == 1 else points
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in start)


def _text(x: float, y: float, text: str, anchor: str, colour: str = "currentColor") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" fill="{colour}">{html.escape(text)}</text>'
