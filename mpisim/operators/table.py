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
from .tensors import Launched

__all__ = ["COLLECTIVES", "TABLE", "Rule", "is_collective", "kernels_of", "rule_of"]

Rule = Callable[[OperatorCall], "tuple[Kernel, ...] | None"]
"""A call → its kernels; None where too little was recorded to tell."""


def _names(text: str, namespace: str = "aten::") -> list[str]:
    return [name if "::" in name else namespace + name for name in text.split()]


def _served(text: str, rule: Rule) -> dict[str, Rule]:
    return dict.fromkeys(_names(text), rule)


_NOTHING = """
    view _unsafe_view _reshape_alias expand expand_as permute transpose t numpy_T unsqueeze
    squeeze slice select narrow split split_with_sizes chunk unbind detach detach_ alias as_strided
    view_as view_as_real view_as_complex diagonal unfold movedim swapaxes swapdims
    lift_fresh empty empty_like empty_strided new_empty new_empty_strided resize_ set_ size stride
    numel sym_size sym_numel sym_stride sym_storage_offset is_same_size is_nonzero requires_grad_
    is_coalesced sparse_dim dense_dim _nnz _indices _values indices values _coalesced_ coalesced_
    _cudnn_rnn_flatten_weight _sparse_coo_tensor_with_dims_and_tensors
    _sparse_coo_tensor_with_dims
    record_stream result_type broadcast_tensors _has_compatible_shallow_copy_type _assert_async
    _assert_tensor_metadata output_nr resolve_conj resolve_neg real imag _conj
    profiler::_record_function_enter
    profiler::_record_function_enter_new profiler::_record_function_exit prims::device_of
"""

_POINTWISE = """
    add sub rsub mul div true_divide floor_divide remainder fmod pow neg reciprocal sqrt rsqrt exp
    exp2 expm1 log log2 log10 log1p abs sign sgn floor ceil round trunc frac sin cos tan asin acos
    atan atan2 sinh cosh tanh asinh acosh atanh erf erfc erfinv sigmoid logit relu relu6 gelu silu
    mish elu selu celu leaky_relu hardtanh hardswish hardsigmoid softplus softshrink hardshrink
    threshold clamp clamp_min clamp_max clip minimum maximum fmin fmax lerp addcmul addcdiv lgamma
    digamma xlogy hypot copysign nan_to_num bitwise_and bitwise_or bitwise_xor bitwise_not
    __and__ __or__ __xor__ diff
    bitwise_left_shift bitwise_right_shift square
    threshold_backward gelu_backward silu_backward sigmoid_backward tanh_backward elu_backward
    leaky_relu_backward hardtanh_backward hardswish_backward hardsigmoid_backward mish_backward
    softplus_backward logit_backward native_dropout_backward _fused_dropout _masked_scale
    masked_scale mse_loss_backward smooth_l1_loss_backward
    huber_loss_backward kl_div_backward prelu _prelu_kernel
    _prelu_kernel_backward rrelu_with_noise glu_backward polar complex flip roll rot90 tril triu
    repeat repeat_interleave tile reflection_pad1d reflection_pad2d replication_pad2d pixel_shuffle
    glu log_sigmoid_forward log_sigmoid_backward
    pixel_unshuffle channel_shuffle upsample_nearest2d upsample_bilinear2d upsample_bicubic2d
    upsample_nearest1d upsample_nearest3d upsample_nearest2d_backward upsample_bilinear2d_backward
    _upsample_bilinear2d_aa _upsample_bicubic2d_aa grid_sampler_2d im2col col2im slice_backward
    select_backward unfold_backward diagonal_backward as_strided_scatter slice_scatter
    select_scatter expand_copy view_copy permute_copy transpose_copy _weight_norm_interface
    _weight_norm_interface_backward special_expit special_erf sinc deg2rad logaddexp ldexp
    _amp_update_scale_ float_power isposinf isneginf renorm addr heaviside conj_physical
    fake_quantize_per_tensor_affine fake_quantize_per_tensor_affine_cachemask
    _fake_quantize_per_tensor_affine_cachemask_tensor_qparams
    fake_quantize_per_channel_affine_cachemask
    hardshrink_backward softshrink_backward rrelu_with_noise_backward i0 special_i0e special_i1
    special_i1e special_log_ndtr special_ndtri polygamma diag_embed masked_scatter_backward
    reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d reflection_pad3d_backward
    replication_pad1d replication_pad3d replication_pad1d_backward replication_pad2d_backward
    replication_pad3d_backward angle logaddexp2 igamma igammac linalg_cross special_entr
    special_xlog1py special_zeta special_erfcx bucketize searchsorted poisson binomial
    _standard_gamma _standard_gamma_grad _dirichlet_grad _sample_dirichlet
    multi_margin_loss_backward multilabel_margin_loss_backward grid_sampler_2d_backward
    grid_sampler_3d_backward cudnn_grid_sampler_backward cudnn_affine_grid_generator
    cudnn_affine_grid_generator_backward _upsample_nearest_exact1d _upsample_nearest_exact2d
    _upsample_nearest_exact3d _upsample_nearest_exact1d_backward
    _upsample_nearest_exact2d_backward _upsample_nearest_exact3d_backward upsample_linear1d
    upsample_linear1d_backward
    upsample_nearest1d_backward upsample_nearest3d_backward upsample_bicubic2d_backward
    upsample_trilinear3d upsample_trilinear3d_backward _upsample_bilinear2d_aa_backward
    _upsample_bicubic2d_aa_backward grid_sampler_3d cudnn_grid_sampler
"""

