"""What comes after the last block: from vectors to a loss.

The scores of a vocabulary that is spread over the tp group stay where they are. Cross-entropy needs
each token's largest score, that of its target and the sum of exponentials: three all-reduces of one
fp32 number a token (``megatron/core/tensor_parallel/cross_entropy.py``), of which the fused variant
makes two, sending the last two numbers together (``megatron/core/fusions/fused_cross_entropy.py``).
"""

from __future__ import annotations

from mpisim.kernels.operations import BYTES, CrossEntropy, Softmax

from ...program import Operation
from ..operators import Compute, Operator, Parameter, Task
from .gradients import accumulate
from .pointwise import activation, branch, norm, stream
from .shapes import Shapes
from .tensor_parallel import column_linear, exchange, linear

__all__ = ["SENTENCES", "classifier_head", "logits", "masked_language_head", "vocabulary_head"]

FP32 = BYTES["fp32"]
SENTENCES = 2
"""Of BERT: whether the second sentence follows the first, or not."""


def vocabulary_head(s: Shapes) -> tuple[Operator, ...]:
    """Final norm, scores of the vocabulary, loss."""
    last = norm(s, "final norm", s.shared, s.model.hidden)
    return (last, *logits(s, parameters=not s.model.mtp_layers))


def logits(s: Shapes, *, parameters: bool = True) -> tuple[Operator, ...]:
    """Scores of the vocabulary, and the loss.

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
        quantised=False,
        parameters=parameters,
        tied=s.model.tied_embeddings,
    )
    return (matrix, _cross_entropy(s))


def masked_language_head(s: Shapes) -> tuple[Operator, ...]:
    """BERT's two heads: masked words, and whether one sentence follows the other."""
    model, h = s.model, s.model.hidden
    entries = s.vocabulary
    picked: tuple[Operator, ...] = ()
    whole = s.shared
    first = s.batch
    last = norm(s, "final norm", s.shared, h)
    if model.predicted is not None:
        s = s.of_length(model.predicted)
        picked = (_picked(s, whole),)
    scores = s.element * s.tokens * entries
    bias: list[Task] = [stream("logits bias gradient", scores)]
    bias += accumulate(s, "logits bias", entries)
    added = Operator(
        "logits bias",
        (stream("logits bias", 2 * scores),),
        tuple(bias),
        (Parameter("logits bias", entries),),
    )
    matrix, loss = logits(s)
    pooled = s.element * first * h
    pooler = Operator(
        "pooler tanh",
        (stream("pooler tanh", 2 * pooled),),
        (stream("pooler tanh backward", 3 * pooled),),
        saved=pooled,
    )
    return (
        last,
        branch(s, "heads", whole * h),
        # Of the first token of each sequence alone.
        linear(s, "pooler", h, h, tokens=first, bias=True, quantised=False),
        pooler,
        linear(s, "sentence order", h, SENTENCES, tokens=first, bias=True, quantised=False),
        _loss(s, "sentence order loss", first, SENTENCES),
        *picked,
        linear(s, "head dense", h, h, tokens=s.shared, bias=True, quantised=False),
        activation(s, f"head {model.activation}", s.shared, h),
        norm(s, "head norm", s.shared, h),
        matrix,
        added,
        loss,
    )


def classifier_head(s: Shapes) -> tuple[Operator, ...]:
    """ViT's: the class token of each image to its class, on every rank of a tp group."""
    model = s.model
    return (
        norm(s, "final norm", s.shared, model.hidden),
        linear(
            s, "classifier", model.hidden, model.classes, tokens=s.batch, bias=True, quantised=False
        ),
        _loss(s, "loss", s.batch, model.classes),
    )


def _picked(s: Shapes, whole: int) -> Operator:
    """Gather the vectors of the words to predict, of `whole` ones; scatter their gradients."""
    e, h = s.element, s.model.hidden
    return Operator(
        "masked words",
        (stream("masked words", 2 * e * s.shared * h),),
        (
            stream("masked words fill", e * whole * h),
            stream("masked words backward", 3 * e * s.shared * h),
        ),
    )


def _loss(s: Shapes, name: str, rows: int, classes: int) -> Operator:
    """Cross-entropy over classes that every rank has all of."""
    return Operator(
        name,
        (Compute(name, CrossEntropy(rows, classes, dtype=s.stored)),),
        (Compute(f"{name} backward", CrossEntropy(rows, classes, backward=True, dtype=s.stored)),),
        saved=FP32 * rows * classes,
    )


def _cross_entropy(s: Shapes) -> Operator:
    rows, columns, e = s.tokens, s.vocabulary, s.element
    size = rows * columns
    per_token = FP32 * rows

    def reduced(what: str, numbers: int = 1) -> list[Task]:
        if s.grid.tp == 1:
            return []
        return [exchange(s, f"loss {what}", Operation.ALL_REDUCE, numbers * per_token)]

    forward: list[Task]
    backward: list[Task]
    if s.plan.eager_loss and s.grid.tp == 1:
        forward = [
            stream("loss cast", (e + FP32) * size),
            Compute("loss softmax", Softmax(rows, columns, dtype="fp32")),
            stream("loss target", 2 * per_token),
        ]
        backward = [
            stream("loss target backward", FP32 * size),
            Compute("loss softmax backward", Softmax(rows, columns, True, "fp32")),
            stream("loss cast backward", (FP32 + e) * size),
        ]
    elif s.plan.compiled_loss:
        # Scores in fp32 with their maxima; exponentials with their sums, in place; their shares.
        forward = [
            stream("loss maximum", (e + FP32) * size),
            *reduced("maximum"),
            stream("loss exponential", 2 * FP32 * size),
            *reduced("target and sum", 2),
            stream("loss softmax", 2 * FP32 * size),
        ]
        backward = [stream("loss backward", (FP32 + e) * size)]
    elif s.plan.fuses_loss:
        forward = [
            stream("loss maximum", e * size),
            *reduced("maximum"),
            Compute("loss", CrossEntropy(rows, columns, dtype=s.stored)),
            *reduced("target and sum", 2),
            stream("loss logarithm", 3 * per_token),
        ]
        whole = CrossEntropy(rows, columns, backward=True, dtype=s.stored)
        backward = [Compute("loss backward", whole)]
    else:
        forward = [
            stream("loss cast", (e + FP32) * size),
            stream("loss maximum", FP32 * size),
            *reduced("maximum"),
            stream("loss difference", 2 * FP32 * size),
            stream("loss target", 2 * per_token),
            stream("loss exponential", 2 * FP32 * size),
            stream("loss sum", FP32 * size),
            *reduced("target"),
            *reduced("sum"),
            stream("loss logarithm", 3 * per_token),
            stream("loss softmax", 2 * FP32 * size),
        ]
        backward = [
            stream("loss target backward", 2 * per_token),
            stream("loss scale backward", 2 * FP32 * size),
            stream("loss cast backward", (FP32 + e) * size),
        ]
    return Operator("loss", tuple(forward), tuple(backward), saved=FP32 * size)
