"""Recommendation models with drawn tables, and experiments with them."""

from __future__ import annotations

import random

from plans import plan_of

from mpisim.experiment import ClusterChoice, Experiment
from mpisim.experiment.models import Dlrm


def experiment_of(model: Dlrm, gpus: int, batch: int = 4096) -> Experiment:
    """DLRM, GPUs, global batch → a step of replicas in fp32 on nodes of four GV100."""
    plan = plan_of(
        global_batch=batch,
        micro_batch=batch // gpus,
        dp=gpus,
        dp_style="ddp",
        precision="fp32",
        optimizer="sgd",
    )
    return Experiment(
        model=model, plan=plan, cluster=ClusterChoice("gv100-4gpu", gpus=gpus), source="x"
    )


def model_of(seed: int, tables: int, widths: tuple[int, ...] = (64, 128)) -> Dlrm:
    """Seed, number of tables, widths to draw from → a model; its last table is a widest."""
    draw = random.Random(seed)
    return Dlrm(
        "dlrm",
        table_entries=tuple(draw.randrange(10**4, 3 * 10**6) for _ in range(tables)),
        embedding=(*(draw.choice(widths) for _ in range(tables - 1)), max(widths)),
        pooling=tuple(draw.randrange(5, 120) for _ in range(tables)),
        skew=(1.0,),
        bottom_mlp=(256, max(widths)),
        top_mlp=(256, 1),
    )
