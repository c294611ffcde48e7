"""The core in plain Python: what `tiles` compiles, to be read and tested against.

Each rank executes its instructions in order. A communication posts its ready time to its group
and goes on; its end is *pending* in a register until somebody reads it. Only then does the rank
block, on the first group without a start. The last post to a group whose members are all local
starts it and wakes the ranks blocked there; groups with members elsewhere go to the outbox, and
start when the other processes have been heard.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Core", "allocate"]

PLAIN, PLAIN_MEET, KERNEL, MEET, BATCH, JOIN, HOST, HOST_WAIT = range(8)
LOCAL, PEER, MEMBER, OWNER = range(4)
NEVER = int(np.iinfo(np.int64).min)
STARTED = -1  # of Group.missing
NOBODY = int(np.iinfo(np.int32).max)


def allocate(kernels: NDArray[np.int32], last_use: NDArray[np.int32]) -> tuple[Any, int]:
    """Give every kernel a register that is free until the kernel's last reader has run.

    Parameters
    ----------
    kernels : int32, shape (m,)
        First rows of kernels, ascending.
    last_use : int32, shape (m,)
        The last row that reads each kernel's end; later than the kernel's own row.

    Returns
    -------
    registers : int32, shape (m,)
    n_registers : int
    """
    expiring = np.argsort(last_use, kind="stable").tolist()
    uses = last_use.tolist()
    registers: list[int] = []
    free: list[int] = []
    n_registers = expired = 0
    for row in kernels.tolist():
        # A row reads before it writes, so it may write to the register that it is last to read.
        while uses[expiring[expired]] <= row:
            free.append(registers[expiring[expired]])
            expired += 1
        if not free:
            free.append(n_registers)
            n_registers += 1
        registers.append(free.pop())
    return np.array(registers, np.int32), n_registers


class Group:
    """One operation of a communicator."""

    def __init__(self, missing: int, away: int) -> None:
        self.time, self.last = NEVER, NOBODY  # latest ready time so far; the lowest rank of then
        self.missing, self.away = missing, away  # members here, and messages, still to come
        self.waiters: list[Rank] = []


class Rank:
    """State of one rank. Registers hold a time and the row that is pending there, or -1."""

    def __init__(self, layout: Any, local: int, code: dict[str, list[int]]) -> None:
        one = layout.lowered[layout.table[local]]
        slots = slice(layout.slot_index[local], layout.slot_index[local + 1])
        self.code = code
        self.operands: list[int] = one.operands.tolist()
        self.final: list[int] = one.final.tolist()
        self.duration: list[int] = layout.durations_of(local).tolist()
        self.group: list[int] = layout.slot_first[slots].tolist()
        self.role: list[int] = layout.slot_role[slots].tolist()
        self.number = int(layout.numbers[local])
        self.local = local
        self.row = 0
        self.host = self.device = int(layout.start[local])
        self.value = [NEVER] * one.n_registers
        self.pending = [-1] * one.n_registers
        self.eager_ready: list[int] = []
        self.blocked_on = -1


class Core:
    """See the package."""

    message = ("time", "last")

    def __init__(self, layout: Any) -> None:
        self._layout = layout
        self._groups = [Group(0, 0) for _ in range(layout.n_communications)]
        codes = []
        for one in layout.lowered:
            names = one.instructions.dtype.names
            codes.append({name: one.instructions[name].tolist() for name in names})
        self._ranks = [Rank(layout, i, codes[c]) for i, c in enumerate(layout.table)]
        for rank in self._ranks:
            self._expect(rank)
        self._ready = self._ranks[::-1]  # a stack: the lowest rank first
        self._outbox: list[int] = []
        self.unfinished = len(self._ranks)
        self.rows_done = 0

    def _expect(self, rank: Rank) -> None:
        """Tell the groups of a rank who will come."""
        layout = self._layout
        operations = layout.lowered[layout.table[rank.local]].table.operations
        for slot, count in enumerate(operations.tolist()):
            at = layout.slot_index[rank.local] + slot
            for k in range(count):
                group = self._groups[rank.group[slot] + k]
                group.missing = int(layout.slot_members[at])
                group.away = int(layout.slot_remote[at])

    # --- running --------------------------------------------------------------------------------

    def advance(self, budget: int) -> bool:
        """Run ranks until none can move or `budget` rows are done; return whether some can."""
        stop = self.rows_done + budget
        while self._ready and self.rows_done < stop:
            rank = self._ready.pop()
            before = rank.row
            if self._run(rank):
                self.unfinished -= 1
            self.rows_done += rank.row - before
        return bool(self._ready)

    def _run(self, rank: Rank) -> bool:
        """Execute rows until the rank blocks (False) or has ended (True)."""
        code, durations, value = rank.code, rank.duration, rank.value
        rank.blocked_on = -1
        ready = NEVER
        for row in range(rank.row, len(durations)):
            rank.row = row
            # All that the row reads, before it changes anything: it may have to be run again.
            first_wait, n_waits = code["first_wait"][row], code["n_waits"][row]
            n_leading, stream = code["n_leading"][row], code["stream"][row]
            first = first_wait - n_leading
            if not all(self._settled(rank, r) for r in rank.operands[first : first_wait + n_waits]):
                return False
            waits = [value[r] for r in rank.operands[first_wait : first_wait + n_waits]]

            opcode = code["opcode"][row]
            host = rank.host + code["host"][row]
            if opcode <= BATCH:
                target = code["target"][row]
                if n_leading > (stream >= 0):
                    host = max(host, value[rank.operands[first]])
                ready = max([NEVER, *waits, *([value[stream]] if stream >= 0 else [])])
                if ready > NEVER:  # there is something on the device that it follows
                    ready += code["gap"][row]
                ready = max(ready, host + code["launch"][row])
                rank.host = host + code["launch_cost"][row]
                if opcode in (PLAIN, KERNEL):
                    value[target], rank.pending[target] = ready + durations[row], -1
                    rank.device = max(rank.device, value[target])
                else:
                    value[target] = NEVER
                    self._post(rank, row, ready)
            elif opcode == JOIN:
                self._post(rank, row, ready)
            elif opcode == HOST:
                rank.host = host
            else:
                rank.host = max([host, *waits]) + code["launch_cost"][row]
        rank.row = len(durations)
        return all(self._settled(rank, register) for register in rank.final)

    def _settled(self, rank: Rank, register: int) -> bool:
        """Make the value of a register known; False, and the rank is blocked, if it cannot be."""
        if rank.pending[register] < 0:
            return True
        row, value = rank.pending[register], rank.value[register]
        while True:  # all communications of the kernel, from the last to the first
            if not rank.code["eager"][row]:
                number = rank.group[rank.code["slot"][row]] + rank.code["ordinal"][row]
                group = self._groups[number]
                if group.missing != STARTED:
                    group.waiters.append(rank)
                    rank.blocked_on = number
                    return False
                value = max(value, group.time + rank.duration[row])
            if rank.code["opcode"][row] != JOIN:
                break
            row -= 1
        rank.value[register], rank.pending[register] = value, -1
        rank.device = max(rank.device, value)
        return True

    # --- groups ---------------------------------------------------------------------------------

    def _post(self, rank: Rank, row: int, ready: int) -> None:
        """Tell the group of a communication that this rank is ready."""
        register = rank.code["target"][row]
        rank.pending[register] = row
        if rank.code["eager"][row]:
            rank.value[register] = max(rank.value[register], ready + rank.duration[row])
            rank.eager_ready.append(ready)
        slot = rank.code["slot"][row]
        number = rank.group[slot] + rank.code["ordinal"][row]
        self._merge(number, ready, rank.number)
        group = self._groups[number]
        group.missing -= 1
        if group.missing == 0:
            if rank.role[slot] in (PEER, MEMBER):
                self._outbox.append(number)
            self._start_if_complete(number, rank.role[slot] == OWNER)

    def _merge(self, number: int, ready: int, last: int) -> None:
        group = self._groups[number]
        if ready > group.time or (ready == group.time and last < group.last):
            group.time, group.last = ready, last

    def _start_if_complete(self, number: int, owner: bool) -> None:
        group = self._groups[number]
        if group.missing == group.away == 0:
            group.missing = STARTED
            self._ready.extend(group.waiters)
            group.waiters = []
            if owner:
                self._outbox.append(number)

    def split(self) -> bool:
        """Ranks move one by one here: none is held up by others."""
        return False

    @property
    def n_outgoing(self) -> int:
        """How many groups the outbox holds."""
        return len(self._outbox)

    def outbox(self) -> NDArray[np.int64]:
        """Return the groups to tell other processes about, and forget them."""
        groups = np.array(self._outbox, np.int64)
        self._outbox = []
        return groups

    def deliver(
        self,
        groups: NDArray[np.int64],
        times: NDArray[np.int64],
        lasts: NDArray[np.int64],
        owned: NDArray[np.uint8],
    ) -> None:
        """Take in what other processes said about groups, and whether this one owns them."""
        for number, time, last, own in zip(groups.tolist(), times.tolist(), lasts.tolist(), owned):
            self._merge(number, time, last)
            self._groups[number].away -= 1
            self._start_if_complete(number, bool(own))

    # --- what came out --------------------------------------------------------------------------

    @property
    def communications(self) -> dict[str, NDArray[Any]]:
        """See the package."""
        return {
            "time": np.array([group.time for group in self._groups], np.int64),
            "last": np.array([group.last for group in self._groups], np.int32),
        }

    def rows(self) -> NDArray[np.int32]:
        """Return the row each hosted rank has come to, shape (h,)."""
        return np.array([rank.row for rank in self._ranks], np.int32)

    def blocked(self) -> NDArray[np.int64]:
        """Return the group each hosted rank is blocked on, -1 if none, shape (h,)."""
        return np.array([rank.blocked_on for rank in self._ranks], np.int64)

    def communication_times(self, local: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return when each communication of a rank began and ended: see the package."""
        rank = self._ranks[local]
        found = self._layout.lowered[self._layout.table[local]].communications
        start = np.array([self._groups[n].time for n in self._numbers(rank)], np.int64)
        start[found["eager"] != 0] = rank.eager_ready
        return start, start + np.array(rank.duration, np.int64)[found["row"]]

    def last_ready(self, local: int) -> NDArray[np.int32]:
        """Return who was ready last for each communication of a rank: see the package."""
        rank = self._ranks[local]
        found = self._layout.lowered[self._layout.table[local]].communications
        last = np.array([self._groups[n].last for n in self._numbers(rank)], np.int32)
        return np.where(found["eager"] != 0, np.int32(rank.number), last)

    def _numbers(self, rank: Rank) -> list[int]:
        """The groups of a rank's communications."""
        found = self._layout.lowered[self._layout.table[rank.local]].communications
        number = np.array(rank.group, np.int64)[found["slot"]] + found["ordinal"]
        numbers: list[int] = number.tolist()
        return numbers

    def finish(self) -> tuple[NDArray[np.int64], int]:
        """Return ends of ranks and the hash sum."""
        from ..digest import hash_communications, hash_ends, summed

        layout, total = self._layout, 0
        ends = np.array([max(rank.host, rank.device) for rank in self._ranks], np.int64)
        for local in range(len(self._ranks)):
            found = layout.lowered[layout.table[local]].communications
            hashes = np.stack([found["low"], found["high"]], axis=1)
            sizes = layout.slot_hash[layout.slot_index[local] + found["slot"]]
            hashes = hash_communications(hashes, sizes, *self.communication_times(local))
            hashes = np.concatenate([hashes, hash_ends(ends[local : local + 1])])
            total += int(layout.count[local]) * summed(hashes)
        return ends, total % (1 << 128)
