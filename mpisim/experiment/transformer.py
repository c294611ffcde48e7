"""Transformers as a dataclass: ``[model]`` of dense models, mixtures of experts and hybrids.

The fields are the keys that a user may write. What contradicts itself is refused in
``__post_init__``; what follows from several keys is a property.
"""

from __future__ import annotations

from typing import Annotated, Literal

from ..base.errors import InputError, divides
from ..base.frozen import frozen
from ..base.schema import Limits
from ..kernels.activations import ACTIVATIONS, ActivationName

__all__ = [
    "IMAGE_CHANNELS",
    "RELATIVE_BUCKETS",
    "TOKEN_TYPES",
    "USUAL_LENGTH",
    "Classes",
    "Count",
    "Large",
    "Transformer",
]

USUAL_LENGTH = 8192
"""Tokens of the sequences that large language models are trained on, but for a last phase on longer
ones: 8,192 of Llama 3 (arXiv:2407.21783, section 3.4), 4,096 of DeepSeek-V3 (arXiv:2412.19437)."""

HYBRID_LETTERS = ("M", "G", "*", "-", "E")
"""Parts of layers of hybrids (megatron/core/ssm/mamba_hybrid_layer_allocation.py)."""

TOKEN_TYPES = 2
"""Of BERT: which of two sentences a token belongs to (arXiv:1810.04805, section 3)."""

RELATIVE_BUCKETS = 32
"""Distances that T5 distinguishes (arXiv:1910.10683, section 2.1)."""

IMAGE_CHANNELS = 3
"""Of ViT: red, green and blue."""

MAX_LAYERS = 30_000
"""Of encoder and decoder together."""

Count = Annotated[int, Limits(least=1, most=1_000_000)]
Classes = Annotated[int, Limits(least=2, most=1_000_000)]
Large = Annotated[int, Limits(least=1, most=1_000_000_000)]
OptionalCount = Annotated[int, Limits(least=0, most=1_000_000)]


