"""The parts of the step of each class of ranks: what a GPU did at every moment, by name.

Every moment of a step counts for one part, the first of these that is under way on the device:

1. a kernel, by its phase: forward, backward, weight, recompute, optimizer, other compute; of the
   optimizer copies, too, among which is what the CPU updates of an optimizer that is offloaded;
2. other copies;
3. a communication that moves bytes, by the name of its communicator without the number, in
   alphabetical order ("dp" for "dp 0");
4. a communication that waits for another member, likewise;
5. the host, which prepares the batch of the next step (rows of the phase ``INPUT``), from when all
   else has ended: what is idle before is not for its sake;
6. idle.

*Kinds* of communicators must not depend on which of equal ranks is looked at: communicators that
ranks of one table bind by the same slot are of one kind, whatever they are called. Of more than
`MOST_KINDS` kinds those that most ranks bind keep their names, the rest are "other".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.frozen import frozen
from ..base.numbered_texts import NumberedTexts
from ..program import Kind, Phase, Program, Table

__all__ = [
    "IDLE",
    "INPUT",
    "MOST_KINDS",
    "OTHER",
    "PartKind",
    "PartLayout",
    "StepParts",
    "communicator_kinds",
    "kind_name",
]

MOST_KINDS = 12
"""Kinds of communicators that have parts of their own."""

OTHER = "other"
"""Kind of the communicators beyond these."""

COMPUTE_PARTS = {
    "forward": Phase.FORWARD,
    "backward": Phase.BACKWARD,
    "weight": Phase.WEIGHT,
    "recompute": Phase.RECOMPUTE,
    "optimizer": Phase.OPTIMIZER,
    "other compute": Phase.NONE,
}
"""Parts that are kernels, with their phases; where several run, the first counts."""

COPIES = "copies"
INPUT = "input"
IDLE = "idle"


class PartKind(IntEnum):
    """What a part of a step is."""

    COMPUTE = 0
    WIRE = 1  # exposed communication: bytes move and nothing computes
    WAITING = 2  # exposed communication: waits for another member and nothing computes
    IDLE = 3  # nothing runs
    INPUT = 4  # nothing runs but what prepares the next batch on the host


class StepParts(NamedTuple):
    """How long each class of ranks spent on each part of the step.

    The parts of a class add up to the time of the step shown, exactly.

    Attributes
    ----------
    names : tuple of str
        Of each part: of compute the phase ("forward", "optimizer"), of communication what the
        communicators are called ("dp", "tp"), without their numbers.
    kinds : uint8, shape (p,)
        `PartKind`.
    times : int64, shape (n_classes, p)
        In ps.
    """

    names: tuple[str, ...]
    kinds: NDArray[np.uint8]
    times: NDArray[np.int64]

    def totals(self, count: NDArray[np.int64]) -> list[int]:
        """Ranks of each class, shape (n_classes,) → ps of each part over all ranks, exact."""
        # Of many ranks they are too large for 64 bits.
        upper, lower = count @ (self.times >> 32), count @ (self.times & 0xFFFFFFFF)
        return [
            (high << 32) + low for high, low in zip(upper.tolist(), lower.tolist(), strict=True)
        ]

    def mean(self, count: NDArray[np.int64]) -> NDArray[np.float64]:
        """Ranks of each class, shape (n_classes,) → ps of each part in the mean of all ranks."""
        n = max(int(count.sum()), 1)
        return np.array([total / n for total in self.totals(count)])


# --- numbers of parts -----------------------------------------------------------------------------

NUMBER = re.compile(r"[^\w]*_*\d[\d\W_]*$")
"""The end of a communicator's name: a number, or several with signs between them."""


@lru_cache(maxsize=1 << 16)
def kind_name(communicator: str) -> str:
    """Return what communicators are called, without their numbers.

    Parameters
    ----------
    communicator : str

    Examples
    --------
    >>> kind_name("dp 0"), kind_name("ep2dp_3"), kind_name("pair 0->1"), kind_name("7")
    ('dp', 'ep2dp', 'pair', 'communication')
    """
    return " ".join(NUMBER.sub("", communicator).split()) or "communication"


