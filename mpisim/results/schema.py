"""The schema of results files: groups, columns, types and units.

::

    attributes                     format, format_version, creator, digest, step_time (s), seed,
                                   experiment, origin, n_processes, rounds, mode, versions, ... and
                                   whatever the maker of the program adds (assumptions, ...)
    summary/<scalar>               ps, s and counts
    ranks/<column>                 one entry a rank; class: its entry in classes
    classes/<column>               one entry an equivalence class of ranks: its representative, how
                                   many they are, and why they differ from the largest class of
                                   the same table (`SPLIT_REASONS`)
    steps, kernels, communications/<column>
    communicators/index, members, names
    links/<column>                 links that can saturate, the most used first; one entry for all
                                   that are used equally. Empty where communications share none
    links/utilisation              share of the capacity in each hundredth of the step, links × 100
    link_sharing/<column>          which communicators used a link at the same time, and how long
    parts/name, kind, time         the step of each class of ranks taken apart, classes × parts;
                                   absent in files of earlier mpisim
    critical_path/<column>, names  absent unless requested
    sensitivities/<column>         of a prediction: how the step time answers to each quantity
    recorded_steps/<column>        absent but for recordings: begin and end of each step from the
                                   begin of the run. ranks, kernels, communications and the
                                   critical path are about the one whose number is in
                                   recorded_steps/shown; summary/step_time is the mean over steps,
                                   and recorded_steps/whole the time of the whole recording
    timeline/<column>              absent unless requested. Rows of the representatives
                                   alone, process after process: ranks of one class share them,
                                   but for the communicators, which rank_slots has by slot
    timeline/rank_offset, rank_rows, rank_slot_index, rank_slots, names

Columns of kinds, operations, phases and bindings are HDF5 enumerations: the file itself names their
numbers. docs/results.md has every dataset.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from ..base.hdf5_data import StoredType
from ..engine.critical_path import PieceKind
from ..engine.fold import SplitReason
from ..engine.rows import Binding
from ..program import Kind, Operation, Phase
from .accounting import BREAKDOWN
from .step_parts import PartKind

__all__ = [
    "CLASSES",
    "COMMUNICATIONS",
    "CRITICAL_PATH",
    "FORMAT",
    "KERNELS",
    "LINKS",
    "LINK_SHARING",
    "PARTS",
    "RANKS",
    "RECORDED_STEPS",
    "SENSITIVITIES",
    "SENSITIVITY_FIELDS",
    "SPLIT_REASONS",
    "STEPS",
    "TIMELINE",
    "VERSION",
]

FORMAT = "mpisim-results"
VERSION = 5
"""Of the format. Files of an earlier one are refused, so a column added to a table below raises it;
a group that the reader can do without (``parts``) does not."""

ColumnTypes: TypeAlias = dict[str, tuple[StoredType, str | None]]
"""Type and unit of each column; the type `object` represents texts, an enumeration for numbers that
it names."""

_INPUTS = ["HOST", "STREAM", *(f"WAIT_{i}" for i in range(Binding.QUEUE - Binding.WAIT))]

BINDINGS = {
    **{name: number for number, name in enumerate(_INPUTS)},
    **{f"{name}_QUEUE": number + Binding.QUEUE for number, name in enumerate(_INPUTS)},
}
"""Names of each `Binding`, one for each wait of a row; ``_QUEUE``: the launching call waited."""

SPLIT_REASONS = {
    "NOT": SplitReason.NONE,
    "SPEED": SplitReason.SPEED,
    "START": SplitReason.START,
    "GROUPS": SplitReason.COMMUNICATORS,
    "NEIGHBOURS": SplitReason.PARTNERS,
}
"""Names that files have for each `SplitReason`."""

RANKS: ColumnTypes = {
    "end": (np.int64, "ps"),
    "process": (np.int32, None),
    "class": (np.int32, None),
    "rows": (np.int64, None),
    **dict.fromkeys(BREAKDOWN, (np.int64, "ps")),
}
CLASSES: ColumnTypes = {
    "representative": (np.int32, None),
    "count": (np.int64, None),
    "apart": (SPLIT_REASONS, None),
    "table": (np.int32, None),
    "speed": (np.float64, None),
    "start": (np.int64, "ps"),
}
STEPS: ColumnTypes = {
    "rank": (np.int64, None),
    "step": (np.int64, None),
    "duration": (np.int64, "ps"),
}
KERNELS: ColumnTypes = {
    "name": (object, None),
    "kind": (Kind, None),
    "count": (np.int64, None),
    "total": (np.int64, "ps"),
    "longest": (np.int64, "ps"),
}
COMMUNICATIONS: ColumnTypes = {
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
LINKS: ColumnTypes = {
    "name": (object, None),
    "count": (np.int64, None),
    "capacity": (np.float64, "bytes/s"),
    "bytes": (np.int64, "bytes"),
    "busy": (np.int64, "ps"),
    "shared": (np.int64, "ps"),
}
LINK_SHARING: ColumnTypes = {
    "link": (np.int64, None),
    "communicator": (np.int64, None),
    "other": (np.int64, None),
    "time": (np.int64, "ps"),
}
PARTS: ColumnTypes = {
    "name": (object, None),
    "kind": (PartKind, None),
}
CRITICAL_PATH: ColumnTypes = {
    "kind": (PieceKind, None),
    "rank": (np.int32, None),
    "row": (np.int32, None),
    "begin": (np.int64, "ps"),
    "end": (np.int64, "ps"),
    "name": (np.int32, None),
}
SENSITIVITIES: ColumnTypes = {
    "name": (object, None),
    "key": (object, None),
    "now": (object, None),
    "elasticity": (np.float64, None),
}
SENSITIVITY_FIELDS = dict(zip(("names", "keys", "now", "elasticity"), SENSITIVITIES, strict=True))
"""Columns by the fields of `Sensitivities`."""

RECORDED_STEPS: ColumnTypes = {
    "step": (np.int32, None),
    "begin": (np.int64, "ps"),
    "end": (np.int64, "ps"),
}
TIMELINE: ColumnTypes = {
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
