"""Rounds of messages between the processes of a run.

When no hosted rank can move, a process says of each group whose hosted members are all ready when
the last was: to the other processes of the group if they are few, otherwise to its owner, who
answers when it has heard all. Everything travels together: one Alltoall a round, with the counts of
messages and, where they are few, the messages themselves; else one Alltoallv more. A message is a
few int64: the group as communicator and k in one word, a time, the rank that was last, and, where
communications share links, what becomes of the flow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .plan import Plan, Role

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["Progress", "exchange"]

_K_BITS = 32
_HEAD = 5
_NO_EVENT = int(np.iinfo(np.int64).max)
_INLINE = 4
"""Messages to one process that travel with the counts: most rounds then need one MPI call."""


class Progress(NamedTuple):
    """Where all processes together stand after a round; equal on each of them."""

    unfinished: int
    """Ranks that have not ended."""
    moving: bool
    """Whether a message was under way or a rank could still move."""
    earliest: int = _NO_EVENT
    """When the next flow arrives or ends; the largest int64 if none will."""

    @property
    def goes_on(self) -> bool:
        """Whether anything is still to come."""
        return self.moving or self.earliest < _NO_EVENT


def exchange(plan: Plan, core: Any, moving: bool, comm: Intracomm) -> Progress:
    """Exchange what the cores have to tell each other. **Collective**.

    Parameters
    ----------
    plan : Plan
    core : Core
        Its outbox is emptied, and what the others sent is delivered.
    moving : bool
        Whether some rank here can still move without any message.
    comm : mpi4py.MPI.Intracomm
    """
    messages, sent = _letters(plan, core, comm.size)
    most, words = int(sent.max()), messages.shape[1]
    # To each process: how many messages there are for it; the same to all: how this process
    # stands; and the messages themselves, if they are few.
    head = np.zeros((comm.size, _HEAD + words * _INLINE), np.int64)
    head[:, 0] = sent
    head[:, 1] = core.unfinished
    head[:, 2] = moving or most > 0
    head[:, 3] = most
    head[:, 4] = _NO_EVENT if plan.layout.traffic is None else core.next_event()
    first = np.cumsum(sent) - sent
    if 0 < most <= _INLINE:
        receiver = np.repeat(np.arange(comm.size), sent)
        nth = np.arange(len(messages)) - first[receiver]
        head[:, _HEAD:].reshape(comm.size, _INLINE, words)[receiver, nth] = messages
    heads = np.empty_like(head)
    comm.Alltoall(head, heads)
    state = Progress(int(heads[:, 1].sum()), bool(heads[:, 2].any()), int(heads[:, 4].min()))
    over = state.unfinished == 0 and plan.layout.traffic is None
    if over or not state.moving:
        return state  # all see the same, so nobody waits for the messages

    counts = heads[:, 0].copy()
    if heads[:, 3].max() <= _INLINE:  # all see the same here, too
        slots = heads[:, _HEAD:].reshape(comm.size, _INLINE, words)
        received = slots[np.arange(_INLINE) < counts[:, None]]
    else:
        received = np.empty((int(counts.sum()), words), np.int64)
        comm.Alltoallv(
            [messages, (words * sent, words * first)],
            [received, (words * counts, words * (np.cumsum(counts) - counts))],
        )
    _deliver(plan, core, received)
    return state


def _letters(
    plan: Plan, core: Any, n_processes: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the messages, shape (m, words), sorted by receiver, and their number for each."""
    groups = core.outbox()
    words = 1 + len(core.message)
    if not len(groups):
        return np.empty((0, words), np.int64), np.zeros(n_processes, np.int64)
    index, k = plan.locate(groups)
    state = core.groups
    message = np.empty((len(groups), words), np.int64)
    message[:, 0] = (plan.communicators[index] << _K_BITS) | k
    for i, name in enumerate(core.message, 1):
        message[:, i] = state[name][groups]

    first = plan.receivers_index[index]
    copies = plan.receivers_index[index + 1] - first
    which = np.repeat(np.arange(len(groups)), copies)
    nth = np.arange(len(which)) - np.repeat(np.cumsum(copies) - copies, copies)
    receiver = plan.receivers[first[which] + nth]
    order = np.argsort(receiver, kind="stable")
    sent = np.bincount(receiver, minlength=n_processes).astype(np.int64)
    return np.ascontiguousarray(message[which[order]]), sent


def _deliver(plan: Plan, core: Any, messages: NDArray[np.int64]) -> None:
    """Hand the core what arrived."""
    if not len(messages):
        return
    index = np.searchsorted(plan.communicators, messages[:, 0] >> _K_BITS)
    groups = plan.first_group[index] + (messages[:, 0] & ((1 << _K_BITS) - 1))
    owned = (plan.role[index] == Role.OWNER).astype(np.uint8)
    core.deliver(groups, *np.ascontiguousarray(messages[:, 1:].T), owned=owned)
