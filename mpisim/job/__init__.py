"""Jobs: how long many steps take with checkpoints, failures and restarts between them.

    step time, cluster, [job] ─► JobModel ─► runs, one by one from random numbers ─► JobOutcome

Read in this order.

``fleets``, ``storage``
    How often jobs of published fleets fail; what checkpoints are written to: tables of ``data/`` as
    dataclasses.
``checkpoint``
    Layout → bytes of a checkpoint; bytes and storage → seconds.
``model``
    What one job is, in seconds: `JobModel`.
``closed_form``
    What is known without simulation: Young's and Daly's intervals, the expectation.
``monte_carlo``
    Runs of many jobs, vectorised; shared over processes.
``interval``
    The best time between checkpoints.
``inputs``
    Step, cluster, ``[job]`` → `JobModel`, with errors and assumptions; how long a restart takes
    where ``[job]`` does not say.
``outcome``
    The same → when it is done and where the time goes: `job_outcome`.
``experiment_outcome``
    An experiment with ``[job]`` → its outcome: the step is simulated once.
``text``, ``store``
    An outcome as text and as a file.
"""

from .inputs import JobCluster, Step
from .outcome import Costs, JobOutcome, job_outcome

__all__ = ["Costs", "JobCluster", "JobOutcome", "Step", "job_outcome"]
