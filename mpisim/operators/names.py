"""Names of operators that share a rule of the table → lists that are called after the rule.

A name without a namespace is one of ``aten::``.
"""

from __future__ import annotations

__all__ = [
    "BY_BYTES",
    "CUMULATED",
    "EACH_OF_LISTS",
    "ELEMENTWISE",
    "FILLED_RESULTS",
    "FUSED_SOFTMAXES",
    "MULTI_TENSOR",
    "NOTHING",
    "POOLED",
    "PREDICATES",
    "REDUCED_TO_SCALARS",
    "REDUCTIONS",
    "SCATTERED",
]

NOTHING = """
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
"""Views, allocations and what the host does (`streams.nothing`): no kernel."""

ELEMENTWISE = """
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
"""Kernels that read their operands and write a result of the broadcast shape
(`streams.elementwise`)."""

PREDICATES = """
    eq ne lt le gt ge isnan isinf isfinite logical_and logical_or logical_xor logical_not isclose
    not_equal less less_equal greater greater_equal signbit isin
"""
"""Comparisons (`streams.predicate`): elementwise, with results of a byte an element."""

REDUCTIONS = """
    sum mean nansum prod max min amax amin aminmax argmax argmin any all norm linalg_vector_norm var
    std var_mean std_mean logsumexp count_nonzero median mode nanmean equal native_norm
    bincount histc _is_all_true _is_any_true
"""
"""Sums, means, extrema and norms over dimensions (`streams.reduction`)."""

REDUCED_TO_SCALARS = """
    dot vdot multi_margin_loss multilabel_margin_loss_forward trace
"""
"""Kernels that read all their operands and write one number (`streams.reduction_to_scalar`)."""

FILLED_RESULTS = """
    zeros_like ones_like full_like rand_like randn_like randint_like arange rand
    randn randint randperm linspace new_zeros new_ones new_full scalar_tensor tril_indices
    triu_indices zeros ones full eye bernoulli multinomial normal hann_window
"""
"""Constants, ranges and random numbers (`streams.fill_result`): the result is written."""

EACH_OF_LISTS = """
    add sub mul div sqrt neg exp log abs reciprocal rsqrt addcmul addcdiv lerp maximum minimum
    clamp_min clamp_max copy_ zero_ pow sign tanh sigmoid floor ceil round trunc acos asin atan cos
    cosh erf erfc expm1 frac lgamma log10 log1p log2 sin sinh tan
"""
"""Operators on lists of tensors (`optimizers.each`), without ``_foreach_``."""

CUMULATED = """
    fbgemm::asynchronous_complete_cumsum fbgemm::asynchronous_exclusive_cumsum
    fbgemm::asynchronous_inclusive_cumsum
"""
"""Cumulated sums of FBGEMM (`streams.cumulated`)."""

SCATTERED = """
    scatter scatter_add scatter_reduce index_add index_copy index_fill index_reduce
"""
"""Writes to places that indices give (`indexing.scatter`)."""

POOLED = """
    max_pool2d_with_indices max_pool3d_with_indices avg_pool2d avg_pool3d adaptive_max_pool2d
    _adaptive_avg_pool2d _adaptive_avg_pool3d
"""
"""Pooling (`streams.pooling`), and with ``_backward`` its gradients
(`streams.pooling_backward`)."""

MULTI_TENSOR = """
    apex::multi_tensor_adam apex::multi_tensor_sgd apex::multi_tensor_scale
    apex::multi_tensor_axpby apex::multi_tensor_l2norm apex::multi_tensor_lamb
    apex::multi_tensor_lion
"""
"""Apex's kernels for lists of tensors (`optimizers.multi_tensor`)."""

FUSED_SOFTMAXES = """
    scaled_softmax scaled_masked_softmax scaled_upper_triang_masked_softmax
"""
"""Softmaxes of Apex and Megatron-LM, with scale and mask (`norms.softmax`), without the
end ``fwd`` or ``bwd``."""

BY_BYTES = """
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
"""Kernels of libraries that go through their tensors once (`streams.by_bytes`)."""
