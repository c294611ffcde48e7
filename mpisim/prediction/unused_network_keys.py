"""Experiment → its given ``[network]`` keys and ``[cluster]`` speeds without effect on a run.

A key has no effect if without it every communication of the program has the same price, is carried
by the same channels, and loads the same links with the same bandwidth. The networks with and
without the key are asked for prices and loads; nothing is simulated again.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError
from ..engine.contention import Contention, find_contention, shares_links
from ..program import UNPRICED, Communicators, Operation, Program
from ..topo import Network, SharedNetwork
from ..topo.network import integer_rates
from .network import GivenKey, NetworkCache, NetworkRequest

if TYPE_CHECKING:
    from ..engine import RunSetup

__all__ = ["needs_prices", "same_communications", "unused_network_keys"]

Ints = NDArray[np.int64]


def unused_network_keys(
    program: Program,
    request: NetworkRequest,
    networks: NetworkCache,
    setup: RunSetup | None = None,
) -> list[str]:
    """Program → a line for each given key that changes none of its communications. Local.

    Parameters
    ----------
    program : Program
        With all tables.
    request : NetworkRequest
        The network with all keys that were given.
    networks : NetworkCache
        Where that network may have been built already.
    setup : RunSetup, optional
        Of a run of the program, which may have found out what shares links.

    Returns
    -------
    list of str
    """
    lines = []
    if request.choice.model != "nccl":
        model = request.choice.model
        lines.append(f"network.contention: no effect, links are not shared with {model!r}")
    keys = request.given
    alone = request.choice.model == "nccl" and not request.choice.contention
    if alone and needs_prices(program) and not shares_links(program, request.network(networks)):
        lines.append("network.contention: no effect, no link that can be full is shared")
    if not keys:
        return lines
    if not needs_prices(program):
        why = "no communication takes its time from the network"
        return [*lines, *(f"{key.name}: no effect, {why}" for key in keys)]
    network = request.network(networks)
    known = _effects_of_changes(program, request, network, setup)
    for key in keys:
        if key not in known:
            try:
                plain = request.without(key).network()
            except InputError:  # there is no such network without the key
                continue
            known[key] = not _equal_for(program, network, plain, request.choice.contention)
        if not known[key]:
            lines.append(f"{key.name}: no effect, without it all communications take the same")
    return lines


def same_communications(
    program: Program, one: NetworkRequest, other: NetworkRequest, networks: NetworkCache
) -> bool:
    """Whether all communications of a program take equally long and load the same links. Local.

    Parameters
    ----------
    program : Program
        With all tables.
    one, other : NetworkRequest
        Of the same ranks on as many nodes.
    networks : NetworkCache
        Where the network of `one` may have been built already.
    """
    if not needs_prices(program):
        return True
    return _equal_for(program, one.network(networks), other.network(), one.choice.contention)


def _effects_of_changes(
    program: Program,
    request: NetworkRequest,
    network: Network,
    setup: RunSetup | None = None,
) -> dict[GivenKey, bool]:
    """Return whether changes of links have an effect, as far as it is known without a network.

    There can be thousands, and a network without each of them takes long. A change has none if
    without it all links are the same. It has one if without it a link that communications load has
    another capacity, and links are shared: `_equal_loads` finds that.
    """
    changes = request.without_each_change()
    if not changes or not isinstance(network, SharedNetwork):
        return {}
    found: dict[GivenKey, bool] = {}
    open_: dict[GivenKey, Ints] = {}  # links of another capacity
    for key, without in changes.items():
        if without is not None and len(without.links):
            rates = integer_rates(without.bandwidth)
            open_[key] = without.links[network.capacity[without.links] != rates]
        elif without is not None:
            found[key] = False
    contention = _contention(program, network, setup) if request.choice.contention else None
    if contention is None:
        return found
    loaded = np.zeros(len(network.capacity), bool)
    loaded[contention.routes.names] = True
    found |= {key: True for key, links in open_.items() if loaded[links].any()}
    if open_.keys() - found.keys():
        loaded[_loaded_links(program, network)] = True
        found |= {key: True for key, links in open_.items() if loaded[links].any()}
    return found


def _loaded_links(program: Program, network: SharedNetwork) -> Ints:
    """Return the links that the communications of a program load; some several times."""
    of_pattern: dict[Hashable, list[Ints]] = {}
    for kind in _kinds(program, (network, network)):
        for number, size in kind.operations:
            pattern = network.price(Operation(number), size, kind.groups[0]).pattern
            if pattern is not None:
                of_pattern.setdefault(pattern, []).append(kind.communicators)
    found = [np.empty(0, np.int64)]
    for pattern, each in of_pattern.items():
        groups = _groups_at(program.communicators, np.unique(np.concatenate(each)))
        found.append(network.loads(*groups, pattern)[1])
    return np.concatenate(found)


def needs_prices(program: Program) -> bool:
    """Return whether any communication of a program has no duration of its own. Local."""
    return any(
        bool((table.is_communication & (table.duration == UNPRICED)).any())
        for table in program.tables
        if table is not None
    )


def _operations(program: Program) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """Return (operation, bytes) of the communications to be priced, by table and slot."""
    found: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for number, table in enumerate(program.tables):
        if table is None:
            continue
        rows = np.flatnonzero(table.is_communication & (table.duration == UNPRICED))
        columns = [column[rows].astype(np.int64) for column in (table.slot, table.operation)]
        for slot, operation, size in np.unique(
            np.stack([*columns, np.maximum(table.bytes[rows], 0)], axis=1), axis=0
        ).tolist():
            found.setdefault((number, slot), []).append((operation, size))
    return found


class _CommunicatorKind(NamedTuple):
    """Communications by communicators that are of one class on both networks."""

    groups: tuple[Hashable, Hashable]
    communicators: Ints
    operations: Sequence[tuple[int, int]]


def _kinds(program: Program, networks: tuple[Network, Network]) -> Iterator[_CommunicatorKind]:
    groups = program.communicators
    done = program.operation_bits
    classes = [each.group_classes(groups.index, groups.members, done) for each in networks]
    owner = np.repeat(np.arange(program.n_ranks), np.diff(program.slot_index))
    slot = np.arange(len(owner)) - program.slot_index[owner]
    keys = np.stack(
        [*(label[program.slots] for label, _ in classes), program.table[owner], slot], axis=1
    )
    kinds, which = np.unique(keys, axis=0, return_inverse=True)
    order = np.argsort(which.reshape(-1), kind="stable")
    ends = np.cumsum(np.bincount(which.reshape(-1), minlength=len(kinds)))[:-1]
    operations = _operations(program)
    for (one, other, table, at), uses in zip(kinds.tolist(), np.split(order, ends), strict=True):
        priced = operations.get((table, at))
        if priced:
            named = classes[0][1][one], classes[1][1][other]
            yield _CommunicatorKind(named, np.unique(program.slots[uses]).astype(np.int64), priced)


def _equal_for(program: Program, one: Network, other: Network, contention: bool) -> bool:
    """Return whether a program's communications have equal prices and loads on two networks."""
    of_pattern: dict[Hashable, list[Ints]] = {}
    for kind in _kinds(program, (one, other)):
        for number, size in kind.operations:
            answers = [
                _answer(network, Operation(number), size, group)
                for network, group in zip((one, other), kind.groups, strict=True)
            ]
            if answers[0] != answers[1]:
                return False
            pattern = answers[0][0].pattern
            if pattern is not None:
                of_pattern.setdefault(pattern, []).append(kind.communicators)
    if not contention or not any(shares_links(program, each) for each in (one, other)):
        return True
    return all(
        _equal_loads(program.communicators, np.unique(np.concatenate(each)), pattern, one, other)
        for pattern, each in of_pattern.items()
    )


