"""Published formulas of training: an oracle, independent of everything the product computes.

Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models, arXiv:2205.05198:
a GPT with 16-bit activations, dropout, and scores that are written to memory. Rajbhandari et al.,
ZeRO, arXiv:1910.02054. Megatron-LM, ``megatron/training/theoretical_memory_usage.py``.

FLOPs: Narayanan et al., arXiv:2104.04473, and Korthikanti et al.; both count all of causal
attention. Communication: Shoeybi et al., arXiv:1909.08053; Liu et al., arXiv:2310.01889; Fedus et
al., arXiv:2101.03961.

In the formulas of memory s is the sequence length, b the micro-batch, h the width, a the attention
heads, L the layers, v the vocabulary, t the tensor parallel size, p the stages and m the chunks of
a stage. Their results are bytes of one GPU, as exact fractions rounded to the nearest integer.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from mpisim.experiment.models import Transformer

BYTES = 2
"""Of an element that is sent: 16 bits."""

Recompute = Literal["none", "selective", "full"]


@dataclass(frozen=True)
class Gpt:
    """A GPT and how it is spread, in the letters of Korthikanti et al.

    Attributes
    ----------
    s, b, h, a, L, v : int
        Sequence length, micro-batch, width, heads, layers, vocabulary.
    t, p, m : int
        Tensor parallel size, pipeline stages, chunks of a stage (1: not interleaved).
    sequence_parallel : bool
    recompute : {"none", "selective", "full"}

    Examples
    --------
    Figure 1: the 22B model, 59.25 GiB without and 9.56 GiB with the paper's two techniques.

    >>> plain = Gpt(s=2048, b=4, h=6144, a=64, L=48, v=51200, t=8)
    >>> both = Gpt(2048, 4, 6144, 64, 48, 51200, t=8, sequence_parallel=True, recompute="selective")
    >>> [48 * each.layer() / 2**30 for each in (plain, both)]
    [59.25, 9.5625]
    """

    s: int
    b: int
    h: int
    a: int
    L: int
    v: int
    t: int = 1
    p: int = 1
    m: int = 1
    sequence_parallel: bool = False
    recompute: Recompute = "none"

    @property
    def _sbh(self) -> int:
        return self.s * self.b * self.h

    def _per_layer(self) -> Fraction:
        """Table 2; with t = 1 the variants with and without tensor parallelism are one."""
        scores = Fraction(5 * self.a * self.s, self.h)
        if self.recompute == "full":
            return 2 * Fraction(self._sbh, self.t if self.sequence_parallel else 1)
        if self.recompute == "selective":
            scores = Fraction(0)
        if self.sequence_parallel:
            return Fraction(self._sbh, self.t) * (34 + scores)
        return self._sbh * (10 + Fraction(24, self.t) + scores / self.t)

    def _interleaving(self) -> Fraction:
        return 1 + Fraction(self.p - 1, self.p * self.m) if self.m > 1 else Fraction(1)

    def layer(self) -> int:
        """Bytes kept of one layer and one micro-batch: Table 2."""
        return round(self._per_layer())

    def first_stage(self) -> int:
        """Bytes kept of the layers of the first stage, the fullest: equation 5 and what follows.

        With 1F1B the stage keeps p micro-batches of its L/p layers, as much as all layers;
        interleaving takes 1 + (p - 1)/(pm) times as much.
        """
        return round(self.L * self._per_layer() * self._interleaving())

    def ends(self) -> int:
        """Bytes kept of the first stage's embedding, and of the head where it is there too.

        Section 4.3: a mask of the dropout for each of p micro-batches; with one stage the last norm
        and the projection keep their inputs (2sbh each) and the loss its scores in fp32 (4sbv).
        """
        t = self.t if self.sequence_parallel else 1
        kept = Fraction(self._sbh * self.p, t)
        if self.p == 1:
            kept += Fraction(4 * self._sbh, t) + Fraction(4 * self.s * self.b * self.v, self.t)
        return round(kept)


def zero_states(parameters: int, stage: int, n: int) -> Fraction:
    """Bytes of model states on one of n GPUs: arXiv:1910.02054, figure 1.

    Parameters
    ----------
    parameters : int
    stage : {0, 1, 2, 3}
        0: nothing is sharded; 1 optimizer states, 2 gradients too, 3 parameters too.
    n : int
        Data-parallel ranks.

    Examples
    --------
    The paper's 7.5B parameters on 64 GPUs: 120, 31.4, 16.6 and 1.9 GB.

    >>> [round(float(zero_states(7_500_000_000, stage, 64)) / 1e9, 1) for stage in range(4)]
    [120.0, 31.4, 16.6, 1.9]
    """
    optimizer = 12  # bytes of optimizer states a parameter, K in the paper
    whole = {0: 4 + optimizer, 1: 4, 2: 2, 3: 0}[stage]
    shared = {0: 0, 1: optimizer, 2: 2 + optimizer, 3: 4 + optimizer}[stage]
    return parameters * (whole + Fraction(shared, n))


def megatron_states(parameters: int, n: int, distributed_optimizer: bool) -> Fraction:
    """Bytes of model states on one of n GPUs as Megatron-LM reports them: 18, or 6 + 12/n."""
    return parameters * (6 + Fraction(12, n) if distributed_optimizer else Fraction(18))


# --- FLOPs ----------------------------------------------------------------------------------------


def narayanan_flops(model: Transformer, batch: int) -> float:
    """Return the FLOPs of a GPT's step with full recomputation (arXiv:2104.04473, section 5.1).

    96 B s l h² (1 + s/6h + V/16lh), for 4 h wide feed-forward blocks; attention is counted whole.
    """
    s, layers, h, V = model.seq_len, model.layers, model.hidden, model.vocab
    return 96 * batch * s * layers * h**2 * (1 + s / (6 * h) + V / (16 * layers * h))


def korthikanti_flops(model: Transformer, batch: int) -> float:
    """Return a GPT's model FLOPs of a step (arXiv:2205.05198, equation 7).

    72 B L s h² (1 + s/6h + v/12hL), for 4 h wide feed-forward blocks; attention is counted whole.
    """
    s, layers, h, v = model.seq_len, model.layers, model.hidden, model.vocab
    return 72 * batch * layers * s * h**2 * (1 + s / (6 * h) + v / (12 * h * layers))


# --- activations and communication ----------------------------------------------------------------


def activation_bytes(
    model: Transformer, batch: int, *, tp: int = 1, sp: bool = False, selective: bool = False
) -> float:
    """Return what one layer of a GPT keeps for its backward pass (arXiv:2205.05198, table 2).

    16-bit activations, scores in memory, dropout, 4 h wide feed-forward blocks: s b h (10 + 24/t
    + 5as/ht); 34 s b h/t and the scores' share with sequence parallelism; selective recomputation
    keeps no scores.
    """
    s, h, a = model.seq_len, model.hidden, model.heads
    scores = 0.0 if selective else 5 * a * s / (h * tp)
    whole = 10 / tp if sp else 10
    return s * batch * h * (whole + 24 / tp + scores)


def tensor_parallel_bytes(model: Transformer, tokens: int, *, layers: int) -> int:
    """Return what a rank all-reduces in the blocks, forward and backward (arXiv:1909.08053).

    Four all-reduces a layer of the hidden states of all tokens. With sequence parallelism each is
    a reduce-scatter and an all-gather of as many bytes (arXiv:2205.05198, section 4.2.2), and two
    more all-gathers a layer bring back the inputs that were kept in shares.
    """
    return layers * 4 * BYTES * tokens * model.hidden


def context_parallel_bytes(model: Transformer, batch: int, *, cp: int, tp: int = 1) -> int:
    """Return what a rank of a ring sends in one layer, forward (arXiv:2310.01889).

    Its keys and values, cp - 1 times; backward the same again, and as much for their gradients.
    """
    heads = max(1, model.kv // tp)
    tokens = batch * model.seq_len // cp
    return (cp - 1) * BYTES * tokens * heads * (model.head + model.value_head)


def expert_parallel_bytes(model: Transformer, tokens: int) -> int:
    """Return what a rank gives to each all-to-all of a layer (arXiv:2101.03961, arXiv:2412.19437).

    Each of its tokens once for each of its experts: dispatch and combine, and both backward.
    """
    return BYTES * tokens * model.topk * model.hidden
