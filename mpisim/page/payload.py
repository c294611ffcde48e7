"""A run → all that its page shows, as plain values and numpy arrays.

`run_payload` and `comparison_payload` make a dict; `mpisim.page.html` draws it. What a section has
and in which unit is said where it is made:

- ``headline``, ``statements``, ``title``: `mpisim.page.words`
- ``parts``: here; the step of a GPU, taken apart
- ``path``: `mpisim.page.path`
- ``timeline``: `mpisim.page.timeline`, its rows `mpisim.page.rows`
- ``memory``, ``links``: `mpisim.page.usage`
- ``tables``: `mpisim.page.tables`

All times are whole ps from the begin of the step shown. A section that does not apply is None, and
``why`` says why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..mpi.parallel import collective_errors
from ..report.comparison import Comparison, verdict_of
from ..report.part_labels import CommunicatorKinds, part_labels
from ..results import Results
from ..results.step_parts import PartKind
from .path import path_of
from .shown import RankGroups, ShownRun, groups_of
from .tables import tables_of
from .timeline import MOST_ROWS, Timeline, timeline_of
from .usage import links_of, memory_of
from .words import error_text, headline_of, statements_of, subtitle_of, title_of

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["comparison_payload", "run_payload"]

KINDS = {
    PartKind.COMPUTE: "compute",
    PartKind.WIRE: "wire",
    PartKind.WAITING: "waiting",
    PartKind.IDLE: "idle",
    PartKind.INPUT: "input",
}

WITHOUT_PARTS = (
    ("compute", "compute", PartKind.COMPUTE),
    ("exposed_wire", "communication, data moving", PartKind.WIRE),
    ("exposed_waiting", "communication, waiting for others", PartKind.WAITING),
    ("idle", "idle", PartKind.IDLE),
)
"""Columns of `Results.ranks` that add up to the step, where a result has no parts."""


def run_payload(
    results: Results | None,
    shown: ShownRun | None,
    comm: Intracomm,
    *,
    why: str = "",
    name: str = "",
    most_rows: int = MOST_ROWS,
) -> dict[str, Any] | None:
    """A result and its run → what the page shows. **Collective.**

    Parameters
    ----------
    results : Results or None
        On process 0; None on the others.
    shown : ShownRun or None
        The run; None on all processes where it is not there.
    comm : mpi4py.MPI.Intracomm
        The processes of the run.
    why : str
        Why there is no run, if so.
    name : str
        What the run is called if it has no title.
    most_rows : int
        Rows of the timeline.

    Returns
    -------
    dict or None
        On process 0; None on the others.
    """
    groups: RankGroups | None = None
    window, numbers = (0, 0), list[int]()
    with collective_errors(comm):
        if results is not None:
            window, numbers = _window(results), results.rank_numbers
            groups = groups_of(results, shown)
    timeline: Timeline | None = None
    memory: dict[str, Any] | None = None
    if shown is not None:
        timeline = timeline_of(shown, groups, window, numbers, comm, most_rows)
        if shown.prepared is not None:
            capacity = 0 if results is None else int(results.attributes["memory_capacity"])
            memory = memory_of(shown, groups, capacity, comm)
    with collective_errors(comm):
        if results is None or groups is None:
            return None
        path = path_of(results, window[0], None if timeline is None else timeline.place)
        links = links_of(results)
        reasons = {
            "path": "" if path else "The critical path was not asked for.",
            "timeline": why,
            "memory": why or ("" if memory else _no_memory(shown)),
            "links": "" if links else "No link of this network can be full, or none was used.",
            "sensitivities": "" if results.sensitivities else "Known of predictions alone.",
        }
        return {
            "title": title_of(results, name),
            "subtitle": subtitle_of(results),
            "headline": headline_of(results),
            "whole_ps": results.shown_ps,
            "parts": _parts(results, groups),
            "path": path,
            "timeline": None if timeline is None else timeline.section,
            "tables": tables_of(results, groups),
            "memory": memory,
            "links": links,
            "sensitivities": _sensitivities(results),
            "statements": statements_of(results),
            "experiment": results.experiment,
            "compare": None,
            "why": {section: text for section, text in reasons.items() if text},
        }


def _window(results: Results) -> tuple[int, int]:
    """Return begin and end of the step shown, in ps from the begin of the run."""
    of = results.recorded
    if of is None:
        return 0, results.step_time_ps
    return int(of.begin[of.shown]), int(of.end[of.shown])


def _no_memory(shown: ShownRun | None) -> str:
    if shown is None or shown.prepared is None:
        return "Memory is known of experiments alone, not of programs and recordings."
    return "The passes of these ranks overlap, so that their memory over time is not known."


def _parts(results: Results, groups: RankGroups) -> dict[str, Any]:
    """Return the parts of a GPU's step: of the mean of all, and of each group."""
    classes = results.ranks["class"]
    if results.parts is None:
        names = [title for _, title, _ in WITHOUT_PARTS]
        kinds = [KINDS[kind] for _, _, kind in WITHOUT_PARTS]
        of_rank = np.stack([results.ranks[column] for column, _, _ in WITHOUT_PARTS], axis=1)
        representative = results.classes["representative"]
        times = of_rank[representative]
    else:
        labels = part_labels(results.parts, CommunicatorKinds.of(results))
        names = list(dict.fromkeys(labels))
        of_label = dict(zip(labels, results.parts.kinds.tolist(), strict=True))
        kinds = [KINDS[PartKind(of_label[name])] for name in names]
        times = np.zeros((len(results.parts.times), len(names)), np.int64)
        np.add.at(times.T, [names.index(label) for label in labels], results.parts.times.T)
    n = len(times)
    mean = np.bincount(classes, minlength=n) @ times / max(results.n_ranks, 1)
    word = "GPU" if results.n_ranks == 1 else "GPUs"
    rows: list[dict[str, Any]] = [
        {
            "name": f"mean of {results.n_ranks:,} {word}",
            "gpus": results.n_ranks,
            "ps": mean.tolist(),
        }
    ]
    if len(groups.titles) > 1:
        here = groups.of_rank >= 0
        of_class = np.bincount(
            groups.of_rank[here] * n + classes[here], minlength=len(groups.titles) * n
        ).reshape(len(groups.titles), n)
        means = of_class @ times / groups.sizes[:, None]
        rows += [
            {"name": title, "gpus": size, "ps": each}
            for title, size, each in zip(
                groups.titles, groups.sizes.tolist(), means.tolist(), strict=True
            )
        ]
    return {"names": names, "kinds": kinds, "rows": rows}


