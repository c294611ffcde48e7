"""Models as dataclasses: ``[model]`` of an experiment with all of its numbers.

A model is one of three dataclasses, chosen by its `family`; the fields are the keys a user may
write. A family sets what its members share (`FAMILIES`), a preset adds sizes, and the user's keys
come last. Transformers, which have most keys, stand in :mod:`.transformer`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from ..base.errors import InputError
from ..base.frozen import frozen
from ..base.schema import Limits
from .transformer import USUAL_LENGTH, Classes, Count, Large, Transformer

__all__ = [
    "FAMILIES",
    "USUAL_LENGTH",
    "Cnn",
    "Dlrm",
    "Model",
    "Transformer",
    "image_length",
    "model_key",
]

REUSE_FACTORS = 17
"""Shares of a table's rows by how often a batch looks them up."""


@frozen
class Cnn:
    """A convolutional network for images.

    Attributes
    ----------
    family : {"resnet", "vgg", "densenet", "ssd", "unet"}
        "ssd": a detector on the first groups of a ResNet; "unet": the U-Net of Stable Diffusion 2.
    depth : int
        18, 34, 50, 101, 152; 11, 13, 16, 19; 121, 161, 169, 201; of an SSD its ResNet's, 50 or
        more; of a U-Net the residual blocks of a level, 2.
    image : int
        Side of the square images; of a U-Net that of the latents.
    classes : int
    batch_norm : bool
        VGG only: with batch normalisation.
    width : int
        ResNet with bottlenecks only: their channels in the first group, 64 (Wide ResNet: 128).
    """

    family: Literal["resnet", "vgg", "densenet", "ssd", "unet"]
    depth: Count
    image: Annotated[int, Limits(least=32, most=4096)] = 224
    classes: Classes = 1000
    batch_norm: bool = False
    width: Count = 64

    def __post_init__(self) -> None:
        allowed = DEPTHS[self.family]
        if self.depth not in allowed:
            depths = ", ".join(map(str, allowed))
            raise InputError(f"depth is {self.depth}; a {self.family} has {depths}")
        if self.batch_norm and self.family != "vgg":
            raise InputError(
                f"batch_norm is true, which is for family 'vgg'; a {self.family} always has it"
            )
        if self.width != 64 and (self.family != "resnet" or self.depth < 50):
            raise InputError(
                f"width is {self.width}; only a resnet of depth 50 or more, which has bottlenecks, "
                "can have another than 64"
            )

    @property
    def samples(self) -> str:
        """Plural of what a batch is counted in: ``images``."""
        return "images"


DEPTHS = {
    "resnet": (18, 34, 50, 101, 152),
    "vgg": (11, 13, 16, 19),
    "densenet": (121, 161, 169, 201),
    "ssd": (50, 101, 152),
    "unet": (2,),
}


@frozen
class Dlrm:
    """A recommendation model (DLRM, arXiv:1906.00091).

    Attributes
    ----------
    family : {"dlrm"}
    table_entries : tuple of int
        Rows of each embedding table.
    embedding : int or tuple of int
        Elements of an embedding: of all tables, or of each.
    pooling : tuple of int
        Lookups of one sample in each table; one number serves all tables.
    skew : tuple of float
        Exponent of the Zipf distribution that rows are looked up with, 0 where all are as likely;
        one number serves all tables.
    reuse : tuple of tuple of float
        Reuse factors of each table for the global batch, 17 shares of its distinct rows by how
        often each is looked up, in place of `skew`; what mpisim tables reads off a data set.
    dense_features : int
    bottom_mlp, top_mlp : tuple of int
        Widths of the layers; the bottom one ends with the widest embedding, the top one with 1.
    interaction : {"dot", "cat", "cross"}
        How embeddings are combined: dot products of all pairs, for which narrower ones are widened
        by a matrix each, or concatenation, or concatenation and a network of cross layers (DCNv2).
    cross_layers, cross_rank : int
        Of "cross": layers, and features between the two matrices of each.
    """

    family: Literal["dlrm"]
    table_entries: tuple[Large, ...]
    embedding: Count | tuple[Count, ...]
    bottom_mlp: tuple[Count, ...]
    top_mlp: tuple[Count, ...]
    pooling: tuple[Count, ...] = (1,)
    skew: tuple[Annotated[float, Limits(least=0, most=4)], ...] = (0.0,)
    reuse: tuple[tuple[Annotated[float, Limits(least=0, most=1)], ...], ...] = ()
    dense_features: Count = 13
    interaction: Literal["dot", "cat", "cross"] = "dot"
    cross_layers: Count = 3
    cross_rank: Count = 512

    def __post_init__(self) -> None:
        for key in ("table_entries", "bottom_mlp", "top_mlp"):
            if not getattr(self, key):
                raise InputError(f"{key} is empty; it needs one entry or more")
        tables = len(self.table_entries)
        if isinstance(self.embedding, tuple) and len(self.embedding) != tables:
            raise InputError(
                f"embedding has {len(self.embedding)} entries; one number, or one for each of the "
                f"{tables} tables"
            )
        widest = max(self.widths)
        if self.bottom_mlp[-1] != widest:
            which = "the widest embedding" if isinstance(self.embedding, tuple) else "embedding"
            raise InputError(
                f"bottom_mlp ends with {self.bottom_mlp[-1]}; it must end with {which} = {widest}"
            )
        if self.top_mlp[-1] != 1:
            raise InputError(f"top_mlp ends with {self.top_mlp[-1]}; it must end with 1")
        for key in ("pooling", "skew"):
            if len(getattr(self, key)) not in (1, tables):
                raise InputError(
                    f"{key} has {len(getattr(self, key))} entries; one, or one for each of the "
                    f"{tables} tables"
                )
        self._check_reuse()

    def _check_reuse(self) -> None:
        if self.reuse and len(self.reuse) != len(self.table_entries):
            raise InputError(
                f"reuse has {len(self.reuse)} entries; there are {len(self.table_entries)} tables"
            )
        for number, factors in enumerate(self.reuse):
            if len(factors) != REUSE_FACTORS or not sum(factors):
                raise InputError(
                    f"reuse of table {number} has {len(factors)} shares that add up to "
                    f"{sum(factors):g}; it needs {REUSE_FACTORS}, of rows looked up once, twice, "
                    "up to 4 times, 8, …, 32768, and more often"
                )
        if self.reuse and any(self.skew):
            raise InputError("skew is given, but reuse, too: it says how often rows are looked up")

    @property
    def samples(self) -> str:
        """Plural of what a batch is counted in: ``samples``."""
        return "samples"

    @property
    def widths(self) -> tuple[int, ...]:
        """Elements of an embedding of each table."""
        if isinstance(self.embedding, tuple):
            return self.embedding
        return (self.embedding,) * len(self.table_entries)

    def lookups(self, table: int) -> int:
        """Lookups of one sample in a table."""
        return self.pooling[table if len(self.pooling) > 1 else 0]

    def skew_of(self, table: int) -> float:
        """Exponent of the Zipf distribution of a table."""
        return self.skew[table if len(self.skew) > 1 else 0]


