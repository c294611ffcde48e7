"""Latency-bandwidth costs against sums by hand."""

from __future__ import annotations

import pytest

from mpisim.base.errors import InputError
from mpisim.program import Operation
from mpisim.topo import AlphaBeta, class_of

MODEL = AlphaBeta(
    latency=10e-6, bandwidth=50e9, ranks_per_node=4, node_latency=2e-6, node_bandwidth=200e9
)
MB = 1_000_000


@pytest.mark.parametrize(
    ("operation", "microseconds"),
    [
        # 4 ranks over 50 GB/s: 1 MB takes 20 us; latency 10 us.
        (Operation.ALL_REDUCE, 10 + 2 * 3 / 4 * 20),
        (Operation.ALL_GATHER, 10 + 3 / 4 * 20),
        (Operation.REDUCE_SCATTER, 10 + 3 / 4 * 20),
        (Operation.ALL_TO_ALL, 10 + 3 / 4 * 20),
        (Operation.GATHER, 10 + 3 / 4 * 20),
        (Operation.SCATTER, 10 + 3 / 4 * 20),
        (Operation.BROADCAST, 10 + 20),
        (Operation.REDUCE, 10 + 20),
        (Operation.SEND_RECV, 10 + 20),
        (Operation.BARRIER, 10),
    ],
)
def test_ring_factors(operation: Operation, microseconds: float) -> None:
    group = class_of(MODEL, (0, 4, 8, 12))
    assert MODEL.price(operation, MB, group).duration == round(microseconds * 1_000_000)


def test_groups_inside_a_node_use_its_links() -> None:
    inside, across = class_of(MODEL, (5, 7)), class_of(MODEL, (3, 4))
    # all-gather of 1 MB over 2 ranks: half of it; 2 + 2.5 us inside, 10 + 10 us across.
    assert MODEL.price(Operation.ALL_GATHER, MB, inside).duration == 4_500_000
    assert MODEL.price(Operation.ALL_GATHER, MB, across).duration == 20_000_000


def test_groups_of_one_class_are_of_one_size_and_kind() -> None:
    assert class_of(MODEL, (0, 1)) == class_of(MODEL, (9, 8))
    assert class_of(MODEL, (0, 1)) != class_of(MODEL, (0, 1, 2))
    assert class_of(MODEL, (0, 1)) != class_of(MODEL, (0, 5))


def test_alone_nothing_is_sent() -> None:
    assert MODEL.price(Operation.ALL_REDUCE, MB, class_of(MODEL, (3,))).duration == 0


def test_node_links_are_the_network_by_default() -> None:
    model = AlphaBeta(latency=1e-6, bandwidth=1e9, ranks_per_node=8)
    assert model.price(Operation.BROADCAST, 1000, class_of(model, (0, 1))).duration == 2_000_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"latency": -1}, "latency is -1; it must be 0 s or more"),
        ({"latency": float("nan")}, "latency is nan"),
        ({"bandwidth": 0}, "bandwidth is 0; it must be above 0 bytes/s"),
        ({"node_bandwidth": -3}, "node_bandwidth is -3"),
        ({"node_latency": float("inf")}, "node_latency is inf"),
        ({"ranks_per_node": 0}, "ranks_per_node is 0; it must be 1 or more"),
    ],
)
def test_bad_parameters(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        AlphaBeta(**{"latency": 1e-6, "bandwidth": 1e9, **arguments})  # type: ignore[arg-type]


def test_unknown_operations_have_no_cost() -> None:
    with pytest.raises(InputError, match="no cost is known for a communication of kind UNKNOWN"):
        MODEL.price(Operation.UNKNOWN, 8, class_of(MODEL, (0, 1)))
