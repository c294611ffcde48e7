"""What an Nsight Systems export says of streams, events and who waits for them."""

from __future__ import annotations

from .kineto import SyncRecord
from .nsys_export import Export

__all__ = ["sync_records"]

_TABLE = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
_EVENTS = "CUPTI_ACTIVITY_KIND_CUDA_EVENT"
_EVENT, _WAIT, _STREAM = 1, 2, 3
"""CUPTI's numbers of synchronisations: for an event, of a stream for an event, for a stream."""
_NAMES = {_EVENT: "Event Sync", _WAIT: "Stream Wait Event", _STREAM: "Stream Sync"}
"""As Kineto calls them."""


def sync_records(
    export: Export, process: int, streams: dict[tuple[int, int], int]
) -> list[SyncRecord]:
    """Return the synchronisations of a process whose both ends the export knows.

    That is the stream of a stream's synchronisation. Of an event it is known only where the events
    were recorded, too (``nsys profile --cuda-event-trace=true``), and waits of streams are left to
    inference unless all of them are known.

    Parameters
    ----------
    export : Export
    process : int
    streams : dict
        Numbers of (context, stream) among the device operations. (The table's own device is
        always 0.)
    """
    columns = ("contextId", "streamId", "correlationId", "globalPid", "syncType", "eventId")
    if not export.has(_TABLE, columns):
        return []
    number = "eventSyncId" if "eventSyncId" in export.columns(_TABLE) else "NULL"
    events = _recorded_events(export, process, streams)
    found: list[SyncRecord] = []
    unknown = False
    for context, stream, correlation, kind, event, sync in export.rows(
        f"SELECT contextId, streamId, correlationId, syncType, eventId, {number} FROM {_TABLE} "
        "WHERE globalPid >> 24 = ? ORDER BY start",
        (process,),
    ):
        own = streams.get((context, stream), -1)
        if kind == _STREAM:
            found.append(SyncRecord(_NAMES[kind], correlation, own, -1, -1))
        elif kind in (_EVENT, _WAIT):
            source, record = events.get((event, sync), (-1, -1))
            unknown |= kind == _WAIT and record < 0
            if record >= 0:
                found.append(SyncRecord(_NAMES[kind], correlation, own, source, record))
    if unknown:
        found = [sync for sync in found if sync.name != _NAMES[_WAIT]]
    return found


def _recorded_events(
    export: Export, process: int, streams: dict[tuple[int, int], int]
) -> dict[tuple[int, int | None], tuple[int, int]]:
    """Return stream and recording call of every recorded event, by its two numbers."""
    columns = ("contextId", "streamId", "correlationId", "globalPid", "eventId", "eventSyncId")
    if not export.columns(_EVENTS) or not export.has(_EVENTS, columns):
        return {}
    return {
        (event, sync): (streams.get((context, stream), -1), correlation)
        for context, stream, correlation, event, sync in export.rows(
            f"SELECT contextId, streamId, correlationId, eventId, eventSyncId FROM {_EVENTS} "
            "WHERE globalPid >> 24 = ?",
            (process,),
        )
    }
