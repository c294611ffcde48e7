"""PyTorch on this machine's CPU → what visiting a node of autograd's graph costs there.

python run_scripts/searched_node.py [PARAMETERS OPERATORS]

``searched_node`` of data/frameworks.toml: the time in which DistributedDataParallel looks for
unused parameters (``Reducer::search_unused_parameters``), for each node of the graph, over the time
that an operator of the forward pass takes on the CPU. The graph has so many parameters (200), so
many operators for each (13), and a node for each of both; tensors have one element. Each step makes
a graph of its own, as in training: one that was visited before is in the CPU's caches.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS, WARM_UP = 60, 10


class Chain(torch.nn.Module):
    """A product with each parameter, and sums behind it."""

    def __init__(self, parameters: int, operators: int) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterList(torch.ones(1) for _ in range(parameters))
        self.sums = operators - 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for weight in self.weights:
            x = x * weight
            for _ in range(self.sums):
                x = x + 1
        return x


def timed(measured: Callable[[], object]) -> tuple[float, Any]:
    """Function → how long it takes, in s, and its result."""
    begin = time.perf_counter()
    result = measured()
    return time.perf_counter() - begin, result


def main(parameters: int = 200, operators: int = 13) -> None:
    """Measure, and print both times and their ratio."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = DistributedDataParallel(Chain(parameters, operators), find_unused_parameters=True)
    x = torch.ones(1)
    searches, forwards = [], []
    for _ in range(STEPS):
        # What DistributedDataParallel.forward does, one after the other.
        forward, result = timed(lambda: model.module(x))
        search, _ = timed(lambda: model.reducer.prepare_for_backward([result]))  # noqa: B023
        result.backward()
        searches.append(search)
        forwards.append(forward / (parameters * operators))
    search, forward = statistics.median(searches[WARM_UP:]), statistics.median(forwards[WARM_UP:])
    nodes = parameters * (operators + 1)
    print(f"PyTorch {torch.__version__}, {nodes:,} nodes: {search * 1e3:.2f} ms")
    each = search / nodes
    print(f"{each * 1e6:.2f} us a node, {forward * 1e6:.2f} us an operator: {each / forward:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
