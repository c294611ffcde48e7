"""What a captured process is told: the script, its arguments, and which rank of which job it is."""

from __future__ import annotations

import pickle
from dataclasses import field
from pathlib import Path
from typing import Any

from ..base.frozen import frozen
from .device import Device
from .recording import FromRank0

__all__ = ["Job"]


@frozen
class Job:
    """One rank of a job.

    Attributes
    ----------
    script : str
        Path, or name of a module.
    arguments : tuple of str
    module : bool
        Whether it is a module, as ``python -m`` has it.
    rank, world, per_node : int
        Global rank, number of ranks, devices of a node.
    steps : int
        To be recorded.
    device : Device
    recording, failure : Path
        Files to write.
    values : dict of str to float
        As of a `Recorder`.
    show : bool
        Whether the script's output is shown.
    received : FromRank0
    without : tuple of str
        Libraries of kernels that the job does not have, of those that are stood in for.
    folder : str
        Working folder of the script.
    warm_up : int, optional
        Steps before those that are recorded, at least, if a number was asked for.
    """

    script: str
    arguments: tuple[str, ...]
    module: bool
    rank: int
    world: int
    per_node: int
    steps: int
    device: Device
    recording: Path
    failure: Path
    values: dict[str, float] = field(default_factory=dict)
    show: bool = False
    received: FromRank0 = field(default_factory=lambda: FromRank0({}, {}))
    without: tuple[str, ...] = ()
    folder: str = "."
    warm_up: int | None = None

    @property
    def local_rank(self) -> int:
        """Rank within the node."""
        return self.rank % self.per_node

    def environment(self) -> dict[str, str]:
        """Return the variables that ``torchrun`` sets."""
        local = min(self.per_node, self.world)
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(local),
            "GROUP_RANK": str(self.rank // self.per_node),
            "GROUP_WORLD_SIZE": str(-(-self.world // self.per_node)),
            "ROLE_RANK": str(self.rank),
            "ROLE_WORLD_SIZE": str(self.world),
            "ROLE_NAME": "default",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29500",
            "TORCHELASTIC_RUN_ID": "none",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
        }

    def save(self, path: Path) -> None:
        """Write the file that the process reads."""
        path.write_bytes(pickle.dumps(self))

    @classmethod
    def load(cls, path: Path) -> Job:
        """Read what `save` has written."""
        found: Any = pickle.loads(path.read_bytes())
        assert isinstance(found, cls)
        return found
