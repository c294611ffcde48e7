"""The table of operators: a name → the rule that says which kernels a call launches.

Operators stand here as programs dispatch them. What PyTorch takes apart before (``aten::to`` into
``aten::_to_copy``, ``aten::softmax`` into ``aten::_softmax``) is not here and launches nothing of
its own. A rule counts all that its operator launches, whatever operators that calls inside: in a
trace, where operators lie in each other, the outermost that the table answers for counts, and those
inside it do not.

In-place operators (``aten::add_``) are served by the rule of the name without the underscore.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

from ..kernels.operations import Kernel
from . import (
    attentions,
    convolutions,
    embeddings,
    factorizations,
    indexing,
    losses,
    norms,
    optimizers,
    products,
    recurrent,
    streams,
    transformer_engine,
)
from .call import FUSED, OperatorCall
from .collectives import is_collective
from .names import (
    BY_BYTES,
    CUMULATED,
    EACH_OF_LISTS,
    ELEMENTWISE,
    FILLED_RESULTS,
    FUSED_SOFTMAXES,
    MULTI_TENSOR,
    NOTHING,
    POOLED,
    PREDICATES,
    REDUCED_TO_SCALARS,
    REDUCTIONS,
    SCATTERED,
)
from .tensors import Launched

__all__ = ["TABLE", "Rule", "kernels_of", "rule_of"]

Rule = Callable[[OperatorCall], "tuple[Kernel, ...] | None"]
"""A call → its kernels; None where too little was recorded to tell."""


def _names(text: str, namespace: str = "aten::") -> list[str]:
    return [name if "::" in name else namespace + name for name in text.split()]


def _served(text: str, rule: Rule) -> dict[str, Rule]:
    return dict.fromkeys(_names(text), rule)


TABLE: Mapping[str, Rule] = {
    **_served(NOTHING, streams.nothing),
    # Matrix products.
    **_served("mm", products.mm),
    **_served("addmm _addmm_activation", products.addmm),
    **_served("bmm", products.bmm),
    **_served("baddbmm", products.baddbmm),
    **_served("addbmm", products.baddbmm),
    **_served("mv addmv", products.dot),
    **_served("linear", products.linear),
    **_served("linear_backward", products.linear_backward),
    **_served("matmul", products.matmul),
    **_served("_scaled_mm _int_mm", products.scaled),
    **_served("_grouped_mm _scaled_grouped_mm", products.grouped),
    **_served("grouped_gemm::gmm", products.grouped),
    # Convolutions.
    **_served("convolution convolution_overrideable", convolutions.forward),
    **_served("cudnn_convolution", convolutions.cudnn),
    **_served("miopen_convolution", convolutions.cudnn),
    **_served("convolution_backward", convolutions.backward),
    # Attention.
    **_served(
        "_scaled_dot_product_flash_attention",
        attentions.attention("heads first", 4, variant="flash_2"),
    ),
    **_served(
        "_scaled_dot_product_efficient_attention",
        attentions.attention("heads first", 6, variant="flash_2"),
    ),
    **_served(
        "_scaled_dot_product_cudnn_attention",
        attentions.attention("heads first", 6, variant="cudnn"),
    ),
    **_served(
        "_scaled_dot_product_flash_attention_backward",
        attentions.attention("heads first", 11, first=1, backward=True, variant="flash_2"),
    ),
    **_served(
        "_scaled_dot_product_efficient_attention_backward",
        attentions.attention("heads first", 11, first=1, backward=True, variant="flash_2"),
    ),
    **_served(
        "_scaled_dot_product_cudnn_attention_backward",
        attentions.attention("heads first", 14, first=1, backward=True, variant="cudnn"),
    ),
    **_served(
        "_flash_attention_forward",
        attentions.attention("tokens first", 8, begins=3, variant="flash_2", window=11),
    ),
    **_served(
        "_flash_attention_backward",
        attentions.attention(
            "tokens first", 11, first=1, begins=6, backward=True, variant="flash_2", window=15
        ),
    ),
    **_served(
        "_cudnn_attention_forward",
        attentions.attention("tokens first", 10, begins=4, variant="cudnn"),
    ),
    **_served(
        "_cudnn_attention_backward",
        attentions.attention("tokens first", 14, first=1, begins=9, backward=True, variant="cudnn"),
    ),
    **_served(
        "_efficient_attention_forward",
        attentions.attention("tokens first", 9, begins=4, variant="flash_2"),
    ),
    **_served(
        "_efficient_attention_backward",
        attentions.attention(
            "tokens first", 12, first=1, begins=6, backward=True, variant="flash_2"
        ),
    ),
    **_served(
        "flash_attn::_flash_attn_forward",
        attentions.attention("tokens first", 5, variant="flash_2", window=6),
    ),
    **_served(
        "flash_attn::_flash_attn_varlen_forward",
        attentions.attention("tokens first", 9, begins=3, variant="flash_2", window=10),
    ),
    **_served(
        "flash_attn::_flash_attn_backward",
        attentions.attention(
            "tokens first", 11, first=1, backward=True, variant="flash_2", window=12
        ),
    ),
    **_served(
        "flash_attn::_flash_attn_varlen_backward",
        attentions.attention(
            "tokens first", 15, first=1, begins=9, backward=True, variant="flash_2", window=16
        ),
    ),
    **_served("flex_attention::forward", attentions.visiting_attention()),
    **_served("flex_attention::backward", attentions.visiting_attention(backward=True)),
    **_served("flash_attn_3::fwd", attentions.attention("tokens first", 99)),
    **_served(
        "flash_attn_triton::forward",
        attentions.attention("tokens first", 3, variant="triton"),
    ),
    **_served(
        "flash_attn_triton::backward",
        attentions.attention("tokens first", 6, first=1, backward=True, variant="triton"),
    ),
    **dict.fromkeys(
        ("FlashAttnFunc", "FlashAttnVarlenFunc", "FlashAttnQKVPackedFunc"),
        attentions.autograd_attention,
    ),
    **dict.fromkeys(
        ("FlashAttnFuncBackward", "FlashAttnVarlenFuncBackward", "FlashAttnQKVPackedFuncBackward"),
        attentions.autograd_attention_backward,
    ),
    # Normalisations, softmax, losses.
    **_served("native_layer_norm", norms.layer_norm("layer")),
    **_served("native_layer_norm_backward", norms.layer_norm("layer", backward=True)),
    **_served("rms_norm _fused_rms_norm", norms.layer_norm("rms")),
    **_served("_fused_rms_norm_backward", norms.layer_norm("rms", backward=True)),
    **_served("_C::rms_norm", norms.layer_norm("rms", at=1)),
    **_served("_C::fused_add_rms_norm", norms.layer_norm("rms")),
    **dict.fromkeys(
        ("FusedLayerNormAffineFunction", "FusedLayerNormFunction", "FastLayerNormFN"),
        norms.layer_norm("layer"),
    ),
    **dict.fromkeys(
        (
            "FusedLayerNormAffineFunctionBackward",
            "FusedLayerNormFunctionBackward",
            "FastLayerNormFNBackward",
        ),
        norms.layer_norm("layer", backward=True),
    ),
    **_served("apex::layernorm_fwd", norms.layer_norm("layer")),
    **_served("apex::layernorm_bwd", norms.layer_norm("layer", backward=True)),
    **_served("apex::rmsnorm_fwd", norms.layer_norm("rms")),
    **_served("apex::rmsnorm_bwd", norms.layer_norm("rms", backward=True)),
    **_served(
        "flash_attn::layernorm_fwd apex::fast_layernorm_fwd transformer_engine::layernorm_fwd",
        norms.layer_norm("layer", variant="persistent"),
    ),
    **_served(
        "flash_attn::layernorm_bwd apex::fast_layernorm_bwd transformer_engine::layernorm_bwd",
        norms.layer_norm("layer", backward=True, variant="persistent"),
    ),
    **_served(
        "flash_attn::rmsnorm_fwd transformer_engine::rmsnorm_fwd",
        norms.layer_norm("rms", variant="persistent"),
    ),
    **_served(
        "flash_attn::rmsnorm_bwd transformer_engine::rmsnorm_bwd",
        norms.layer_norm("rms", backward=True, variant="persistent"),
    ),
    **dict.fromkeys(("FusedRMSNormAffineFunction", "_RMSNorm"), norms.layer_norm("rms")),
    **dict.fromkeys(
        ("FusedRMSNormAffineFunctionBackward", "_RMSNormBackward"),
        norms.layer_norm("rms", backward=True),
    ),
    **_served("native_group_norm", norms.group_norm()),
    **_served("native_group_norm_backward", norms.group_norm(backward=True)),
    **_served("native_batch_norm", norms.batch_norm(training=5)),
    **_served("cudnn_batch_norm miopen_batch_norm", norms.batch_norm(training=5)),
    **_served("_native_batch_norm_legit _batch_norm_with_update", norms.batch_norm()),
    **_served("native_batch_norm_backward", norms.batch_norm(backward=True, at=1)),
    **_served(
        "cudnn_batch_norm_backward miopen_batch_norm_backward", norms.batch_norm(backward=True)
    ),
    **_served("batch_norm_backward", norms.batch_norm(backward=True, at=1)),
    # Of SyncBatchNorm: what the kernels above read and write in three passes and in five.
    **_served("batch_norm_stats", norms.batch_norm(passes=(1, 3))),
    **_served("batch_norm_gather_stats_with_counts", norms.gathered_statistics),
    **_served("batch_norm_elemt", norms.batch_norm(passes=(2, 3))),
    **_served("batch_norm_backward_reduce", norms.batch_norm(backward=True, at=1, passes=(2, 5))),
    **_served("batch_norm_backward_elemt", norms.batch_norm(backward=True, at=1, passes=(3, 5))),
    **_served("_softmax _log_softmax _safe_softmax", norms.softmax()),
    **_served("_softmax_backward_data _log_softmax_backward_data", norms.softmax(backward=True)),
    **{
        f"apex::{name}_{end}": norms.softmax(
            backward=end == "bwd", fused=True, causal="triang" in name
        )
        for name in FUSED_SOFTMAXES.split()
        for end in ("fwd", "bwd")
    },
    **_served("nll_loss_forward nll_loss2d_forward", norms.loss),
    **_served("nll_loss_backward nll_loss2d_backward", norms.loss_backward),
    **_served("mse_loss smooth_l1_loss huber_loss", losses.loss_of_two(1)),
    **_served("l1_loss", losses.loss_of_two(1, 1)),
    **_served("kl_div", losses.loss_of_two(3)),
    **_served("soft_margin_loss", losses.loss_of_two(1, 3)),
    **_served("soft_margin_loss_backward", losses.loss_of_two_backward(3, 5)),
    **_served("binary_cross_entropy", losses.binary_cross_entropy),
    **_served("binary_cross_entropy_backward", losses.binary_cross_entropy_backward),
    **_served("binary_cross_entropy_with_logits", losses.with_logits),
    # Embedding tables.
    **_served("embedding", embeddings.embedding),
    **_served("embedding_dense_backward", embeddings.embedding_backward),
    **_served("_embedding_bag _embedding_bag_forward_only", embeddings.bag),
    **_served("_embedding_bag_dense_backward _embedding_bag_backward", embeddings.bag_backward),
    **dict.fromkeys(
        [
            f"fbgemm::split_embedding_codegen_lookup_{optimizer}_function{form}"
            for optimizer in (
                "adagrad",
                "rowwise_adagrad",
                "sgd",
                "adam",
                "partial_rowwise_adam",
                "lamb",
                "partial_rowwise_lamb",
                "lars_sgd",
                "rowwise_adagrad_with_counter",
                "none",
            )
            for form in ("", "_pt2", "_cpu")
        ],
        embeddings.split_tables,
    ),
    **_served("fbgemm::dense_embedding_codegen_lookup_function", embeddings.split_tables),
    # Copies, fills, reductions, indexing.
    **_served("copy_", streams.copy),
    **_served("_to_copy clone", streams.copy_into),
    **_served("contiguous reshape", streams.rearranged),
    **_served("_local_scalar_dense", streams.copy_out),
    **_served("constant_pad_nd", streams.padding),
    **_served("_pack_padded_sequence _pack_padded_sequence_backward", streams.packing),
    **_served("_C_cache_ops::reshape_and_cache_flash", streams.key_values),
    **_served("fill_ zero_ random_ uniform_ normal_ bernoulli_ exponential_ fill", streams.fill),
    **_served("log_normal_ cauchy_ geometric_", streams.fill),
    **_served(FILLED_RESULTS, streams.fill_result),
    **_served(ELEMENTWISE, streams.elementwise),
    **_served(PREDICATES, streams.predicate),
    **_served("where masked_fill masked_scatter", streams.masked),
    **_served(REDUCTIONS, streams.reduction),
    **_served(REDUCED_TO_SCALARS, streams.reduction_to_scalar),
    **_served("cumsum cumprod logcumsumexp cummax cummin", streams.scan),
    **_served(CUMULATED, streams.cumulated),
    **_served("fbgemm::bounds_check_indices", streams.index_checks),
    **_served(
        "fbgemm::permute_2D_sparse_data fbgemm::permute_sparse_data "
        "fbgemm::permute_sparse_features",
        streams.permuted,
    ),
    **_served(
        "fbgemm::permute_pooled_embs fbgemm::permute_pooled_embs_auto_grad "
        "fbgemm::recat_embedding_grad_output_mixed_D_batch",
        embeddings.pooled_permuted,
    ),
    **_served("cat stack _cat hstack vstack", streams.concatenation),
    **_served("split_with_sizes_copy _chunk_cat", streams.by_bytes),  # one kernel for all parts
    **_served("native_dropout", streams.dropout),
    **_served("_fft_r2c _fft_c2r _fft_c2c", streams.fourier),
    **_served("index_select index", indexing.index_select),
    **_served("nonzero", indexing.nonzero),
    **_served("gather take_along_dim take", indexing.gather),
    **_served(SCATTERED, indexing.scatter),
    **_served("_index_put_impl_ index_put _unsafe_index_put", indexing.index_put),
    **_served("sort argsort msort unique _unique2 unique_consecutive", indexing.sort),
    **_served("_coalesce", embeddings.sparse_coalesced),
    **_served("_sparse_mm", embeddings.sparse_product),
    **_served("cusparse::spmm", embeddings.compressed_product),
    **_served("topk kthvalue", indexing.topk),
    **_served(POOLED, streams.pooling),
    **dict.fromkeys([f"{name}_backward" for name in _names(POOLED)], streams.pooling_backward),
    # Factorizations of matrices.
    **_served("linalg_cholesky_ex", factorizations.cholesky),
    **_served("linalg_qr", factorizations.qr),
    **_served("geqrf", factorizations.reflectors),
    **_served("linalg_householder_product", factorizations.product_of_reflectors),
    **_served("_linalg_eigh", factorizations.eigenvalues),
    **_served("_linalg_svd", factorizations.singular_values),
    # Recurrent layers, and losses of sequences.
    **_served("_cudnn_rnn", recurrent.layers),
    **_served("_cudnn_rnn_backward", recurrent.layers_backward),
    **_served(
        "_thnn_fused_lstm_cell _thnn_fused_lstm_cell_backward_impl _thnn_fused_gru_cell "
        "_thnn_fused_gru_cell_backward",
        recurrent.cell,
    ),
    **_served("_ctc_loss", recurrent.ctc),
    **_served("_ctc_loss_backward", recurrent.ctc_backward),
    # Lists of tensors: optimizers, unscaling.
    **{f"aten::_foreach_{name}": optimizers.each for name in EACH_OF_LISTS.split()},
    **_served("_foreach_norm", optimizers.each_norm),
    **_served("_amp_foreach_non_finite_check_and_unscale_", optimizers.each),
    **_served("_fused_adam_ _fused_adamw_", optimizers.fused(4)),
    **_served("_fused_sgd_ _fused_adagrad_", optimizers.fused(3)),
    **_served(MULTI_TENSOR, optimizers.multi_tensor),
    **_served(
        "bitsandbytes::optimizer_update_8bit_blockwise bitsandbytes::optimizer_update_32bit",
        optimizers.of_one_tensor,
    ),
    # Kernels of libraries.
    **_served(
        "fused_weight_gradient_mlp_cuda::wgrad_gemm_accum_fp32 "
        "fused_weight_gradient_mlp_cuda::wgrad_gemm_accum_fp16",
        products.gradient_accumulation,
    ),
    "LinearWithGradAccumulationAndAsyncCommunicationBackward": (
        products.gradient_accumulation_backward
    ),
    **transformer_engine.RULES,
    **_served(
        "deep_ep::get_dispatch_layout deep_ep::notify_dispatch deep_ep::cached_notify_dispatch "
        "deep_ep::cached_notify_combine deep_ep::clean_low_latency_buffer "
        "deep_ep::low_latency_dispatch deep_ep::low_latency_receive "
        "deep_ep::low_latency_combine deep_ep::low_latency_reduce",
        streams.by_bytes,
    ),
    "run_fused_kernel": streams.elementwise,  # of TorchScript's fusers
    **_served(BY_BYTES, streams.by_bytes),
}
"""Rules by the operator's name."""

