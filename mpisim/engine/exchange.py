"""Messages between the MPI processes of a run, and time windows for shared flows.

**Messages.** When no hosted rank can move, a process sends a message for each communication to
which all its hosted members have posted. It holds the time at which the last of them was ready, and
goes to the other processes with members if they are few, otherwise to the owner, who answers when
all have written. All messages travel together: one Alltoall a round, with the counts of messages
and, where they are few, the messages themselves; else one Alltoallv more. A message is a few int64:
the communication as communicator and k in one word, a time, the rank that was last, and, where
communications share links, what becomes of the flow.

**Windows.** Contention domains are assigned to processes; the *owner* of a domain runs its flows.
When nothing can move without an event, all agree on a *safe time*, before which no flow can arrive
that some rank has still to post: until then every owner lets events happen (conservative parallel
discrete-event simulation). The earliest event of all is always safe, so a window is never empty and
there is always progress. A process bounds the posts of its own ranks by MAX over what each waits
for; a communication waits for its last member, so the MIN over processes of their bounds is at or
below the true arrival. A shorter window would give the same times: nothing depends on its end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..mpi.reductions import allreduce_max, allreduce_min
from .distribution import Distribution, Role
from .fold import SimulatedRanks

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["Progress", "Window", "count_operations", "exchange", "open_window"]

_K_BITS = 32
"""Of the word that names a communication: communicator << 32 | k, both below 2**31."""
_HEAD_WORDS = 5
"""Words of the head of a message: see `exchange`."""
_NO_EVENT = int(np.iinfo(np.int64).max)
_MAX_INLINE = 4
"""Messages to one process that travel with the counts: most rounds then need one MPI call."""

Window = Callable[[int, int], int]
"""(earliest event, safe time) → end of the window, in ps: no less than the first, no more than the
second."""


def _full_window(earliest: int, safe: int) -> int:
    """Let the window end at the safe time."""
    return safe


class Progress(NamedTuple):
    """Progress of all processes together after a round; equal on each of them."""

    unfinished: int
    """Ranks that have not ended."""
    moving: bool
    """Whether a message was under way or a rank could still move."""
    earliest: int = _NO_EVENT
    """When the next flow arrives or ends; the largest int64 if none will."""
    notes: NDArray[np.int64] | None = None
    """What each process reports of itself, if any does; shape (processes, words)."""

    @property
    def goes_on(self) -> bool:
        """Whether anything is still to come."""
        return self.moving or self.earliest < _NO_EVENT


def exchange(
    distribution: Distribution,
    core: Any,
    moving: bool,
    comm: Intracomm,
    note: NDArray[np.int64] | None = None,
) -> Progress:
    """Exchange messages and progress of the cores of all processes. **Collective**.

    Parameters
    ----------
    distribution : Distribution
    core : Core
        Its outbox is emptied, and what the others sent is delivered.
    moving : bool
        Whether some rank here can still move without any message.
    comm : mpi4py.MPI.Intracomm
        Of two processes or more.
    note : int64, shape (n,), optional
        Values this process reports to the others; of one length on all.
    """
    messages, sent = _outgoing(distribution, core, comm.size)
    most, words = int(sent.max()), messages.shape[1]
    # To each process: how many messages there are for it; the same to all: how this process
    # stands; and the messages themselves, if they are few.
    first_word = _HEAD_WORDS if note is None else _HEAD_WORDS + len(note)
    head = np.zeros((comm.size, first_word + words * _MAX_INLINE), np.int64)
    head[:, 0] = sent
    head[:, 1] = core.unfinished
    head[:, 2] = moving or most > 0
    head[:, 3] = most
    head[:, 4] = _NO_EVENT if distribution.core_input.flows is None else core.next_event()
    if note is not None:
        head[:, _HEAD_WORDS:first_word] = note
    first = np.cumsum(sent) - sent
    if 0 < most <= _MAX_INLINE:
        receiver = np.repeat(np.arange(comm.size), sent)
        nth = np.arange(len(messages)) - first[receiver]
        head[:, first_word:].reshape(comm.size, _MAX_INLINE, words)[receiver, nth] = messages
    heads = np.empty_like(head)
    comm.Alltoall(head, heads)
    notes = None if note is None else heads[:, _HEAD_WORDS:first_word]
    state = Progress(int(heads[:, 1].sum()), bool(heads[:, 2].any()), int(heads[:, 4].min()), notes)
    over = state.unfinished == 0 and distribution.core_input.flows is None
    if over or not state.moving:
        return state  # all see the same, so no one waits for the messages

    counts = heads[:, 0].copy()
    if heads[:, 3].max() <= _MAX_INLINE:  # all see the same here, too
        slots = heads[:, first_word:].reshape(comm.size, _MAX_INLINE, words)
        received = slots[np.arange(_MAX_INLINE) < counts[:, None]]
    else:
        received = np.empty((int(counts.sum()), words), np.int64)
        comm.Alltoallv(
            [messages, (words * sent, words * first)],
            [received, (words * counts, words * (np.cumsum(counts) - counts))],
        )
    _deliver(distribution, core, received)
    return state


def _outgoing(
    distribution: Distribution, core: Any, n_processes: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the messages, shape (m, words), sorted by receiver, and their number for each."""
    numbers = core.outbox()
    words = 1 + len(core.message)
    if not len(numbers):
        return np.empty((0, words), np.int64), np.zeros(n_processes, np.int64)
    index, k = distribution.locate(numbers)
    state = core.communications
    message = np.empty((len(numbers), words), np.int64)
    message[:, 0] = (distribution.communicators[index] << _K_BITS) | k
    for i, name in enumerate(core.message, 1):
        message[:, i] = state[name][numbers]

    first = distribution.receivers_index[index]
    copies = distribution.receivers_index[index + 1] - first
    which = np.repeat(np.arange(len(numbers)), copies)
    nth = np.arange(len(which)) - np.repeat(np.cumsum(copies) - copies, copies)
    receiver = distribution.receivers[first[which] + nth]
    order = np.argsort(receiver, kind="stable")
    sent = np.bincount(receiver, minlength=n_processes).astype(np.int64)
    return np.ascontiguousarray(message[which[order]]), sent


