"""DLRM (recommendation model) → layers of each rank, as facebookresearch/dlrm runs it.

``dlrm_s_pytorch.py``, `distributed_forward`: every rank looks up its own tables for the samples of
all ranks, sends the rows to the ranks whose samples they are, passes its own samples through the
bottom layers meanwhile, and waits for the rows where features meet. The backward goes the same way
back: gradients of rows travel beside the bottom layers' backward. Matrices are on all ranks, and
their gradients are all-reduced; tables are updated where they are, in the rows that were looked up.
On one rank nothing travels, and the bottom layers come first (`sequential_forward`).

With ``framework.fused`` a rank's tables are one kernel each way, the update included, as FBGEMM's
table-batched embeddings are; otherwise each table is an ``EmbeddingBag(sparse=True)``.

Three things differ from the script. One DDP reduces the gradients of all matrices, as TorchRec's
does; the script wraps bottom and top layers by themselves, which gives each a first bucket of its
own. Updates of single tables end the backward, where the script's optimizer first waits for the
reduced gradients. The CPU does not read the loss between forward and backward, as the script does
for its log.

`table_operators` says what tables divided by rows or columns, copied, or kept in host memory launch
and send. How much each rank sends differs with its tables. NCCL's time of an all-to-all is that of
the rank that sends or receives most, so its bytes represent all: what the rank with the widest
tables together sends forward, which is what it receives backward (Lin et al., arXiv:2404.12674, who
price it so, too).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mpisim.base.errors import InputError

from ...experiment.models import Dlrm
from ...experiment.plan import Plan
from ..grid import Grid
from ..operators import Layer, LayerStack
from .dlrm_operators import DlrmOperators
from .placement import TablePlacement, placements, rank_shards
from .tables import Shard, model_tables

__all__ = ["dlrm_networks"]


def dlrm_networks(
    model: Dlrm, plan: Plan, grid: Grid
) -> tuple[list[LayerStack], NDArray[np.int64]]:
    """Model, plan and grid → the different networks of the ranks, and which of them each rank has.

    Parameters
    ----------
    model : Dlrm
    plan : Plan
    grid : Grid

    Returns
    -------
    networks : list of LayerStack
        Ranks whose tables have the same sizes share one.
    network : int64, shape (dp,)

    Raises
    ------
    InputError
        If the plan asks for what this model does not have.
    """
    tables = model_tables(model)
    placed = placements(plan, tables, grid.dp)
    _check(plan, grid, placed)
    shards = rank_shards(tables, placed, grid.dp)
    kinds = list(dict.fromkeys(shards))
    sent = [tuple(each.width for each in own if each.exchanged) for own in shards]
    networks = [_network(model, plan, grid, own, sent) for own in kinds]
    return networks, np.array([kinds.index(each) for each in shards], np.int64)


def _network(
    model: Dlrm, plan: Plan, grid: Grid, own: Sequence[Shard], sent: Sequence[tuple[int, ...]]
) -> LayerStack:
    """Shards of a rank, elements that all ranks send for a sample → layers of the rank."""
    m = DlrmOperators(model, plan, grid, own, sent)
    row = m.element * m.batch
    out = row * m.base
    bottom = Layer("bottom", tuple(m.bottom()), "block", out, row * model.dense_features)
    rows = Layer("tables", tuple(m.tables()), "block", m.element * m.all_row_elements, 0)
    top = Layer("top", (*m.cross(), *m.top()), "block", row, row * m.interactions)
    layers = (
        Layer("inputs", (m.inputs(),), "embedding", m.input_bytes, 0),
        *((bottom, rows) if grid.dp == 1 else (rows, bottom)),
        Layer("interaction", (m.interaction(),), "block", row * m.interactions, out),
        top,
        Layer("loss", (m.loss(),), "head", 0, row),
    )
    flops = sum(step.kernel.flops for layer in layers for step in layer.kernels())
    return LayerStack(layers, flops, plan.micro_batch)


def _check(plan: Plan, grid: Grid, placed: Sequence[TablePlacement]) -> None:
    if not plan.framework.fused:
        for number, each in enumerate(placed):
            if each.sharding != "table_wise" or each.kernel != "fused":
                raise InputError(
                    f"plan.tables.placement of table {number} is '{each}'; tables one by one "
                    f"(framework.fused "
                    "= false) are whole and in the GPU's memory: 'table_wise'"
                )
    for key in ("tp", "pp"):
        if getattr(plan, key) > 1:
            raise InputError(
                f"plan.{key} is {getattr(plan, key)}; a DLRM shares its tables and samples over dp"
            )
    if plan.optimizer not in ("sgd", "adagrad"):
        raise InputError(
            f"plan.optimizer is {plan.optimizer!r}; rows of tables are updated by sgd, adagrad"
        )
    if plan.recompute.granularity != "none":
        raise InputError(
            f"plan.recompute is {plan.recompute.granularity!r}; a DLRM keeps everything: none"
        )
    style = plan.framework.dp_style
    if plan.zero or style not in (None, "ddp"):
        given = [f"plan.zero is {plan.zero}"] if plan.zero else []
        given += [] if style in (None, "ddp") else [f"framework.dp_style is {style!r}"]
        raise InputError(
            f"{' and '.join(given)}; the matrices of a DLRM are on all ranks: allowed: plan.zero = "
            "0, framework.dp_style = 'ddp'"
        )
    if plan.global_batch != grid.dp * plan.micro_batch:
        raise InputError(
            f"plan.global_batch is {plan.global_batch}; a DLRM does it in one micro-batch: dp × "
            f"micro_batch = {grid.dp} × {plan.micro_batch} = {grid.dp * plan.micro_batch}"
        )