_EMBEDDING_BACKWARD = ("torch::autograd::CppNode<SplitLookupFunction", "SplitLookupFunction")
_PERMUTE_BACKWARD = "torch::autograd::CppNode<fbgemm_gpu::PermutePooledEmbsFunction"


@lru_cache(maxsize=4096)
def rule_of(name: str) -> Rule | None:
    """Return the rule that serves an operator; None for those that are not known, or composite.

    Parameters
    ----------
    name : str
        Without the overload, with or without the underscore of in-place operators.
    """
    found = TABLE.get(name)
    if found is None and name.endswith("_"):
        found = TABLE.get(name[:-1])
    if found is None and name.startswith(_EMBEDDING_BACKWARD):
        found = embeddings.split_tables_backward
    if found is None and name.startswith(_PERMUTE_BACKWARD):
        found = embeddings.pooled_permuted
    if found is None and name.startswith(FUSED):
        found = streams.fused
    if found is None and is_collective(name):
        found = streams.nothing
    return found


def kernels_of(call: OperatorCall) -> Launched:
    """A call of an operator → the kernels that it launches.

    Parameters
    ----------
    call : OperatorCall
        With results where they were recorded; otherwise they follow from the inputs if they can.

    Returns
    -------
    Launched
        Of an operator that is not known, or of which too little was recorded, one kernel that
        moves the bytes of its tensors.
    """
    rule = rule_of(call.name)
    kernels = rule(call) if rule is not None else None
    if kernels is not None:
        return Launched(tuple(kernels), known=True)
    return Launched(streams.by_bytes(call), known=False)