_PREDICATES = """
    eq ne lt le gt ge isnan isinf isfinite logical_and logical_or logical_xor logical_not isclose
    not_equal less less_equal greater greater_equal signbit isin
"""

_REDUCTIONS = """
    sum mean nansum prod max min amax amin aminmax argmax argmin any all norm linalg_vector_norm var
    std var_mean std_mean logsumexp count_nonzero median mode nanmean equal native_norm
    bincount histc _is_all_true _is_any_true
"""

_LOSSES = """
    dot vdot multi_margin_loss multilabel_margin_loss_forward trace
"""

_FILLED = """
    zeros_like ones_like full_like rand_like randn_like randint_like arange rand
    randn randint randperm linspace new_zeros new_ones new_full scalar_tensor tril_indices
    triu_indices zeros ones full eye bernoulli multinomial normal hann_window
"""

_LIST_STEPS = """
    add sub mul div sqrt neg exp log abs reciprocal rsqrt addcmul addcdiv lerp maximum minimum
    clamp_min clamp_max copy_ zero_ pow sign tanh sigmoid floor ceil round trunc acos asin atan cos
    cosh erf erfc expm1 frac lgamma log10 log1p log2 sin sinh tan
"""

_SCANS = """
    fbgemm::asynchronous_complete_cumsum fbgemm::asynchronous_exclusive_cumsum
    fbgemm::asynchronous_inclusive_cumsum
"""

_SCATTERED = """
    scatter scatter_add scatter_reduce index_add index_copy index_fill index_reduce
"""

_POOLED = """
    max_pool2d_with_indices max_pool3d_with_indices avg_pool2d avg_pool3d adaptive_max_pool2d
    _adaptive_avg_pool2d _adaptive_avg_pool3d
"""

_APEX = """
    apex::multi_tensor_adam apex::multi_tensor_sgd apex::multi_tensor_scale
    apex::multi_tensor_axpby apex::multi_tensor_l2norm apex::multi_tensor_lamb
    apex::multi_tensor_lion
"""

_FUSED_SOFTMAX = """
    scaled_softmax scaled_masked_softmax scaled_upper_triang_masked_softmax
"""

