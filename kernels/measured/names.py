"""Names of GPUs in published tables."""

from __future__ import annotations

from mpisim.base.presets import match_name, packaged

from ..gpu import FILE

__all__ = ["gpu_name"]

GPUS = {
    "A100-80GB": "a100-sxm",
    "A100 SXM": "a100-sxm",
    "A100 PCIe": "a100-pcie-80gb",
    "GH200 SXM": "gh200-96gb",
    "H100 SXM": "h100-sxm",
    "H200 SXM": "h200",
    "H800-SXM": "h800-sxm",
    "B200 SXM": "b200",
    "B300 SXM": "b300",
    "GB200 SXM": "gb200",
    "NVIDIA_A100-SXM4-40GB": "a100-sxm-40gb",
    "MI250": "mi210",
}
"""Names in these files beside those of ``data/gpus.toml``. PyTorch sees one die of an MI250, which
has the units, the clock and the bandwidth of an MI210."""


def gpu_name(text: str) -> str:
    """Return the name of a preset for a GPU as these files write it."""
    return GPUS.get(text) or match_name(text, packaged(FILE), "GPU", f"see {FILE}")
