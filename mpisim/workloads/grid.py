"""The grid of ranks: which of tensor, context, expert, data and pipeline parallel is innermost.

Ranks are numbered as in Megatron-LM (``megatron/core/parallel_state.py``, `RankGenerator`): the
first axis of the order varies fastest. Experts are laid out on the same ranks by a second grid, in
which expert tensor (etp), expert (ep) and expert data parallel (edp) stand for tp, ep and dp, and
context parallelism counts as data parallelism.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError
from ..experiment.plan import Plan

__all__ = ["Grid"]

Ranks = NDArray[np.int64]


@dataclass(frozen=True)
class Grid:
    """Sizes of the axes and the groups they make.

    Attributes
    ----------
    tp, cp, dp, pp, ep, etp : int
    order : tuple of str
        Axes from the innermost.
    per_node : int, optional
        GPUs that fast links join; as many as there are if not given.

    Examples
    --------
    >>> grid = Grid(tp=2, cp=1, dp=2, pp=2, ep=1, etp=2, order=("tp", "cp", "ep", "dp", "pp"))
    >>> grid.groups("tp").tolist()
    [[0, 1], [2, 3], [4, 5], [6, 7]]
    >>> grid.groups("pp").tolist()
    [[0, 4], [1, 5], [2, 6], [3, 7]]
    """

    tp: int
    cp: int
    dp: int
    pp: int
    ep: int
    etp: int
    order: tuple[str, ...]
    per_node: int | None = None

    def __post_init__(self) -> None:
        shared = self.etp * self.ep
        if (self.tp * self.cp * self.dp) % shared:
            raise InputError(
                f"etp × ep is {self.etp} × {self.ep} = {shared}, which does not divide the "
                f"tp × cp × dp = {self.tp * self.cp * self.dp} ranks of a pipeline stage"
            )

    def check_experts(self) -> None:
        """Refuse an order by which experts and the rest of a model have different pipelines.

        Raises
        ------
        InputError
        """
        if not np.array_equal(self._groups(("pp",), True), self.groups("pp")):
            raise InputError(
                f"plan.order is {'-'.join(self.order)!r}: experts and the rest of the model would "
                "have different pipelines; put pp first or last"
            )

    @classmethod
    def of(cls, plan: Plan, gpus: int, per_node: int | None = None) -> Grid:
        """Lay a plan out on a number of GPUs, so many of which stand in a node.

        Raises
        ------
        InputError
            If the plan does not fit.
        """
        model = plan.tp * plan.cp * plan.pp
        sizes = f"tp × cp × pp = {plan.tp} × {plan.cp} × {plan.pp} = {model}"
        dp = max(1, gpus // model) if plan.dp is None else plan.dp
        if dp * model > gpus:
            raise InputError(
                f"the plan needs {dp * model} GPUs (dp = {dp}, {sizes}), but the cluster has "
                f"{gpus}: raise 'nodes' in [cluster]"
            )
        if plan.dp is None and gpus % model:
            raise InputError(f"{sizes} does not divide the {gpus} GPUs of the cluster; set dp")
        order = tuple(plan.order.split("-"))
        return cls(plan.tp, plan.cp, dp, plan.pp, plan.ep, plan.expert_tp, order, per_node)

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.tp * self.cp * self.dp * self.pp

    @property
    def edp(self) -> int:
        """Ranks that hold the same expert."""
        return self.tp * self.cp * self.dp // (self.etp * self.ep)

    def size(self, axis: str) -> int:
        """Return the number of ranks in a group: of an axis, or of several (``"dp-cp"``)."""
        sizes = {"etp": self.etp, "ep": self.ep, "edp": self.edp, **self._sizes}
        return math.prod(sizes[each] for each in axis.split("-"))

    def groups(self, axis: str) -> Ranks:
        """Return the groups of an axis (or of several, ``"dp-cp"``), shape (n_groups, size)."""
        axes = tuple(axis.split("-"))
        return self._groups(axes, any(each in ("etp", "ep", "edp") for each in axes))

    def nodes(self, axis: str) -> int:
        """Return how many nodes the ranks of a group stand in, the first of an axis."""
        if self.per_node is None:
            return 1
        return len(np.unique(self.groups(axis)[0] // self.per_node))

    def index(self, axis: str) -> Ranks:
        """Return each rank's position in its group of an axis, shape (world,)."""
        groups = self.groups(axis)
        index = np.empty(self.world, np.int64)
        index[groups] = np.arange(groups.shape[1])
        return index

    @cached_property
    def stage(self) -> Ranks:
        """Each rank's pipeline stage, shape (world,)."""
        return self.index("pp")

    @cached_property
    def _sizes(self) -> dict[str, int]:
        return {"tp": self.tp, "cp": self.cp, "dp": self.dp, "pp": self.pp}

    def _groups(self, axes: tuple[str, ...], experts: bool) -> Ranks:
        if experts:
            names = {"tp": "etp", "dp": "edp"}
            order = [names.get(axis, axis) for axis in self.order if axis != "cp"]
            sizes = {"etp": self.etp, "ep": self.ep, "edp": self.edp, "pp": self.pp}
        else:
            order = [axis for axis in self.order if axis != "ep"]
            sizes = self._sizes
        outermost = order[::-1]
        ranks = np.arange(self.world).reshape([sizes[axis] for axis in outermost])
        inner = [i for i, axis in enumerate(outermost) if axis in axes]
        outer = [i for i, axis in enumerate(outermost) if axis not in axes]
        size = math.prod(sizes[axis] for axis in axes)
        return ranks.transpose(outer + inner).reshape(-1, size)
