"""Traces at other scales: a recorded step → the program of a larger job.

To be read in this order:

`step`
    A traced step of one GPU: operators with measured kernels, parameters, layers.
`kineto_step`, `triosim_step`
    Kineto's traces and TrioSim's tables → traced step.
`layers`
    Which operators make a layer.
`growth`, `split`
    Kernels at other sizes, and those of one tensor-parallel rank.
`tensor_parallel`, `balance`
    Which layers are split and how; which layers a pipeline stage has.
`network`
    Traced step, plan → network of the workload generator.
`grow`
    ``extrapolate``: traced step, plan, cluster → program, and what it rests on.
`triosim_write`
    Traced step → TrioSim's tables.
`read`
    ``read_step``: any of the inputs → traced step.
"""

from .grow import Extrapolated, Target, extrapolate
from .read import read_step
from .step import TracedStep

__all__ = ["Extrapolated", "Target", "TracedStep", "extrapolate", "read_step"]
