"""Groups of measured and predicted plans → tables: text for people, Markdown, or JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...base.text import aligned, markdown_table, percentage, replace_between
from .groups import ComparablePlans, Noise, Sweeps
from .layers import LayerTimes, layer_times
from .ranking import (
    MIN_CLEAR_DIFFERENCE,
    MIN_NOISE_DEVIATIONS,
    Expected,
    Ranking,
    Reliable,
    beyond_noise,
    dimensions,
    gamma_of,
    reliability,
    unshared_error,
)

__all__ = ["BEGIN", "END", "as_json", "markdown", "render"]

BEGIN, END = "<!-- figures: mpisim validate plans --markdown -->", "<!-- end of figures -->"

NOTE = f"""\
regret: measured time of the plan that is predicted to be the fastest, over that of the fastest
measured, less one; blind: the mean of that over all plans; pairs: of those whose measured times
differ by more than {percentage(MIN_CLEAR_DIFFERENCE)}, how many are put in the right order; \
ceiling: Spearman's
correlation of what was measured with the same and the noise of a measurement once more, which a
perfect prediction would have; expected: the correlation that predictions with the errors they
state would have, in the mean, and where 90 % of such would lie (errors of inputs, each plan's own,
noise; rows that are suspect have no more of them); gamma: of pairs that differ by more than noise
({MIN_NOISE_DEVIATIONS:g} standard deviations of the difference), those in the right order less \
those in the wrong
one, over both; that of several groups is of all their pairs together."""

NOTE_NOISE = """\
noise: one standard deviation of a measured time, from plans that one source measured more than once
with the same software (releases of one month count as the same). That of all sources is taken for
every group: few sources repeat, and most of those within minutes."""

NOTE_DIMENSIONS = """\
pairs of plans that differ in one key alone, and by more than noise; dp takes up what tp and pp
leave. priced: the predicted difference over the measured one (of the logarithms of times), in the
median; 90 %: where that median lies when the plans of each group are drawn again, with
replacement."""

NOTE_LAYERS = """\
of plans that differ in the number of equal stages and the size of micro-batches alone: what a layer
takes for a micro-batch of any size, and for each of its sequences, in least squares of
((m + p - 1) L / p + m head) (fixed + b sequence) + once / p over measured and over predicted steps;
± one standard error; scatter: what is left of measured steps."""

SOUND = " Without suspect rows."

NOTE_RELIABILITY = """\
z: size of the predicted difference of two plans over its standard deviation; stated: share that
would be right if differences were normally distributed with the stated errors."""

Table = Sequence[Sequence[str]]
Lay = Callable[[Table], str]


def render(found: Sweeps, least: int) -> str:
    """Comparison of plans → all tables as text.

    Parameters
    ----------
    found : Sweeps
    least : int
        Plans that a group must have.
    """
    return "\n\n".join(_parts(found, least, lambda cells: "\n".join(aligned(cells))))


def markdown(found: Sweeps, least: int, page: str) -> str:
    """Results of sweeps, page → page with the tables between `BEGIN` and `END` replaced.

    Parameters
    ----------
    found : Sweeps
    least : int
        Plans that a group must have to be listed.
    page : str
        Markdown.

    Returns
    -------
    str
    """
    return replace_between(page, BEGIN, END, "\n\n".join(_parts(found, least, markdown_table)))


def as_json(found: Sweeps, least: int, path: str) -> dict[str, Any]:
    """Comparison of plans → all figures.

    Parameters
    ----------
    found : Sweeps
    least : int
        Plans that a group must have.
    path : str
        Of the table of measurements, as the user gave it.
    """
    groups = found.groups
    sound = _sound(groups, least)
    return {
        "kind": "plans",
        "table": path,
        "groups": [
            {
                "name": group.name,
                **_figures(Ranking.of(group), Expected.of([group])),
                "best": group.described(Ranking.of(group).best),
                "chosen": group.described(Ranking.of(group).chosen),
                "cases": [
                    {
                        "rows": [row.row.id for row in plan.rows],
                        "sets": group.described(plan),
                        "measured": plan.measured,
                        "predicted": plan.predicted,
                        "suspect": plan.suspect,
                    }
                    for plan in sorted(group.plans, key=lambda each: each.measured)
                ],
            }
            for group in groups
        ],
        "mean": _means(groups),
        "mean_without_suspect_rows": _means(sound),
        "noise": [
            {"source": each.source, "plans": each.plans, "error": each.error}
            for each in found.noise
        ],
        "dimensions": [
            {
                "key": each.key,
                "pairs": each.pairs,
                "right": each.right,
                "priced": each.priced,
                "low": _number(each.low),
                "high": _number(each.high),
            }
            for each in dimensions([group.sound() for group in groups])
        ],
        "layers": [vars(each) for each in layer_times([group.sound() for group in groups])],
        "unshared_error": unshared_error(groups),
        "unshared_error_without_suspect_rows": unshared_error(sound),
        "reliability": [_line(each) for each in reliability(groups)],
        "reliability_without_suspect_rows": [_line(each) for each in reliability(sound)],
    }


def _line(each: Reliable) -> dict[str, Any]:
    return {
        "low": each.low,
        "high": each.high if math.isfinite(each.high) else None,
        "pairs": each.pairs,
        "right": each.right,
        "stated": each.stated,
    }


def _figures(found: Ranking, expected: Expected) -> dict[str, Any]:
    return {
        "plans": found.plans,
        "regret": found.regret,
        "blind": found.blind,
        "spearman": _number(found.spearman),
        "kendall": _number(found.kendall),
        "clear_pairs": found.clear,
        "right_pairs": found.right,
        "ceiling": _number(found.ceiling),
        "expected": _interval(expected),
        "pairs_beyond_noise": found.beyond,
        "gamma": _number(found.gamma),
    }


def _interval(found: Expected) -> dict[str, float | None]:
    return {name: _number(value) for name, value in vars(found).items()}


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _means(groups: Sequence[ComparablePlans]) -> dict[str, Any]:
    """Return means over groups, and sums of pairs."""
    found = [Ranking.of(group) for group in groups]

    def mean(values: Sequence[float]) -> float | None:
        known = [each for each in values if math.isfinite(each)]
        return sum(known) / len(known) if known else None

    return {
        "groups": len(found),
        "plans": sum(each.plans for each in found),
        "regret": mean([each.regret for each in found]),
        "blind": mean([each.blind for each in found]),
        "spearman": mean([each.spearman for each in found]),
        "kendall": mean([each.kendall for each in found]),
        "clear_pairs": sum(each.clear for each in found),
        "right_pairs": sum(each.right for each in found),
        "ceiling": mean([each.ceiling for each in found]),
        "expected": _interval(Expected.of(groups)),
        "pairs_beyond_noise": sum(each.beyond for each in found),
        "gamma": _number(gamma_of(beyond_noise(groups))),
    }


def _sound(groups: Sequence[ComparablePlans], least: int) -> list[ComparablePlans]:
    """Return the groups without suspect rows, where enough plans are left."""
    return [group for group in map(ComparablePlans.sound, groups) if len(group.plans) >= least]


def _parts(found: Sweeps, least: int, lay: Lay) -> list[str]:
    groups = found.groups
    cells: list[Sequence[str]]
    sound = _sound(groups, least)
    parts = [lay(_table(groups, sound)), NOTE, lay(_choices(groups))]
    if any(each.plans for each in found.noise):
        parts += [lay(_noise(found.noise)), NOTE_NOISE]
    each_key = dimensions([group.sound() for group in groups])
    if each_key:
        cells = [("differ in", "pairs", "right", "priced", "90 %")]
        cells += [
            (
                each.key,
                str(each.pairs),
                percentage(each.right / each.pairs),
                f"{each.priced:.2f}",
                f"{each.low:.2f} to {each.high:.2f}" if math.isfinite(each.low) else "",
            )
            for each in each_key
        ]
        parts += [lay(cells), NOTE_DIMENSIONS + (SOUND if _suspect(groups) else "")]
    layers = layer_times([group.sound() for group in groups])
    if layers:
        parts += [lay(_layers(layers)), NOTE_LAYERS + (SOUND if _suspect(groups) else "")]
    for text, some in (("all rows", groups), ("without suspect rows", sound)):
        lines = reliability(some)
        if lines and (some is groups or _suspect(groups)):
            cells = [(f"z, {text}", "pairs", "right", "stated")]
            for each in lines:
                bound = f"{each.low:g} to {each.high:g}"
                if not math.isfinite(each.high):
                    bound = f"{each.low:g} or more"
                share = percentage(each.right / each.pairs)
                cells.append((bound, str(each.pairs), share, percentage(each.stated)))
            parts.append(lay(cells))
    unshared = [f"{percentage(unshared_error(groups), 1)} of the step"]
    if _suspect(groups):
        unshared.append(f"{percentage(unshared_error(sound), 1)} without suspect rows")
    parts.append(NOTE_RELIABILITY)
    own = " and ".join(unshared)
    return [
        *parts,
        f"Error of its own of each difference with which 90 % are in its interval: {own}",
    ]


def _suspect(groups: Sequence[ComparablePlans]) -> bool:
    return any(plan.suspect for group in groups for plan in group.plans)


def _table(
    groups: Sequence[ComparablePlans], sound: Sequence[ComparablePlans]
) -> list[Sequence[str]]:
    headings = (
        *("group", "plans", "regret", "blind", "Spearman", "ceiling"),
        *("expected", "Kendall", "pairs", "right", "gamma"),
    )
    lines = [(group.name, _figures(Ranking.of(group), Expected.of([group]))) for group in groups]
    lines.append((f"mean of {len(groups)}", _means(groups)))
    if _suspect(groups):
        means = _means(sound)
        lines.append((f"mean of {means['groups']}, without suspect rows", means))
    cells: list[Sequence[str]] = [headings]
    for name, each in lines:
        clear = each["clear_pairs"]
        cells.append(
            (
                name,
                str(each["plans"]),
                _share(each["regret"]),
                _share(each["blind"]),
                _correlation(each["spearman"]),
                _correlation(each["ceiling"]),
                _expected(each["expected"]),
                _correlation(each["kendall"]),
                str(clear),
                percentage(each["right_pairs"] / clear) if clear else "",
                _correlation(each["gamma"]),
            )
        )
    return cells


def _layers(found: Sequence[LayerTimes]) -> list[Sequence[str]]:
    """What a layer takes, measured and predicted, group by group."""
    cells: list[Sequence[str]] = [
        ("layers of", "plans", "fixed", "predicted", "a sequence", "predicted", "scatter")
    ]
    for each in found:
        cells.append(
            (
                ", ".join(filter(None, (each.group, each.sets))),
                str(each.plans),
                _milliseconds(each.fixed[0], each.fixed_error),
                _milliseconds(each.fixed[1]),
                _milliseconds(each.sequence[0], each.sequence_error),
                _milliseconds(each.sequence[1]),
                percentage(each.scatter, 1),
            )
        )
    return cells


def _milliseconds(seconds: float, error: float | None = None) -> str:
    text = f"{1e3 * seconds:.2f}"
    return f"{text} ms" if error is None else f"{text} ± {1e3 * error:.2f} ms"


def _noise(found: Sequence[Noise]) -> list[Sequence[str]]:
    """Spread of repeated measurements of one plan, by source."""
    cells: list[Sequence[str]] = [("noise", "plans measured again", "of a time")]
    for each in found:
        if each.plans:
            name = each.source or "all sources"
            cells.append((name, str(each.plans), percentage(each.error, 2)))
    return cells


def _share(value: float | None) -> str:
    return "" if value is None else percentage(value, 1)


def _correlation(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _expected(found: Mapping[str, float | None]) -> str:
    mean, low, high = (found[name] for name in ("mean", "low", "high"))
    return "" if mean is None else f"{mean:.2f} ({low:.2f} to {high:.2f})"


def _choices(groups: Sequence[ComparablePlans]) -> list[Sequence[str]]:
    """What was measured to be the fastest, and what is predicted to be."""
    cells: list[Sequence[str]] = [("group", "fastest as measured", "fastest as predicted")]
    for group in groups:
        found = Ranking.of(group)
        same = found.best is found.chosen
        chosen = "the same" if same else group.described(found.chosen)
        cells.append((group.name, group.described(found.best), chosen))
    return cells
