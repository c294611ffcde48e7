"""Factorizations of one matrix by cuSOLVER: a chain of steps from column to column.

A column cannot begin before the one before it has ended, so that a small matrix takes as long as
its steps do, whatever it holds. A column of Cholesky's factor is one step: its root, the column
divided by it, and the product taken from the columns behind. A reflector of QR takes three: the
norm of the column, its products with the columns behind, and these less their multiples of the
reflector. Multiplied out to Q it takes two, products and multiples (G. Golub and C. Van Loan,
"Matrix Computations", 4.2 and 5.2). PyTorch calls ``potrf``, and ``geqrf`` and ``orgqr``
(aten/src/ATen/native/cuda/linalg/BatchLinearAlgebraLib.cpp).

Eigenvalues and singular values are found by iterations over all columns, in which columns wait for
each other, too: published times of one matrix grow in proportion to its columns, so that a column
counts as so many steps.

Batches are not known: cuSOLVER and cuBLAS have kernels of their own for them, which no published
times tell apart. But singular values of matrices of more than 32 rows or columns are found one
matrix after another, however high they are: ``svd_cusolver`` of that file calls ``gesvdjBatched``
for smaller ones alone, and another method only for a script that names one (``driver``).
"""

from __future__ import annotations

import math

from ..kernels.numbers import quantity
from ..kernels.operations import Elementwise, Kernel
from .call import OperatorCall, TensorSpec
from .tensors import tensor, touched

__all__ = [
    "cholesky",
    "eigenvalues",
    "product_of_reflectors",
    "qr",
    "reflectors",
    "singular_values",
]

Kernels = tuple[Kernel, ...]
_CHOLESKY_STEPS = 1  # by definition: `factorization_step` is a column of Cholesky's factor
_REFLECTOR_STEPS = round(quantity("reflector_steps").si)
_PRODUCT_STEPS = round(quantity("reflector_product_steps").si)
_EIGENVALUE_STEPS = round(quantity("eigenvalue_steps").si)
_SINGULAR_VALUE_STEPS = round(quantity("singular_value_steps").si)
_SINGULAR_VECTOR_STEPS = round(quantity("singular_vector_steps").si)
_FULL_SINGULAR_VECTOR_STEPS = round(quantity("full_singular_vector_steps").si)
_MOST_TOGETHER = 32
"""Rows and columns up to which singular values of a batch are found together (cuSOLVER's limit)."""


def cholesky(call: OperatorCall) -> Kernels | None:
    """``linalg_cholesky_ex(matrix)`` → the columns of its factor, one after the other."""
    return _columns(tensor(call, 0), _CHOLESKY_STEPS)


def qr(call: OperatorCall) -> Kernels | None:
    """``linalg_qr(matrix, mode)`` → reflectors of all columns, and their product unless ``"r"``."""
    mode = call.inputs[1] if len(call.inputs) > 1 else None
    more = 0 if mode == "r" else _PRODUCT_STEPS
    return _columns(tensor(call, 0), _REFLECTOR_STEPS + more)


def reflectors(call: OperatorCall) -> Kernels | None:
    """``geqrf(matrix)`` → the reflectors of its columns."""
    return _columns(tensor(call, 0), _REFLECTOR_STEPS)


def product_of_reflectors(call: OperatorCall) -> Kernels | None:
    """``linalg_householder_product(reflectors, scales)`` → their product."""
    return _columns(tensor(call, 0), _PRODUCT_STEPS)


def eigenvalues(call: OperatorCall) -> Kernels | None:
    """``_linalg_eigh(matrix, …)`` → iterations over the columns of a symmetric matrix."""
    return _columns(tensor(call, 0), _EIGENVALUE_STEPS)


def singular_values(call: OperatorCall) -> Kernels | None:
    """``_linalg_svd(matrices, full_matrices, compute_uv, driver)`` → iterations over columns.

    Of one matrix after another; with vectors, unless it is recorded that none are asked for. Those
    of full matrices are more than the others only if the matrix is not square.
    """
    given = tensor(call, 0)
    full, vectors, driver = (*call.inputs[1:4], None, None, None)[:3]
    if given is None or len(given.shape) < 2 or driver not in (None, "gesvdj"):
        return None
    count, (rows, columns) = math.prod(given.shape[:-2]), given.shape[-2:]
    if count > 1 and max(rows, columns) <= _MOST_TOGETHER:
        return None
    if vectors is not None and not vectors:  # False in captures, 0 as traces are read
        steps = _SINGULAR_VALUE_STEPS
    elif full and rows != columns:
        steps = _FULL_SINGULAR_VECTOR_STEPS
    else:
        steps = _SINGULAR_VECTOR_STEPS
    return _columns(TensorSpec(given.dtype, given.shape[-2:]), steps * count)


def _columns(matrix: TensorSpec | None, steps: int) -> Kernels | None:
    """Return a kernel of so many steps a column; None of batches, and where nothing is recorded."""
    if matrix is None or len(matrix.shape) < 2 or math.prod(matrix.shape[:-2]) != 1:
        return None
    columns = min(matrix.shape[-2:])
    if not columns:
        return ()
    return (Elementwise(bytes=2 * touched(matrix), steps=steps * columns),)
