"""Error of a replayed step time: of the recording as it was, and with changed times.

Unchanged, a replay is measured: its error is that of the worst step. Changed, it is a prediction.
Its error has four parts, added as squares:

- the error of the unchanged replay;
- the difference between steps: by how much a step predicted from another's times was off
  (``data/replay.toml``);
- waits that were inferred from recorded times, if any: a share of the change (same file);
- unexplained time, replayed as recorded: late starts without a known cause, stalls of the CPU in
  calls, communications without a partner, waiting included. The change may have affected it as it
  affected the rest: its share of the recorded steps, times the change.

The error is relative to the changed time, and so is the change that the last two are shares of: a
step that falls from 100 ms to 80 ms changes by -20 %, and counts with 20 / 80 = 25 %.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

from ..base.frozen import frozen
from ..base.presets import packaged
from ..base.quantity import Quantity
from ..base.schema import build
from ..base.text import percentage

if TYPE_CHECKING:
    from .jobs import Replay

__all__ = ["ReplayError", "differences", "replay_error"]

FILE = "replay.toml"


@frozen
class ReplayError:
    """Relative error of a replayed step time, and where it comes from."""

    value: float
    method: str


@cache
def differences() -> tuple[Quantity, Quantity]:
    """Return the difference between steps, and the share of a change behind inferred waits."""
    found = packaged(FILE)
    first, second = (
        build(Quantity, found[key], FILE, key) for key in ("step_to_step", "inferred_waits")
    )
    return first, second


def replay_error(
    changed: Replay, unchanged: Replay, priced: Mapping[int, float] | None = None
) -> ReplayError:
    """Return the error of a replay, given the replay of the same job without changes.

    Parameters
    ----------
    changed : Replay
        The replay in question, with changes or without.
    unchanged : Replay
        With the steps as measured; may be the same object.
    priced : dict of int to float, optional
        By how many seconds over all ranks new times of kernels may be off together, by step
        (`mpisim.replay.reprice.Repriced.spread`): added as if none of it were hidden.
    """
    own = max((abs(each.error) for each in unchanged.steps), default=0.0)
    if not changed.changes:
        return ReplayError(own, "worst step error of the replay against the recording")
    job = unchanged.job
    steps, waits = differences()
    before, after = (_mean([s.replayed for s in each.steps]) for each in (unchanged, changed))
    change = abs(after - before) / after if after > 0 else 0.0  # of the changed time, as `value`
    edges = any(name.startswith("late start") and n for name, n in job.counts.items())
    inferred = waits.si if edges else 0.0
    measured = sum(each.measured for each in unchanged.steps)
    of_steps = {each.step for each in unchanged.steps}
    unexplained = sum(job.unexplained.get(step, 0.0) for step in of_steps)
    unexplained = min(unexplained / measured, 1.0) if measured else 0.0
    replayed = sum(each.replayed for each in changed.steps)
    off = sum((priced or {}).get(step, 0.0) for step in of_steps)
    models = off / replayed if replayed else 0.0
    value = math.hypot(own, steps.si, inferred * change, unexplained * change, models)
    parts = [
        f"the unchanged replay {percentage(own, 2)}",
        f"steps differ {percentage(steps.si, 1)}",
        f"waits inferred {percentage(inferred)} of the change",
        f"time kept as recorded {percentage(unexplained, 1)} of it",
        *([f"new times of kernels {percentage(models, 1)}"] if models else []),
    ]
    return ReplayError(
        value,
        f"of a prediction, 9 of 10 within: {', '.join(parts)}; the change is "
        f"{percentage(after / before - 1, 2, signed=True)} (data/replay.toml)",
    )


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
