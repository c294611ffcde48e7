"""fp8 as Transformer Engine has it: recipes, ``fp8_autocast``, casts of operands.

An operand of a product in fp8 exists by rows, by columns, or both. On Hopper, whose products take
both operands along k only, that by columns is a transposed copy; where a recipe scales the whole
tensor it is made when it is needed. On Blackwell such products take an operand in any direction,
and only recipes with scales of blocks keep two (transformer_engine/pytorch/tensor of version 2.9).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.utils.weak import WeakIdKeyDictionary

from .library import Launcher

__all__ = [
    "RECIPES",
    "FP8GlobalStateManager",
    "Quantized",
    "Recipe",
    "autocast",
    "fp8_autocast",
    "fp8_model_init",
    "launch",
    "state",
]

launch = Launcher("transformer-engine", "2.9.0")
"""Kernels of the library, of all modules that stand in for it."""


class _Largest(NamedTuple):
    max_fwd: float
    max_bwd: float


class Format(Enum):
    """Number formats, by the largest number forward and backward."""

    E2M1 = _Largest(6, 6)
    E4M3 = _Largest(448, 448)
    E5M2 = _Largest(57344, 57344)
    HYBRID = _Largest(448, 57344)


class MMParams:
    """How a product adds up."""

    def __init__(self, use_split_accumulator: bool = True) -> None:
        self.use_split_accumulator = use_split_accumulator


class QParams:
    """How an operand is scaled."""

    def __init__(self, **settings: Any) -> None:
        self.__dict__.update(settings)


class Recipe:
    """Where the scales of operands come from."""

    kind = ""
    fp8_format = Format.HYBRID
    fp8_dpa = fp8_mha = reduce_amax = False

    def __init__(self, **settings: Any) -> None:
        self.__dict__.update(settings)

    def delayed(self) -> bool:
        """Whether scales come from steps before."""
        return isinstance(self, DelayedScaling)

    def float8_current_scaling(self) -> bool:
        """Whether scales come from the whole operand."""
        return isinstance(self, Float8CurrentScaling)

    def float8_per_tensor_scaling(self) -> bool:
        """Whether an operand has one scale."""
        return self.kind in ("delayed", "current")

    def mxfp8(self) -> bool:
        """Whether blocks of 32 have a scale."""
        return isinstance(self, MXFP8BlockScaling)

    def float8_block_scaling(self) -> bool:
        """Whether blocks of 128 have a scale."""
        return isinstance(self, Float8BlockScaling)

    def nvfp4(self) -> bool:
        """Whether operands have 4 bits."""
        return isinstance(self, NVFP4BlockScaling)

    def custom(self) -> bool:
        """Whether the program scales by itself."""
        return False


class DelayedScaling(Recipe):
    """Scales from the largest numbers of steps before."""

    kind = "delayed"

    def __init__(
        self,
        margin: int = 0,
        fp8_format: Format = Format.HYBRID,
        amax_history_len: int = 1024,
        amax_compute_algo: Any = "max",
        scaling_factor_compute_algo: Any = None,
        reduce_amax: bool = True,
        **settings: Any,
    ) -> None:
        super().__init__(
            margin=margin,
            fp8_format=fp8_format,
            amax_history_len=amax_history_len,
            amax_compute_algo=amax_compute_algo,
            scaling_factor_compute_algo=scaling_factor_compute_algo,
            reduce_amax=reduce_amax,
            **settings,
        )


class Float8CurrentScaling(Recipe):
    """Scales from the largest number of the operand itself."""

    kind = "current"
    fp8_gemm_fprop = MMParams(use_split_accumulator=False)
    fp8_gemm_dgrad = fp8_gemm_wgrad = MMParams()


class MXFP8BlockScaling(Recipe):
    """A scale for 32 numbers."""

    kind = "blocks"
    fp8_format = Format.E4M3


class Float8BlockScaling(Recipe):
    """A scale for 128 numbers, or for 128 × 128."""

    kind = "blocks"
    fp8_format = Format.E4M3


class NVFP4BlockScaling(Recipe):
    """4 bits, and a scale for 16 numbers."""

    kind = "nvfp4"
    fp8_format = Format.E4M3


RECIPES = {
    each.__name__: each
    for each in (
        Format,
        MMParams,
        QParams,
        Recipe,
        DelayedScaling,
        Float8CurrentScaling,
        MXFP8BlockScaling,
        Float8BlockScaling,
        NVFP4BlockScaling,
    )
}
"""What the module ``transformer_engine.common.recipe`` has."""


class Quantized(NamedTuple):
    """An operand that was cast.

    Attributes
    ----------
    shape : tuple of int
        Rows and columns.
    rows, columns : torch.Tensor or None
        As products that read along one or the other take it.
    """

    shape: tuple[int, ...]
    rows: Any
    columns: Any


class State:
    """What is known of fp8 in a process: the recipe in force, and largest numbers to be reduced."""

    def __init__(self) -> None:
        self.enabled = False
        self.recipe: Recipe | None = None
        self.of_weights: Recipe | None = None
        self.group: Any = None
        self.depth = 0
        self._first = False
        self._known: Any = WeakIdKeyDictionary()
        self._amaxes: dict[tuple[bool, int], tuple[int, Recipe, Any]] = {}

    @property
    def transposes(self) -> bool:
        """Whether products take an operand only along k, so that others are transposed."""
        return tuple(torch.cuda.get_device_capability()) < (10, 0)

    def default_recipe(self) -> Recipe:
        """Return the recipe where none is named: that of the device."""
        return DelayedScaling() if self.transposes else MXFP8BlockScaling()

    @contextmanager
    def autocast(
        self,
        enabled: bool = True,
        calibrating: bool = False,
        recipe: Recipe | None = None,
        group: Any = None,
    ) -> Iterator[None]:
        """Have products in fp8, or not, in this block."""
        if enabled:
            self._check(recipe or self.default_recipe())
        before = self.enabled, self.recipe, self.group
        self.enabled, self.group = enabled, group
        self.recipe = (recipe or self.default_recipe()) if enabled else None
        if not self.depth:
            self._first = True
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1
            if enabled and not self.depth and torch.is_grad_enabled():
                self.reduce(forward=True)
            self.enabled, self.recipe, self.group = before

    def _check(self, recipe: Recipe) -> None:
        capability = tuple(torch.cuda.get_device_capability())
        least = (10, 0) if recipe.mxfp8() or recipe.nvfp4() else (8, 9)
        if capability < least:
            raise RuntimeError(
                f"Device compute capability {least[0]}.{least[1]} or higher required for "
                f"{type(recipe).__name__}; this is {capability[0]}.{capability[1]}"
            )

    # --- largest numbers --------------------------------------------------------------------------

    def is_first(self) -> bool:
        """Return whether no module has asked since the outermost autocast began."""
        first, self._first = self._first, False
        return first and torch._C._current_graph_task_id() < 0

    def register(self, module: Any, products: int) -> None:
        """Note the operands of a module, whose largest numbers are reduced with all others."""
        if self.recipe is None or not self.recipe.delayed() or module in self._known:
            return
        self._known[module] = True
        for forward, operands in ((True, 3), (False, 2)):  # FP8FwdTensors, FP8BwdTensors
            key = (forward, id(self.group))
            count = self._amaxes.get(key, (0,))[0] + operands * products
            self._amaxes[key] = (count, self.recipe, self.group)

    def reduce(self, *, forward: bool) -> None:
        """Reduce the largest numbers of all operands over ranks, and make scales of them."""
        for (direction, _), (count, recipe, group) in self._amaxes.items():
            if direction != forward:
                continue
            device = torch.device("cuda", torch.cuda.current_device())
            amax = launch.empty((count,), torch.float32, device)
            launch("aten::cat", [[amax]], [amax])
            if recipe.reduce_amax and dist.is_initialized() and dist.get_world_size(group) > 1:
                dist.all_reduce(amax, op=dist.ReduceOp.MAX, group=group)
            history = launch.empty(
                (getattr(recipe, "amax_history_len", 1), count), torch.float32, device
            )
            name = "transformer_engine::fused_amax_and_scale_update_after_reduction"
            launch(name, [amax, history], [amax])

    # --- operands ---------------------------------------------------------------------------------

    def quantize(
        self,
        tensor: Any,
        *,
        columns: bool,
        rows: bool = True,
        reduced: Any = None,
        bias: bool = False,
        backward: bool = False,
        recipe: Recipe | None = None,
    ) -> Quantized:
        """Cast an operand, in one kernel.

        Parameters
        ----------
        tensor : torch.Tensor
            Of two dimensions.
        columns, rows : bool
            In which directions products read it.
        reduced : ProcessGroup, optional
            Whose ranks have parts of the operand: a scale of the whole is one for all of them.
        bias : bool
            Whether the kernel also adds up columns, for the gradient of a bias.
        backward : bool
            Whether it is a gradient.
        recipe : Recipe, optional
            By default that in force.
        """
        recipe = recipe or self.recipe
        assert recipe is not None
        if recipe.float8_per_tensor_scaling() and not self.transposes:
            columns = False
        shape = tuple(tensor.shape)
        wide = backward and recipe.fp8_format is Format.HYBRID
        dtype = torch.float8_e5m2 if wide else torch.float8_e4m3fn
        numbers = tensor.numel()
        if recipe.nvfp4():
            dtype, numbers = torch.float4_e2m1fn_x2, -(-numbers * 9 // 16)
        made = [
            launch.empty((numbers,) if recipe.nvfp4() else each, dtype, tensor.device)
            for each, wanted in ((shape, rows), (shape[::-1], columns))
            if wanted
        ]
        launch("transformer_engine::quantize", [tensor, recipe.kind, bias], made)
        if recipe.kind == "current" and reduced is not None and reduced.size() > 1:
            largest = launch.empty((1,), torch.float32, tensor.device)
            dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=reduced)
        by_rows = made.pop(0) if rows else None
        return Quantized(shape, by_rows, made[0] if made else None)

    def for_columns(self, operand: Any) -> Any:
        """Return an operand with what products along its columns read, transposed if need be."""
        if not isinstance(operand, Quantized) or operand.columns is not None:
            return operand
        if not self.transposes or operand.rows is None:
            return operand
        made = launch.empty(operand.shape[::-1], operand.rows.dtype, operand.rows.device)
        launch("transformer_engine::fp8_transpose", [operand.rows], [made])
        return operand._replace(columns=made)

    def available(self, return_reason: bool = False) -> Any:
        """Whether the device has fp8."""
        found = tuple(torch.cuda.get_device_capability()) >= (8, 9)
        return (
            (found, "" if found else "compute capability 8.9 is needed")
            if return_reason
            else (found)
        )

    def blocks_available(self, return_reason: bool = False) -> Any:
        """Whether the device has scales of blocks of 32."""
        found = not self.transposes
        return (
            (found, "" if found else "compute capability 10.0 is needed")
            if return_reason
            else (found)
        )


state = State()
"""Of this process."""


class FP8GlobalStateManager:
    """What programs ask about fp8."""

    FP8_ENABLED = FP8_CALIBRATION = FP8_PARAMETERS = False
    is_fp8_enabled = staticmethod(lambda: state.enabled)
    is_fp8_calibration = staticmethod(lambda: False)
    with_fp8_parameters = staticmethod(lambda: state.of_weights is not None)
    fp8_graph_capturing = staticmethod(lambda: False)
    get_fp8_recipe = staticmethod(lambda: state.recipe or state.default_recipe())
    get_fp8_group = staticmethod(lambda: state.group)
    is_first_fp8_module = staticmethod(state.is_first)
    get_skip_fp8_weight_update_tensor = staticmethod(lambda: None)
    set_skip_fp8_weight_update_tensor = staticmethod(lambda skip: None)
    is_fp8_available = staticmethod(state.available)
    reset = staticmethod(lambda: None)

    @staticmethod
    def reduce_and_update_fp8_tensors(forward: bool = True) -> None:
        """Reduce the largest numbers."""
        state.reduce(forward=forward)

    @staticmethod
    def get_fp8_autocast_state() -> Any:
        """Return what `set_fp8_autocast_state` takes."""
        return state.enabled, state.recipe, state.group

    @staticmethod
    def set_fp8_autocast_state(found: Any) -> None:
        """Set the recipe in force."""
        state.enabled, state.recipe, state.group = found


def fp8_autocast(enabled: bool = True, calibrating: bool = False, fp8_recipe: Any = None,
                 fp8_group: Any = None, _graph: bool = False) -> Any:  # fmt: skip
    """Products in fp8, or not, in a block, by the arguments of earlier versions."""
    return state.autocast(enabled, calibrating, fp8_recipe, fp8_group)


def autocast(enabled: bool = True, calibrating: bool = False, recipe: Any = None,
             amax_reduction_group: Any = None, _graph: bool = False) -> Any:  # fmt: skip
    """Products in fp8, or not, in a block."""
    return state.autocast(enabled, calibrating, recipe, amax_reduction_group)


@contextmanager
def fp8_model_init(enabled: bool = True, recipe: Any = None,
                   preserve_high_precision_init_val: bool = False) -> Iterator[None]:  # fmt: skip
    """Have matrices that are made in this block hold fp8, by a recipe."""
    before = state.of_weights
    state.of_weights = (recipe or state.default_recipe()) if enabled else None
    try:
        yield
    finally:
        state.of_weights = before
