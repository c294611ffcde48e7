"""``[job]``: how much is to be trained, what interrupts it, and how it is saved and restarted.

The table says nothing of a step, so only ``mpisim job`` looks at it.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from ..base.errors import InputError, nearest
from ..base.frozen import frozen
from ..base.schema import Limits

__all__ = ["TIMES", "TIME_KEYS", "JobChoice", "seconds"]

TIMES = {"s": 1.0, "min": 60.0, "h": 3600.0, "days": 86400.0, "day": 86400.0}
"""Units of the times of ``[job]``, in seconds."""

TIME_KEYS = ("detection", "restart", "swap", "repair", "maintenance", "checkpoint_interval")
"""Keys of ``[job]`` that are times."""

MOST_TIME = 1e12
"""Number in front of a unit, from which on a time is refused."""

MOST_STEPS = 1_000_000_000
MOST_RUNS = 1_000_000


@frozen
class JobChoice:
    """A training job: many steps, and what comes between them.

    Attributes
    ----------
    tokens : float, optional
        Tokens to train on, samples of a model without tokens; or `steps`. As 1e12 or "1T" (K, M,
        B, T).
    steps : int, optional
    failures : str, optional
        A fleet of ``mpisim list fleets`` whose jobs were interrupted as often, the path of a TOML
        file with one, or "none". As Llama 3's if not given, with an error bar that covers how far
        fleets lie apart.
    failure_rate : float, optional
        Interruptions of 1,000 GPU-days, in place of the fleet's.
    failure_shape : float
        Of the Weibull distribution of the time to the next failure: 1 is exponential; below 1 they
        come in clusters.
    planned : float, optional
        Planned interruptions of 30 days, in place of as many of a GPU-day as the fleet's: a
        checkpoint is written first.
    detection : str, optional
        Time until a failure is noticed and its cause is found, as "5 min".
    restart : str, optional
        Time from there to the first step, without loading the checkpoint.
    rewarmup_steps : int
        Steps after a restart that take longer.
    rewarmup_slowdown : float
        How many times as long.
    spares : int, optional
        Nodes that stand ready; without one, the job waits for a repair. One is always ready if not
        given.
    swap : str, optional
        Time to put a spare in place.
    repair : str, optional
        Time until a node that left is a spare again.
    maintenance : str, optional
        Time of a planned interruption, before the restart.
    checkpoint : {"async", "sync"}
        Whether training goes on while a checkpoint is written, once it is copied to the hosts.
    checkpoint_interval : str, optional
        Time between checkpoints, as "30 min". The best by simulation if not given.
    storage : str
        A storage of ``mpisim list storages``, or the path of a TOML file with one.
    runs : int, optional
        Simulated; as many as make the p95 certain to 0.1 % if not given.
    seed : int
        Of all random numbers.
    """

    tokens: Annotated[float, Limits(least=1, counted=True)] | None = None
    steps: Annotated[int, Limits(least=1, most=MOST_STEPS, counted=True)] | None = None
    failures: str | None = None
    failure_rate: Annotated[float, Limits(least=0, most=1e6)] | None = None
    failure_shape: Annotated[float, Limits(least=0.2, most=10)] = 1.0
    planned: Annotated[float, Limits(least=0, most=1e4)] | None = None
    detection: str | None = None
    restart: str | None = None
    rewarmup_steps: Annotated[int, Limits(least=0, most=1_000_000)] = 0
    rewarmup_slowdown: Annotated[float, Limits(least=1, most=1000)] = 2.0
    spares: Annotated[int, Limits(least=0, most=1_000_000)] | None = None
    swap: str | None = None
    repair: str | None = None
    maintenance: str | None = None
    checkpoint: Literal["async", "sync"] = "async"
    checkpoint_interval: str | None = None
    storage: str = "gpfs-nvme"
    runs: Annotated[int, Limits(least=20, most=MOST_RUNS)] | None = None
    seed: Annotated[int, Limits(least=0, most=2**63 - 1)] = 0

    def __post_init__(self) -> None:
        if (self.tokens is None) == (self.steps is None):
            found = "neither" if self.tokens is None else "both"
            raise InputError(f"{found} of tokens and steps given; one of the two is needed")
        if self.failures == "none" and self.failure_rate is not None:
            raise InputError("failure_rate is given; failures = 'none' has no use for it")
        if self.spares is None and self.repair is not None:
            raise InputError("repair is given, but spares is not: a spare is always ready then")
        for key in TIME_KEYS:
            text = getattr(self, key)
            if text is not None and not seconds(text, key) and key == "checkpoint_interval":
                raise InputError(f"{key} is {text!r}; it must be above 0")


def seconds(text: str, key: str) -> float:
    """Time as ``"5 min"`` → seconds.

    Parameters
    ----------
    text : str
        A number and one of `TIMES`.
    key : str
        For messages.

    Raises
    ------
    InputError

    Examples
    --------
    >>> seconds("5 min", "detection"), seconds("1.5 h", "restart")
    (300.0, 5400.0)
    """
    found = re.fullmatch(r"\s*([0-9.]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z]*)\s*", text)
    try:
        value, unit = (float(found[1]), found[2]) if found else (-1.0, "")
    except ValueError:
        value, unit = -1.0, ""
    if not 0 <= value < MOST_TIME or unit not in TIMES:
        near = nearest(unit, TIMES) if unit and unit not in TIMES and value >= 0 else ""
        raise InputError(
            f"{key} is {text!r}{near}; it must be a number from 0 to below {MOST_TIME:g}, and one "
            f'of {", ".join(TIMES)}: "5 min"'
        )
    return value * TIMES[unit]
