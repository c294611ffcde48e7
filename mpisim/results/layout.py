"""The layout of results files: groups, columns, types and units.

::

    attributes                     format, format_version, creator, digest, step_time (s), seed,
                                   experiment, n_processes, rounds, mode, versions, ... and whatever
                                   the maker of the program has to say (assumptions, ...)
    summary/<scalar>               ps, s and counts
    ranks/<column>                 one entry a rank; class: its entry in classes
    classes/<column>               one entry a class of ranks that do the same at the same times:
                                   the rank that was simulated for all, how many they are, and
                                   what tells them from the largest class of the same table
                                   (0 nothing, 1 speed, 2 start, 3 size or cost of a communicator,
                                   4 ranks they meet)
    steps, kernels, communications/<column>
    communicators/index, members, names
    links/<column>                 links that can be full, the most used first; one entry for all
                                   that are used alike. Empty where communications share none
    links/utilisation              share of the capacity in each hundredth of the step, links × 100
    link_sharing/<column>          which communicators used a link at the same time, and how long
    critical_path/<column>, names  absent if it was not asked for
    recorded_steps/<column>        absent but for recordings: begin and end of each step from the
                                   begin of the run. ranks, kernels, communications and the
                                   critical path are about the one whose number is in
                                   recorded_steps/shown; summary/step_time is the mean over steps,
                                   and recorded_steps/whole the time of the whole recording
    timeline/<column>              absent if it was not asked for. Rows of the representatives
                                   alone, process after process: ranks of one class share them,
                                   but for the communicators, which rank_slots has by slot
    timeline/rank_offset, rank_rows, rank_slot_index, rank_slots, names

Columns of kinds, operations, phases and bindings are HDF5 enumerations: the file itself names their
numbers. docs/results.md has every dataset.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from ..base.hdf5 import StoredType
from ..engine.run import Apart, Binding, PieceKind
from ..program import Kind, Operation, Phase
from .accounting import BREAKDOWN

__all__ = [
    "BINDINGS",
    "CLASSES",
    "COMMUNICATIONS",
    "CRITICAL_PATH",
    "FORMAT",
    "KERNELS",
    "LINKS",
    "LINK_SHARING",
    "RANKS",
    "RECORDED_STEPS",
    "STEPS",
    "TIMELINE",
    "VERSION",
]

FORMAT = "mpisim-results"
VERSION = 5

Layout: TypeAlias = dict[str, tuple[StoredType, str | None]]
"""Type and unit of each column; the type `object` stands for texts, an enumeration for numbers that
it names."""

_INPUTS = ["HOST", "STREAM", *(f"WAIT_{i}" for i in range(Binding.QUEUE - Binding.WAIT))]

BINDINGS = {
    **{name: number for number, name in enumerate(_INPUTS)},
    **{f"{name}_QUEUE": number + Binding.QUEUE for number, name in enumerate(_INPUTS)},
}
"""Names of what a row was waiting for last (`Binding`): each of its waits has one, and ``_QUEUE``
says that the launching call waited, too."""

RANKS: Layout = {
    "end": (np.int64, "ps"),
    "process": (np.int32, None),
    "class": (np.int32, None),
    "rows": (np.int64, None),
    **dict.fromkeys(BREAKDOWN, (np.int64, "ps")),
}
CLASSES: Layout = {
    "representative": (np.int32, None),
    "count": (np.int64, None),
    "apart": (Apart, None),
    "table": (np.int32, None),
    "speed": (np.float64, None),
    "start": (np.int64, "ps"),
}
STEPS: Layout = {
    "rank": (np.int64, None),
    "step": (np.int64, None),
    "duration": (np.int64, "ps"),
}
KERNELS: Layout = {
    "name": (object, None),
    "kind": (Kind, None),
    "count": (np.int64, None),
    "total": (np.int64, "ps"),
    "longest": (np.int64, "ps"),
}
COMMUNICATIONS: Layout = {
    "communicator": (np.int32, None),
    "operation": (Operation, None),
    "size": (np.int64, None),
    "count": (np.int64, None),
    "bytes": (np.int64, "bytes"),
    "wire": (np.int64, "ps"),
    "waiting": (np.int64, "ps"),
    "bandwidth": (np.float64, "bytes/s"),
    "bus_bandwidth": (np.float64, "bytes/s"),
    "limit": (object, None),
}
LINKS: Layout = {
    "name": (object, None),
    "count": (np.int64, None),
    "capacity": (np.float64, "bytes/s"),
    "bytes": (np.int64, "bytes"),
    "busy": (np.int64, "ps"),
    "shared": (np.int64, "ps"),
}
LINK_SHARING: Layout = {
    "link": (np.int64, None),
    "communicator": (np.int64, None),
    "other": (np.int64, None),
    "time": (np.int64, "ps"),
}
CRITICAL_PATH: Layout = {
    "kind": (PieceKind, None),
    "rank": (np.int32, None),
    "row": (np.int32, None),
    "begin": (np.int64, "ps"),
    "end": (np.int64, "ps"),
    "name": (np.int32, None),
}
RECORDED_STEPS: Layout = {
    "step": (np.int32, None),
    "begin": (np.int64, "ps"),
    "end": (np.int64, "ps"),
}
TIMELINE: Layout = {
    "begin": (np.int64, "ps"),
    "end": (np.int64, "ps"),
    "wire": (np.int64, "ps"),
    "binding": (BINDINGS, None),
    "kind": (Kind, None),
    "stream": (np.int16, None),
    "name": (np.int32, None),
    "communicator": (np.int32, None),
    "bytes": (np.int64, "bytes"),
    "phase": (Phase, None),
    "layer": (np.int16, None),
    "micro_batch": (np.int16, None),
    "step": (np.int32, None),
}
