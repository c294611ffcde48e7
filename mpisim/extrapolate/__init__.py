"""Traces at other scales: a recorded step → the program of a larger job.

To be read in this order:

`step`
    A traced step of one GPU: operators with measured kernels, parameters, layers.
`passes`
    Which pass launched a kernel, and for which node of autograd.
`kineto_step`, `triosim_step`
    Kineto's traces and TrioSim's tables → traced step.
`layers`
    Which operators make a layer.
`growth`, `split`
    Kernels at other sizes, and those of one tensor-parallel rank.
`tensor_parallel`, `threads`, `balance`
    Which layers are split and how; threads of one process; which layers a pipeline stage has.
`network`
    Traced step, plan → network of the workload generator.
`grow`
    ``extrapolate``: traced step, plan, cluster → program, and what it rests on.
`triosim_write`
    Traced step → TrioSim's tables.
`read`
    ``read_step``: any of the inputs → traced step.
`prepare`
    ``prepare_workload``: experiments of a trace or of a program, ready to be run.
"""

from .grow import Extrapolated, Target, extrapolate
from .read import read_step
from .step import TracedStep

__all__ = ["Extrapolated", "Target", "TracedStep", "extrapolate", "read_step"]
