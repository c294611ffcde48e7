"""Two runs beside each other: two results → where the difference of their step times comes from.

The step is taken apart in two ways, and in each the parts add up to it exactly, so that the
differences of the parts add up to the difference of the steps:

- what a GPU does in the mean of all: it computes, waits for communications, or is idle;
- the critical path: what each of its pieces was spent on, by kind, by kernel or communication and,
  of predictions, by pipeline stage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.frozen import frozen
from ..base.text import WIDTH, TimeUnit, aligned, duration, error_bar, one_line, shortened, unit_for
from ..base.text import apportioned as apportioned_to
from ..engine.critical_path import CriticalPath, PieceKind
from ..results import Results
from .tables import names_cut

__all__ = [
    "WORDS",
    "Comparison",
    "Part",
    "compare",
    "comparison_figures",
    "render_comparison",
    "verdict_of",
]

ON_GPUS = {
    "computing": ("compute",),
    "communicating, data moving": ("exposed_wire",),
    "communicating, waiting for others": ("exposed_waiting",),
    "idle": ("idle",),
}
"""What a GPU does: columns of `Results.ranks`, which add up to the step."""

WORDS = {
    PieceKind.COMPUTE: "kernels",
    PieceKind.COPY: "copies",
    PieceKind.COMMUNICATION: "communications",
    PieceKind.HOST: "CPU: launching, and work between",
    PieceKind.LAUNCH: "latency from a launch to its kernel",
    PieceKind.GAP: "gaps between kernels",
    PieceKind.START: "before a rank starts",
}
"""What people call the kinds of pieces."""

NAMED = (PieceKind.COMPUTE, PieceKind.COPY, PieceKind.COMMUNICATION)
"""Kinds of pieces that are compared by name."""

MISSING = "not given"

Stages = NDArray[np.int64]


@frozen
class Part:
    """A part of both steps.

    Attributes
    ----------
    name : str
    one, other : int
        ps of the first and of the second step.
    """

    name: str
    one: int
    other: int

    @property
    def difference(self) -> int:
        """How much longer it takes in the second step, in ps."""
        return self.other - self.one


@frozen
class Comparison:
    """Two runs, part by part.

    Attributes
    ----------
    step : Part
        Both step times; of a recording that of the step shown.
    errors : tuple of float or None
        Relative error bar of each, where it has one.
    gpus : tuple of Part
        What a GPU does, in the mean over all; they add up to the step.
    path : mapping of str to tuple of Part
        The critical path by ``kind``, ``name`` and ``stage``, the largest differences first; each
        adds up to the step. A way that does not apply to both is absent.
    keys : mapping of str to tuple of str
        What was given for each key of the experiments that differs.
    """

    step: Part
    errors: tuple[float | None, float | None]
    gpus: tuple[Part, ...]
    path: Mapping[str, tuple[Part, ...]]
    keys: Mapping[str, tuple[str, str]]

    @property
    def equal(self) -> bool:
        """Whether all parts are equal."""
        every = (self.gpus, *self.path.values())
        return not any(part.difference for parts in every for part in parts)


def compare(
    one: Results,
    other: Results,
    stages: tuple[Stages | None, Stages | None] = (None, None),
    keys: tuple[Mapping[str, str], Mapping[str, str]] = ({}, {}),
) -> Comparison:
    """Two results → where the second step takes longer or shorter than the first. Local.

    Parameters
    ----------
    one, other : Results
        Predictions or replays, of equal or of different jobs.
    stages : tuple of int64, shape (n_ranks,), or None
        The pipeline stage of each rank of both, where that is known.
    keys : tuple of mapping of str to str
        What was given for each key of both experiments.
    """
    pair = one, other
    found: dict[str, tuple[Part, ...]] = {}
    if one.critical_path is not None and other.critical_path is not None:
        for what, keys_of in (("kind", _kinds), ("name", _names)):
            sums = [_sums(path, keys_of(path)) for path in map(_path, pair)]
            found[what] = _largest_first(_parts(*sums))
        one_of, other_of = stages
        if one_of is not None and other_of is not None and (one_of.any() or other_of.any()):
            both = zip(map(_path, pair), (one_of, other_of), strict=True)
            sums = [_sums(path, _by_stage(path, of)) for path, of in both]
            found["stage"] = tuple(sorted(_parts(*sums), key=lambda part: _number(part.name)))
    return Comparison(
        Part("step time", one.shown_ps, other.shown_ps),
        (_error(one), _error(other)),
        _parts(*map(_on_gpus, pair)),
        found,
        {
            key: (keys[0].get(key, MISSING), keys[1].get(key, MISSING))
            for key in sorted({**keys[0], **keys[1]})
            if keys[0].get(key) != keys[1].get(key)
        },
    )


def _path(results: Results) -> CriticalPath:
    assert results.critical_path is not None
    return results.critical_path


def _error(results: Results) -> float | None:
    error = results.attributes.get("uncertainty")
    return float(error) if isinstance(error, float) else None


def _parts(one: Mapping[str, int], other: Mapping[str, int]) -> tuple[Part, ...]:
    """Return the parts of two steps, in the order of the first; those of the second alone last."""
    return tuple(Part(name, one.get(name, 0), other.get(name, 0)) for name in {**one, **other})


def _largest_first(parts: Sequence[Part]) -> tuple[Part, ...]:
    return tuple(sorted(parts, key=lambda part: (-abs(part.difference), part.name)))


# --- parts of a step ------------------------------------------------------------------------------


def _on_gpus(results: Results) -> dict[str, int]:
    """Return what a GPU does in the mean over all, in whole ps that add up to the step."""
    totals = [
        sum(sum(results.ranks[column].tolist()) for column in columns)
        for columns in ON_GPUS.values()
    ]
    return dict(zip(ON_GPUS, apportioned_to(totals, results.n_ranks), strict=True))


def _sums(path: CriticalPath, keys: Sequence[str]) -> dict[str, int]:
    """Add up the pieces of a path by a key of each."""
    found: dict[str, int] = {}
    for key, length in zip(keys, (path.end - path.begin).tolist(), strict=True):
        found[key] = found.get(key, 0) + length
    return found


def _kinds(path: CriticalPath) -> list[str]:
    return [WORDS[PieceKind(kind)] for kind in path.kind.tolist()]


def _names(path: CriticalPath) -> list[str]:
    words = _kinds(path)
    for i in np.flatnonzero(np.isin(path.kind, NAMED)).tolist():
        words[i] = path.names[path.name[i]]
    return words


def _by_stage(path: CriticalPath, stages: Stages) -> list[str]:
    return [f"stage {stage}" for stage in stages[path.rank].tolist()]


def _number(text: str) -> int:
    """Return the number at the end of a text, -1 if there is none."""
    last = text.rpartition(" ")[2]
    return int(last) if last.isdigit() else -1


# --- for people and for programs ------------------------------------------------------------------


def comparison_figures(found: Comparison) -> dict[str, Any]:
    """Return a comparison, ready for JSON: times in whole ps, which add up.

    Returns
    -------
    dict
        step, gpus (list) and path (lists by kind, name and stage) of parts: name, one_ps, other_ps,
        difference_ps; uncertainty (of both, relative, or null); keys (a list of both values each).
    """
    return {
        "step": _figures(found.step),
        "uncertainty": list(found.errors),
        "gpus": [_figures(part) for part in found.gpus],
        "path": {what: [_figures(part) for part in parts] for what, parts in found.path.items()},
        "keys": {key: list(values) for key, values in found.keys.items()},
    }


def _figures(part: Part) -> dict[str, Any]:
    return {
        "name": part.name,
        "one_ps": part.one,
        "other_ps": part.other,
        "difference_ps": part.difference,
    }


def render_comparison(found: Comparison, titles: tuple[str, str], top: int = 10) -> str:
    """Return a comparison as text, lines of at most 100 characters.

    Parameters
    ----------
    found : Comparison
    titles : tuple of str
        What the two runs are called.
    top : int
        Lines of each list.
    """
    step = found.step
    times = [_step(ps, error) for ps, error in zip((step.one, step.other), found.errors)]
    heads = [("A", times[0], one_line(titles[0])), ("B", times[1], one_line(titles[1]))]
    lines = [*aligned(heads, left=(0, 1, 2)), "", verdict_of(found)]
    if found.keys:
        rows = [("", "A", "B"), *((key, *values) for key, values in found.keys.items())]
        lines += ["", "Keys that differ", *(f"  {line}" for line in aligned(rows, left=(0, 1, 2)))]
    if found.equal:
        return "\n".join(shortened(line, WIDTH, tail=16) for line in lines)
    # Small differences are to be seen, unless steps are a million times as long.
    shortest = min(step.one, step.other)
    smallest = max(min(abs(step.difference), shortest), shortest // 10**6, 1)
    unit = unit_for(smallest)
    lines += ["", f"What a GPU does, in the mean over all, in {unit.name}"]
    lines += _table(found.gpus, step, unit, len(found.gpus))
    for what, parts in found.path.items():
        lines += ["", f"Critical path by {what}, in {unit.name}"]
        lines += _table(parts, step, unit, top)
    return "\n".join(shortened(line, WIDTH, tail=16) for line in lines)


def _step(ps: int, error: float | None) -> str:
    return duration(ps) + (f" {error_bar(error)}" if error else "")


def verdict_of(found: Comparison) -> str:
    """Say how far the steps differ, and whether that is more than their error bars."""
    step = found.step
    if not step.difference:
        return "B takes as long as A."
    longer = "longer" if step.difference > 0 else "shorter"
    text = f"B is {duration(abs(step.difference))} {longer}"
    if step.one:
        text += f", {100 * step.difference / step.one:+.2f} %"
    bars = [ps * (error or 0.0) for ps, error in zip((step.one, step.other), found.errors)]
    if any(bars):
        within = abs(step.difference) <= sum(bars)
        text += "; the error bars overlap" if within else "; more than both error bars"
    return f"{text}."


def _table(parts: Sequence[Part], step: Part, unit: TimeUnit, top: int) -> list[str]:
    """Show the parts that differ most, the sum of the others and the step: they add up."""
    most = sorted(range(len(parts)), key=lambda i: -abs(parts[i].difference))[:top]
    shown = [parts[i] for i in sorted(most)]
    rest = [parts[i] for i in range(len(parts)) if i not in most]
    if rest:
        one, other = (sum(getattr(part, side) for part in rest) for side in ("one", "other"))
        shown.append(Part(f"{len(rest):,} more", one, other))
    sides = [
        apportioned_to([getattr(part, side) for part in shown], unit.step)
        for side in ("one", "other")
    ]
    rows = [("A", "B", "B - A", "")]
    for part, a, b in zip(shown, *sides, strict=True):
        rows.append((unit.show(a), unit.show(b), _signed(unit, b - a), one_line(part.name)))
    a, b = map(sum, sides)
    rows.append((unit.show(a), unit.show(b), _signed(unit, b - a), f"= {step.name}"))
    return [f"  {line}" for line in aligned(names_cut(rows), left=(3,))]


def _signed(unit: TimeUnit, steps: int) -> str:
    return ("+" if steps > 0 else "") + unit.show(steps)
