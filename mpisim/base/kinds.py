"""Kinds of rows, operations of communications, flags, and phases of a training step."""

from __future__ import annotations

from enum import IntEnum, IntFlag

from .plain_integers import PlainInteger

__all__ = ["Flag", "Kind", "Operation", "Phase"]


class Kind(PlainInteger, IntEnum):
    """Kind of a row."""

    KERNEL = 0
    """A compute kernel on a device stream."""
    COPY = 1
    """A memory copy or set on a device stream."""
    COLLECTIVE = 2
    """A collective operation; its kernel occupies a stream."""
    SEND = 3
    """The sending half of a point-to-point pair."""
    RECV = 4
    """The receiving half of a point-to-point pair."""
    HOST = 5
    """CPU work that launches nothing."""
    HOST_WAIT = 6
    """The CPU blocks until earlier rows have ended on the device."""

    @property
    def is_communication(self) -> bool:
        """Whether the row is an operation on a communicator."""
        return self in (Kind.COLLECTIVE, Kind.SEND, Kind.RECV)

    @property
    def is_device(self) -> bool:
        """Whether the row occupies a device stream."""
        return self <= Kind.RECV


class Operation(PlainInteger, IntEnum):
    """Operation of a communication: the same for all members of its communicator."""

    NONE = 0
    ALL_REDUCE = 1
    ALL_GATHER = 2
    REDUCE_SCATTER = 3
    BROADCAST = 4
    REDUCE = 5
    ALL_TO_ALL = 6
    GATHER = 7
    SCATTER = 8
    BARRIER = 9
    SEND_RECV = 10
    """A point-to-point pair: SEND on the first member, RECV on the second."""
    UNKNOWN = 11
    """A communication whose kind the source did not say."""


class Flag(PlainInteger, IntFlag):
    """Properties of one row beyond its kind."""

    NONE = 0
    JOINED = 1
    """The row belongs to the same launched kernel as the row just before it (a batched
    send/receive): both become ready together, and the stream is free when all have ended."""
    EAGER = 2
    """The row does not wait for the other members: it ends its duration after its own
    ready time (a broadcast's root). The others still wait for it."""
    COPY_ENGINE = 4
    """A copy engine of the GPU moves the row's data, and multiprocessors only wait for it."""


class Phase(PlainInteger, IntEnum):
    """Which part of a training step a row belongs to."""

    NONE = 0
    FORWARD = 1
    BACKWARD = 2
    WEIGHT = 3
    """Gradients of weights, where a schedule splits them from those of the inputs."""
    RECOMPUTE = 4
    OPTIMIZER = 5
    INPUT = 6
    """The host prepares the batch of the next step, and copies it to the GPU."""
