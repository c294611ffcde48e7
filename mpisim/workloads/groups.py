"""From the grid of ranks to communicators: whom each slot of a table means on each rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError
from ..base.numbered_texts import NumberedTexts
from ..program import Communicators, Program, Table
from .grid import Grid

__all__ = ["Groups", "program_of"]

Ranks = NDArray[np.int64]

PIPELINE = ("activation+", "activation-", "gradient+", "gradient-")
"""Messages between neighbours of a pipeline, and whether they go to the next stage or back."""


class Groups:
    """The groups of ranks that slots can be bound to, by name.

    ``tp``, ``cp``, ``dp`` (data and context parallel ranks: those that share gradients), ``ep``,
    ``etp``, ``etp-ep`` (all ranks that exchange tokens of one layer), ``edp``, ``pp``, ``model``
    and ``emodel`` (all ranks that share one copy of the model, and of the experts), ``instance``
    (all that share one copy of the optimizer), ``embedding`` (first and last stage), ``mirror``
    (the two stages that hold the same part in DualPipe), ``shard`` and ``replica`` (the two levels
    of hybrid sharding, with ``eshard`` and ``ereplica`` for experts) are collectives. ``cp:send``
    and ``cp:recv`` are pairs of neighbours on a ring, and so are the messages of a pipeline,
    `PIPELINE`.

    Parameters
    ----------
    grid : Grid
    zero_group : int, optional
        Ranks of one sharding group; all of dp if not given.
    """

    def __init__(self, grid: Grid, zero_group: int | None = None) -> None:
        self.grid = grid
        first_last = (0, -1) if grid.pp > 1 else (0,)
        self._members: dict[str, Ranks] = {
            "tp": grid.groups("tp"),
            "cp": grid.groups("cp"),
            "dp": grid.groups("dp-cp"),
            "pp": grid.groups("pp"),
            "model": grid.groups("tp-pp"),
            "emodel": grid.groups("etp-ep-pp"),
            "ep": grid.groups("ep"),
            "etp": grid.groups("etp"),
            "etp-ep": grid.groups("etp-ep"),
            "edp": grid.groups("edp"),
            "embedding": grid.groups("pp")[:, first_last],
        }
        if grid.pp % 2 == 0:
            stages = grid.groups("pp")
            half = grid.pp // 2
            self._members["mirror"] = np.stack(
                [stages[:, :half], stages[:, : half - 1 : -1]], axis=2
            ).reshape(-1, 2)
        for prefix, group in (("", "dp"), ("e", "edp")):
            members = self._members[group]
            shard = members.shape[1] if zero_group is None else min(zero_group, members.shape[1])
            if members.shape[1] % shard:
                raise InputError(
                    f"plan.zero_group is {zero_group}, which does not divide the "
                    f"{members.shape[1]} ranks that share {'experts' if prefix else 'gradients'}"
                )
            parts = members.reshape(len(members), -1, shard)
            self._members[f"{prefix}shard"] = parts.reshape(-1, shard)
            self._members[f"{prefix}replica"] = parts.transpose(0, 2, 1).reshape(-1, parts.shape[1])
        copy = np.empty(grid.world, np.int64)
        copy[self._members["replica"]] = np.arange(self._members["replica"].shape[1])
        copies = int(copy.max()) + 1
        self._members["instance"] = np.argsort(copy, kind="stable").reshape(copies, -1)

    @property
    def sizes(self) -> Mapping[str, int]:
        """Members of each group, by name."""
        return {name: members.shape[1] for name, members in self._members.items()}

    def members(self, name: str) -> Ranks:
        """Return the groups of one name, shape (n_groups, size)."""
        return self._members[name]

    def pairs(self, name: str, senders: Ranks) -> Ranks:
        """Return whom each sender sends to, shape (n, 2): sender, receiver."""
        if name in PIPELINE:
            groups = self._members["pp"]
            step = 1 if name.endswith("+") else -1
        else:
            groups, step = self._members[name], 1
        to = np.full(self.grid.world, -1, np.int64)
        to[groups] = np.roll(groups, -step, axis=1)
        return np.stack([senders, to[senders]], axis=1)


def program_of(
    names: Sequence[str],
    tables: Sequence[Table],
    slots: Sequence[Sequence[str]],
    table: NDArray[np.int64],
    groups: Groups,
    attributes: Mapping[str, str],
) -> Program:
    """Bind tables to ranks and slots to communicators.

    Parameters
    ----------
    names : sequence of str
        Names of rows.
    tables : sequence of Table
    slots : sequence of sequence of str
        Of each table, what its slots are called.
    table : int64, shape (world,)
        The table of each rank.
    groups : Groups
    attributes : mapping of str to str

    Returns
    -------
    Program
    """
    world = groups.grid.world
    counts = np.array([len(known) for known in slots], np.int64)[table]
    slot_index = np.concatenate([[0], np.cumsum(counts)])
    bound = np.full(slot_index[-1], -1, np.int32)
    members: list[Ranks] = []
    sizes: list[NDArray[np.int64]] = []
    labels: list[tuple[str, int]] = []

    def add(name: str, found: Ranks) -> Ranks:
        numbers = sum(count for _, count in labels) + np.arange(len(found))
        members.append(found.reshape(-1))
        sizes.append(np.full(len(found), found.shape[1], np.int64))
        labels.append((f"{name} ", len(found)))
        return numbers

    def bind(slot: str, ranks: Ranks, numbers: Ranks) -> None:
        places = [known.index(slot) if slot in known else -1 for known in slots]
        place = np.array(places)[table[ranks]]
        here = place >= 0
        bound[slot_index[ranks[here]] + place[here]] = numbers[here]

    used = dict.fromkeys(slot for known in slots for slot in known)
    for name in dict.fromkeys(slot.partition(":")[0] for slot in used):
        if f"{name}:send" in used:
            sending = np.array([f"{name}:send" in known for known in slots])
            pairs = groups.pairs(name, np.flatnonzero(sending[table]))
            numbers = add(name, pairs)
            bind(f"{name}:send", pairs[:, 0], numbers)
            bind(f"{name}:recv", pairs[:, 1], numbers)
        if name in used:
            found = groups.members(name)
            using = np.array([name in known for known in slots])[table]
            found = found[using[found].all(axis=1)]
            numbers = add(name, found)
            bind(name, found.reshape(-1), np.repeat(numbers, found.shape[1]))

    return Program(
        names=tuple(names),
        tables=tuple(tables),
        communicators=Communicators(
            np.concatenate([[0], *sizes]).cumsum(),
            np.concatenate([np.zeros(0, np.int64), *members]).astype(np.int32),
            NumberedTexts(labels),
        ),
        table=table.astype(np.int32),
        slot_index=slot_index,
        slots=bound,
        speed=np.ones(world),
        start=np.zeros(world, np.int64),
        attributes=dict(attributes),
    )
