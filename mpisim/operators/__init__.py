"""PyTorch's operators: a call with the shapes of its tensors → the kernels that it launches.

Read in this order:

:mod:`.call`
    ``OperatorCall`` and ``TensorSpec``, what execution traces, Kineto traces with shapes and
    captured programs have in common.
:mod:`.tensors`
    Bytes and formats of tensors; ``Launched``, the answer.
:mod:`.names`, :mod:`.collectives`, :mod:`.table`
    Names of operators that share a rule, and of those that communicate; which rule serves which
    operator, and ``kernels_of``.
:mod:`.streams`, :mod:`.indexing`, :mod:`.products`, :mod:`.convolutions`, :mod:`.attentions`,
:mod:`.norms`, :mod:`.losses`, :mod:`.recurrent`, :mod:`.embeddings`, :mod:`.factorizations`,
:mod:`.optimizers`, :mod:`.transformer_engine`
    The rules: an operator's inputs → descriptions of its kernels.
:mod:`.pricing`
    ``OperatorPricing``: these kernels → durations on a GPU.

All rules have one signature, ``table.Rule``. A rule's parameter ``call`` is an ``OperatorCall``,
whose inputs are in the order of the operator's schema. It returns the kernels in the order in which
they are launched, an empty tuple where nothing runs on the GPU, and None where too little was
recorded to tell the sizes; then ``kernels_of`` counts the bytes of the call's tensors. No rule
raises.
"""

from .call import FUSED, Argument, OperatorCall, TensorSpec
from .indexing import sort_kernels
from .table import kernels_of
from .tensors import Launched

__all__ = [
    "FUSED",
    "Argument",
    "Launched",
    "OperatorCall",
    "TensorSpec",
    "kernels_of",
    "sort_kernels",
]