def _sensitivities(results: Results) -> dict[str, Any] | None:
    found = results.sensitivities
    if found is None or not len(found.names):
        return None
    return {
        "rows": [
            {
                "name": name,
                "key": key,
                "now": now,
                "elasticity": float(found.elasticity[i]),
                "minus10": found.change(i, 0.9),
                "plus10": found.change(i, 1.1),
                "double": found.change(i, 2.0),
            }
            for i, (name, key, now) in enumerate(
                zip(found.names, found.keys, found.now, strict=True)
            )
        ],
        "note": "Change of the step for other hardware, first order along the critical path as it "
        "is; mpisim sensitivity simulates each change beside it.",
    }


# --- two runs -------------------------------------------------------------------------------------


def comparison_payload(
    found: Comparison, results: tuple[Results, Results], titles: tuple[str, str]
) -> dict[str, Any]:
    """Two runs, compared → what their page shows. Local.

    Parameters
    ----------
    found : Comparison
    results : tuple of Results
        Of both runs.
    titles : tuple of str
        What they are called.
    """
    step = found.step
    lists = [("What a GPU does, in the mean over all", found.gpus)]
    lists += [(f"Critical path by {what}", parts) for what, parts in found.path.items()]
    return {
        "title": "Two runs",
        "subtitle": f"{titles[0]} and {titles[1]}",
        "headline": None,
        "whole_ps": max(step.one, step.other),
        "compare": {
            "a": titles[0],
            "b": titles[1],
            "a_ps": step.one,
            "b_ps": step.other,
            "a_error": error_text(results[0]),
            "b_error": error_text(results[1]),
            "verdict": verdict_of(found),
            "lists": [
                {
                    "title": title,
                    "rows": [[part.name, part.one, part.other, part.difference] for part in parts],
                }
                for title, parts in lists
            ],
            "keys": [[key, *values] for key, values in found.keys.items()],
        },
        "statements": [
            {"title": f"{letter}: {each['title']}", "items": each["items"]}
            for letter, one in zip("AB", results, strict=True)
            for each in statements_of(one)
        ],
        "experiment": "",
        "why": {},
    }
