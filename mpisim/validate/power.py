"""Measured power of training beside what is predicted: rows of ``data/validation/power.toml``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import Annotated, Any, Literal

from ..base.frozen import frozen
from ..base.presets import packaged
from ..base.schema import Limits, build
from ..base.text import WIDTH, aligned, percentage
from ..cost.power import Uncertain
from ..cost.step import cost_of_cluster
from ..experiment.load import experiment_of

__all__ = ["PowerRow", "as_json", "power_rows", "render"]

FILE = "validation/power.toml"

TABLES = ("model", "plan", "framework", "cluster", "run")


OF = {"gpu": "a GPU", "node": "a node", "idle": "idle, a GPU"}


@frozen
class Measured:
    """A row of the file, without its experiment.

    Attributes
    ----------
    title : str
    of : {"gpu", "node", "idle"}
        What drew it.
    watts : float
    source : str
    assumed : str
        What the figure depends on and the source does not say.
    """

    title: str
    of: Literal["gpu", "node", "idle"]
    watts: Annotated[float, Limits(least=1)]
    source: str
    assumed: str = ""


@frozen
class PowerRow:
    """A measured power and the predicted one.

    Attributes
    ----------
    name : str
    measured : Measured
    predicted : Uncertain
        W.
    """

    name: str
    measured: Measured
    predicted: Uncertain

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted.value / self.measured.watts - 1


def power_rows() -> list[PowerRow]:
    """Simulate every row of the file. Local."""
    return [_predicted(name, table) for name, table in packaged(FILE).items()]


def _predicted(name: str, table: Mapping[str, Any]) -> PowerRow:
    tables = {key: dict(table[key]) for key in TABLES if key in table}
    figures = {key: value for key, value in table.items() if key not in TABLES}
    measured = build(Measured, figures, FILE, name)
    experiment = experiment_of(tables, FILE)
    if measured.of == "idle":
        power, _ = cost_of_cluster(experiment)
        return PowerRow(name, measured, power.nodes_idle.times(1 / sum(power.counts)))
    from ..simulate import simulate

    results = simulate(experiment)
    assert results is not None
    attributes = results.attributes
    watts, error = (float(attributes[f"power_{measured.of}{end}"]) for end in ("", "_error"))
    return PowerRow(name, measured, Uncertain(watts, watts * error))


def render(rows: Sequence[PowerRow]) -> str:
    """Rows → a table of lines of at most 100 characters, and what each is.

    Parameters
    ----------
    rows : sequence of PowerRow
    """
    cells = [("", "of", "measured", "predicted", "±", "error")]
    notes = []
    for row in rows:
        cells.append(
            (
                row.name,
                OF[row.measured.of],
                f"{row.measured.watts:,.0f} W",
                f"{row.predicted.value:,.0f} W",
                percentage(row.predicted.relative),
                percentage(row.error, 1, signed=True),
            )
        )
        text = f"{row.name}: {row.measured.title}; {row.measured.source}"
        text += f"; assumed: {row.measured.assumed}" if row.measured.assumed else ""
        notes += wrap(text, WIDTH, subsequent_indent="  ")
    return "\n".join([*aligned(cells, left=(0, 1)), "", *notes])


def as_json(rows: Sequence[PowerRow]) -> list[dict[str, Any]]:
    """Compared rows of power → JSON.

    Parameters
    ----------
    rows : sequence of PowerRow
    """
    return [
        {
            "name": row.name,
            "of": row.measured.of,
            "measured": row.measured.watts,
            "predicted": row.predicted.value,
            "predicted_error": row.predicted.relative,
            "error": row.error,
            "source": row.measured.source,
            "assumed": row.measured.assumed,
        }
        for row in rows
    ]
