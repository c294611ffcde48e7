"""From hidden states to a loss: vocabulary, BERT and classifier heads, multi-token prediction.

The scores of a vocabulary that is spread over the tp group stay where they are. Cross-entropy needs
each token's largest score, that of its target and the sum of exponentials: three all-reduces of one
fp32 number a token (``megatron/core/tensor_parallel/cross_entropy.py``), of which the fused variant
makes two, sending the last two numbers together (``megatron/core/fusions/fused_cross_entropy.py``).

Modules of multi-token prediction (DeepSeek-V3, arXiv:2412.19437, section 2.2) join the hidden
states with the embeddings of the next tokens, pass them through a block of their own and predict
one token further each. Embedding and projection on the vocabulary are the model's. Order as in
``megatron/core/transformer/multi_token_prediction.py``.
"""

from __future__ import annotations

from typing import NamedTuple

from mpisim.kernels.operations import BYTES, CrossEntropy, Elementwise, Softmax

from ...program import Operation
from ..operators import Compute, Operator, Parameter, Task
from .autocast import autocast_copy
from .embedding import token_embedding
from .feed_forward import activation
from .pointwise import branch, broadcast, elementwise, norm
from .precision import accumulate_gradient
from .segment_memory import clustered_scores
from .shapes import Shapes
from .tensor_parallel import column_linear, linear, tp_collective

__all__ = [
    "classifier_head",
    "masked_language_head",
    "multi_token_prediction",
    "vocabulary_head",
]

FP32 = BYTES["fp32"]
SENTENCE_ORDERS = 2
"""Classes of BERT's second head: the second sentence follows the first, or not."""


def vocabulary_head(s: Shapes) -> tuple[Operator, ...]:
    """Hidden states → loss: final norm, scores of the vocabulary, cross-entropy."""
    last = norm(s, "final norm", s.sharded_tokens, s.model.hidden)
    if s.model.cutoffs:
        return (last, *clustered_scores(s))
    return (last, *_logits(s, parameters=not s.model.mtp_layers))


def _logits(s: Shapes, *, parameters: bool = True) -> tuple[Operator, ...]:
    """Hidden states → scores of the vocabulary → loss.

    Parameters
    ----------
    s : Shapes
    parameters : bool
        False where an operator before it on the same stage lists the matrix.
    """
    matrix = column_linear(
        s,
        "logits",
        s.model.hidden,
        s.vocabulary,
        quantised=s.plan.precision.logits == "fp8",
        parameters=parameters,
        tied=s.model.tied_embeddings,
    )
    return (matrix, _cross_entropy(s))


def masked_language_head(s: Shapes) -> tuple[Operator, ...]:
    """Hidden states → loss of BERT's heads: masked words, order of the two sentences.

    arXiv:1810.04805, section 3.1, by the layers of Megatron-LM's `BertLMHead` and `Pooler`
    (megatron/core/models/bert).
    """
    model, h = s.model, s.model.hidden
    entries = s.vocabulary
    gather: tuple[Operator, ...] = ()
    all_tokens = s.sharded_tokens
    sequences = s.batch
    last = norm(s, "final norm", s.sharded_tokens, h)
    if model.predicted is not None:
        s = s.with_length(model.predicted)
        gather = (_gather_masked_tokens(s, all_tokens),)
    scores = s.element_size * s.tokens * entries
    sums = Elementwise.column_sums(s.element_size, s.tokens, entries)
    bias_backward: list[Task] = [Compute("logits bias gradient", sums)]
    bias_backward += accumulate_gradient(s, "logits bias", entries)
    logits_bias = Operator(
        "logits bias",
        (elementwise("logits bias", 2 * scores),),
        tuple(bias_backward),
        (Parameter("logits bias", entries),),
    )
    matrix, loss = _logits(s)
    pooled = s.element_size * sequences * h
    pooler = Operator(
        "pooler tanh",
        (elementwise("pooler tanh", 2 * pooled),),
        (elementwise("pooler tanh backward", 3 * pooled),),
        saved=pooled,
    )
    return (
        last,
        branch(s, "heads", all_tokens * h),
        # Of the first token of each sequence alone.
        linear(s, "pooler", h, h, tokens=sequences, bias=True, quantised=False),
        pooler,
        linear(
            s, "sentence order", h, SENTENCE_ORDERS, tokens=sequences, bias=True, quantised=False
        ),
        _softmax_loss(s, "sentence order loss", sequences, SENTENCE_ORDERS),
        *gather,
        linear(s, "head dense", h, h, tokens=s.sharded_tokens, bias=True, quantised=False),
        activation(s, f"head {model.activation}", s.sharded_tokens, h),
        norm(s, "head norm", s.sharded_tokens, h),
        matrix,
        logits_bias,
        loss,
    )


