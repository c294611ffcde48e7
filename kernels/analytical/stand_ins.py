"""What may stand in for constants that were not fitted, and by how much it may be off."""

from __future__ import annotations

from ..fused_attention import ATTENTION
from .family import ANY

__all__ = [
    "COMPUTE",
    "ELSEWHERE",
    "INSTEAD",
    "KIN",
    "OTHER_FORMAT",
    "OTHER_GPU",
    "SAME_UNITS",
    "STRANGER",
    "SUBSTITUTES",
    "TEXTBOOK",
    "same_units",
]

INSTEAD: dict[str, tuple[str, ...]] = {
    "fp16": ("fp16", "bf16", "fp8", "tf32", "fp32"),
    "bf16": ("bf16", "fp16", "fp8", "tf32", "fp32"),
    "tf32": ("tf32", "bf16", "fp16", "fp8", "fp32"),
    "fp8": ("fp8", "fp16", "bf16", "tf32", "fp32"),
    "nvfp4": ("nvfp4", "fp8", "fp16", "bf16", "tf32", "fp32"),
    "fp32": ("fp32", "tf32", "fp16", "bf16", "fp8"),
    ANY: (ANY,),
}
"""Formats whose constants may serve a format, best first."""

SAME_UNITS = frozenset(("fp16", "bf16"))

KIN: dict[str, tuple[str, ...]] = {
    "volta": ("ampere", "hopper"),
    "ampere": ("hopper", "volta"),
    "ada": ("ampere", "hopper"),
    "hopper": ("ampere", "volta"),
    "blackwell": ("hopper", "ampere", "volta"),
}
"""Architectures whose constants may serve one that was not measured, best first. Those fitted to a
V100 alone predict an A100's elementwise kernels and layer norms to 3 and 7 %, and the reverse holds
as well; those fitted to all of Pascal, Turing and Volta are 15 to 20 % off. Softmax carries over
less well: 14 % from V100 to A100, 28 % back, 16 and 36 % from all others (NeuSight's rows)."""

OTHER_FORMAT = 0.15
"""Relative error added where another format's constants serve: between the formats that both
occur, efficiencies differ by 5 to 25 % (``data/gpu_families.toml``)."""

OTHER_GPU = 0.1
"""Relative error added where one GPU's constants serve another and nothing says how far GPUs
differ."""

STRANGER = 0.25
"""Relative error added where no GPU of the architecture or of its kin was measured: NeuSight's fp32
products on MI100 and MI210 are 30 to 45 % off by what NVIDIA's GPUs say, and the best bf16 product
of an MI300X is (github:stas00/ml-engineering, compute/accelerator) by 32 %."""

SUBSTITUTES: dict[str, tuple[str, float]] = {
    "attention_cudnn": ("attention", 0.15),
    "attention_flash_2": ("attention", 0.25),
    "attention_triton": ("attention_flash_2", 0.1),
    "gemm_cores": ("gemm", 0.1),
    "norm_persistent": ("memory_bound", 0.2),
    "gemm_split": ("gemm", 0.05),
    "grouped_gemm_split": ("grouped_gemm", 0.05),
}
"""Families whose constants serve one that was not measured on an architecture, and the relative
error this adds: on Ampere the newest attention is FlashAttention-2 itself, on an H100 it takes 0.55
to 0.9 of FlashAttention-2's time and 0.8 to 1.2 of cuDNN's (``data/calibration/attention.csv``).
What FlashAttention in Triton takes is a multiple of FlashAttention-2's time, known to a tenth; what
norms that keep rows in registers take, one of a streaming kernel's, known to a fifth; what products
of 16-bit numbers take on CUDA cores, one of an fp32 product's, known to a tenth; what those with
split accumulators take, one of other products', known to a twentieth."""

ELSEWHERE: dict[str, tuple[str, float]] = {
    "convolution": ("gemm", 0.2),
    "grouped_gemm": ("gemm", 0.1),
}
"""Families whose formats, where none of their kernels was measured in one, have the constants of
another family in that format rather than their own in another, and the relative error this adds:
DeepGEMM's grouped fp8 products on an H800 reach 0.99 to 1.07 of the rate of one product of the same
size (github:deepseek-ai/DeepGEMM README), and Transformer Engine's are one product an expert
(transformer_engine/pytorch/module/grouped_linear.py)."""

_PRODUCTS = (
    "gemm",
    "gemm_cores",
    "gemm_split",
    "grouped_gemm",
    "grouped_gemm_split",
    "convolution",
)

COMPUTE = frozenset((*_PRODUCTS, *(each.family for each in ATTENTION.values())))
"""Families whose kernels draw so much power that a board with less of it lowers its clock."""

TEXTBOOK = 0.4
"""Relative error where nothing was fitted at all."""


def same_units(dtype: str) -> list[str]:
    """Return the formats that the matrix units of a format work in at the same rate."""
    return [each for each in INSTEAD[dtype] if each == dtype or {each, dtype} <= SAME_UNITS]
