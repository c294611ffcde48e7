"""Measured training steps as rows of a CSV table, one of each source."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mpisim.validate.e2e import Mapped, Row, Skipped, experiment_of, read, settings
from mpisim.validate.e2e.rows import COLUMNS

EXTRA = (
    "notes",
    "precision_as_printed",
    "zero_stage_as_printed",
    "activation_recompute_as_printed",
    "overlap_as_printed",
    "cpu_offload",
    "source_version",
)
"""Columns of the tables that are not read."""

VTRAIN: dict[str, Any] = {
    # VIA-Research/vTrain data/ground_truth_multi.csv, its shape cut to 8 GPUs and 4 layers.
    "id": "vtrain",
    "source": "VIA-Research/vTrain data/ground_truth_multi.csv (MICRO 2024)",
    "model": "GPT",
    "layers": 4,
    "hidden": 1024,
    "heads": 16,
    "kv_heads": 16,
    "ffn_hidden": 4096,
    "seq_len": 1024,
    "gpu": "A100-SXM-80GB",
    "gpus_per_node": 8,
    "num_gpus": 8,
    "tp": 2,
    "pp": 2,
    "vpp": 1,
    "dp": 2,
    "cp": 1,
    "ep": 1,
    "sp": "False",
    "zero_stage": 0,
    "micro_batch": 2,
    "global_batch": 16,
    "precision": "fp16",
    "activation_recompute": "full",
    "framework": "Megatron-DeepSpeed",
    "step_time_ms": 60.0,
    "step_time_basis": "printed",
    "trust": "A",
    "tp_overlap": "False",
    "dp_overlap": "False",
    "node_network_gbps": 800,
}

BRIDGE: dict[str, Any] = {
    # NVIDIA-NeMo/Megatron-Bridge docs/performance-summary-archive.md, 26.04.01 container.
    "id": "mb-26.04.01-pt-deepseekv3-GB200-256g-mxfp8-gbs4096",
    "source": "NVIDIA-NeMo/Megatron-Bridge docs/performance-summary-archive.md",
    "model": "DeepSeek-V3",
    "layers": 61,
    "hidden": 7168,
    "heads": 128,
    "ffn_hidden": 18432,
    "vocab": 129280,
    "num_experts": 256,
    "topk": 8,
    "moe_ffn": 2048,
    "seq_len": 4096,
    "gpu": "GB200",
    "num_gpus": 256,
    "tp": 1,
    "pp": 4,
    "vpp": 4,
    "dp": 64,
    "cp": 1,
    "ep": 64,
    "zero_stage": 0,
    "micro_batch": 1,
    "global_batch": 4096,
    "precision": "mxfp8",
    "framework": "Megatron-Bridge/Megatron-Core",
    "step_time_ms": 13000.0,
    "trust": "A",
    "zero_stage_as_printed": "ddp (FSDP=0)",
}

TITAN: dict[str, Any] = {
    # pytorch/torchtitan benchmarks/llama3_h100_202412_torchtitan.md, table 1.
    "id": "tt-l8b-8g-eager-bf16",
    "source": "pytorch/torchtitan benchmarks/llama3_h100_202412",
    "model": "Llama-3.1-8B",
    "layers": 32,
    "hidden": 4096,
    "heads": 32,
    "kv_heads": 8,
    "ffn_hidden": 14336,
    "vocab": 128256,
    "seq_len": 8192,
    "gpu": "H100-SXM-96GB-500W",
    "gpus_per_node": 8,
    "num_gpus": 8,
    "tp": 1,
    "pp": 1,
    "dp": 8,
    "cp": 1,
    "zero_stage": 3,
    "micro_batch": 2,
    "global_batch": 16,
    "precision": "bf16",
    "activation_recompute": "selective",
    "framework": "torchtitan (PyTorch FSDP2)",
    "step_time_ms": 2843.46,
    "trust": "A",
    "notes": "eager; TPS read at one iteration",
    "dp_overlap": "True",
    "node_network_gbps": 3200,
}

NEUSIGHT: dict[str, Any] = {
    # sitar-lab/NeuSight scripts/asplos/label/Tesla_V100-PCIE-32GB/gpt2_large-train-1024-1.json
    "id": "ns-gpt2_large",
    "source": "sitar-lab/NeuSight scripts/asplos/label/Tesla_V100-PCIE",
    "model": "GPT-2-Large",
    "layers": 36,
    "hidden": 1280,
    "heads": 20,
    "kv_heads": 20,
    "ffn_hidden": 5120,
    "vocab": 50257,
    "seq_len": 1024,
    "gpu": "V100-PCIe-32GB",
    "gpus_per_node": 1,
    "num_gpus": 1,
    "tp": 1,
    "pp": 1,
    "dp": 1,
    "cp": 1,
    "zero_stage": 0,
    "micro_batch": 1,
    "global_batch": 1,
    "precision": "fp32",
    "activation_recompute": "none",
    "framework": "HuggingFace/PyTorch",
    "step_time_ms": 576.921,
    "trust": "B",
    "step_time_basis": "measured, but EXCLUDES optimizer step",
}

RESNET: dict[str, Any] = {
    # Oneflow-Inc/DLPerf reports/dlperf_benchmark_test_report_v1.md
    "id": "rn50",
    "source": "Oneflow-Inc/DLPerf reports/dlperf_benchmark_test_report_v1.md",
    "model": "ResNet50-v1.5",
    "gpu": "V100-SXM2-16GB",
    "gpus_per_node": 8,
    "num_gpus": 1,
    "tp": 1,
    "pp": 1,
    "dp": 1,
    "cp": 1,
    "zero_stage": 0,
    "micro_batch": 128,
    "global_batch": 128,
    "precision": "fp32",
    "framework": "OneFlow",
    "step_time_ms": 321.899,
    "trust": "B",
    "node_network_gbps": 100,
}


def table(path: Path, *rows: Mapping[str, Any], columns: tuple[str, ...] = COLUMNS) -> Path:
    """Write measured steps, with columns that readers do not need, and keys of experiments."""
    with path.open("w", newline="", encoding="utf-8") as file:
        keys = dict.fromkeys(key for row in rows for key in row if "." in key)
        writer = csv.DictWriter(file, [*columns, *EXTRA, *keys], restval="")
        writer.writeheader()
        writer.writerows(rows)
    return path


def read_row(path: Path, base: Mapping[str, Any], **changes: Any) -> Row:
    """A row with changed cells → as it is read from a table, written to `path`."""
    return read(table(path, {**base, **changes}))[0]


def mapped(row: Row) -> Mapped:
    """A row → its experiment, by the rules that mpisim has; fails where there is none."""
    found = experiment_of(row, settings())
    assert isinstance(found, Mapped), found
    return found


def why(row: Row) -> str:
    """A row → why there is no experiment of it; fails where there is one."""
    found = experiment_of(row, settings())
    assert isinstance(found, Skipped)
    return found.why
