"""Actions of a stage → units, the actions between two exchanges of messages, and their kinds.

- An *action* is the forward or backward of one micro-batch in one chunk.
- A *turn* is one action, or two that overlap.
- A *unit* is a turn. Where a stage holds several chunks and its messages do not overlap, a forward
  and the backward behind it are one unit in the steady state
  (``forward_backward_pipelining_with_interleaving`` of Megatron-LM).
- A *step* is a unit with the one before it: what is written of a unit depends on the kinds of both.

A schedule has thousands of actions and few kinds of steps: one example of each kind stands for all.
All of this is columns, without a loop over actions.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.distinct import dense, equal_columns, numbered
from ..program import Phase

__all__ = ["ActionColumns", "Units"]

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


class ActionColumns(NamedTuple):
    """The actions of a stage, in the order of execution, as columns; fields as of `Action`."""

    phase: NDArray[np.int64]
    chunk: NDArray[np.int64]
    micro_batch: NDArray[np.int64]
    split: NDArray[np.int64]
    paired: NDArray[np.int64]


class Units(NamedTuple):
    """Units of a stage's actions, and the kinds of steps from one to the next.

    Attributes
    ----------
    edge : bool, shape (actions,)
        Whether an action is its chunk's first forward, or its last completion of gradients.
    steps : list of (list of int, list of list of int)
        An example of each kind of step, in the order in which these first come: the actions of the
        unit before, and those of each turn of the unit; none before the first and after the last.
    step : int64, shape (units + 1,)
        The kind of each step.
    first : int64, shape (units + 1,)
        The first action of the unit before each step (at the beginning: of the unit).
    """

    edge: Flags
    steps: list[tuple[list[int], list[list[int]]]]
    step: Ints
    first: Ints

    @classmethod
    def of(cls, actions: ActionColumns, *, joins_turns: bool) -> Units:
        """Actions of a stage → their units.

        Parameters
        ----------
        actions : ActionColumns
        joins_turns : bool
            Whether a forward and the backward behind it are one unit in the steady state.
        """
        edge = edges(actions)
        turns = np.flatnonzero(actions.paired == 0)  # the first action of each
        units = turns[~_joined(actions.phase[turns])] if joins_turns else turns
        n = len(actions.phase)
        ends = np.append(units[1:], n)
        # Kinds of units: of their actions, each by a digit.
        described = np.stack([actions.chunk, actions.phase, actions.split, actions.paired, edge])
        digit, kinds = equal_columns(described)
        longest = int((ends - units).max(initial=0))
        assert (kinds + 1.0) ** longest < 2**63
        unit = np.zeros(len(units), np.int64)
        for i in range(longest):
            there = units + i < ends
            unit = unit * (kinds + 1) + np.where(there, digit[np.minimum(units + i, n - 1)] + 1, 0)
        unit, _ = dense(unit)
        # Steps: 0 is no unit.
        number = np.concatenate([[0], unit + 1, [0]])
        pairs = number[:-1] * (number.max() + 1) + number[1:]
        _, example, step = numbered(pairs)
        order = np.argsort(example)
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        bounds = np.append(units, n).tolist()
        starts = set(turns.tolist())
        steps = []
        for at in example[order].tolist():  # the step into unit `at`
            before = list(range(bounds[at - 1], bounds[at])) if at else []
            after: list[list[int]] = []
            for i in range(bounds[at], bounds[at + 1]) if at < len(units) else ():
                if i in starts:
                    after.append([])
                after[-1].append(i)
            steps.append((before, after))
        return cls(edge, steps, place[step], np.concatenate([units[:1], units]))


def edges(actions: ActionColumns) -> Flags:
    """Return whether each action is its chunk's first forward or last completion of gradients."""
    forward = actions.phase == Phase.FORWARD
    found = np.zeros(len(forward), bool)
    for some, last in ((forward, False), (~forward & (actions.split == 0), True)):
        rows = np.flatnonzero(some)
        rows = rows[::-1] if last else rows
        _, first, _ = numbered(actions.chunk[rows])
        found[rows[first]] = True
    return found


def _joined(phase: Ints) -> Flags:
    """Return whether each turn, by the phase of its first action, belongs to the unit before."""
    forward = np.concatenate([[False, False], phase == Phase.FORWARD, [False]])
    backward = np.concatenate([[False, False], phase == Phase.BACKWARD, [False]])
    behind = forward[1:-2] & backward[2:-1]
    # The only backward among forwards and backwards in a row is no steady state.
    before = np.concatenate([[False, False], behind])[: len(phase)]
    return behind & (before | forward[3:])
