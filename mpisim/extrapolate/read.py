"""A trace of one GPU, or a captured job of one rank, whichever sort it is → a traced step."""

from __future__ import annotations

from pathlib import Path

from ..base.errors import InputError
from ..traces.raw import read_head
from .captured_step import read_captured_step
from .kineto_step import read_kineto_step
from .step import TracedStep
from .triosim_step import is_triosim, read_triosim_step

__all__ = ["is_of_mpisim", "read_step"]

HDF5 = b"\x89HDF"
"""How files of mpisim begin."""


def is_of_mpisim(path: Path | str) -> bool:
    """Path → whether it is a file in HDF5, as mpisim writes captured programs. Local.

    Parameters
    ----------
    path : str or Path

    Returns
    -------
    bool
    """
    return Path(path).is_file() and read_head(Path(path)).startswith(HDF5)


def read_step(
    path: Path | str,
    *,
    gpu: str | None = None,
    step: int | None = None,
    batch: int | None = None,
    execution_trace: Path | str | None = None,
) -> TracedStep:
    """Read one training step of one GPU. Local.

    Parameters
    ----------
    path : Path or str
        A Kineto trace or an Nsight Systems export, with shapes, or TrioSim's ``trace.csv`` beside
        its ``tensor.csv``; or a folder with one; or what ``mpisim capture --save-program`` has
        written of a job of one rank.
    gpu : str, optional
        The GPU it was recorded on, where the file does not say.
    step : int, optional
        Number of the profiled step; by default the one of median length.
    batch : int, optional
        Samples of the step, where that is not clear.
    execution_trace : Path or str, optional
        Of the same step, for shapes that a Kineto trace does not record; by default one in its
        folder.

    Raises
    ------
    InputError
        If it cannot be read, or lacks what a step is made of; the message says what.
    """
    if is_of_mpisim(path):
        if execution_trace is not None:
            raise InputError(f"{path}: a captured program has shapes; name no execution trace")
        return read_captured_step(path, gpu=gpu, step=step, batch=batch)
    if is_triosim(path):
        if step is not None:
            raise InputError(
                f"{path}: TrioSim's tables hold one step; --step is for Kineto's traces"
            )
        if execution_trace is not None:
            raise InputError(f"{path}: TrioSim's tables have shapes; name no execution trace")
        return read_triosim_step(path, gpu=gpu, batch=batch)
    return read_kineto_step(path, gpu=gpu, step=step, batch=batch, execution_trace=execution_trace)
