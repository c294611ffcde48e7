"""A step and a cluster for tests of jobs."""

from __future__ import annotations

from mpisim.job import JobCluster, Step
from mpisim.job.checkpoint import Checkpoint

STEP = Step(10.0, 0.05, 1_000_000)
CLUSTER = JobCluster(1024, 8, Checkpoint(10**12, 10**9, 2 * 10**9, 2 * 10**12), 50e9)
