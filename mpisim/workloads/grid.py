"""The grid of ranks: position of each rank on the parallel axes, and the groups that communicate.

Ranks are numbered as in Megatron-LM (``megatron/core/parallel_state.py``, `RankGenerator`): the
first axis of the order varies fastest. Experts are laid out on the same ranks by a second grid, in
which expert tensor (etp), expert (ep) and expert data parallel (edp) represent tp, ep and dp, and
context parallelism counts as data parallelism.

`Grid` numbers the ranks; `Groups` lists, by name, the groups of ranks that communicators join.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..base.distinct import distinct
from ..base.errors import InputError
from ..base.frozen import frozen
from ..experiment.plan import Plan

__all__ = ["Grid", "Groups"]

Ranks = NDArray[np.int64]


@frozen
class Grid:
    """Sizes of the parallel axes, and the groups of ranks along each.

    Attributes
    ----------
    tp, cp, dp, pp, ep, etp : int
    order : tuple of str
        Axes from the innermost.
    per_node : int, optional
        GPUs of a node, which fast links join; all ranks if not given.
    rates : tuple of float, optional
        Bytes per second that a GPU sends to others of its node, and over the network.

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
    rates: tuple[float, float] | None = None

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
    def of(
        cls,
        plan: Plan,
        gpus: int,
        per_node: int | None = None,
        rates: tuple[float, float] | None = None,
    ) -> Grid:
        """Return the grid of a plan on a number of GPUs.

        Parameters
        ----------
        plan : Plan
        gpus : int
            Of the cluster; the plan may use fewer.
        per_node : int, optional
            GPUs of a node, which fast links join.
        rates : tuple of float, optional
            Bytes per second that a GPU sends to others of its node, and over the network.

        Raises
        ------
        InputError
            If the plan does not fit.
        """
        model = plan.tp * plan.cp * plan.pp
        sizes = f"tp × cp × pp = {plan.tp} × {plan.cp} × {plan.pp} = {model}"
        dp = max(1, gpus // model) if plan.dp is None else plan.dp
        if dp * model > gpus:
            rest = "" if plan.dp is None or model > gpus else ", or leave dp out: what remains"
            raise InputError(
                f"the plan needs {dp * model} GPUs (dp = {dp}, {sizes}), but the cluster has "
                f"{gpus}: raise 'nodes' in [cluster]{rest}"
            )
        if plan.dp is None and gpus % model:
            raise InputError(f"{sizes} does not divide the {gpus} GPUs of the cluster; set dp")
        order = tuple(plan.order.split("-"))
        return cls(plan.tp, plan.cp, dp, plan.pp, plan.ep, plan.expert_tp, order, per_node, rates)

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
        """Return the number of nodes that the first group of an axis spans."""
        if self.per_node is None:
            return 1
        return len(distinct(self.groups(axis)[0] // self.per_node))

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


PIPELINE = ("activation+", "activation-", "gradient+", "gradient-")
"""Messages between neighbours of a pipeline, and whether they go to the next stage or back."""


class Groups:
    """The groups of ranks that communicator slots can be bound to, by name.

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

    Attributes
    ----------
    sizes : mapping of str to int
        Members of each group, by name.
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
        self.sizes: Mapping[str, int] = {
            name: members.shape[1] for name, members in self._members.items()
        }

    def members(self, name: str) -> Ranks:
        """Return the groups of one name, shape (n_groups, size)."""
        return self._members[name]

    def pairs(self, name: str, senders: Ranks) -> Ranks:
        """Senders → (sender, receiver), shape (n, 2).

        Parameters
        ----------
        name : str
            A message of `PIPELINE`, or a group whose members form a ring, such as ``"cp"``.
        senders : Ranks, shape (n,)
            Ranks that send.

        Returns
        -------
        Ranks, shape (n, 2)
            The receiver is the next member of the sender's group, or with a name that ends in ``-``
            the one before; the ends of a group are neighbours, too.
        """
        if name in PIPELINE:
            groups = self._members["pp"]
            step = 1 if name.endswith("+") else -1
        else:
            groups, step = self._members[name], 1
        to = np.full(self.grid.world, -1, np.int64)
        to[groups] = np.roll(groups, -step, axis=1)
        return np.stack([senders, to[senders]], axis=1)
