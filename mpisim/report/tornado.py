"""A tornado as text, as numbers for JSON, and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from textwrap import wrap
from typing import Any

from ..base.picture import save_picture
from ..base.quantity import GIB
from ..base.text import WIDTH, TimeUnit, aligned, one_line, shortened, unit_for
from ..results.tornado import Bar, Effect, Tornado

__all__ = ["draw_tornado", "render_tornado", "tornado_figures"]


BAR_WIDTH = 8
"""Characters of the longest bar."""


HEAD = ("", "factor", "derivative", "first order", "simulated")


# --- text -----------------------------------------------------------------------------------------


def render_tornado(found: Tornado) -> str:
    """Tornado → text of lines of at most 100 characters.

    Parameters
    ----------
    found : Tornado
    """
    unit = unit_for(found.step_ps)
    title = shortened(one_line(found.title), 60)
    lines = [f"{title}: a step of {unit.of(found.step_ps)} {unit.name}"]
    if found.fits is not None:
        lines.append(f"memory: {_verdict(found.fits, found.headroom)}")
    small = unit_for(found.step_ps // 20)
    most = max(
        (abs(_change(e, found) or 0.0) for bar in found.bars for e in bar.effects), default=0
    )
    cells: list[tuple[str, ...]]
    cells, ends = [(*HEAD, f"change, {small.name}")], [" " * (BAR_WIDTH - 7) + "shorter|longer"]
    for bar in found.bars:
        rows = _rows(bar, found, small)
        cells += rows
        ends += [
            _drawn(_change(effect, found), most)
            + ("  does not fit" if effect.fits is False and effect.step_ps is not None else "")
            for effect in bar.effects
        ]
        ends += [""] * (len(rows) - len(bar.effects))
    table = aligned(cells)
    width = max(map(len, table))
    lines.append("")
    lines += [f"{row:<{width}}  {end}".rstrip() for row, end in zip(table, ends, strict=True)]
    lines += _notes(found)
    return "\n".join(lines)


def _rows(bar: Bar, found: Tornado, unit: TimeUnit) -> list[tuple[str, ...]]:
    """Return the cells of a quantity: a row for each factor, two at least."""
    labels = [bar.name, f"  {shortened(bar.now, 22)}"]
    rows: list[tuple[str, ...]] = []
    for i, effect in enumerate(bar.effects):
        derivative = "" if i or bar.elasticity is None else _signed(bar.elasticity, 3)
        first = "" if effect.first_order is None else f"{_signed(100 * effect.first_order, 2)} %"
        simulated = change = ""
        if effect.step_ps is not None:
            longer = effect.step_ps - found.step_ps
            mark = "*" if effect.agrees is False else " "
            simulated = f"{_signed(100 * longer / found.step_ps, 2)} %{mark}"
            change = f"{'+' if longer > 0 else ''}{unit.of(longer)}"
        elif effect.fits is not None:
            first = "fits" if effect.fits else "does not fit"
            simulated = f"{(effect.headroom or 0) / GIB:+,.1f} GiB"
        label = labels[i] if i < len(labels) else ""
        rows.append((label, f"x {effect.factor:g}", derivative, first, simulated, change))
    if len(rows) == 1:
        rows.append((labels[1], "", "", "", "", ""))
    return rows


def _change(effect: Effect, found: Tornado) -> float | None:
    """Return the relative change that a bar shows: simulated, or else of first order."""
    if effect.step_ps is not None:
        return effect.step_ps / max(found.step_ps, 1) - 1
    return effect.first_order


def _drawn(change: float | None, most: float) -> str:
    """Return the bar of a change; empty where there is none."""
    if change is None:
        return ""
    n = round(BAR_WIDTH * abs(change) / most + 0.4) if most else 0
    left, right = ("█" * n, "") if change < 0 else ("", "█" * n)
    return f"{left:>{BAR_WIDTH}}|{right}"


def _signed(number: float, digits: int) -> str:
    text = f"{number:+.{digits}f}"
    return text[1:] if float(text) == 0 else text


def _verdict(fits: bool, headroom: int | None) -> str:
    left = "" if headroom is None else f", {abs(headroom) / GIB:,.1f} GiB "
    return f"{'fits' if fits else 'does not fit'}{left}{'left' if fits else 'missing'}"


def _notes(found: Tornado) -> list[str]:
    """Changes and quantities → notes, lines for people."""
    lines = []
    starred = False
    for bar in found.bars:
        for effect in bar.effects:
            mark = "* " if effect.agrees is False else ""
            starred |= bool(mark)
            if effect.note:
                lines.append(f"{mark}{bar.name} x {effect.factor:g}: {effect.note}")
            if effect.step_ps is not None and effect.fits not in (None, found.fits):
                verdict = _verdict(bool(effect.fits), effect.headroom)
                lines.append(f"{bar.name} x {effect.factor:g}: {verdict}")
            elif effect.step_ps is not None and effect.fits is False:
                verdict = _verdict(False, effect.headroom)
                lines.append(f"{bar.name} x {effect.factor:g}: {verdict}")
    if starred:
        lines.insert(0, "* more than 10 % of the change off the first order:")
    if found.not_applicable:
        lines += [*([""] if lines else []), "without effect:", *found.not_applicable]
    wrapped = []
    for line in lines:
        wrapped += wrap(line, WIDTH, subsequent_indent="    ", break_long_words=False) or [""]
    return ["", *wrapped] if wrapped else []


# --- numbers --------------------------------------------------------------------------------------


def tornado_figures(found: Tornado) -> dict[str, Any]:
    """Tornado → numbers, ready for JSON.

    Parameters
    ----------
    found : Tornado

    Returns
    -------
    dict
        The fields of `Tornado`, its bars and their effects; of effects also ``change``, relative,
        of the step simulated again.
    """
    figures = asdict(found)
    for bar in figures["bars"]:
        for effect in bar["effects"]:
            time = effect["step_ps"]
            effect["change"] = None if time is None else time / max(found.step_ps, 1) - 1
    return figures


# --- picture --------------------------------------------------------------------------------------


def draw_tornado(found: Tornado, path: str | Path, *, overwrite: bool = False) -> None:
    """Draw a tornado.

    A bar for each factor, the largest quantity on top; a line marks the first order.

    Parameters
    ----------
    found : Tornado
    path : str or Path
        That `mpisim.base.picture.check_picture` has accepted.
    overwrite : bool
        Whether a file of that name may be replaced.

    Raises
    ------
    OutputError
        If the file cannot be written.
    """
    shown = [bar for bar in found.bars if any(_change(e, found) is not None for e in bar.effects)]
    drawn = [e for bar in shown for e in bar.effects if _change(e, found) is not None]
    factors = sorted({effect.factor for effect in drawn})
    height = 0.8 / max(len(factors), 1)
    size = (8, 1.2 + 0.45 * max(len(shown), 1))
    figure = import_module("matplotlib.figure").Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    for i, factor in enumerate(factors):
        places = [
            (place - 0.4 + (i + 0.5) * height, effect)
            for place, bar in enumerate(shown)
            for effect in bar.effects
            if effect.factor == factor and _change(effect, found) is not None
        ]
        at = [place for place, _ in places]
        axes.barh(
            at,
            [100 * (_change(effect, found) or 0.0) for _, effect in places],
            height=height,
            color=f"C{i}",
            label=f"x {factor:g}",
        )
        _mark_first_order(axes, places, height)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(shown)), [f"{bar.name}\n{bar.now}" for bar in shown], fontsize=7)
    axes.invert_yaxis()
    unit = unit_for(found.step_ps)
    axes.set_xlabel(f"change of a step of {unit.of(found.step_ps)} {unit.name} (%)")
    axes.set_title(shortened(one_line(found.title), 70), fontsize=9)
    if factors:
        axes.legend(fontsize="small", title="line: first order", title_fontsize="small")
    save_picture(figure, path, found.title, overwrite=overwrite)


def _mark_first_order(axes: Any, places: Sequence[tuple[float, Effect]], height: float) -> None:
    for at, effect in places:
        if effect.first_order is not None and effect.step_ps is not None:
            x = 100 * effect.first_order
            axes.plot([x, x], [at - height / 2, at + height / 2], color="black", linewidth=1.2)
