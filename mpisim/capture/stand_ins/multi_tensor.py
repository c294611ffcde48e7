"""Kernels over lists of tensors, and the optimizers on them: of Apex, of Transformer Engine.

Both descend from Apex's ``multi_tensor_apply`` (csrc/multi_tensor_apply.cuh), have the same lists
in the same order (gradients, parameters, states, master parameters) and the same launches; they are
recorded as ``apex::multi_tensor_…``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import torch

from .library import Launcher

__all__ = ["Applier", "FusedAdam", "FusedSGD", "MultiTensor"]

CHUNK = 2048 * 32
"""Elements of a block."""


class MultiTensor:
    """The functions, as modules of C++ have them.

    Parameters
    ----------
    launcher : Launcher
    """

    def __init__(self, launcher: Launcher) -> None:
        self._launch = launcher
        self.names = {
            "multi_tensor_adam": self.step("adam"),
            "multi_tensor_adam_capturable": self.step("adam"),
            "multi_tensor_adam_capturable_master": self.step("adam"),
            "multi_tensor_sgd": self.step("sgd"),
            "multi_tensor_scale": self.step("scale"),
            "multi_tensor_axpby": self.step("axpby"),
            "multi_tensor_lamb": self.step("lamb"),
            "multi_tensor_l2norm": self.norm,
            "multi_tensor_unscale_l2norm": self.norm,
        }

    def step(self, name: str) -> Callable[..., None]:
        """Return the function that changes its lists."""

        def function(chunk: int, noop: Any, lists: Sequence[Sequence[Any]], *args: Any) -> None:
            if lists and lists[0]:
                self._launch(f"apex::multi_tensor_{name}", [noop, lists])

        return function

    def norm(self, chunk: int, noop: Any, lists: Sequence[Sequence[Any]], *args: Any) -> Any:
        """Return the norm of all tensors, and of each if that is asked for."""
        first = lists[0][0] if lists and lists[0] else noop
        each = next((arg for arg in args if isinstance(arg, bool)), False)
        found = self._launch.empty((1,), torch.float32, first.device)
        apart = self._launch.empty((len(lists[0]) if each else 0,), torch.float32, first.device)
        if lists and lists[0]:
            self._launch("apex::multi_tensor_l2norm", [noop, lists], [found, apart])
        return found, apart

    @staticmethod
    def apply(
        function: Callable[..., Any], noop: Any, lists: Sequence[Sequence[Any]], *args: Any
    ) -> Any:
        """Call a function with the size of its blocks first, as `multi_tensor_applier` does."""
        plain = [[getattr(each, "_local_tensor", each) for each in part] for part in lists]
        return function(CHUNK, noop, plain, *args)


class Applier:
    """``multi_tensor_applier``."""

    available = True

    def __init__(self, chunk_size: int = CHUNK) -> None:
        self.chunk_size = chunk_size

    __call__ = staticmethod(MultiTensor.apply)


def _buffer(optimizer: Any, tensor: Any) -> Any:
    """Return the number that kernels read first, which an optimizer makes once."""
    if getattr(optimizer, "_dummy_overflow_buf", None) is None:
        optimizer._dummy_overflow_buf = torch.zeros(1, dtype=torch.int, device=tensor.device)
    return optimizer._dummy_overflow_buf


def _moving(optimizer: Any, parameter: Any, names: Sequence[str], dtypes: Sequence[Any]) -> None:
    state = optimizer.state[parameter]
    for name, dtype in zip(names, dtypes):
        if name not in state:
            state[name] = torch.zeros_like(parameter.data, dtype=dtype)


class FusedOptimizer(torch.optim.Optimizer):
    """An optimizer whose step is one kernel for all parameters of a type.

    Attributes
    ----------
    kernels : MultiTensor
        Of the library that has the optimizer; set by its classes.
    """

    kernels: ClassVar[MultiTensor]

    def _launch(self, name: str, lists: Iterable[Sequence[Sequence[Any]]]) -> None:
        """Record a kernel for each set of lists: gradients, parameters, states."""
        for columns in lists:
            noop = _buffer(self, columns[0][0])
            self.kernels.apply(self.kernels.names[name], noop, columns)


class FusedAdam(FusedOptimizer):
    """Adam in as many kernels as its lists are long, with arguments in Apex's order.

    Attributes
    ----------
    master_argument : str
        How the argument for fp32 copies of parameters is called.
    """

    master_argument: ClassVar[str] = "use_master"

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        adam_w_mode: bool = True,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        set_grad_none: bool | None = True,
        capturable: bool = False,
        use_decoupled_grad: bool = False,
        master_weight_dtype: Any = torch.float32,
        exp_avg_dtype: Any = torch.float32,
        exp_avg_sq_dtype: Any = torch.float32,
        store_param_remainders: bool = False,
        **masters: bool,
    ) -> None:
        if amsgrad:
            raise RuntimeError("FusedAdam does not support the AMSGrad variant.")
        if set(masters) - {self.master_argument}:
            raise TypeError(f"FusedAdam got an unexpected argument {sorted(masters)[0]!r}")
        defaults = {
            "lr": lr,
            "bias_correction": bias_correction,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
        }
        super().__init__(params, defaults)
        self.adam_w_mode = 1 if adam_w_mode else 0
        self.capturable, self.set_grad_none = capturable, set_grad_none
        self.use_decoupled_grad = use_decoupled_grad
        self.master_weights = masters.get(self.master_argument, False)
        self.store_param_remainders = store_param_remainders
        self._types = (exp_avg_dtype, exp_avg_sq_dtype)
        self._master_type = torch.int16 if store_param_remainders else master_weight_dtype
        self.name_to_dtype_map = {
            "exp_avg": exp_avg_dtype,
            "exp_avg_sq": exp_avg_sq_dtype,
            "master_param": master_weight_dtype,
        }

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients, or fill them."""
        super().zero_grad(set_to_none=set_to_none and self.set_grad_none is not False)

    def initialize_state(self, parameter: Any, remainders: bool = False) -> None:
        """Make the moments, and the copy of a parameter."""
        _moving(self, parameter, ("exp_avg", "exp_avg_sq"), self._types)
        state = self.state[parameter]
        copied = self.master_weights and parameter.dtype is not torch.float32
        if copied and "master_param" not in state:
            state["master_param"] = parameter.detach().to(self._master_type)

    def get_unscaled_state(self, parameter: Any, name: str) -> Any:
        """Return a state in its own type."""
        return self.state[parameter][name]

    def set_scaled_state(self, parameter: Any, name: str, value: Any) -> None:
        """Set a state."""
        self.state[parameter][name] = value

    @torch.no_grad()
    def step(self, closure: Any = None, grad_scaler: Any = None, **rest: Any) -> Any:
        """Update all parameters that have gradients, those of a type together."""
        loss = closure() if closure is not None else None
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            lists: dict[Any, list[list[Any]]] = {}
            for each in group["params"]:
                grad = (
                    getattr(each, "decoupled_grad", None)
                    if self.use_decoupled_grad
                    else (each.grad)
                )
                if grad is None:
                    continue
                self.initialize_state(each, self.store_param_remainders)
                state = self.state[each]
                # Of a weight in fp8 the kernel writes that, and no transposed copy of it.
                weight = getattr(each, "_data", each.data)
                row = [grad.data, weight, state["exp_avg"], state["exp_avg_sq"]]
                row += [state["master_param"]] if "master_param" in state else []
                columns = lists.setdefault((weight.dtype, len(row)), [[] for _ in row])
                for column, tensor in zip(columns, row):
                    column.append(tensor)
            self._launch("multi_tensor_adam", lists.values())
            for each in group["params"]:
                if hasattr(each, "written") and each.grad is not None:
                    each.written()
        return loss


class FusedSGD(FusedOptimizer):
    """SGD with momentum in as many kernels as its lists are long."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        wd_after_momentum: bool = False,
        materialize_master_grads: bool = True,
        set_grad_none: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update all parameters that have gradients, those of a type together."""
        loss = closure() if closure is not None else None
        for group in self.param_groups:
            lists: dict[Any, list[list[Any]]] = {}
            for each in group["params"]:
                if each.grad is None:
                    continue
                row = [each.grad, each.data]
                if group["momentum"]:
                    _moving(self, each, ("momentum_buffer",), (each.dtype,))
                    row.append(self.state[each]["momentum_buffer"])
                columns = lists.setdefault(each.dtype, [[] for _ in row])
                for column, tensor in zip(columns, row):
                    column.append(tensor)
            self._launch("multi_tensor_sgd", lists.values())
        return loss
