"""A comparison as tables: text for people, or Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from ...base.picture import save_picture
from ...base.text import aligned, markdown_table, percentage, replace_between, shortened
from .compare import Compared, Comparison
from .figures import coverage, headlines, judged_by_memory, tables
from .pairs import pair_figures, pairs

__all__ = ["BEGIN", "END", "markdown", "render", "scatter"]

COLUMNS = {
    "mean": "mape",
    "median": "median",
    "p90": "p90",
    "bias": "bias",
    "in 10 %": "within_10",
    "in 20 %": "within_20",
    "in interval": "covered",
}
"""Headings and what stands under them."""

FITTED_COLUMNS = {
    f"fitted: {name}" if name == "mean" else name: key
    for name, key in COLUMNS.items()
    if name not in ("in 20 %",)
}

NOTE = """\
mean, median, p90: of |predicted / measured - 1|; bias: mean with sign; in 10 %: share of rows; in
interval: share within the 90 % interval that the prediction states. Rows of trust F follow a
formula and are in no table but the first."""

OTHER_SOURCES_COLUMNS = {
    "new source: mean": "mape",
    "median": "median",
    "p90": "p90",
    "bias": "bias",
}

NOTE_FITTED = """\
fitted: each row predicted, to first order along its critical path, with constants fitted to rows of
trust A of other families (source, model, framework); new source: to rows of other sources."""

BEGIN, END = "<!-- figures: mpisim validate e2e --markdown -->", "<!-- end of figures -->"

Table = Sequence[Sequence[str]]
Lay = Callable[[Table], str]


def render(found: Comparison, worst: int = 10, most: int = 25) -> str:
    """Comparison → tables of errors, what was filled in or left out, and the worst rows.

    Parameters
    ----------
    found : Comparison
    worst : int
        Rows to show one by one.
    most : int
        Lines of the list of defaults.
    """
    parts = _parts(found, lambda cells: "\n".join(aligned(cells)))
    parts.append(_worst(found.compared, worst))
    parts.append(
        _counted(
            "filled in where rows do not say (rows of trust F left out)",
            _measured_defaults(found),
            most,
        )
    )
    parts.append(_counted("approximations", found.approximations, most))
    parts.append(_counted("left out", found.reasons, most))
    return "\n\n".join(part for part in parts if part)


def markdown(found: Comparison, text: str) -> str:
    """Page → the same with the figures between the lines `BEGIN` and `END` written anew.

    Parameters
    ----------
    found : Comparison
    text : str
        The page; figures are added at its end where it lacks these lines.
    """
    left_out = [("rows", "left out because")]
    left_out += [(str(count), why) for why, count in found.reasons.most_common(12)]
    parts = [*_parts(found, markdown_table), markdown_table(left_out) if len(left_out) > 1 else ""]
    return replace_between(text, BEGIN, END, "\n\n".join(filter(None, parts)))


def _parts(found: Comparison, lay: Lay) -> list[str]:
    parts = [_coverage(found)]
    cross_validated, apart = headlines(found.cross_validated), headlines(found.other_sources)
    parts.append(_table("rows of", headlines(found.compared), cross_validated, lay, apart))
    fitted = tables(found.cross_validated)
    for name, groups in tables(found.compared).items():
        parts.append(_table(name, groups, fitted.get(name, {}), lay))
    parts.append(f"{NOTE}\n{NOTE_FITTED}" if found.cross_validated else NOTE)
    return [*parts, _pairs(found, lay)]


def _measured_defaults(found: Comparison) -> Counter[str]:
    return Counter(
        text for each in found.compared if each.trust != "F" for text in each.mapped.defaults
    )


def _coverage(found: Comparison) -> str:
    shares = coverage(found)
    memory = judged_by_memory(found.compared)
    return (
        f"{found.rows} rows, {found.timed} with a measured step time, {len(found.compared)} of "
        f"them predicted ({percentage(shares['all'], 1)}; of transformers of trust A and B "
        f"{percentage(shares['transformers'], 1)}).\n"
        f"By the memory model {memory['refused']} of them would not fit, though they ran; "
        f"{memory['close']} are too close to call, {memory['unjudged']} are not judged."
    )


def _table(
    name: str,
    groups: Mapping[str, Mapping[str, Any]],
    fitted: Mapping[str, Mapping[str, Any]],
    lay: Lay,
    apart: Mapping[str, Mapping[str, Any]] | None = None,
) -> str:
    if not groups:
        return ""
    more, last = FITTED_COLUMNS if fitted else {}, OTHER_SOURCES_COLUMNS if apart else {}
    cells: list[Sequence[str]] = [(name, "rows", *COLUMNS, *more, *last)]
    for group, plain in groups.items():
        texts = [_share(plain, key) for key in COLUMNS.values()]
        texts += [_share(fitted.get(group), key) for key in more.values()]
        texts += [_share((apart or {}).get(group), key) for key in last.values()]
        cells.append((group, str(plain["n"]), *texts))
    return lay(cells)


def _share(figures: Mapping[str, Any] | None, key: str) -> str:
    if figures is None:
        return ""
    return percentage(figures[key], 1, signed=key == "bias")


def _pairs(found: Comparison, lay: Lay) -> str:
    groups = pair_figures(pairs(found.compared))
    if not groups:
        return ""
    fitted = pair_figures(pairs(found.cross_validated))
    more = ("fitted: mean", "in 5 %") if fitted else ()
    cells: list[Sequence[str]] = [
        ("pairs that differ in", "pairs", "mean", "median", "in 5 %", *more)
    ]
    for kind, each in groups.items():
        other = fitted.get(kind)
        line = [
            kind,
            str(each["n"]),
            percentage(each["mean"], 1),
            percentage(each["median"], 1),
            percentage(each["within_5"]),
        ]
        if more:
            line += (
                ["", ""]
                if other is None
                else [percentage(other["mean"], 1), percentage(other["within_5"])]
            )
        cells.append(line)
    return lay(cells) + "\n\nof predicted ratio / measured ratio - 1"


def _worst(rows: Sequence[Compared], count: int) -> str:
    """The rows that are farthest off, with where their predicted time went."""
    measured = [each for each in rows if each.trust != "F"]
    worst = sorted(measured, key=lambda each: (-abs(each.error), each.row.id))[:count]
    if not worst:
        return ""
    kinds = list(worst[0].outcome.breakdown)
    cells: list[Sequence[str]] = [
        ("worst rows", "trust", "measured", "predicted", "error", "±", *kinds)
    ]
    for each in worst:
        shares = each.outcome.breakdown
        cells.append(
            (
                shortened(each.row.id, 56),
                each.trust,
                f"{each.measured * 1e3:,.1f} ms",
                f"{each.predicted * 1e3:,.1f} ms",
                percentage(each.error, 1, signed=True),
                percentage(each.uncertainty),
                *(percentage(shares[kind]) for kind in kinds),
            )
        )
    return "\n".join(aligned(cells)) + (
        "\nshares of the predicted step along its critical path: matrix products, attention, all "
        "other kernels;\ncommunications inside nodes and across; launches; overhead; latencies and "
        "gaps"
    )


def _counted(title: str, counted: Counter[str], most: int) -> str:
    if not counted:
        return ""
    lines = [f"{title}:"]
    lines += [f"{count:6d} × {text}" for text, count in counted.most_common(most)]
    if len(counted) > most:
        lines.append(f"       and {len(counted) - most} others (--json has all)")
    return "\n".join(lines)


BAND_ERROR = 0.1
"""Errors that the grey band holds."""


def scatter(rows: Sequence[Compared], path: str | Path) -> None:
    """Draw predicted over measured times, a colour for each source.

    Parameters
    ----------
    rows : sequence of Compared
        One at least; times in s.
    path : str or Path
        That `mpisim.base.picture.check_picture` has accepted; replaced if it exists.

    Raises
    ------
    OutputError
        If the file cannot be written.
    """
    figure = import_module("matplotlib.figure").Figure(figsize=(8, 7), layout="constrained")
    axes = figure.subplots()
    # Rows of a formula are no measurements, and many: they lie beneath the others.
    groups: dict[str, list[Compared]] = {}
    for each in sorted(rows, key=lambda row: (row.trust != "F", row.mapped.source)):
        name = each.mapped.source + (" (formula)" if each.trust == "F" else "")
        groups.setdefault(name, []).append(each)
    ends = [min(each.measured for each in rows) / 2, max(each.measured for each in rows) * 2]
    axes.fill_between(
        ends,
        [x * (1 - BAND_ERROR) for x in ends],
        [x * (1 + BAND_ERROR) for x in ends],
        color="0.9",
        label=f"within {percentage(BAND_ERROR)}",
    )
    axes.plot(ends, ends, color="0.5", linewidth=0.8)
    for i, (name, group) in enumerate(groups.items()):
        axes.scatter(
            [each.measured for each in group],
            [each.predicted for each in group],
            s=9,
            marker="osD^v<>"[i // 10 % 7],
            color=f"C{i % 10}",
            label=f"{name} ({len(group)})",
        )
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    axes.set(xlabel="measured step (s)", ylabel="predicted step (s)")
    axes.legend(fontsize="small")
    save_picture(figure, path, "predicted and measured steps", overwrite=True)