@frozen
class Transformer:
    """A stack of attention and feed-forward blocks.

    Attributes
    ----------
    family : str
        Sets the defaults of what follows (docs/experiments.md has a table).
    layers, hidden, heads : int
        Blocks (of T5: of the encoder), width, attention heads.
    seq_len : int
        Tokens of a sequence (ViT: derived from `image` and `patch`).
    vocab : int
        Entries of the vocabulary, before padding; 0 for a model of images.
    kv_heads : int, optional
        Heads of keys and values (grouped-query attention); `heads` if not given.
    head_size : int, optional
        hidden / heads if not given.
    ffn_hidden : int, optional
        Inner width of the feed-forward block; 4 × hidden if not given.
    position : {"learned", "rotary", "alibi", "relative", "none"}
    norm : {"layer", "rms"}
    activation : str
        Of feed-forward blocks. Those with a gate (`swiglu`, `geglu`) have two matrices of
        `ffn_hidden` on the way in.
    bias, qkv_bias : bool
        Whether matrices have biases; those of queries, keys and values (`bias` if not given).
    qk_norm : bool
        Whether queries and keys are normalised.
    dropout : bool
        Whether attention and block outputs are dropped out in training.
    causal : bool
        Whether a token sees only those before it.
    tied_embeddings : bool
        Whether the embedding and the projection on the vocabulary are one matrix.
    window : int, optional
        Tokens a token sees at most (sliding window).
    window_every : int
        Every so many-th layer has the window, from the first on; the others have none.
    whole_every : int
        Of layers that have the window, every so many-th has none, the last of each so many; 0 if
        all have it (Gemma 3: 6).
    yarn : bool
        Whether rotary positions are stretched (YaRN, arXiv:2309.00071) and what they turn is scaled
        with them.
    attention : {"mha", "mla"}
        Plain (also grouped-query) or multi-head latent attention (DeepSeek-V2, arXiv:2405.04434),
        whose sizes are the five keys that follow.
    q_lora_rank, kv_lora_rank, qk_nope_head_size, qk_rope_head_size, v_head_size : int
    experts : int
        Routed experts of a layer; 0 for a dense model.
    topk : int
        Experts a token is sent to.
    expert_groups, topk_groups : int
        Equal groups of experts, and how many of them the experts of a token come from: limited
        routing of DeepSeek-V2 and V3 (``--moe-router-num-groups``, ``--moe-router-group-topk``).
    router_scores : {"softmax", "sigmoid"}
        What makes probabilities of a router's scores: softmax, or sigmoid, of which each chosen one
        is divided by their sum (DeepSeek-V3; ``--moe-router-score-function``).
    expert_bias : bool
        Whether a bias of each expert decides along with its probability whether it is chosen
        (DeepSeek-V3; ``--moe-router-enable-expert-bias``).
    moe_ffn_hidden : int, optional
        Inner width of an expert; `ffn_hidden` if not given.
    shared_experts : int
        Experts every token passes, `moe_ffn_hidden` wide each.
    shared_ffn_hidden : int, optional
        Width of the shared experts together, where it is not a multiple.
    swiglu_limit : float, optional
        What gates and values of routed experts are clamped to.
    dense_layers : int
        Layers at the start without experts.
    moe_every : int
        Every so many-th layer has experts.
    moe_latent : int, optional
        Width in which tokens travel to routed experts and these compute, with a matrix before and
        one behind (LatentMoE of Nemotron 3); `hidden` if not given.
    mtp_layers : int
        Layers of multi-token prediction behind the last (DeepSeek-V3, arXiv:2412.19437).
    mtp_pattern : str
        Of hybrids: what a module of multi-token prediction is made of, as one layer of `pattern`;
        as the last layer if empty.
    mtp_shared : bool
        Whether all modules of multi-token prediction are one and the same.
    pattern : str
        Of hybrids: what layers are made of, in Megatron-LM's letters: ``M`` Mamba-2, ``G`` gated
        delta rule, ``*`` attention, ``-`` feed-forward, ``E`` experts. Each letter is a layer; with
        blanks between, layers may have several (``"GE GE GE *E"``). Repeated until all `layers` are
        there; empty for models whose layers all have attention and a feed-forward block.
    mamba_heads, mamba_head_size, mamba_groups, mamba_state : int
        Of Mamba-2 (arXiv:2405.21060): heads, elements of each, groups of heads that share what a
        token writes and reads, and elements of the state for each of a head.
    mamba_chunk : int
        Tokens that are computed by matrix products, between scans over the states.
    delta_key_heads, delta_value_heads, delta_key_size, delta_value_size : int
        Of the gated delta rule (arXiv:2412.06464): heads and their elements.
    convolution : int
        Tokens of the causal convolution before a recurrence.
    attention_gate : bool
        Whether results of attention are multiplied by a gate for each element (Qwen3-Next).
    predicted : int, optional
        Of BERT: tokens of a sequence whose words are predicted, whose scores alone are computed
        (``max_predictions_per_seq``); all if not given.
    lora_rank : int
        Features of low-rank adapters (LoRA), beside which all else is frozen; 0 if all is trained.
    lora_modules : tuple of {"qkv", "proj", "fc1", "fc2"}
        Matrices that have an adapter: into and out of attention, into and out of feed-forward
        blocks.
    example_length : int, optional
        Of packed sequences, in which tokens attend to their own example alone: the mean length of
        the example that a token is in (Σ l² / Σ l).
    memory : int
        Of Transformer-XL: tokens of the segments before that a token attends to beside its own.
    cutoffs : tuple of int
        Ranks of words, by frequency, where a softmax in clusters is cut; none if it is whole.
    cutoff_shares : tuple of float
        Of all tokens those in the second cluster and in each further one.
    cutoff_divisor : int
        Vectors of each cluster are narrower than those of the one before by this factor.
    decoder_layers, decoder_seq_len : int
        Of T5's decoder.
    image, patch, classes : int
        Of ViT: side of image and patch, classes to choose from.
    """

    family: Literal["gpt", "llama", "moe", "bert", "t5", "vit"]
    layers: Annotated[int, Limits(least=1, most=MAX_LAYERS)]
    hidden: Count
    heads: Count
    seq_len: Large
    vocab: Annotated[int, Limits(least=0, most=100_000_000)] = 0
    kv_heads: Count | None = None
    head_size: Count | None = None
    ffn_hidden: Count | None = None
    position: Literal["learned", "rotary", "alibi", "relative", "none"] = "learned"
    norm: Literal["layer", "rms"] = "layer"
    activation: ActivationName = "gelu"
    bias: bool = True
    qkv_bias: bool | None = None
    qk_norm: bool = False
    dropout: bool = True
    causal: bool = True
    tied_embeddings: bool = True
    window: Large | None = None
    window_every: Count = 1
    whole_every: OptionalCount = 0
    yarn: bool = False
    attention: Literal["mha", "mla"] = "mha"
    q_lora_rank: OptionalCount = 0
    kv_lora_rank: OptionalCount = 0
    qk_nope_head_size: OptionalCount = 0
    qk_rope_head_size: OptionalCount = 0
    v_head_size: OptionalCount = 0
    experts: OptionalCount = 0
    topk: Count = 2
    expert_groups: Count = 1
    topk_groups: Count = 1
    router_scores: Literal["softmax", "sigmoid"] = "softmax"
    expert_bias: bool = False
    moe_ffn_hidden: Count | None = None
    shared_experts: OptionalCount = 0
    shared_ffn_hidden: Count | None = None
    swiglu_limit: Annotated[float, Limits(least=0, most=1e9)] | None = None
    dense_layers: OptionalCount = 0
    moe_every: Count = 1
    moe_latent: Count | None = None
    mtp_layers: Annotated[int, Limits(least=0, most=100)] = 0
    mtp_pattern: str = ""
    mtp_shared: bool = False
    pattern: str = ""
    mamba_heads: OptionalCount = 0
    mamba_head_size: Count = 64
    mamba_groups: Count = 8
    mamba_state: Count = 128
    mamba_chunk: Count = 128
    delta_key_heads: OptionalCount = 0
    delta_value_heads: OptionalCount = 0
    delta_key_size: Count = 128
    delta_value_size: Count = 128
    convolution: Count = 4
    attention_gate: bool = False
    predicted: Large | None = None
    lora_rank: OptionalCount = 0
    lora_modules: tuple[Literal["qkv", "proj", "fc1", "fc2"], ...] = ("qkv", "proj", "fc1", "fc2")
    example_length: Large | None = None
    memory: Annotated[int, Limits(least=0, most=1_000_000_000)] = 0
    cutoffs: tuple[Large, ...] = ()
    cutoff_shares: tuple[Annotated[float, Limits(least=0, most=1)], ...] = ()
    cutoff_divisor: Count = 1
    decoder_layers: Annotated[int, Limits(least=0, most=MAX_LAYERS)] = 0
    decoder_seq_len: Large | None = None
    image: Count = 224
    patch: Count = 16
    classes: Classes = 1000

    def __post_init__(self) -> None:
        self._check_attention()
        self._check_experts()
        self._check_layers()
        self._check_adapters()
        self._check_samples()
        if self.memory or self.cutoffs:
            self._check_segments()
        if self.pattern or self.mtp_pattern:
            self._check_pattern()

    def _check_attention(self) -> None:
        if self.head_size is None and self.attention == "mha":
            divides("hidden", self.hidden, "heads", self.heads)
        divides("heads", self.heads, "kv_heads", self.kv)
        if self.attention == "mla":
            sizes = ("kv_lora_rank", "qk_nope_head_size", "qk_rope_head_size", "v_head_size")
            for key in sizes:
                if not getattr(self, key):
                    raise InputError(f"{key} is 0; attention = 'mla' needs it")

    def _check_experts(self) -> None:
        if self.experts and self.topk > self.experts:
            raise InputError(f"topk is {self.topk}, more than experts = {self.experts}")
        if self.experts:
            self._check_groups()
        if not self.experts and (self.shared_experts or self.family == "moe"):
            raise InputError("experts is 0: a mixture of experts needs 1 or more")
        if self.moe_latent is not None and not self.experts:
            raise InputError(f"moe_latent is {self.moe_latent}, but experts is 0")

    def _check_layers(self) -> None:
        if self.dense_layers > self.layers:
            raise InputError(f"dense_layers is {self.dense_layers}, more than {self.layers} layers")
        if (self.family == "t5") != bool(self.decoder_layers):
            raise InputError(
                f"decoder_layers is {self.decoder_layers}; family 't5' needs 1 or more, "
                "others have none"
            )
        if self.layers + self.decoder_layers > MAX_LAYERS:
            raise InputError(
                f"layers and decoder_layers are {self.layers + self.decoder_layers} together; "
                f"there can be {MAX_LAYERS}"
            )
        if self.family == "t5" and (self.experts or self.attention == "mla"):
            key = "experts" if self.experts else "attention"
            raise InputError(
                f"{key} is {getattr(self, key)!r}; family 't5' has no experts and attention = 'mha'"
            )
        if self.mtp_layers and self.family in ("bert", "t5", "vit"):
            raise InputError(
                f"mtp_layers is {self.mtp_layers}; family {self.family!r} predicts no further "
                "tokens: only gpt, llama and moe do"
            )

    def _check_adapters(self) -> None:
        if self.lora_rank and self.family in ("bert", "t5", "vit"):
            raise InputError(
                f"lora_rank is {self.lora_rank}; family {self.family!r} has no adapters: only gpt, "
                "llama and moe do"
            )
        if self.lora_rank and not self.lora_modules:
            raise InputError("lora_modules is empty: nothing would be trained")

    def _check_samples(self) -> None:
        if self.predicted is not None and (self.family != "bert" or self.predicted > self.seq_len):
            raise InputError(
                f"predicted is {self.predicted}; only family 'bert' predicts some of its tokens, "
                f"seq_len = {self.seq_len} at most"
            )
        if self.example_length is not None and (
            self.family in ("t5", "vit") or self.example_length > self.seq_len
        ):
            raise InputError(
                f"example_length is {self.example_length}; it is for packed sequences, and at most "
                f"seq_len = {self.seq_len}"
            )
        if self.family == "vit":
            divides("image", self.image, "patch", self.patch)
            patches = (self.image // self.patch) ** 2 + 1
            if self.seq_len != patches:
                raise InputError(
                    f"seq_len is {self.seq_len}; (image / patch)² + 1 class token is {patches}"
                )
        elif not self.vocab:
            raise InputError("vocab is missing: the number of entries of the vocabulary")
        if self.vocab == 1:
            raise InputError("vocab is 1: there is nothing to predict; it must be 2 or more")

    def _check_segments(self) -> None:
        if self.family != "gpt" or self.experts or self.pattern or self.attention == "mla":
            raise InputError(
                f"memory is {self.memory} and cutoffs {list(self.cutoffs)}; only dense models of "
                "family 'gpt' have them"
            )
        if list(self.cutoffs) != sorted(set(self.cutoffs)) or self.vocab <= max(
            self.cutoffs, default=0
        ):
            raise InputError(
                f"cutoffs is {list(self.cutoffs)}; it must ascend, and end below vocab = "
                f"{self.vocab}"
            )
        if len(self.cutoffs) != len(self.cutoff_shares) or sum(self.cutoff_shares) >= 1:
            raise InputError(
                f"cutoff_shares has {len(self.cutoff_shares)} entries that add up to "
                f"{sum(self.cutoff_shares):g}; each of {len(self.cutoffs)} cutoffs needs one, and "
                "some tokens are before the first"
            )

    def _check_pattern(self) -> None:
        if self.family not in ("gpt", "llama", "moe"):
            raise InputError(
                f"pattern is {self.pattern!r}; family {self.family!r} has none: only gpt, llama "
                "and moe do"
            )
        if not self.pattern.split():
            raise InputError("pattern is empty; mtp_pattern needs it")
        for key in ("pattern", "mtp_pattern"):
            for letter in getattr(self, key):
                if letter not in (*HYBRID_LETTERS, " "):
                    raise InputError(
                        f"{key} is {getattr(self, key)!r}; {letter!r} is none of its letters: "
                        f"{', '.join(HYBRID_LETTERS)}, and a blank"
                    )
        used = {letter for layer in range(self.layers) for letter in self.kind(layer)}
        used |= set(self.mtp_pattern.replace(" ", ""))
        if ("E" in used) != bool(self.experts):
            raise InputError(
                f"pattern is {self.pattern!r} and experts is {self.experts}: layers with E need "
                "experts, others have none"
            )
        for letter, key in (("M", "mamba_heads"), ("G", "delta_key_heads")):
            if letter in used and not getattr(self, key):
                raise InputError(f"{key} is 0; layers with {letter} in pattern need it")
        if "M" in used:
            divides("mamba_heads", self.mamba_heads, "mamba_groups", self.mamba_groups)
        if "G" in used:
            divides(
                "delta_value_heads",
                self.delta_value_heads,
                "delta_key_heads",
                self.delta_key_heads,
            )
            if not self.delta_value_heads:
                raise InputError("delta_value_heads is 0; layers with G in pattern need it")
        for key in ("window", "dense_layers"):
            if getattr(self, key):
                raise InputError(f"{key} is {getattr(self, key)}; models with a pattern have none")
        if self.moe_every != 1:
            raise InputError(f"moe_every is {self.moe_every}; models with a pattern have none")

    def _check_groups(self) -> None:
        divides("experts", self.experts, "expert_groups", self.expert_groups)
        if self.topk_groups > self.expert_groups:
            raise InputError(
                f"topk_groups is {self.topk_groups}, more than expert_groups = {self.expert_groups}"
            )
        eligible = self.experts // self.expert_groups * self.topk_groups
        if self.topk > eligible:
            raise InputError(
                f"topk is {self.topk}, more than the {eligible} experts of topk_groups = "
                f"{self.topk_groups} groups"
            )

    @property
    def kv(self) -> int:
        """Heads of keys and values: fewer than of queries in grouped-query attention."""
        return self.kv_heads or self.heads

    @property
    def head(self) -> int:
        """Elements of a head of queries and keys."""
        if self.attention == "mla":
            return self.qk_nope_head_size + self.qk_rope_head_size
        return self.head_size or self.hidden // self.heads

    @property
    def value_head(self) -> int:
        """Elements of a head of values."""
        return self.v_head_size if self.attention == "mla" else self.head

    @property
    def ffn(self) -> int:
        """Inner width of the feed-forward block."""
        return self.ffn_hidden or 4 * self.hidden

    @property
    def expert_ffn(self) -> int:
        """Inner width of a routed expert."""
        return self.moe_ffn_hidden or self.ffn

    @property
    def shared_ffn(self) -> int:
        """Inner width of the shared experts together; 0 if there are none."""
        return self.shared_ffn_hidden or self.shared_experts * self.expert_ffn

    @property
    def gated(self) -> bool:
        """Whether the activation has a gate."""
        return ACTIVATIONS[self.activation].gated

    @property
    def has_qkv_bias(self) -> bool:
        """Whether the matrices of queries, keys and values have biases."""
        return self.bias if self.qkv_bias is None else self.qkv_bias

    def kind(self, layer: int) -> str:
        """What a layer, counted from 0, is made of: letters of `pattern` in order."""
        if self.pattern:
            parts = self.pattern.split()
            if len(parts) == 1:
                return parts[0][layer % len(parts[0])]
            return parts[layer % len(parts)]
        return "*E" if self.is_moe(layer) else "*-"

    @property
    def kinds(self) -> list[str]:
        """What all layers are made of, modules of multi-token prediction at last."""
        found = [self.kind(layer) for layer in range(self.layers)]
        return found + [self.mtp_pattern.replace(" ", "") or found[-1]] * self.mtp_layers

    @property
    def mamba_inner(self) -> int:
        """Elements of a token inside a Mamba-2 layer."""
        return self.mamba_heads * self.mamba_head_size

    def is_moe(self, layer: int) -> bool:
        """Whether a layer, counted from 0, has experts."""
        if self.pattern:
            return "E" in self.kind(layer)
        if not self.experts or layer < self.dense_layers:
            return False
        return (layer - self.dense_layers) % self.moe_every == self.moe_every - 1

    def windowed(self, layer: int) -> bool:
        """Whether attention of a layer, counted from 0, has the window."""
        if self.window is None or layer % self.window_every:
            return False
        return not self.whole_every or layer % self.whole_every != self.whole_every - 1

    @property
    def samples(self) -> str:
        """Plural of what a batch is counted in: ``sequences`` or ``images``."""
        return "images" if self.family == "vit" else "sequences"