def _contention(program: Program, network: Network, setup: RunSetup | None) -> Contention | None:
    """Return which communications of a program can share links of a network that can be full."""
    if setup is not None and setup.network is network and setup.contention:
        ran = setup.simulated.program
        if ran.communicators is program.communicators and ran.slots is program.slots:
            return setup.shared
    from mpi4py import MPI

    return find_contention(program, network, MPI.COMM_SELF)


def _answer(network: Network, operation: Operation, size: int, group: Any) -> tuple[Any, Any]:
    """Return the price of a communication, and its channels if the network knows them."""
    price = network.price(operation, size, group)
    nccl = getattr(network, "nccl", None)
    if nccl is None or not price.duration:  # a rank with itself
        return price, None
    return price, nccl.choose(operation, size, group.shape)


def _equal_loads(
    groups: Communicators, which: Ints, pattern: Hashable, one: Network, other: Network
) -> bool:
    """Return whether communicators load equal links equally on two networks."""
    if not isinstance(one, SharedNetwork) or not isinstance(other, SharedNetwork):
        return True
    index, members = _groups_at(groups, which)
    first, links, weights = one.loads(index, members, pattern)
    again, others, counter = other.loads(index, members, pattern)
    capacities = one.capacity[links], other.capacity[others]
    if all(map(np.array_equal, (first, weights, capacities[0]), (again, counter, capacities[1]))):
        return True
    # A network without changed links may leave out those that can never be full.
    n_links = len(one.capacity)
    if n_links != len(other.capacity) or (one.capacity != other.capacity)[links].any():
        return False
    mine, others = (
        np.repeat(np.arange(len(which)), np.diff(ends)) * n_links + each
        for ends, each in ((first, links), (again, others))
    )
    both = np.isin(mine, others, assume_unique=True)
    return np.array_equal(mine[both], others) and np.array_equal(weights[both], counter)


def _groups_at(groups: Communicators, which: Ints) -> tuple[Ints, NDArray[np.int32]]:
    """Return index and members of some communicators."""
    index = np.concatenate([[0], np.cumsum(groups.sizes[which])]).astype(np.int64)
    members = np.concatenate(
        [groups.members[groups.index[c] : groups.index[c + 1]] for c in which.tolist()]
    )
    return index, members
