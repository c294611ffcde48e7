"""Transformers as operators in the shapes of one rank, as their frameworks issue them.

``transformer_network(model, plan, grid)``
    Layers of operators that one rank runs for one micro-batch. Megatron-LM with Transformer Engine
    is the rule; the keys of a plan that name PyTorch, DeepSpeed or others say where these differ.

Read in this order; every module uses those before it alone:

`shapes`, `attention_shape`
    What a model's dimensions become on one rank; those of one attention call.
`module_options`
    Recomputation and CUDA graphs of single modules of a layer.
`autocast`
    What ``torch.autocast`` leaves in fp32, and its casts.
`precision`
    Number formats: casts of operands, accumulators, gradient buffers.
`pointwise`
    Norms, rotary positions, dropout and residuals.
`tensor_parallel_overlap`, `tensor_parallel`
    Linear layers over a tp group, and products cut into chunks beside their communication.
`context_parallel`, `core_attention`, `attention`
    Core attention over a cp group, on one rank, and the half of a block around it.
`feed_forward`
    Two matrices and the activation functions between them.
`multihot`, `destinations`, `token_dispatch`, `router`, `mixture_of_experts`
    Exchange of tokens, and the half of a block that routes them.
`embedding`, `head`, `network`
    Before the first block, after the last, and all together.

An activation function is added in :mod:`mpisim.kernels.activations`, a way to spread a context over
ranks in `context_parallel.CONTEXT_PARALLEL`.
"""

from .network import transformer_network

__all__ = ["transformer_network"]