_STREAMING_LIBRARIES = """
    fbgemm::jagged_to_padded_dense fbgemm::dense_to_jagged
    _jagged_to_padded_dense_forward _padded_dense_to_jagged_forward
    _convert_indices_from_coo_to_csr _convert_indices_from_csr_to_coo
    fbgemm::block_bucketize_sparse_features
    xentropy::forward xentropy::backward
    flash_attn::apply_rotary flash_attn::cross_entropy_fwd flash_attn::cross_entropy_bwd
    bitsandbytes::quantize_blockwise bitsandbytes::dequantize_blockwise
    bitsandbytes::quantize_4bit bitsandbytes::dequantize_4bit
    _C::rotary_embedding _C::static_scaled_fp8_quant _C::silu_and_mul
"""
"""Kernels of libraries that go through their tensors once."""

TABLE: Mapping[str, Rule] = {
    **_served(_NOTHING, streams.nothing),
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
        for name in _FUSED_SOFTMAX.split()
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
    **_served(_FILLED, streams.fill_result),
    **_served(_POINTWISE, streams.elementwise),
    **_served(_PREDICATES, streams.predicate),
    **_served("where masked_fill masked_scatter", streams.masked),
    **_served(_REDUCTIONS, streams.reduction),
    **_served(_LOSSES, streams.reduction_to_scalar),
    **_served("cumsum cumprod logcumsumexp cummax cummin", streams.scan),
    **_served(_SCANS, streams.cumulated),
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
    **_served(_SCATTERED, indexing.scatter),
    **_served("_index_put_impl_ index_put _unsafe_index_put", indexing.index_put),
    **_served("sort argsort msort unique _unique2 unique_consecutive", indexing.sort),
    **_served("_coalesce", embeddings.sparse_coalesced),
    **_served("_sparse_mm", embeddings.sparse_product),
    **_served("cusparse::spmm", embeddings.compressed_product),
    **_served("topk kthvalue", indexing.topk),
    **_served(_POOLED, streams.pooling),
    **dict.fromkeys([f"{name}_backward" for name in _names(_POOLED)], streams.pooling_backward),
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
    **{f"aten::_foreach_{name}": optimizers.each for name in _LIST_STEPS.split()},
    **_served("_foreach_norm", optimizers.each_norm),
    **_served("_amp_foreach_non_finite_check_and_unscale_", optimizers.each),
    **_served("_fused_adam_ _fused_adamw_", optimizers.fused(4)),
    **_served("_fused_sgd_ _fused_adagrad_", optimizers.fused(3)),
    **_served(_APEX, optimizers.multi_tensor),
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
    **_served(_STREAMING_LIBRARIES, streams.by_bytes),
}
"""Rules by the operator's name."""

_EMBEDDING_BACKWARD = ("torch::autograd::CppNode<SplitLookupFunction", "SplitLookupFunction")
_PERMUTE_BACKWARD = "torch::autograd::CppNode<fbgemm_gpu::PermutePooledEmbsFunction"

COLLECTIVES: Mapping[str, str] = {
    "allreduce_": "all_reduce", "all_reduce": "all_reduce", "allreduce_coalesced_": "all_reduce",
    "all_reduce_coalesced": "all_reduce", "broadcast_": "broadcast", "broadcast": "broadcast",
    "_allgather_base_": "all_gather", "allgather_": "all_gather",
    "all_gather_into_tensor": "all_gather", "allgather_into_tensor_coalesced_": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather", "allgather_coalesced_": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter", "reduce_scatter_": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "alltoall_": "all_to_all", "alltoall_base_": "all_to_all", "all_to_all_single": "all_to_all",
    "reduce_": "reduce", "gather_": "gather", "scatter_": "scatter", "send": "send",
    "recv_": "recv", "recv_any_source_": "recv", "barrier": "barrier",
}  # fmt: skip
"""Operators of ``c10d`` and ``_c10d_functional``, by name → what they communicate."""

_C10D = ("c10d::", "_c10d_functional::", "c10d_functional::", "symm_mem::")


def is_collective(name: str) -> bool:
    """Name of an operator → whether it communicates; such launch no kernel of this table.

    Parameters
    ----------
    name : str

    Returns
    -------
    bool
    """
    return name.startswith(_C10D) or name in ("record_param_comms", "nccl:coalesced")


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
