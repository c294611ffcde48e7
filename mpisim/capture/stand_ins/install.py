"""All stand-ins of libraries, in place of what ``import`` would find."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from . import apex, deep_ep, deepspeed, flash_attention, transformer_engine
from .after_import import AfterImport, takes_no_tensor_for_traced
from .library import Finder, Launcher, Library

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..dispatch import Dispatch

__all__ = ["install"]

LIBRARIES: tuple[Library, ...] = (
    apex.LIBRARY,
    deep_ep.LIBRARY,
    flash_attention.LIBRARY,
    transformer_engine.LIBRARY,
)
"""Those that are stood in for."""


def install(dispatch: Dispatch, without: Sequence[str], folder: str) -> None:
    """Have ``import`` find the stand-ins.

    Parameters
    ----------
    dispatch : Dispatch
        Told what their kernels are.
    without : sequence of str
        Libraries that the job does not have.
    folder : str
        Of the script, whose own modules come first.
    """
    Launcher.dispatch = dispatch
    Finder([each for each in LIBRARIES if each.name not in without], folder).install()
    tracing = AfterImport("transformers.utils.import_utils", takes_no_tensor_for_traced)
    sys.meta_path.insert(0, tracing)
    if deepspeed.NAME not in without:
        sys.meta_path.insert(0, AfterImport(deepspeed.BUILDERS, deepspeed.record_operators))
    for each in LIBRARIES:
        if each.name in without:
            for name in (each.name, *each.others):
                sys.modules.setdefault(name, None)  # type: ignore[arg-type]
