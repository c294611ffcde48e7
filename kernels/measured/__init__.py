"""Measured kernel times: tables in CSV as their authors publish them.

A file is recognised by the names of its columns:

========================================  ==========================================================
columns                                   published by
========================================  ==========================================================
op, gpu, split, B, M, N_contract, K_out   NeuSight, matrix products (github:sitar-lab/NeuSight)
op, gpu, split, B, H                      NeuSight, vector operations
op, gpu, batch, c_in, c_out, ksize        NeuSight, convolutions
B, M, N, K, Latency                       NeuSight, fp16 products on an H100
gpu, model, op, tp, M, N, K               Vidur, matrix products (github:microsoft/vidur)
gpu, model, op, tp, tokens, width         Vidur, the other operations of a layer
kind, gpu, dtype, groups, M_per_group     DeepGEMM (github:deepseek-ai/DeepGEMM)
gpu, operation, dtype, batch, heads, …    FlashAttention (``data/calibration/attention*.csv``)
gpu, family, operation, median_us         ``run_scripts/collect_gpu.py`` (docs/collecting.md)
gpu, dtype, best_TFLOPS, best_MxNxK       ml-engineering, the fastest products found
========================================  ==========================================================

The last are the best of very many shapes; no fit should take them for typical: they are set aside.

Read :mod:`.rows` first, then :mod:`.formats`, how rows of each publisher are read, then
:mod:`.reading`, which makes the one from the other.
"""

from .reading import gpu_name, read, read_all, select
from .rows import ASIDE, TEST, TRAIN, MeasuredKernels

__all__ = ["ASIDE", "TEST", "TRAIN", "MeasuredKernels", "gpu_name", "read", "read_all", "select"]