@frozen(eq=False)
class PartLayout:
    """The parts that a program's steps can have, as numbers, equal on all processes.

    Attributes
    ----------
    kinds : tuple of str
        Of communicators, in alphabetical order, the last maybe `OTHER`.
    of_slot : uint8, shape (n_tables, slots of the rank with most)
        Kind of what ranks of each table bind by each slot.
    """

    kinds: tuple[str, ...]
    of_slot: NDArray[np.uint8]

    @classmethod
    def of(cls, program: Program) -> PartLayout:
        """Program, whole or partial → its parts. Local.

        Parameters
        ----------
        program : Program
        """
        names, kind = communicator_kinds(program.communicators.names)
        counts = np.diff(program.slot_index)
        most = int(counts.max(initial=0))
        place = np.repeat(program.table.astype(np.int64) * most, counts)
        place += np.arange(len(place)) - np.repeat(program.slot_index[:-1], counts)
        bound = kind[program.slots]
        one = np.zeros(len(program.tables) * most, np.int64)
        one[place] = bound  # of several the last
        names, joined = _joined(names, one[place], bound)
        numbers, kinds = _most_used(names, np.bincount(joined[bound], minlength=len(names)))
        of_slot = numbers[joined[one]] if len(names) else one
        return cls(kinds, of_slot.reshape(len(program.tables), most).astype(np.uint8))

    @property
    def n_compute(self) -> int:
        """Parts that compute: the first ones."""
        return len(COMPUTE_PARTS) + 1

    @property
    def n_device(self) -> int:
        """Parts in which a GPU is at work or communicates: the first ones."""
        return self.n_compute + 2 * len(self.kinds)

    @property
    def n_parts(self) -> int:
        """All parts but `IDLE`, which is the last; `INPUT` is the one before."""
        return self.n_device + 1

    def of_rows(
        self, structure: Table, kinds: NDArray[np.uint8]
    ) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Return the part of each row of a table, and that of communications while they wait.

        Parameters
        ----------
        structure : Table
        kinds : uint8, shape (at least its slots,)
            Of what its slots are bound to: a row of `of_slot`.
        """
        of_phase = np.zeros(len(Phase), np.uint8)
        for number, phase in enumerate(COMPUTE_PARTS.values()):
            of_phase[phase] = number
        part = of_phase[structure.phase]
        copies = (structure.kind == Kind.COPY) & (structure.phase != Phase.OPTIMIZER)
        part[copies] = len(COMPUTE_PARTS)
        part[structure.phase == Phase.INPUT] = self.n_device
        waiting = np.zeros(len(part), np.uint8)
        rows = structure.is_communication
        wire = kinds[structure.slot[rows]] + np.uint8(self.n_compute)
        part[rows], waiting[rows] = wire, wire + np.uint8(len(self.kinds))
        return part, waiting

    def step_parts(self, times: NDArray[np.int64]) -> StepParts:
        """Return the parts that take time, of classes of ranks.

        Parameters
        ----------
        times : int64, shape (n_classes, n_parts + 1)
            Of all parts, and idle.
        """
        names = (*COMPUTE_PARTS, COPIES, *self.kinds, *self.kinds, INPUT, IDLE)
        n_kinds = len(self.kinds)
        order = (PartKind.COMPUTE, PartKind.WIRE, PartKind.WAITING, PartKind.INPUT, PartKind.IDLE)
        kinds = np.repeat(order, (self.n_compute, n_kinds, n_kinds, 1, 1))
        taken = np.flatnonzero(times.any(axis=0))
        return StepParts(
            tuple(names[part] for part in taken.tolist()),
            kinds[taken].astype(np.uint8),
            np.ascontiguousarray(times[:, taken]),
        )


def communicator_kinds(names: Sequence[str]) -> tuple[list[str], NDArray[np.int64]]:
    """Return what communicators are called, without numbers, in order, and which each is.

    Parameters
    ----------
    names : sequence of str
        Of each communicator.

    Returns
    -------
    kinds : list of str
        In alphabetical order.
    which : int64, shape (n,)
        Index into `kinds`.
    """
    if isinstance(names, NumberedTexts):
        prefixes, counts = zip(*names.parts, strict=True) if names.parts else ((), ())
        texts = [kind_name(f"{prefix}0") for prefix in prefixes]
    else:
        texts, counts = [kind_name(name) for name in names], None
    kinds = sorted(set(texts))
    number = {text: i for i, text in enumerate(kinds)}
    found = np.array([number[text] for text in texts], np.int64)
    return kinds, found if counts is None else np.repeat(found, counts)


def _joined(
    names: list[str], one: NDArray[np.int64], other: NDArray[np.int64]
) -> tuple[list[str], NDArray[np.int64]]:
    """Join kinds that share a slot: names of the joined ones, and the number of each in them."""
    number = np.arange(len(names))
    differ = np.flatnonzero(one != other)
    if not len(differ):
        return names, number
    pairs = np.unique(one[differ] * len(names) + other[differ])
    while True:
        low = np.minimum(number[pairs // len(names)], number[pairs % len(names)])
        now = number.copy()
        np.minimum.at(now, pairs // len(names), low)
        np.minimum.at(now, pairs % len(names), low)
        if (now == number).all():
            break
        number = now
    kept, number = np.unique(number, return_inverse=True)
    return [names[i] for i in kept.tolist()], number


def _most_used(
    names: list[str], uses: NDArray[np.int64]
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return the number of each kind among those that have parts, and the names of these."""
    used = sorted(np.flatnonzero(uses).tolist(), key=lambda kind: (-int(uses[kind]), kind))
    kept = sorted(used[:MOST_KINDS])
    numbers = np.full(len(names), len(kept), np.int64)
    numbers[kept] = np.arange(len(kept))
    others = (OTHER,) if len(used) > MOST_KINDS else ()
    return numbers, (*(names[kind] for kind in kept), *others)
