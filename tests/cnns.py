"""Convolutional networks for tests."""

from __future__ import annotations

from typing import Any

from plans import plan_of

from mpisim.experiment.models import Cnn
from mpisim.workloads.cnn import cnn_network
from mpisim.workloads.grid import Grid
from mpisim.workloads.operators import LayerStack


def network(family: str, depth: int, /, gpus: int = 1, **keys: Any) -> LayerStack:
    """Family, depth, keys of model and plan → layers of a CNN; one micro-batch, fp32."""
    of_model = ("image", "classes", "batch_norm", "width")
    model = {key: keys.pop(key) for key in of_model if key in keys}
    batch = keys.get("micro_batch", 1) * gpus // keys.get("tp", 1)
    plan = plan_of(**{"global_batch": batch, "precision": "fp32"} | keys)
    return cnn_network(Cnn(family, depth, **model), plan, Grid.of(plan, gpus))  # type: ignore[arg-type]
