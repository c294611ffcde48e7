"""All stand-ins of libraries, in place of what ``import`` would find."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from . import apex, deep_ep, deepspeed, flash_attention, transformer_engine
from .huggingface import Tracing
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
    chosen = [each for each in LIBRARIES if each.name not in without]
    Finder(chosen, dispatch, folder).install()
    sys.meta_path.insert(0, Tracing())
    if deepspeed.NAME not in without:
        sys.meta_path.insert(0, deepspeed.Builders(Launcher(dispatch, deepspeed.LINE)))
    for each in LIBRARIES:
        if each.name in without:
            for name in (each.name, *each.others):
                sys.modules.setdefault(name, None)  # type: ignore[arg-type]
