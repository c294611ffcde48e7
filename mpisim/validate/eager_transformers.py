"""The kernels that Hugging Face's eager transformers launch, from those of the workload generator.

The generator writes what Megatron-LM launches. Where GPT-2, OPT and BERT of Hugging Face's
transformers with ``attn_implementation="eager"`` (github:huggingface/transformers,
src/transformers/models) run on other operators of PyTorch, the rules below say which, forward and
backward:

- Biases are added within the products (``addmm``).
- BERT and OPT have a product each for queries, keys and values; GPT-2 one for all, whose gradients
  are concatenated.
- Heads are brought together in copies before the products of attention: in OPT by ``contiguous``,
  in GPT-2 and BERT within ``torch.matmul``, which needs none for a batch of one. The gradients
  go back the same way; those of queries, keys and values always by copies.
- Scores are scaled and masked by two kernels: divided and chosen in GPT-2, divided and added to in
  BERT; in OPT, whose queries are scaled before, added to and compared with the least number. Of
  these, additions have no backward kernel, and the comparison has five (``maximum`` in PyTorch's
  derivatives.yaml halves the gradients of what is equal).
- OPT drops no probabilities (``attention_dropout`` is 0).
- GPT-2's ``gelu_new`` is written out: a power, three products, two sums, a tanh and one more
  product, of which two read a second tensor; autograd runs back through each.
- Gradients of parameters are added to those of the iteration before: NeuSight's loop
  (github:sitar-lab/NeuSight, neusight/Tracing/trace.py) never sets them to zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from ..experiment import Transformer
from ..kernels.operations import BYTES, Elementwise, Gemm, Kernel
from ..workloads.operators import Compute, Operator

__all__ = ["Eager"]

FP32 = BYTES["fp32"]
MASK = 1 / FP32
"""Of the bytes of a tensor in fp32, those of one of truth values."""

GELU_BACKWARD = (3, 3, 2, 3, 2, 2, 2, 2, 3, 3, 3)
"""Tensors that each kernel of ``gelu_new``'s way back reads and writes. With y = a × b, a = x / 2
and b = 1 + tanh(c (x + d x³)): gradients of a and b; of x by a; through the tanh; by c; by d; the
power's, of a power, a product and a product of two tensors; and the sum of three gradients of x."""

MAXIMUM_BACKWARD = (1 + MASK, 2, 3 + MASK, 1 + MASK, 2 + MASK)
"""The same of ``maximum``: what is equal, half the gradient, the choice of the two, what is less,
zeros there."""


@dataclass(frozen=True)
class Eager:
    """A transformer in fp32 as Hugging Face's eager code runs it.

    Attributes
    ----------
    model : Transformer
    batch : int
    """

    model: Transformer
    batch: int

    @property
    def code(self) -> Literal["gpt2", "opt", "bert"]:
        """Whose code it is: of the decoders, OPT has ReLUs."""
        if self.model.family == "bert":
            return "bert"
        return "opt" if self.model.activation == "relu" else "gpt2"

    def forward(self, operator: Operator) -> Iterator[Kernel]:
        """Yield the kernels of an operator's forward pass."""
        for step in operator.forward:
            if isinstance(step, Compute) and not step.name.endswith(" bias"):
                yield from self._step(step, self._forward)

    def backward(self, operator: Operator) -> Iterator[Kernel]:
        """Yield the kernels of an operator's backward pass."""
        for step in operator.backward:
            if isinstance(step, Compute):
                yield from self._step(step, self._backward)
        for each in operator.parameters:
            yield Elementwise(3 * FP32 * each.size)

    def _step(
        self, step: Compute, rules: Callable[[str, Kernel], Iterator[Kernel] | None]
    ) -> Iterator[Kernel]:
        found = rules(step.name, step.kernel)
        return iter((step.kernel,)) if found is None else found

    def _forward(self, name: str, kernel: Kernel) -> Iterator[Kernel] | None:
        """Return what is launched in place of a kernel; None: the kernel itself."""
        match name, self.code:
            case "qkv", "bert" | "opt":
                return self._apart(kernel, "n", scaled=True)
            case "attention heads in batches", _:
                copies = 3 if self.code == "opt" or self.batch > 1 else 0
                return _passes(self._tensor, (2,) * copies)
            case "attention scale", "opt":
                return iter(())
            case "attention mask", "opt":
                return iter((kernel, kernel))
            case "attention dropout", "opt":
                return iter(())
            case "feed-forward gelu", "gpt2":
                return _passes(kernel.traffic // 2, (2, 2, 3, 2, 2, 2, 2, 3))
        return None

    def _backward(self, name: str, kernel: Kernel) -> Iterator[Kernel] | None:
        """Return what is launched in place of a kernel; None: the kernel itself."""
        match name, self.code:
            case "attention transposition backward", _:
                return _passes(self._tensor, (2,) * (1 if self.batch > 1 else 0))
            case "attention dropout backward", "opt":
                return iter(())
            case "attention scale backward", "opt":
                return iter(())
            case "attention mask backward", "bert":
                return iter(())
            case "attention mask backward", "opt":
                return _passes(kernel.traffic // 2, MAXIMUM_BACKWARD)
            case "attention concatenated gradients", "gpt2":
                return self._after_copies(kernel, 3)
            case "attention concatenated gradients", _:
                return _passes(self._tensor, (2, 2, 2))
            case "qkv input gradient", "bert" | "opt":
                return self._apart(kernel, "k", scaled=True, summed=True)
            case "qkv weight gradient", "bert" | "opt":
                return self._apart(kernel, "m")
            case "qkv bias gradient", "bert" | "opt":
                return _passes(self._tensor, (1, 1, 1))
            case "feed-forward gelu backward", "gpt2":
                return _passes(kernel.traffic // 3, GELU_BACKWARD)
        return None

    @property
    def _tensor(self) -> int:
        """Bytes of the tokens' vectors."""
        return FP32 * self.batch * self.model.seq_len * self.model.hidden

    def _after_copies(self, kernel: Kernel, copies: int) -> Iterator[Kernel]:
        yield from _passes(self._tensor, (2,) * copies)
        yield kernel

    def _apart(
        self, kernel: Kernel, size: str, *, scaled: bool = False, summed: bool = False
    ) -> Iterator[Kernel]:
        """Yield three products for one, each a third of it; in OPT, with the queries' scaling."""
        assert isinstance(kernel, Gemm)
        third: dict[str, int] = {size: getattr(kernel, size) // 3}
        for _ in range(3):
            yield replace(kernel, **third)  # type: ignore[arg-type]
        if scaled and self.code == "opt":
            yield from _passes(self._tensor, (2,))
        if summed:
            yield from _passes(self._tensor, (3, 3))


def _passes(tensor: int, passes: tuple[float, ...]) -> Iterator[Kernel]:
    """Yield kernels that read and write a tensor of so many bytes so many times, together."""
    for each in passes:
        yield Elementwise(int(each * tensor))
