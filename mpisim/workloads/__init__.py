"""Workload generators: from an experiment to the program of one training step.

``gpt_step``
    The step of a GPT with tensor and data parallelism, as a `Workload`.
``model_flops``
    The work of a step as papers count it, for rates and utilisation.
"""

from .gpt import Workload, gpt_step, model_flops

__all__ = ["Workload", "gpt_step", "model_flops"]
