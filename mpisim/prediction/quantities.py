"""Hardware quantities a step time depends on: their names, experiment keys, current values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..base.quantity import Quantity
from ..program import UNPRICED
from ..topo.alpha_beta import AlphaBeta
from ..workloads.input_pipeline import preparation_times
from .prepared import PreparedExperiment

if TYPE_CHECKING:
    from ..topo import Cluster
    from .prepared_program import PreparedProgram

__all__ = [
    "NAMES",
    "SPEEDS",
    "has_fast_links",
    "key_of",
    "name_of",
    "values_now",
    "why_not",
]

SPEEDS = "speeds"
"""The speed of all kernels of a program, which does not say what they do."""

NAMES = {
    "hbm_bandwidth": "memory bandwidth",
    "matrix_rate": "matrix rate",
    SPEEDS: "speed of kernels",
    "communications": "speed of communications",
    "link_bandwidth": "NVLink bandwidth",
    "nic_bandwidth": "NIC bandwidth",
    "switch_bandwidth": "switch bandwidth",
    "pcie_bandwidth": "PCIe bandwidth",
    "host_memory_bandwidth": "bandwidth of the host's memory",
    "data_loading": "rate of data loading",
    "latency": "latency",
    "launch_time": "launch time",
    "memory": "memory capacity",
    "micro_batch": "micro-batch size",
}
"""What reports call each quantity, in the order of its part of the machine."""


def name_of(name: str, cluster: Cluster | None) -> str:
    """Return what reports on a cluster call a quantity: AMD's GPUs have xGMI for NVLink."""
    node = cluster.node if cluster is not None else None
    if name == "link_bandwidth" and node is not None and node.kind == "xgmi-mesh":
        return "xGMI bandwidth"
    return NAMES[name]


def key_of(name: str) -> str:
    """Return the experiment key that changes a quantity."""
    if name == "micro_batch":
        return "plan.micro_batch"
    return "variation.speeds" if name == SPEEDS else f"scale.{name}"


def values_now(prepared: PreparedExperiment | PreparedProgram) -> dict[str, str]:
    """Return the quantities that apply, by name, with their values for people. Local."""
    found: dict[str, str] = {}
    network, cluster = prepared.network, prepared.cluster
    ranks = prepared.program.n_ranks
    if isinstance(prepared, PreparedExperiment):
        gpu = prepared.gpu
        found["hbm_bandwidth"] = _text(gpu.bandwidth)
        found["matrix_rate"] = f"{_text(gpu.peak(prepared.format))} ({prepared.format})"
        found["memory"] = _text(gpu.memory)
        pricing = prepared.workload.pricings[0]
        launch = pricing.launching["host"] + pricing.launching["launch_cost"]
        found["launch_time"] = f"{launch / 1e6:.3g} us a call"
        loads = prepared.input_pipeline
        if loads is not None:
            found["data_loading"] = f"{loads.rate * loads.gpus:,.0f} images/s a node"
    else:
        timed = any(
            bool((table.is_communication & (table.duration != UNPRICED)).any())
            for table in prepared.program.tables
            if table is not None
        )
        prepares = bool(preparation_times(prepared.program))
        names = (
            SPEEDS,
            *(["communications"] if timed else []),
            *(["data_loading"] if prepares else []),
            "launch_time",
        )
        found |= dict.fromkeys(names, "as in the program")
    if cluster is not None and ranks > 1 and _looks_at_links(network):
        found |= _links_now(cluster, ranks, isinstance(network, AlphaBeta))
    if isinstance(prepared, PreparedExperiment):
        found |= _host_now(prepared)
    return found


def _host_now(prepared: PreparedExperiment) -> dict[str, str]:
    """Return the bandwidths of the host, and of the link to it, if anything is offloaded."""
    offload, found = prepared.experiment.plan.offload, {}
    if offload.optimizer:
        found["host_memory_bandwidth"] = _text(prepared.host.bandwidth)
    if offload.optimizer or offload.activations:
        found["pcie_bandwidth"] = _text(prepared.gpu.pcie)
    return found


def _looks_at_links(network: Any) -> bool:
    return isinstance(network, AlphaBeta) or hasattr(network, "elasticities")


def _links_now(cluster: Cluster, ranks: int, plain: bool) -> dict[str, str]:
    """Return the bandwidths and the latency of a cluster that some ranks use."""
    found = {"latency": "as known" if cluster.latency == 1 else f"{cluster.latency:g} x"}
    node, fabric = cluster.node, cluster.fabric
    if node is None or cluster.graph is not None:
        return found
    if node.link_bandwidth is not None:
        found["link_bandwidth"] = f"{_text(node.link_bandwidth)} a GPU"
    if node.pcie_bandwidth is not None and (not plain or node.link_bandwidth is None):
        found["pcie_bandwidth"] = _text(node.pcie_bandwidth)
    if ranks <= cluster.gpus_per_node or fabric is None:
        return found
    if node.nic_bandwidth is not None:
        found["nic_bandwidth"] = f"{node.nics} x {_text(node.nic_bandwidth)} a node"
    if plain or fabric.kind == "switch":
        return found
    if fabric.link_bandwidth is not None:
        found["switch_bandwidth"] = f"{_text(fabric.link_bandwidth)} a link"
    elif fabric.oversubscription * fabric.core_oversubscription != 1:
        parts = (fabric.oversubscription, fabric.core_oversubscription)
        found["switch_bandwidth"] = "1/" + "/".join(f"{each:.3g}" for each in parts if each != 1)
        found["switch_bandwidth"] += " of the NICs"
    else:
        found["switch_bandwidth"] = "that of the NICs"
    return found


def why_not(name: str, prepared: PreparedExperiment | PreparedProgram) -> str:
    """Return the reason why a quantity that `values_now` leaves out has no effect. Local."""
    cluster, program = prepared.cluster, not isinstance(prepared, PreparedExperiment)
    if name == SPEEDS:
        return "kernels are described: see matrix_rate and hbm_bandwidth"
    if program and name in ("hbm_bandwidth", "matrix_rate", "memory"):
        return "the program does not say what its kernels do or need; see speeds"
    if name == "micro_batch":
        return "the program fixes it"
    if name == "host_memory_bandwidth":
        return "the program fixes it" if program else "no optimizer is offloaded ([plan.offload])"
    if name == "data_loading":
        why = "no images are prepared"
        return f"{why} by the program" if program else f"{why} ([data] images)"
    if name == "communications":
        return "no communication has a duration of its own; see the bandwidths"
    if cluster is None:
        return "no network is chosen (--set cluster.preset=NAME)"
    if prepared.program.n_ranks == 1:
        return "one GPU, nothing communicates"
    if cluster.graph is not None:
        return f"links are listed in {cluster.graph}; scale them by network.changes"
    if name == "link_bandwidth":
        return "GPUs have no links of their own"
    if name in ("nic_bandwidth", "switch_bandwidth"):
        if prepared.program.n_ranks <= cluster.gpus_per_node:
            return "one node, no NIC is used"
        return "the fabric has no links between switches" if "switch" in name else "there are none"
    return "the network model does not look at it"


def has_fast_links(cluster: Cluster) -> bool:
    """Whether the GPUs of a node are joined by links of their own."""
    return cluster.node is not None and cluster.node.link_bandwidth is not None


def _text(number: Quantity) -> str:
    return f"{number.value:.4g} {number.unit}"
