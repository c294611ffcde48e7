"""transformers, which looks whether tensors are fake: not so that captures take other branches.

It takes fake tensors for those of a graph that is traced, whose values nobody may read, and then
gives attention a mask wherever there might be a packed or padded sequence
(``transformers/masking_utils.py``): PyTorch has no FlashAttention with a mask. On a GPU it reads
whether there is one, and a captured tensor answers (:mod:`mpisim.capture.values`).
"""

from __future__ import annotations

from typing import Any

from .after_import import AfterImport

__all__ = ["Tracing"]


class Tracing(AfterImport):
    """Finds the module of transformers that tells fake tensors, and has it find none."""

    def __init__(self) -> None:
        super().__init__("transformers.utils.import_utils")

    def change(self, module: Any) -> None:
        """Exchange the function, where the version has one."""
        if hasattr(module, "is_fake_tensor"):
            module.is_fake_tensor = lambda x: False
