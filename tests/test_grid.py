"""The grid of ranks, against the groups Megatron-LM documents, and its laws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plans import plan_of

from mpisim.base.errors import InputError
from mpisim.workloads.grid import Grid, Groups


def grid(gpus: int, **plan: object) -> Grid:
    return Grid.of(plan_of(global_batch=64, **plan), gpus)  # type: ignore[arg-type]


def test_the_example_of_megatron() -> None:
    # megatron/core/parallel_state.py, initialize_model_parallel: 16 GPUs, tp 2, pp 4.
    found = grid(16, tp=2, pp=4)
    assert found.groups("dp").tolist() == [
        [0, 2],
        [1, 3],
        [4, 6],
        [5, 7],
        [8, 10],
        [9, 11],
        [12, 14],
        [13, 15],
    ]
    assert found.groups("tp").tolist() == [[i, i + 1] for i in range(0, 16, 2)]
    assert found.groups("pp").tolist() == [
        [0, 4, 8, 12],
        [1, 5, 9, 13],
        [2, 6, 10, 14],
        [3, 7, 11, 15],
    ]
    assert found.groups("tp-pp").tolist() == [
        [0, 1, 4, 5, 8, 9, 12, 13],
        [2, 3, 6, 7, 10, 11, 14, 15],
    ]


def test_context_and_expert_parallel() -> None:
    found = grid(16, tp=2, cp=2, ep=4, etp=1)
    assert found.dp == 4
    assert found.edp == 4
    assert found.groups("cp")[:2].tolist() == [[0, 2], [1, 3]]
    assert found.groups("dp-cp")[0].tolist() == [0, 2, 4, 6, 8, 10, 12, 14]
    # Experts are laid out on the same ranks: etp 1, then ep over neighbours, then edp.
    assert found.groups("ep").tolist() == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9, 10, 11],
        [12, 13, 14, 15],
    ]
    assert found.groups("edp")[0].tolist() == [0, 4, 8, 12]


def test_another_order() -> None:
    found = grid(8, tp=2, pp=2, order="tp-pp-cp-ep-dp")
    assert found.groups("pp")[0].tolist() == [0, 2]
    assert found.groups("dp")[0].tolist() == [0, 4]
    assert found.stage.tolist() == [0, 0, 1, 1, 0, 0, 1, 1]


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"tp": 3}, "tp × cp × pp = 3 × 1 × 1 = 3 does not divide the 8 GPUs"),
        ({"tp": 4, "dp": 4}, "the plan needs 16 GPUs (dp = 4, tp × cp × pp = 4 × 1 × 1 = 4)"),
        ({"ep": 3}, "etp × ep is 1 × 3 = 3, which does not divide"),
    ],
)
def test_plans_that_do_not_fit(plan: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as error:
        grid(8, **plan)
    assert message in str(error.value)


def test_experts_in_the_middle_of_a_pipeline() -> None:
    found = grid(8, ep=2, pp=2, tp=2, etp=1, order="tp-pp-ep-dp-cp")
    with pytest.raises(InputError, match="different pipelines; put pp first or last"):
        found.check_experts()
    grid(8, ep=2, pp=2, tp=2, etp=1).check_experts()


sizes = st.sampled_from([1, 2, 3, 4])


@given(
    tp=sizes,
    cp=sizes,
    dp=sizes,
    pp=sizes,
    order=st.permutations(["tp", "cp", "ep", "dp", "pp"]),
)
def test_every_axis_partitions_the_ranks(
    tp: int, cp: int, dp: int, pp: int, order: list[str]
) -> None:
    found = Grid(tp, cp, dp, pp, ep=1, etp=1, order=tuple(order))
    for axis in ("tp", "cp", "dp", "pp", "dp-cp", "tp-pp"):
        groups = found.groups(axis)
        assert groups.shape[1] == found.size(axis)
        assert sorted(groups.ravel().tolist()) == list(range(found.world))
        # Members of a group agree in all other axes.
        for other in {"tp", "cp", "dp", "pp"} - set(axis.split("-")):
            index = found.index(other)[groups]
            assert np.array_equal(index, np.broadcast_to(index[:, :1], index.shape))


def test_groups_of_hybrid_sharding_and_pairs() -> None:
    groups = Groups(grid(16, tp=2), zero_group=4)
    assert groups.members("shard")[:2].tolist() == [[0, 2, 4, 6], [8, 10, 12, 14]]
    assert groups.members("replica")[:2].tolist() == [[0, 8], [2, 10]]
    pipe = Groups(grid(8, pp=4))
    assert pipe.pairs("activation+", np.array([0, 2])).tolist() == [[0, 2], [2, 4]]
    assert pipe.pairs("gradient-", np.array([2, 0])).tolist() == [[2, 0], [0, 6]]
    assert pipe.members("mirror").tolist() == [[0, 6], [2, 4], [1, 7], [3, 5]]