Model = Transformer | Cnn | Dlrm

_LLAMA = {
    "position": "rotary",
    "norm": "rms",
    "activation": "swiglu",
    "bias": False,
    "dropout": False,
    "tied_embeddings": False,
}

FAMILIES: dict[str, tuple[type[Model], dict[str, Any]]] = {
    "gpt": (Transformer, {}),
    "llama": (Transformer, _LLAMA),
    "moe": (Transformer, _LLAMA),
    "bert": (Transformer, {"causal": False}),
    "t5": (
        Transformer,
        {
            "position": "relative",
            "norm": "rms",
            "activation": "relu",
            "bias": False,
            "causal": False,
        },
    ),
    "vit": (Transformer, {"causal": False, "dropout": False, "tied_embeddings": False}),
    "resnet": (Cnn, {}),
    "vgg": (Cnn, {}),
    "densenet": (Cnn, {}),
    "ssd": (Cnn, {"image": 300, "classes": 81}),
    "unet": (Cnn, {"image": 64, "depth": 2}),
    "dlrm": (Dlrm, {}),
}
"""Of each family its dataclass, and the defaults its members share."""

ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers", "num_layers", "n_layers", "n_layer", "depth"),
    "hidden": ("hidden_size", "d_model", "n_embd", "dim", "width"),
    "heads": ("num_attention_heads", "num_heads", "n_heads", "n_head"),
    "kv_heads": ("num_key_value_heads", "num_query_groups", "num_kv_heads", "n_kv_heads"),
    "head_size": ("head_dim", "kv_channels"),
    "ffn_hidden": ("intermediate_size", "ffn_hidden_size", "ffn", "ffn_size", "d_ff", "n_inner"),
    "vocab": ("vocab_size", "padded_vocab_size"),
    "seq_len": (
        *("max_position_embeddings", "n_positions", "seq_length", "max_seq_len"),
        *("sequence_length", "seqlen", "context_length", "block_size"),
    ),
    "experts": ("num_experts", "num_local_experts", "n_routed_experts", "num_moe_experts"),
    "topk": ("num_experts_per_tok", "moe_router_topk", "top_k"),
    "moe_ffn_hidden": ("moe_intermediate_size", "moe_ffn_hidden_size", "expert_ffn"),
    "shared_experts": ("n_shared_experts", "num_shared_experts"),
    "shared_ffn_hidden": (
        *("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size"),
    ),
    "dense_layers": ("first_k_dense_replace",),
    "tied_embeddings": ("tie_word_embeddings",),
    "window": ("sliding_window", "window_size"),
    "activation": ("hidden_act", "activation_function"),
    "image": ("image_size", "img_size"),
    "patch": ("patch_size", "patch_dim"),
    "classes": ("num_classes", "num_labels"),
    "decoder_layers": ("num_decoder_layers",),
    "mamba_heads": ("mamba_num_heads",),
    "mamba_head_size": ("mamba_head_dim",),
    "mamba_groups": ("n_groups", "mamba_num_groups"),
    "mamba_state": ("ssm_state_size", "mamba_state_dim"),
}
"""Keys of ``[model]``, and what Hugging Face's config.json, Megatron-LM and nanoGPT call them."""


def model_key(name: str) -> str | None:
    """Name of a framework's argument → the key of ``[model]`` with the same meaning.

    Parameters
    ----------
    name : str
        As in a config.json or on a command line.

    Returns
    -------
    str or None
        None if no key means the same.

    Examples
    --------
    >>> model_key("num_hidden_layers"), model_key("d_ff"), model_key("layerz")
    ('layers', 'ffn_hidden', None)
    """
    return next((key for key, names in ARGUMENTS.items() if name in names), None)


def image_length(given: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of a model of images → the length of its sequences; nothing of other families.

    A token for each patch and one for the class (ViT, arXiv:2010.11929, section 3.1).

    Parameters
    ----------
    given, base : mapping
        Keys of the file, and of the preset or config.json that these change. Values that no model
        has are left to whoever builds the dataclass.
    """
    keys = {"image": Transformer.image, "patch": Transformer.patch, **base, **given}
    image, patch = keys["image"], keys["patch"]
    sizes = type(image) is int and type(patch) is int and patch > 0
    if keys.get("family") != "vit" or not sizes:
        return {}
    return {"seq_len": max(1, (image // patch) ** 2 + 1)}
