"""A comparison as text for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ...text import aligned, shortened
from .compare import Compared, Comparison
from .figures import coverage, headlines, tables
from .pairs import pair_figures, pairs

__all__ = ["render"]

HEADINGS = (
    "rows", "mean", "median", "p90", "bias", "in 5 %", "in 10 %", "in 20 %", "in 90 % interval"
)  # fmt: skip

KEYS = ("mape", "median", "p90", "bias", "within_5", "within_10", "within_20", "covered")

NOTE = """\
mean, median, p90: of |predicted / measured - 1|; bias: mean with sign; in 5 %: share of rows; in
90 % interval: share within the interval that the prediction states. Rows of trust F follow a
formula and are in no table but the first."""


def render(found: Comparison, worst: int = 10, most: int = 25) -> str:
    """Return tables of errors, what was filled in or left out, and the worst rows.

    Parameters
    ----------
    found : Comparison
    worst : int
        Rows to show one by one.
    most : int
        Lines of the list of defaults.
    """
    parts = [_coverage(found), _table("rows of", headlines(found))]
    parts += [_table(name, groups) for name, groups in tables(found.compared).items()]
    parts.append(NOTE)
    parts += [_pairs(found), _worst(found.compared, worst)]
    parts.append(_counted("filled in where rows do not say (rows of trust F left out)",
                          _measured_defaults(found), most))  # fmt: skip
    parts.append(_counted("approximations", found.approximations, most))
    parts.append(_counted("left out", found.reasons, most))
    return "\n\n".join(part for part in parts if part)


def _measured_defaults(found: Comparison) -> Counter[str]:
    return Counter(
        text
        for each in found.compared
        if each.row.texts["trust"] != "F"
        for text in each.mapped.defaults
    )


def _coverage(found: Comparison) -> str:
    shares = coverage(found)
    refused = sum(not each.outcome.fits for each in found.compared)
    return (
        f"{found.rows} rows, {found.timed} with a measured step time, {len(found.compared)} of "
        f"them predicted ({shares['all']:.1%}; of transformers of trust A and B "
        f"{shares['transformers']:.1%})\n"
        f"{refused} of them would not fit by the memory model, though they ran"
    )


def _table(name: str, groups: Mapping[str, Mapping[str, Any]]) -> str:
    if not groups:
        return ""
    cells: list[Sequence[str]] = [(name, *HEADINGS)]
    for group, figures in groups.items():
        values = [figures[key] for key in KEYS]
        texts = [
            f"{value:+.1%}" if key == "bias" else f"{value:.1%}"
            for key, value in zip(KEYS, values, strict=True)
        ]
        cells.append((group, str(figures["n"]), *texts))
    return "\n".join(aligned(cells))


def _pairs(found: Comparison) -> str:
    groups = pair_figures(pairs(found.compared))
    if not groups:
        return ""
    cells: list[Sequence[str]] = [("pairs that differ in", "pairs", "mean", "median", "in 5 %")]
    cells += [
        (kind, str(each["n"]), f"{each['mean']:.1%}", f"{each['median']:.1%}",
         f"{each['within_5']:.0%}")
        for kind, each in groups.items()
    ]  # fmt: skip
    return "\n".join(aligned(cells)) + "\nof predicted ratio / measured ratio - 1"


def _worst(rows: Sequence[Compared], count: int) -> str:
    """The rows that are farthest off, with where their predicted time went."""
    measured = [each for each in rows if each.row.texts["trust"] != "F"]
    chosen = sorted(measured, key=lambda each: (-abs(each.error), each.row.id))[:count]
    if not chosen:
        return ""
    cells: list[Sequence[str]] = [
        ("worst rows", "trust", "measured", "predicted", "error", "±", "compute", "wire", "waiting",
         "idle", "host")
    ]  # fmt: skip
    for each in chosen:
        parts = each.outcome.breakdown or {}
        shares = [
            f"{parts[name]:.0%}"
            for name in ("compute", "exposed_wire", "exposed_waiting", "idle", "host_busy")
        ]
        cells.append(
            (shortened(each.row.id, 56), each.row.texts["trust"], f"{each.measured * 1e3:,.1f} ms",
             f"{each.predicted * 1e3:,.1f} ms", f"{each.error:+.1%}",
             f"{each.outcome.uncertainty:.0%}", *shares)
        )  # fmt: skip
    return "\n".join(aligned(cells)) + (
        "\nshares of the predicted step, mean over GPUs: computing; communication that nothing "
        "hides, moving\ndata and waiting for others (pipeline bubbles too); nothing at all; host: "
        "CPU busy, beside these"
    )


def _counted(title: str, counted: Counter[str], most: int) -> str:
    if not counted:
        return ""
    lines = [f"{title}:"]
    lines += [f"{count:6d} × {text}" for text, count in counted.most_common(most)]
    if len(counted) > most:
        lines.append(f"       and {len(counted) - most} others (--json has all)")
    return "\n".join(lines)
