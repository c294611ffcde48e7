"""The compiled core: advances ranks over their rows until they block.

Read `common.pxd` (instructions), then the core that runs most programs, `tiles`, with tile_state.h
and lanes.h; where communications share links it runs in passes, between which `flow_schedule` says
how long they take. `contended`, with `rank_states`, `events`, `sharing` and `lookahead`, goes from
event to event instead. Each says at its head what is true between calls and why it is right.
Tests compare them, row by row, with references that share nothing with them (tests/reference).

lowering
    Table → instructions; the same rows as entries of their streams.
tiles (tile_state.h, communications.h, registers.h, lanes.h), tile_state, tile_digest (digest.h)
    The tiled core: ranks side by side; its state; its digest.
contended, contended_state, blocked
    The contended core: workers of ranks; its state; where a rank is blocked.
rank_states, events, lookahead
    Its ranks and their recent times; communications and events of flows; safe times.
sharing (fluid, heap)
    Max-min fair rates of flows.
flow_schedule, flow_timeline (sort.h)
    When flows end that begin at given times: see `mpisim.engine.relaxation`; those that share links
    simulated, and simulated again from where something changed.
by_communication
    What rows of ranks say of communications, by their numbers.
rows, accounts (accounts.h)
    Rows of a rank after a run; sums over them, of `N_LANES` ranks side by side.
price_requests, links, refining
    Per-row and per-edge work of `mpisim.engine.cost`, `mpisim.engine.contention`,
    `mpisim.results.link_use` and `mpisim.engine.refine`.
memory
    Arrays with an address, and C memory.

``requested_prices(table)``, ``overlapping_slots(table)``
    Prices that the rows of a table request; slots on which operations may overlap.
``kernels_of``, ``allocate``, ``write_instructions``, ``view_streams``
    The passes of a lowering.
``by_end``, ``multisets``, ``partition``, ``ranges``
    Colour refinement's work on every edge: see `mpisim.engine.refine`.
``full_links(capacity, patterns, one_by_one)``, ``joined(group, link, ...)``
    Links that can be full, and communicators that links join.
``depths(begin, end, order, index)``
    How long one or two of some intervals and more were under way.
``carried(route_index, ...)``, ``flows_by_link(route_index, ...)``
    What flows move over links in parts of the step; the flows over each link.
``core(contended)``
    The class ``Core`` of `tiles`, or of `contended`, which finds out what becomes of flows.
``rows_of(lowered, durations, start, met_start, met_end)``
    The rows of a rank after a run: begin, end, wire and binding of each, and the last CPU clock.
``fingerprint(met_start, met_end)``
    128 bits that differ for ranks of one table whose communications began or ended at other times.

``Ledger(order, stream_index, ...)``
    Adds up where the time of ranks of one table went, and what their rows took. Each row on the
    device is a part of the step, a communication two: until its last member is ready, and from
    then on. Every moment counts for one part, the lowest of those under way.
``vary(durations, rows, ...)``
    Durations of a rank whose kernels vary: see `mpisim.engine.duration_factors`.

A ``Core(core_input)``, with a `mpisim.engine.core_input.CoreInput`, has

``advance(budget)``
    Run all ranks that can move, until none can or about `budget` rows are done. Return whether
    some still can.
``outbox()``, ``n_outgoing``
    Communications to tell other processes about, since the last call; their number.
``message``, ``deliver(numbers, ..., owned)``
    Which fields of a communication a message carries; merge messages from other processes, with
    whether this one owns each communication.
``split()``
    When none can move: let ranks go on that are only held up by ranks that they run side by side
    with; return whether there were any. (Not of the contended core.)
``park_at(horizon)``
    Before `advance`: ranks stop that need to know of a communication whose time is looked up that
    it ends at the horizon or later. (Not of the contended core.)
``unfinished``, ``rows_done``
    Ranks that have not ended; rows of all ranks so far.
``reached()``
    Times in ps that the hosted rank furthest behind, and the one furthest ahead, have come to: the
    largest and the least int64 where none is hosted.
``rows()``, ``blocked()``
    Of each hosted rank the row it has come to, and the communication it is blocked on or -1.
``ends()``, ``hash_sum()``
    After the run: ends of ranks; the sum of hashes that the digest is made of.
``communication_times(local)``
    After the run, of each communication of a rank, in the order of `LoweredTable.communications`:
    when its wire time began (EAGER: the own ready time) and when it ended for this member; int64.
``last_ready(local)``
    Likewise, the number of the simulated rank that was ready last, the lowest if several are
    (EAGER: its own); int32. No record of rows is kept: `mpisim.engine.rows` recomputes them.
``communications``
    State of the communications, by the names in `message`.

and the contended core

``next_event()``, ``commit(until)``
    When the next flow arrives or ends; let that happen, and all until then.
``safe_time(earliest)``
    A time before which no flow can arrive that ranks here have still to post.
``n_events``, ``n_links_in_use``
    Arrivals and ends of flows so far; links that a flow passes over now.

The callers are trusted: the input was made by `mpisim.engine.distribution` from a checked program,
and nothing here checks an index again.
"""

from __future__ import annotations

from typing import Any

from .accounts import MOST_PARTS, N_LANES, Ledger
from .links import carried, depths, flows_by_link, full_links, joined, pair_depths
from .lowering import allocate, kernels_of, view_streams, write_instructions
from .price_requests import filled, overlapping_slots, requested_prices
from .refining import by_end, multisets, partition, ranges, signatures
from .rows import fingerprint, rows_of, vary

__all__ = [
    "MOST_PARTS",
    "N_LANES",
    "Ledger",
    "allocate",
    "by_end",
    "carried",
    "core",
    "depths",
    "filled",
    "fingerprint",
    "flows_by_link",
    "full_links",
    "joined",
    "kernels_of",
    "multisets",
    "overlapping_slots",
    "pair_depths",
    "partition",
    "ranges",
    "requested_prices",
    "rows_of",
    "signatures",
    "vary",
    "view_streams",
    "write_instructions",
]


def core(contended: bool) -> Any:
    """Return the class of the core; contended: for communications that share links."""
    if contended:
        from .contended import Core
    else:
        from .tiles import Core
    return Core
