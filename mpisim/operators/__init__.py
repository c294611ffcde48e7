"""PyTorch's operators: a call with the shapes of its tensors → the kernels that it launches.

- `call`: `OperatorCall` and `TensorSpec`, what execution traces, Kineto traces with shapes and
  captured programs say alike.
"""

from .call import Argument, OperatorCall, TensorSpec

__all__ = ["Argument", "OperatorCall", "TensorSpec"]
