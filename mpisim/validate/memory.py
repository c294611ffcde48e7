"""Published figures of memory beside the model's: rows of ``data/validation/memory.toml``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

from ..base.errors import InputError
from ..base.frozen import frozen
from ..base.presets import packaged
from ..base.quantity import GIB
from ..base.schema import Limits, build, parse
from ..base.text import aligned, percentage
from ..experiment.load import experiment_of
from ..memory import StageMemory, Verdict, assess, capacity
from ..prediction.hardware import hardware_of
from ..workloads import lay_out

__all__ = ["Figure", "MemoryRow", "as_json", "figures", "judged", "memory_rows", "render"]

FILE = "validation/memory.toml"

TABLES = ("model", "plan", "framework", "cluster")

QUANTITIES: dict[str, Callable[[StageMemory], int]] = {
    "states": lambda stage: stage.states,
    "activations": lambda stage: stage.activations,
    "dynamic": lambda stage: stage.activations + stage.working,
    "tensors": lambda stage: stage.tensors,
    "reserved": lambda stage: stage.tensors + stage.fragmentation,
    "total": lambda stage: stage.total,
}
"""What figures are about, as a row names them."""

PEAKS = ("tensors", "reserved", "total")
"""Quantities that are measured peaks of all tensors."""

Gib = Annotated[float, Limits(least=0)] | None


@frozen
class Published:
    """A row of the file, without its experiment; the file explains the keys."""

    group: str
    source: str
    assumed: str = ""
    stage: str = "fullest"
    formula: bool = False
    ran: bool = True
    states: Gib = None
    activations: Gib = None
    dynamic: Gib = None
    tensors: Gib = None
    reserved: Gib = None
    total: Gib = None


@frozen
class Figure:
    """A published figure and the predicted one.

    Attributes
    ----------
    row, group, quantity : str
    formula : bool
        Whether it was computed, not measured.
    published, predicted : float
        GiB.
    """

    row: str
    group: str
    quantity: str
    formula: bool
    published: float
    predicted: float

    @property
    def error(self) -> float:
        """Predicted over published, less 1."""
        return self.predicted / self.published - 1


@frozen
class MemoryRow:
    """A published run, or formula, and the model's verdict on it.

    Attributes
    ----------
    name : str
    published : Published
    verdict : Verdict
    figures : tuple of Figure
    """

    name: str
    published: Published
    verdict: Verdict
    figures: tuple[Figure, ...]


def memory_rows(path: Path | None = None) -> list[MemoryRow]:
    """File of published memory → each row with what the memory model predicts. Local.

    Parameters
    ----------
    path : Path, optional
        TOML of the form of ``data/validation/memory.toml``, which is the default.

    Returns
    -------
    list of MemoryRow

    Raises
    ------
    InputError
        Naming file, row and key.
    """
    if path is None:
        return [_assessed(name, table, FILE) for name, table in packaged(FILE).items()]
    from ..base.files import read_text

    rows = []
    for name, table in parse(read_text(path), str(path)).items():
        if not isinstance(table, Mapping):
            raise InputError(f"{path}: {name}: must be a table [{name}], found {table!r}")
        rows.append(_assessed(name, table, str(path)))
    if not rows:
        raise InputError(f"{path}: holds no run; each is a table (data/validation/memory.toml)")
    return rows


def _assessed(name: str, table: Mapping[str, Any], file: str) -> MemoryRow:
    keys = {key: value for key, value in table.items() if key not in TABLES}
    published = build(Published, keys, file, name)
    experiment = experiment_of({key: dict(table.get(key, {})) for key in TABLES}, f"{file}: {name}")
    hardware = hardware_of(experiment)
    smallest = min(hardware.named.values(), key=capacity)
    layout = lay_out(experiment, hardware.gpus)
    verdict = assess(layout, smallest, node=hardware.cluster.gpus_per_node)
    found = []
    for quantity, of in QUANTITIES.items():
        gib = getattr(published, quantity)
        if gib is not None:
            of_stages = [of(each) / GIB for each in verdict.stages]
            predicted = _of_stage(of_stages, published.stage, file, name)
            found.append(Figure(name, published.group, quantity, published.formula, gib, predicted))
    return MemoryRow(name, published, verdict, tuple(found))


def _of_stage(values: Sequence[float], stage: str, file: str, name: str) -> float:
    if stage == "mean":
        return fmean(values)
    if stage == "fullest":
        return max(values)
    if stage == "last":
        return values[-1]
    if stage not in map(str, range(len(values))):
        raise InputError(
            f"{file}: {name}.stage is {stage!r}; allowed: 'fullest', 'last', 'mean' and '0' to "
            f"'{len(values) - 1}'"
        )
    return values[int(stage)]


# --- tables ---------------------------------------------------------------------------------------


def figures(rows: Sequence[Figure]) -> dict[str, Any]:
    """Figures → how many, mean of the absolute errors, bias, and the worst error.

    Parameters
    ----------
    rows : sequence of Figure
    """
    errors = [each.error for each in rows]
    return {
        "figures": len(errors),
        "mean": fmean(map(abs, errors)),
        "bias": fmean(errors),
        "worst": max(errors, key=abs),
    }


def judged(verdict: Verdict) -> str:
    """Verdict of the memory model → ``fits``, ``refused``, or ``close`` (within its error).

    Parameters
    ----------
    verdict : Verdict

    Returns
    -------
    str
    """
    if not verdict.certain:
        return "close"
    return "fits" if verdict.fits else "refused"


def _groups(rows: Sequence[MemoryRow]) -> dict[str, list[Figure]]:
    """Return figures by group and kind; all formulas and all measured peaks come last."""
    groups: dict[str, list[Figure]] = {}
    every: dict[str, list[Figure]] = {"all formulas": [], "all measured peaks": []}
    for row in rows:
        for each in row.figures:
            kind = "peaks" if each.quantity in PEAKS else each.quantity
            groups.setdefault(f"{each.group}: {kind}", []).append(each)
            if each.formula:
                every["all formulas"].append(each)
            elif kind == "peaks":
                every["all measured peaks"].append(each)
    return groups | {name: each for name, each in every.items() if each}


def _verdicts(rows: Sequence[MemoryRow]) -> dict[str, dict[str, int]]:
    """Rows → number of runs that succeeded, and that failed, by verdict."""
    counts = {name: dict.fromkeys(("fits", "close", "refused"), 0) for name in ("ran", "failed")}
    for row in rows:
        if not row.published.formula:
            counts["ran" if row.published.ran else "failed"][judged(row.verdict)] += 1
    return counts


def render(rows: Sequence[MemoryRow], *, details: bool = False) -> str:
    """Rows → tables of lines of at most 100 characters.

    Parameters
    ----------
    rows : sequence of MemoryRow
    details : bool
        Whether each figure and verdict has a line, too.
    """
    parts = [_details(rows)] if details else []
    groups = {name: figures(each) for name, each in _groups(rows).items()}
    if groups:
        cells = [["GiB of a GPU", "figures", "mean error", "bias", "worst"]]
        for name, found in groups.items():
            errors = (
                percentage(found["mean"], 1),
                percentage(found["bias"], 1, signed=True),
                percentage(found["worst"], 1, signed=True),
            )
            cells.append([name, f"{found['figures']}", *errors])
        parts.append("\n".join(aligned(cells)))
    counts = _verdicts(rows)
    cells = [["runs that", "number", "fit", "too close to call", "do not fit"]]
    for name, verb in (("ran", "went"), ("failed", "ran out of memory")):
        of = counts[name].values()
        cells.append([verb, str(sum(of)), *map(str, of)])
    parts.append("\n".join(aligned(cells)))
    return "\n\n".join(parts)


def _details(rows: Sequence[MemoryRow]) -> str:
    cells = [["row", "of", "published", "predicted", "error", "the run", "verdict"]]
    for row in rows:
        ran = "formula" if row.published.formula else "ran" if row.published.ran else "failed"
        ends = ran, "" if row.published.formula else judged(row.verdict)
        for each in row.figures:
            numbers = (
                f"{each.published:,.2f}",
                f"{each.predicted:,.2f}",
                percentage(each.error, 1, signed=True),
            )
            cells.append([row.name, each.quantity, *numbers, *ends])
        if not row.figures:
            cells.append([row.name, "", "", f"{row.verdict.peak / GIB:,.2f}", "", *ends])
    return "\n".join(aligned(cells, left=(0, 1, 5, 6)))


def as_json(rows: Sequence[MemoryRow]) -> dict[str, Any]:
    """Compared rows of memory → JSON.

    Parameters
    ----------
    rows : sequence of MemoryRow
    """
    return {
        "groups": {name: figures(each) for name, each in _groups(rows).items()},
        "verdicts": _verdicts(rows),
        "rows": [
            {
                "name": row.name,
                "group": row.published.group,
                "source": row.published.source,
                "assumed": row.published.assumed,
                "formula": row.published.formula,
                "ran": row.published.ran,
                "verdict": judged(row.verdict),
                "memory": row.verdict.as_dict(),
                "figures": [
                    {
                        "of": each.quantity,
                        "published": each.published,
                        "predicted": each.predicted,
                        "error": each.error,
                    }
                    for each in row.figures
                ],
            }
            for row in rows
        ],
    }