def classifier_head(s: Shapes) -> tuple[Operator, ...]:
    """Class token → loss over the classes (ViT), on every rank of a tp group."""
    model = s.model
    return (
        norm(s, "final norm", s.sharded_tokens, model.hidden, casts=False),
        *_class_token(s),
        linear(
            s, "classifier", model.hidden, model.classes, tokens=s.batch, bias=True, quantised=False
        ),
        _softmax_loss(s, "loss", s.batch, model.classes),
    )


def multi_token_prediction(
    s: Shapes, block: tuple[Operator, ...], *, first: bool
) -> tuple[Operator, ...]:
    """Hidden states and next tokens → loss of one token further: one module.

    Parameters
    ----------
    s : Shapes
    block : tuple of Operator
        The model's last block, whose like the module has.
    first : bool
        Whether it is the first module. The gradient of the matrix of scores is complete when the
        backward has come there: the matrix is listed with it.
    """
    h, e = s.model.hidden, s.element_size
    size = s.sharded_tokens * h
    concatenation = Operator(
        "prediction join",
        (elementwise("prediction join", 4 * e * size),),
        (elementwise("prediction join backward", 4 * e * size),),
    )
    return (
        *token_embedding(s, "prediction embedding"),
        norm(s, "prediction embedding norm", s.sharded_tokens, h),
        norm(s, "prediction hidden norm", s.sharded_tokens, h),
        concatenation,
        column_linear(s, "prediction", 2 * h, h // s.grid.tp),
        *_gather_prediction_columns(s),
        *block,
        norm(s, "prediction final norm", s.sharded_tokens, h),
        *_logits(s, parameters=first),
    )


def _gather_prediction_columns(s: Shapes) -> tuple[Operator, ...]:
    """Columns of each rank → all columns of its share of the sequence."""
    if s.grid.tp == 1:
        return ()
    size = s.element_size * s.tokens * s.model.hidden
    share = s.element_size * s.sharded_tokens * s.model.hidden
    forward: list[Task] = [
        tp_collective(s, "prediction columns", Operation.ALL_GATHER, size),
        elementwise("prediction columns", 2 * size),
    ]
    backward: list[Task] = [elementwise("prediction columns backward", 2 * size // s.grid.tp)]
    if s.sequence_parallel:
        forward.append(elementwise("prediction scatter", 2 * share))
        backward.insert(
            0, tp_collective(s, "prediction scatter gradient", Operation.ALL_GATHER, size)
        )
    return (Operator("prediction columns", tuple(forward), tuple(backward)),)


def _gather_masked_tokens(s: Shapes, tokens: int) -> Operator:
    """Hidden states of `tokens` tokens → those to predict; backward their gradients return."""
    e, h = s.element_size, s.model.hidden
    return Operator(
        "masked words",
        (elementwise("masked words", 2 * e * s.sharded_tokens * h),),
        (
            elementwise("masked words fill", e * tokens * h),
            elementwise("masked words backward", 3 * e * s.sharded_tokens * h),
        ),
    )


def _class_token(s: Shapes) -> tuple[Operator, ...]:
    """Hidden states → those of the class token, which autocast casts; backward zeros elsewhere."""
    if not s.autocast:
        return ()
    name, h = "class token", s.model.hidden
    zeros = elementwise(f"{name} output backward", s.stream_size * s.sharded_tokens * h)
    copy = autocast_copy(s, f"{name} output", s.batch * h)
    back = autocast_copy(s, f"{name} output gradient", s.batch * h)
    return (Operator(f"{name} output", (copy,), (back, zeros)),)


# --- losses -------------------------------------------------------------------------------------


def _softmax_loss(s: Shapes, name: str, rows: int, classes: int) -> Operator:
    """Scores (rows, classes), all of them on every rank → cross-entropy."""
    return Operator(
        name,
        (Compute(name, CrossEntropy(rows, classes, dtype=s.storage_format)),),
        (
            Compute(
                f"{name} backward",
                CrossEntropy(rows, classes, backward=True, dtype=s.storage_format),
            ),
        ),
        saved=FP32 * rows * classes,
    )


def _cross_entropy(s: Shapes) -> Operator:
    """Scores of this rank's part of the vocabulary → loss, in the way that the plan says.

    eager_loss
        PyTorch's ``F.cross_entropy(scores.float(), targets)``.
    autocast, not fused
        PyTorch's ``F.cross_entropy(scores, targets)``: log_softmax in 16 bits, nll_loss in fp32.
    compiled_loss
        Compiled functions between all-reduces (``--cross-entropy-loss-fusion`` of Megatron-LM with
        the implementation ``native``): scores in fp32 with their maxima; exponentials with their
        sums, in place; their shares.
    fused
        One kernel forward and one backward (Transformer Engine's). It keeps the scores, or puts the
        gradient in their place (transformer_engine/common/triton/cross_entropy.py). With
        `loss_gradient` "forward" one kernel in all, which leaves the gradient in the scores' place
        (github:karpathy/llm.c, llmc/fused_classifier.cuh).
    otherwise
        Elementary operations of megatron/core/tensor_parallel/cross_entropy.py, which work in
        place; with `sp_style` "pytorch" those of torch/distributed/tensor/parallel/loss.py,
        which do not.
    """
    framework = s.plan.framework
    if framework.eager_loss and s.grid.tp == 1:
        loss = _eager_loss(s)
    elif framework.compiled_loss:
        loss = _compiled_loss(s)
    elif s.autocast and not framework.fuses_loss:
        loss = _autocast_loss(s)
    elif framework.fuses_loss:
        loss = _fused_loss(s)
    else:
        loss = _elementary_loss(s)
    there = s.tokens * s.vocabulary // framework.loss_chunks  # scores at a time
    forward, backward = loss.alive
    return Operator(
        "loss",
        tuple(loss.forward),
        tuple(loss.backward),
        saved=loss.kept * there,
        alive=((s.element_size + forward) * there, backward * there),
    )


class _Loss(NamedTuple):
    """One way to compute the cross-entropy.

    Attributes
    ----------
    forward, backward : list of Task
    kept : int
        Bytes of a score that are kept: of the softmax, its logarithm, or the score itself.
    alive : tuple of int
        Bytes of a score that are alive: forward beside the scores themselves, backward beside what
        is kept.
    """

    forward: list[Task]
    backward: list[Task]
    kept: int
    alive: tuple[int, int]


def _reduced(s: Shapes, what: str, numbers: int = 1) -> list[Task]:
    """All-reduce so many numbers of each token over the ranks that share the vocabulary."""
    if s.grid.tp == 1:
        return []
    size = numbers * FP32 * s.tokens
    return [tp_collective(s, f"loss {what}", Operation.ALL_REDUCE, size)]


def _eager_loss(s: Shapes) -> _Loss:
    rows, columns, e = s.tokens, s.vocabulary, s.element_size
    size = rows * columns
    forward: list[Task] = [
        elementwise("loss cast", (e + FP32) * size),
        Compute("loss softmax", Softmax(rows, columns, dtype="fp32")),
        elementwise("loss target", 2 * FP32 * rows),
    ]
    backward: list[Task] = [
        elementwise("loss target backward", FP32 * size),
        Compute("loss softmax backward", Softmax(rows, columns, True, "fp32")),
        elementwise("loss cast backward", (FP32 + e) * size),
    ]
    # Copy and result; gradients of the result and of the copy.
    return _Loss(forward, backward, FP32, (2 * FP32, 2 * FP32))


def _autocast_loss(s: Shapes) -> _Loss:
    rows, columns, e = s.tokens, s.vocabulary, s.element_size
    size = rows * columns
    forward: list[Task] = [
        Compute("loss softmax", Softmax(rows, columns, dtype=s.storage_format)),
        autocast_copy(s, "loss softmax", size),
        elementwise("loss target", 2 * FP32 * rows),
    ]
    backward: list[Task] = [
        elementwise("loss target backward", FP32 * size),
        autocast_copy(s, "loss softmax gradient", size),
        Compute("loss softmax backward", Softmax(rows, columns, True, s.storage_format)),
    ]
    # Result and its copy; the gradient of the copy, which is gone before the gradient is cast.
    return _Loss(forward, backward, e + FP32, (e + FP32, FP32))


def _compiled_loss(s: Shapes) -> _Loss:
    size, e = s.tokens * s.vocabulary, s.element_size
    forward: list[Task] = [
        elementwise("loss maximum", (e + FP32) * size),
        *_reduced(s, "maximum"),
        elementwise("loss exponential", 2 * FP32 * size),
        *_reduced(s, "target and sum", 2),
        elementwise("loss softmax", 2 * FP32 * size),
    ]
    backward: list[Task] = [elementwise("loss backward", (FP32 + e) * size)]
    return _Loss(forward, backward, FP32, (FP32, e))


def _fused_loss(s: Shapes) -> _Loss:
    rows, columns, e = s.tokens, s.vocabulary, s.element_size
    if s.plan.framework.loss_gradient == "forward" and s.grid.tp == 1:
        both = CrossEntropy(rows, columns, dtype=s.storage_format, gradient=True)
        return _Loss([Compute("loss", both)], [], e, (0, 0))
    forward: list[Task] = [
        elementwise("loss maximum", e * rows * columns),
        *_reduced(s, "maximum"),
        Compute("loss", CrossEntropy(rows, columns, dtype=s.storage_format)),
        *_reduced(s, "target and sum", 2),
        elementwise("loss logarithm", 3 * FP32 * rows),
    ]
    whole = CrossEntropy(rows, columns, backward=True, dtype=s.storage_format)
    # The scores are kept, or in their place the gradient.
    return _Loss(forward, [Compute("loss backward", whole)], e, (0, e))


def _elementary_loss(s: Shapes) -> _Loss:
    rows, e = s.tokens, s.element_size
    size = rows * s.vocabulary
    forward: list[Task] = [
        elementwise("loss cast", (e + FP32) * size),
        elementwise("loss maximum", FP32 * size),
        *_reduced(s, "maximum"),
        broadcast("loss difference", 2 * FP32 * size, size),
        elementwise("loss target", 2 * FP32 * rows),
        elementwise("loss exponential", 2 * FP32 * size),
        elementwise("loss sum", FP32 * size),
        *_reduced(s, "target"),
        *_reduced(s, "sum"),
        elementwise("loss logarithm", 3 * FP32 * rows),
        broadcast("loss softmax", 2 * FP32 * size, size),
    ]
    backward: list[Task] = [
        elementwise("loss target backward", 2 * FP32 * rows),
        broadcast("loss scale backward", 2 * FP32 * size, size),
        elementwise("loss cast backward", (FP32 + e) * size),
    ]
    alive = FP32, e
    if s.plan.framework.sp_style == "pytorch":
        # Copy, difference to the maximum, its exponential; of the target's gradient, the
        # exponential, their sum and product with the gradient three.
        alive = 3 * FP32, 3 * FP32
    return _Loss(forward, backward, FP32, alive)
