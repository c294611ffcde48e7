"""What a grown job was made of ↔ text: its files and changes, so that it can be made again."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from ..base.frozen import frozen
from ..mpi.parallel import collective_errors
from ..replay import read_job
from ..replay.origin import is_origin, read_origin
from ..topo import find_cluster
from .parallel import Extrapolated, extrapolate_parallel
from .parallel_changes import Changes, check_changes

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["GrownOrigin"]


@frozen
class GrownOrigin:
    """Files and changes of a grown job.

    Attributes
    ----------
    paths : tuple of str
        Trace files or folders of them; absolute in texts.
    cluster, traced_cluster, gpu : str, optional
        Names, or files, absolute in texts.
    calibration : str, optional
        A file, absolute in texts.
    dp, micro_batches, stages, layout, distributed_optimizer, schedule, chunks, buckets
        See `extrapolate_parallel`.
    """

    paths: tuple[str, ...]
    cluster: str | None = None
    traced_cluster: str | None = None
    gpu: str | None = None
    dp: int | None = None
    micro_batches: int | None = None
    stages: int | None = None
    layout: str = ""
    distributed_optimizer: bool | None = None
    schedule: str | None = None
    chunks: int | None = None
    calibration: str | None = None
    buckets: str | None = None

    @property
    def text(self) -> str:
        """As JSON, for `read`."""
        files = {
            name: os.path.abspath(value)
            for name in ("cluster", "traced_cluster", "gpu")
            if (value := getattr(self, name)) is not None and value.endswith(".toml")
        }
        if self.calibration is not None:
            files["calibration"] = os.path.abspath(self.calibration)
        paths = tuple(os.path.abspath(path) for path in self.paths)
        return json.dumps({"grown": asdict(replace(self, paths=paths, **files))})

    @classmethod
    def is_text(cls, text: str) -> bool:
        """Whether a text is that of a grown job."""
        return is_origin(text, "grown")

    @classmethod
    def read(cls, text: str, source: str) -> GrownOrigin:
        """Text → origin; see `read_origin`."""
        return read_origin(
            text,
            "grown",
            source,
            lambda found: cls(**{**found, "paths": tuple(map(str, found["paths"]))}),
        )

    def grown(self, comm: Intracomm) -> Extrapolated:
        """Read the files and make the changes. **Collective.**

        Parameters
        ----------
        comm : mpi4py.MPI.Intracomm
            The processes that share the work.

        Raises
        ------
        InputError
            As `mpisim.replay.read_job` and `extrapolate_parallel`.
        """
        with collective_errors(comm):
            clusters = [
                None if name is None else find_cluster(name)
                for name in (self.cluster, self.traced_cluster)
            ]
            changes: Changes = {
                "dp": self.dp,
                "gpu": self.gpu,
                "distributed_optimizer": self.distributed_optimizer,
                "micro_batches": self.micro_batches,
                "stages": self.stages,
                "schedule": self.schedule,
                "chunks": self.chunks,
                "buckets": self.buckets,
                "calibration": self.calibration,
            }
            check_changes(clusters[0], self.layout, changes)  # before the files are read
        changed = self.cluster is not None
        job = read_job(self.paths, comm, allow_missing=True, keep_calls=changed)
        return extrapolate_parallel(
            job,
            comm,
            cluster=clusters[0],
            traced_cluster=clusters[1],
            layout=self.layout,
            **changes,
        )
