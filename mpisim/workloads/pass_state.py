"""`PassState`: the rows that the next row of a pass waits for, while a block is written.

Kernels of one stream run in order anyway; waits are needed between kernels and communications. Each
communication is awaited by the next kernel (`pending`), or, if it has a *token*, by the kernels
that name the token, and at the latest by the first kernel after its operator, unless it is
*carried* further.

Invariants
----------
1. A communication is in one of `pending`, `tokens`, `carried` until a kernel, or a communication
   in its place, has waited for it: none is forgotten.
2. After `end_operator` no token of the operator is left; after `end_block` nothing is carried.
3. While `idle`, what an operator writes depends on `last` and `pending` alone, so its rows can be
   copied from another place.

An all-gather with a token that no kernel names holds up the kernel after the operator:

>>> state = PassState()
>>> state.tokens["gathered"] = 4  # the row of the all-gather
>>> state.idle
False
>>> state.end_operator()
>>> state.pending  # the port of what was pending before, and the all-gather
[-2, 4]
"""

from __future__ import annotations

from collections.abc import Sequence

from ..program import Phase
from .block_rows import LAST, PENDING

__all__ = ["PassState"]


class PassState:
    """State of one pass while a block is written: the rows that its next rows wait for.

    Attributes
    ----------
    last : int
        The latest kernel; ``LAST`` at first.
    pending : list of int
        Rows that the next kernel waits for; ``PENDING`` at first.
    tokens, carried : dict of str to int
        Communications under way by token: of the operator, and those that outlive it.
    awaited : set of str
        Tokens that a kernel of the operator has waited for.
    exchanges : set of str
        Tokens of the operator's all-to-alls.
    kernels : dict of str to int
        Kernels of the operator, by name.
    kept : dict of str to int
        Kernels that the CPU waits for in a later operator, by the name that it has for them.
    tags : dict of str to int
        Phase and layer of the rows.
    """

    def __init__(self) -> None:
        self.last = LAST
        self.pending: list[int] = [PENDING]
        self.tokens: dict[str, int] = {}
        self.carried: dict[str, int] = {}
        self.awaited: set[str] = set()
        self.exchanges: set[str] = set()
        self.kernels: dict[str, int] = {}
        self.kept: dict[str, int] = {}
        self.tags: dict[str, int] = {"phase": Phase.NONE, "layer": -1}

    def rows_of(self, tokens: Sequence[str]) -> list[int]:
        """Return the rows of tokens; a communication left out, in a group of one, has none."""
        known = self.carried | self.tokens
        return [known[token] for token in tokens if token in known]

    def exchanging(self, tokens: Sequence[str]) -> bool:
        """Whether any of these are all-to-alls that no kernel has waited for yet."""
        return not self.exchanges.isdisjoint(set(tokens) - self.awaited)

    @property
    def idle(self) -> bool:
        """Whether no communication with a token is under way, and no kernel is kept."""
        return not (self.tokens or self.carried or self.awaited or self.kept)

    def moved(self, by: int) -> PassState:
        """Return the state with all row numbers increased by `by`; ports stay as they are."""

        def further(rows: dict[str, int]) -> dict[str, int]:
            return {name: row if row < 0 else row + by for name, row in rows.items()}

        found = PassState()
        found.last = self.last if self.last < 0 else self.last + by
        found.pending = [row if row < 0 else row + by for row in self.pending]
        found.tokens, found.carried = further(self.tokens), further(self.carried)
        found.kernels, found.kept = further(self.kernels), further(self.kept)
        found.tags = dict(self.tags)
        found.awaited, found.exchanges = set(self.awaited), set(self.exchanges)
        return found

    def writes_as(self, other: PassState) -> bool:
        """Whether the same operators would write the same rows in this state and in another."""
        mine, others = (vars(each) | {"tags": each.tags["phase"]} for each in (self, other))
        return mine == others

    def end_operator(self) -> None:
        """Let the next kernel wait for the operator's communications that none has waited for."""
        self.pending += [row for token, row in self.tokens.items() if token not in self.awaited]
        for token in self.awaited:
            self.carried.pop(token, None)
        self.tokens.clear()
        self.awaited.clear()
        self.exchanges.clear()
        self.kernels.clear()

    def end_block(self) -> None:
        """Let the next kernel wait for all that was carried; no kernel is kept any longer."""
        self.pending += self.carried.values()
        self.carried.clear()
        self.kept.clear()
