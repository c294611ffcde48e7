"""Kernels that pass once over memory (elementwise, optimizer, copy): shapes → bytes moved."""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar, Literal

from mpisim.base.frozen import frozen

from .kernel import Kernel

__all__ = ["Copy", "Elementwise", "ElementwiseVariant", "OptimizerStep"]

ElementwiseVariant = Literal[
    "block_scales",
    "layout",
    "row_copies",
    "row_sums",
    "scales_apart",
    "slice_writes",
    "sort_passes",
    "widening",
]
"""Kernels that do not stream as fast as memory would let them.

``"block_scales"``: casts to MXFP8, with a scale for each block of 32 numbers; ``"layout"``:
channels of images are moved to the end or back; ``"row_copies"``: rows are copied to other places,
each once or more often; ``"row_sums"``: rows from other places are added up; ``"scales_apart"``:
casts to NVFP4, behind which two kernels put the scales into the order that products read;
``"slice_writes"``: XLA writes a result into its place in a larger array; ``"sort_passes"``: a radix
sort writes keys to the places of one of their digits; ``"widening"``: PyTorch's operations on
16-bit numbers whose result is fp32.
"""


@frozen
class Elementwise(Kernel):
    """Anything that streams through memory once: activations, residuals, masks, casts, pooling.

    Attributes
    ----------
    bytes : int
        Read and written, together.
    transposes : bool
        Whether a result is written transposed.
    variant : ElementwiseVariant, optional
        Kernels that move rows to places given by a list, or convert numbers one by one or in
        blocks.
    indexed : int, optional
        Elements whose places in memory are divided out of their number, one by one: operands that
        are broadcast or not dense.
    instructions : int, optional
        Of integers, in all threads, of kernels whose threads have more to do than to move data:
        loops over all experts, of which few are a token's.
    loads : int, optional
        Loads that warps wait for one after another, in all warps, of kernels that find the places
        of their rows in one list after another.
    chained : int, optional
        Loads that one warp waits for one after another, of kernels that add up what is written to
        one place by one warp.
    summed : int, optional
        Rows of a matrix that are added up, column by column, as for the gradient of a bias; `sums`
        is the number of its columns.
    sums : int, optional
    steps : int, optional
        That follow one another, each waiting for the numbers of the one before, as of the columns
        of a matrix that is factorized.
    """

    family: ClassVar[str] = "elementwise"
    bytes: int
    transposes: bool = False
    variant: ElementwiseVariant | None = field(default=None, kw_only=True)
    indexed: int | None = None
    instructions: int | None = field(default=None, kw_only=True)
    loads: int | None = field(default=None, kw_only=True)
    chained: int | None = field(default=None, kw_only=True)
    summed: int | None = field(default=None, kw_only=True)
    sums: int | None = field(default=None, kw_only=True)
    steps: int | None = field(default=None, kw_only=True)

    @classmethod
    def column_sums(cls, element: int, rows: int, columns: int) -> Elementwise:
        """Return the kernel that adds up the rows of a matrix, as for the gradient of a bias.

        Parameters
        ----------
        element : int
            Bytes of one, of the matrix and of the sums.
        rows, columns : int
            Of a single row or column it streams.
        """
        size = element * (rows + 1) * columns
        if min(rows, columns) < 2:
            return cls(size)
        return cls(size, summed=rows, sums=columns)

    @property
    def traffic(self) -> int:
        """Bytes read and written: `bytes`."""
        return self.bytes


@frozen
class OptimizerStep(Kernel):
    """One fused step of an optimizer over all parameters a GPU updates.

    Attributes
    ----------
    parameters : int
    bytes_per_parameter : int
        Read and written for each: gradient, master weight, moments, and the weight the next step
        computes with.
    """

    family: ClassVar[str] = "optimizer"
    parameters: int
    bytes_per_parameter: int

    @property
    def traffic(self) -> int:
        """Bytes of all states that the step reads and writes."""
        return self.parameters * self.bytes_per_parameter


@frozen
class Copy(Kernel):
    """A copy or fill of memory.

    Attributes
    ----------
    bytes : int
        Copied; a copy reads and writes each.
    path : {"device", "fill", "host"}
        Inside the GPU's memory, filling it, or between the host's memory and the GPU's.
    sharers : int
        GPUs that copy over one link to the host at the same time, as those behind a PCIe switch.
    """

    family: ClassVar[str] = "copy"
    bytes: int
    path: Literal["device", "fill", "host"] = "device"
    sharers: int = 1

    @property
    def traffic(self) -> int:
        """Bytes moved: each read and written inside the GPU, moved once otherwise.

        Those of others count where a link is shared.
        """
        return self.bytes * (2 if self.path == "device" else self.sharers)