def _deliver(distribution: Distribution, core: Any, messages: NDArray[np.int64]) -> None:
    """Pass the messages received to the core."""
    if not len(messages):
        return
    index = np.searchsorted(distribution.communicators, messages[:, 0] >> _K_BITS)
    numbers = distribution.first_communication[index] + (messages[:, 0] & ((1 << _K_BITS) - 1))
    owned = (distribution.role[index] == Role.OWNER).astype(np.uint8)
    core.deliver(numbers, *np.ascontiguousarray(messages[:, 1:].T), owned=owned)


def count_operations(
    simulated: SimulatedRanks, placement: NDArray[np.int32], comm: Intracomm
) -> NDArray[np.int64]:
    """Return the number of operations of each simulated communicator. **Collective** on `comm`.

    Parameters
    ----------
    simulated : SimulatedRanks
    placement : int32, shape (simulated.n,)
        The process of each simulated rank; a process needs the tables of its own alone.
    comm : mpi4py.MPI.Intracomm

    Returns
    -------
    int64, shape (len(simulated.sizes),)
        The same on all processes.
    """
    count = np.zeros(len(simulated.sizes), np.int64)
    for i in np.flatnonzero(placement == comm.rank).tolist():
        on_slot = simulated.program.table_of(int(simulated.classes.representative[i])).operations
        first = simulated.slot_index[i]
        np.maximum.at(count, simulated.slots[first : first + len(on_slot)], on_slot)
    return allreduce_max(count, comm)


def open_window(core: Any, earliest: int, comm: Intracomm, window: Window = _full_window) -> None:
    """Release all events that no later message can precede. **Collective** on `comm`.

    Nothing may be able to move, on any process, and no message be under way.

    Parameters
    ----------
    core : Core
        For communications that share links.
    earliest : int
        When the next event of all processes is, in ps.
    comm : mpi4py.MPI.Intracomm
        Of two processes or more.
    window : Window, optional
        Ends the window sooner than at the safe time.
    """
    safe = allreduce_min(np.array([core.safe_time(earliest)], np.int64), comm)
    core.commit(window(earliest, max(int(safe[0]), earliest)))
