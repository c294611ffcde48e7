"""Whether measured steps fit by the memory model: all ran, so none should be refused.

Nothing is simulated: it takes seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from textwrap import wrap
from typing import Any

from ...base.errors import InputError
from ...base.frozen import frozen
from ...base.text import WIDTH, aligned, percent
from ...memory import Verdict, assess, capacity
from ...prediction.hardware import hardware_of
from ...workloads import lay_out
from .experiments import VERDICTS, Mapped, experiment_of
from .rows import read
from .settings import settings

__all__ = ["JudgedRow", "as_json", "judged_rows", "render"]

HEADS = ("fit", "too close to call", "do not fit", "not judged")
"""What tables call `VERDICTS`."""


FORMULA = "F"
"""Trust of rows that follow a formula: nobody ran them."""


@frozen
class JudgedRow:
    """A measured step and what the memory model says of it.

    Attributes
    ----------
    mapped : Mapped
    verdict : Verdict
    """

    mapped: Mapped
    verdict: Verdict

    @property
    def judged(self) -> str:
        """One of `VERDICTS`."""
        return self.mapped.judged(self.verdict.fits, self.verdict.certain)


def judged_rows(path: str) -> list[JudgedRow]:
    """Table of measured steps → those that are experiments and ran, with verdicts. Local.

    Parameters
    ----------
    path : str
    """
    known: dict[str, Verdict] = {}
    found = []
    for row in read(path):
        mapped = experiment_of(row, settings())
        if not isinstance(mapped, Mapped) or row.texts["trust"] == FORMULA:
            continue
        try:
            found.append(JudgedRow(mapped, _verdict(mapped, known)))
        except InputError:
            continue  # no experiment: mpisim validate e2e says why
    return found


def _verdict(mapped: Mapped, known: dict[str, Verdict]) -> Verdict:
    """Return whether a row fits; equal plans are assessed once."""
    experiment = mapped.experiment
    key = repr((experiment.model, experiment.plan, experiment.cluster, experiment.kernels))
    if key not in known:
        hardware = hardware_of(experiment)
        smallest = min(hardware.named.values(), key=capacity)
        layout = lay_out(experiment, hardware.gpus)
        known[key] = assess(layout, smallest, node=hardware.cluster.gpus_per_node)
    return known[key]


def _counts(rows: Sequence[JudgedRow]) -> dict[str, dict[str, int]]:
    """Return the number of rows by source and verdict; all of them last."""
    by_source: dict[str, Counter[str]] = {}
    for row in sorted(rows, key=lambda each: each.mapped.source):
        by_source.setdefault(row.mapped.source, Counter())[row.judged] += 1
    by_source["all"] = Counter(row.judged for row in rows)
    return {name: {each: of[each] for each in VERDICTS} for name, of in by_source.items()}


def render(rows: Sequence[JudgedRow], *, details: bool = False) -> str:
    """Rows → a table by source, what is not modelled, and each row that is refused.

    Parameters
    ----------
    rows : sequence of JudgedRow
    details : bool
        Whether those that are too close to call have a line, too.
    """
    cells = [["steps that ran", "rows", *HEADS]]
    for name, counts in _counts(rows).items():
        cells.append([name, str(sum(counts.values())), *map(str, counts.values())])
    refused = sum(row.judged == "refused" for row in rows)
    lines = [*aligned(cells), "", f"refused of what ran: {percent(refused, len(rows))} %"]
    reasons = Counter(row.mapped.unjudged for row in rows if row.judged == "unjudged")
    for why, number in reasons.most_common():
        lines += wrap(f"not judged: {number} × {why}", WIDTH, subsequent_indent="  ")
    shown = ("close", "refused") if details else ("refused",)
    for row in rows:
        if row.judged in shown:
            lines.append(f"{row.mapped.row.texts['id']}: {row.verdict.sentence()}")
    return "\n".join(lines)


def as_json(rows: Sequence[JudgedRow]) -> dict[str, Any]:
    """Rows with their verdicts → JSON.

    Parameters
    ----------
    rows : sequence of JudgedRow
    """
    return {
        "verdicts": _counts(rows),
        "rows": [
            {
                "id": row.mapped.row.texts["id"],
                "source": row.mapped.source,
                "verdict": row.judged,
                "not_modelled": row.mapped.unjudged,
                "memory": row.verdict.as_dict(),
            }
            for row in rows
        ],
    }
