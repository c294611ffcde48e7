"""Which parameters ZeRO-3 gathers when: DeepSpeed's coordinator, played through.

From the second step on DeepSpeed knows in which order modules run and gathers parameters ahead of
them (``PartitionedParameterCoordinator``, deepspeed/runtime/zero/partitioned_param_coordinator.py).
A module's parameters are freed after it unless they are used again soon.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from .held import Held

__all__ = ["Fetch", "Limits", "fetches"]


@dataclass(frozen=True)
class Limits:
    """How far the coordinator goes, in elements.

    Attributes
    ----------
    ahead : int
        What is gathered ahead whenever a module starts.
    live : int
        What is gathered at a time, beyond which nothing is gathered ahead.
    reuse : int
        A parameter stays gathered where it is used again before modules with so many have run.
    persistent : int
        Parameters up to this size are never freed.
    """

    ahead: int
    live: int
    reuse: int
    persistent: int


@dataclass(frozen=True)
class Fetch:
    """What is gathered when a module starts.

    Attributes
    ----------
    now : tuple of Held
        For the module itself, which waits for it.
    ahead : tuple of Held
        For later ones.
    """

    now: tuple[Held, ...]
    ahead: tuple[Held, ...]


def fetches(uses: Sequence[Sequence[Held]], limits: Limits) -> list[Fetch]:
    """Return what is gathered as each module of a micro-batch starts.

    Parameters
    ----------
    uses : sequence of sequence of Held
        The parameters of each module, in the order in which modules run, forward and backward.
    limits : Limits
    """
    queue = deque((each, step) for step, module in enumerate(uses) for each in module)
    steps: dict[Held, list[int]] = {}
    for each, step in queue:
        steps.setdefault(each, []).append(step)
    passed = [0, *accumulate(sum(each.size for each in module) for module in uses)]
    sought = dict.fromkeys(steps, -1)
    available: set[Held] = set()
    live = 0
    found = []
    for step, module in enumerate(uses):
        used = dict.fromkeys(module)
        now = [each for each in used if _freed(each, available, limits)]
        available.update(now)
        live += sum(each.size for each in now)

        # What this module uses leaves the queue, unless gathering ahead has taken it already.
        left = {each for each in used if sought[each] < step}
        taken: set[Held] = set()
        while queue and len(taken) < len(left):
            taken.add(queue.popleft()[0])

        ahead: list[Held] = []
        budget, size = min(limits.live - live, limits.ahead), 0
        while queue and size < budget:
            each, needed = queue.popleft()
            sought[each] = max(sought[each], needed)
            if _freed(each, available, limits):
                ahead.append(each)
                available.add(each)
                size += each.size
        live += size
        found.append(Fetch(tuple(now), tuple(ahead)))

        for each in used:
            if each not in available or sought[each] > step:
                continue  # kept for good, or the queue counts on it for a later module
            later = steps[each]
            following = bisect_right(later, step)
            soon = following < len(later)
            if soon:
                soon = passed[later[following]] - passed[step + 1] < limits.reuse
            if not soon:
                available.remove(each)
                live -= each.size
    return found


def _freed(each: Held, available: set[Held], limits: Limits) -> bool:
    return each.size > limits.persistent and each not in available
