"""Models from Hugging Face: ``config.json`` → keys of ``[model]``.

Each architecture names its sizes in its own way; what one name means stands in the function of its
`model_type`. Keys that a file may leave out have the default of the architecture's class in
``transformers`` (github.com/huggingface/transformers, ``src/transformers/models``). `Config` checks
each value as it is read.

Three things the keys of ``[model]`` cannot say are left out: windows that only some layers have
(Gemma 2), attention and feed-forward blocks side by side (Falcon, GPT-NeoX), and norms
behind a block (Gemma 2).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..base.errors import InputError, nearest
from ..base.files import read_text

__all__ = ["MODEL_TYPES", "from_config", "read_config"]

Keys = dict[str, Any]

PLAIN = {
    "gelu": "gelu",
    "gelu_new": "gelu",
    "gelu_fast": "gelu",
    "gelu_10": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "relu": "relu",
    "relu2": "relu",
}
GATED = {
    "silu": "swiglu",
    "swish": "swiglu",
    "gelu": "geglu",
    "gelu_new": "geglu",
    "gelu_pytorch_tanh": "geglu",
}
"""Names of activations, of feed-forward blocks with one matrix on the way in, and with two."""


def from_config(path: str | Path) -> Keys:
    """Read a model from a ``config.json``.

    Parameters
    ----------
    path : str or Path
        The file, or the folder of a checkpoint, which has one.

    Returns
    -------
    dict
        Keys of ``[model]``. `seq_len` is the longest sequence the file allows; it is left out where
        the file names none, and has to be given beside `hf_config` then.

    Raises
    ------
    InputError
        If the file cannot be read, its `model_type` is not known, or a key is missing or makes no
        sense; the message names file and key.
    """
    file = Path(path, "config.json") if os.path.isdir(path) else Path(path)
    config = read_config(file)
    model_type = config.text("model_type", "")
    if not model_type:
        raise InputError(f"{file}: key 'model_type' is missing")
    if model_type not in MODEL_TYPES:
        raise InputError(
            f"{file}: key 'model_type' is {model_type!r}{nearest(model_type, MODEL_TYPES)}; "
            f"known: {', '.join(MODEL_TYPES)}"
        )
    return {key: value for key, value in MODEL_TYPES[model_type](config).items() if value != ()}


def read_config(file: Path) -> Config:
    """Read a ``config.json``.

    Raises
    ------
    InputError
        If it cannot be read, or holds no table.
    """
    contents = read_text(file)
    try:
        table = json.loads(contents)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file}: not valid JSON: {error}") from error
    if not isinstance(table, dict):
        raise InputError(f"{file}: holds no table; is it a config.json?")
    return Config(table, file)


class Config:
    """A table of a ``config.json``: typed access by key, errors that name file and key.

    The first key of several that the table has counts: older files have other names.
    """

    def __init__(self, table: Mapping[str, Any], file: Path, within: str = "") -> None:
        self.table, self.file, self.within = table, file, within

    def size(self, *keys: str, default: Any = None) -> Any:
        """Return a positive integer; without a default it must be there. Null is absence."""
        key, found = self._first(keys)
        if found is None:
            if default is not None:
                return default
            others = f" (nor {', '.join(map(repr, keys[1:]))})" if keys[1:] else ""
            raise InputError(f"{self.file}: key {self._full(keys[0])!r} is missing{others}")
        if type(found) is not int or found < 1:
            raise self.refuse(key, "it must be an integer, 1 or more")
        return found

    def count(self, key: str) -> int:
        """Return an integer that may be 0, which is also its default."""
        found = self.table.get(key)
        if found is None:
            return 0
        if type(found) is not int or found < 0:
            raise self.refuse(key, "it must be an integer, 0 or more")
        return found

    def flag(self, key: str, default: bool) -> bool:
        """Return true or false.

        Parameters
        ----------
        key : str
        default : bool
            Returned where the key is absent or null.
        """
        found = self.table.get(key)
        if found is None:
            return default
        if not isinstance(found, bool):
            raise self.refuse(key, "it must be true or false")
        return found

    def text(self, key: str, default: str) -> str:
        """Return a text.

        Parameters
        ----------
        key : str
        default : str
            Returned where the key is absent or null.
        """
        found = self.table.get(key)
        if found is None:
            return default
        if not isinstance(found, str):
            raise self.refuse(key, "it must be a text")
        return found

    def choice(self, key: str, choices: Mapping[str, str], default: str) -> str:
        """Return the value of `choices` for one of its texts.

        Parameters
        ----------
        key : str
        choices : mapping of str to str
            Text in the file → value to return.
        default : str
            The text that counts where the key is absent or null; one of `choices`.
        """
        found = self.text(key, default)
        if found not in choices:
            raise InputError(
                f"{self.file}: key {self._full(key)!r} is {found!r}{nearest(found, choices)}; "
                f"known: {', '.join(choices)}"
            )
        return choices[found]

    def any(self, keys: Mapping[str, float]) -> bool:
        """Whether any of the numbers under `keys` (dropout rates) is above 0; values: defaults."""
        rates = {key: self.table.get(key, default) for key, default in keys.items()}
        for key, found in rates.items():
            if isinstance(found, bool) or not isinstance(found, int | float):
                raise self.refuse(key, "it must be a number")
        return any(found > 0 for found in rates.values())

    def part(self, key: str) -> Config:
        """Return a table inside this table, empty if there is none."""
        found = self.table.get(key) or {}
        if not isinstance(found, dict):
            raise self.refuse(key, "it must be a table")
        return Config(found, self.file, self._full(key))

    def refuse(self, key: str, why: str) -> InputError:
        """Return the error that the value of a key cannot be used, and why.

        Parameters
        ----------
        key : str
            One that the table has.
        why : str
            The end of the message, without a full stop: ``"it must be a text"``.
        """
        return InputError(f"{self.file}: key {self._full(key)!r} is {self.table[key]!r}; {why}")

    def _first(self, keys: tuple[str, ...]) -> tuple[str, Any]:
        for key in keys:
            if self.table.get(key) is not None:
                return key, self.table[key]
        return keys[0], None

    def _full(self, key: str) -> str:
        return f"{self.within}.{key}" if self.within else key


# --- one function for each model_type -------------------------------------------------------------


def _sizes(config: Config, family: str) -> Keys:
    """Return the sizes whose names most architectures share."""
    return {
        "family": family,
        "layers": config.size("num_hidden_layers", "n_layer", "n_layers"),
        "hidden": config.size("hidden_size", "n_embed", "n_embd", "d_model"),
        "heads": config.size("num_attention_heads", "n_head", "n_heads"),
        "vocab": config.size("vocab_size"),
        "seq_len": config.size(
            "max_position_embeddings", "n_positions", "seq_length", "max_seq_len", default=()
        ),
    }


def _gpt2(config: Config) -> Keys:
    rates = {"attn_pdrop": 0.1, "embd_pdrop": 0.1, "resid_pdrop": 0.1}
    return _sizes(config, "gpt") | {
        "ffn_hidden": config.size("n_inner", default=()),
        "activation": config.choice("activation_function", PLAIN, "gelu_new"),
        "dropout": config.any(rates),
        "tied_embeddings": config.flag("tie_word_embeddings", True),
    }


def _gpt_neox(config: Config) -> Keys:
    return _sizes(config, "gpt") | {
        "ffn_hidden": config.size("intermediate_size"),
        "position": "rotary",
        "activation": config.choice("hidden_act", PLAIN, "gelu"),
        "qkv_bias": config.flag("attention_bias", True),
        "dropout": config.any({"attention_dropout": 0, "hidden_dropout": 0}),
        "tied_embeddings": config.flag("tie_word_embeddings", False),
    }


def _opt(config: Config) -> Keys:
    return _sizes(config, "gpt") | {
        "ffn_hidden": config.size("ffn_dim"),
        "activation": config.choice("activation_function", PLAIN, "relu"),
        "bias": config.flag("enable_bias", True),
        "dropout": config.any({"dropout": 0.1, "attention_dropout": 0}),
        "tied_embeddings": config.flag("tie_word_embeddings", True),
    }


def _bloom(config: Config) -> Keys:
    return _sizes(config, "gpt") | {
        "position": "alibi",
        "dropout": config.any({"hidden_dropout": 0, "attention_dropout": 0}),
        "tied_embeddings": config.flag("tie_word_embeddings", True),
    }


def _falcon(config: Config) -> Keys:
    sizes = _sizes(config, "gpt")
    if config.flag("new_decoder_architecture", False):
        kv = config.size("num_kv_heads", "n_head_kv", default=sizes["heads"])
    else:
        kv = 1 if config.flag("multi_query", True) else sizes["heads"]
    return sizes | {
        "kv_heads": kv,
        "ffn_hidden": config.size("ffn_hidden_size", default=()),
        "position": "alibi" if config.flag("alibi", False) else "rotary",
        "bias": config.flag("bias", False),
        "dropout": config.any({"hidden_dropout": 0, "attention_dropout": 0}),
        "tied_embeddings": config.flag("tie_word_embeddings", True),
    }


def _mpt(config: Config) -> Keys:
    sizes, attention = _sizes(config, "gpt"), config.part("attn_config")
    position = "learned" if config.flag("learned_pos_emb", True) else "none"
    if attention.flag("rope", False):
        position = "rotary"
    if attention.flag("alibi", False):
        position = "alibi"
    dropout = config.any({"resid_pdrop": 0, "emb_pdrop": 0}) or attention.any({"attn_pdrop": 0})
    return sizes | {
        "kv_heads": attention.size("kv_n_heads", default=()),
        "ffn_hidden": config.size("expansion_ratio", default=4) * sizes["hidden"],
        "position": position,
        "bias": not config.flag("no_bias", False),
        "qk_norm": attention.flag("qk_ln", False),
        "dropout": dropout,
        "tied_embeddings": config.flag("tie_word_embeddings", True),
    }


def _nemotron(config: Config) -> Keys:
    return _sizes(config, "gpt") | {
        "kv_heads": config.size("num_key_value_heads", default=()),
        "head_size": config.size("head_dim", default=()),
        "ffn_hidden": config.size("intermediate_size"),
        "position": "rotary",
        "activation": config.choice("hidden_act", PLAIN, "relu2"),
        "bias": config.flag("mlp_bias", False),
        "qkv_bias": config.flag("attention_bias", False),
        "dropout": config.any({"attention_dropout": 0, "hidden_dropout": 0}),
        "tied_embeddings": config.flag("tie_word_embeddings", False),
    }


def _llama(config: Config, family: str = "llama") -> Keys:
    """Return what Llama and its descendants have in common."""
    gate = "hidden_activation" if config.table.get("hidden_activation") else "hidden_act"
    return _sizes(config, family) | {
        "kv_heads": config.size("num_key_value_heads", default=()),
        "head_size": config.size("head_dim", default=()),
        "ffn_hidden": config.size("intermediate_size"),
        "activation": config.choice(gate, GATED, "silu"),
        "bias": config.flag("mlp_bias", False),
        "qkv_bias": config.flag("attention_bias", False),
        "dropout": config.any({"attention_dropout": 0, "resid_pdrop": 0, "embd_pdrop": 0}),
        "tied_embeddings": config.flag("tie_word_embeddings", False),
    }


def _mistral(config: Config) -> Keys:
    return _llama(config) | {"window": config.size("sliding_window", default=())}


def _qwen2(config: Config) -> Keys:
    return _llama(config) | {"qkv_bias": True}


def _qwen3(config: Config) -> Keys:
    # The class's own default; hidden / heads is another number for some sizes.
    head = config.size("head_dim", default=128)
    return _llama(config) | {"head_size": head, "qk_norm": True}


def _gemma(config: Config) -> Keys:
    tied = config.flag("tie_word_embeddings", True)
    head = config.size("head_dim", default=256)
    return _llama(config) | {"head_size": head, "tied_embeddings": tied}


def _mixtral(config: Config) -> Keys:
    return _llama(config, "moe") | {
        "window": config.size("sliding_window", default=()),
        "experts": config.size("num_local_experts"),
        "topk": config.size("num_experts_per_tok"),
    }


def _qwen2_moe(config: Config) -> Keys:
    dense = config.table.get("mlp_only_layers") or []
    every = config.size("decoder_sparse_step", default=1)
    if dense != list(range(len(dense))) or (dense and every > 1):
        raise config.refuse("mlp_only_layers", "layers without experts must be the first ones")
    shared = config.count("shared_expert_intermediate_size")
    return _llama(config, "moe") | {
        "experts": config.size("num_experts"),
        "topk": config.size("num_experts_per_tok"),
        "moe_ffn_hidden": config.size("moe_intermediate_size"),
        "shared_experts": 1 if shared else 0,
        "shared_ffn_hidden": shared or (),
        "dense_layers": len(dense),
        "moe_every": every,
        "qkv_bias": config.flag("qkv_bias", True),
    }


def _qwen3_moe(config: Config) -> Keys:
    bias = config.flag("attention_bias", False)
    return _qwen2_moe(config) | {"qkv_bias": bias, "qk_norm": True}


def _deepseek(config: Config) -> Keys:
    if config.size("moe_layer_freq", default=1) != 1:
        raise config.refuse("moe_layer_freq", "every layer behind the dense ones must have experts")
    return _llama(config, "moe") | {
        "experts": config.size("n_routed_experts"),
        "topk": config.size("num_experts_per_tok"),
        "expert_groups": config.count("n_group") or 1,
        "topk_groups": config.count("topk_group") or 1,
        "moe_ffn_hidden": config.size("moe_intermediate_size"),
        "shared_experts": config.count("n_shared_experts"),
        "dense_layers": config.count("first_k_dense_replace"),
    }


def _deepseek_v2(config: Config) -> Keys:
    return _deepseek(config) | {
        "attention": "mla",
        "kv_heads": (),
        "head_size": (),
        "q_lora_rank": config.count("q_lora_rank"),
        "kv_lora_rank": config.size("kv_lora_rank"),
        "qk_nope_head_size": config.size("qk_nope_head_dim"),
        "qk_rope_head_size": config.size("qk_rope_head_dim"),
        "v_head_size": config.size("v_head_dim"),
        "mtp_layers": config.count("num_nextn_predict_layers"),
    }


def _gpt_oss(config: Config) -> Keys:
    bias = config.flag("attention_bias", True)
    return _llama(config, "moe") | {
        "experts": config.size("num_local_experts"),
        "topk": config.size("num_experts_per_tok", "experts_per_token"),
        "bias": True,
        "qkv_bias": bias,
        "window": config.size("sliding_window", default=()),
        "window_every": 2,
        "yarn": True,
        "swiglu_limit": 7.0,
    }


def _dbrx(config: Config) -> Keys:
    attention, ffn = config.part("attn_config"), config.part("ffn_config")
    return _sizes(config, "moe") | {
        "kv_heads": attention.size("kv_n_heads", default=1),
        "ffn_hidden": ffn.size("ffn_hidden_size", default=3584),
        "norm": "layer",
        "experts": ffn.size("moe_num_experts", default=4),
        "topk": ffn.size("moe_top_k", default=1),
        "dropout": attention.any({"attn_pdrop": 0}) or config.any({"resid_pdrop": 0}),
        "tied_embeddings": config.flag("tie_word_embeddings", False),
    }


def _llama4(config: Config) -> Keys:
    text = config.part("text_config") if "text_config" in config.table else config
    return _llama(text, "moe") | {
        "ffn_hidden": text.size("intermediate_size_mlp"),
        "moe_ffn_hidden": text.size("intermediate_size"),
        "experts": text.size("num_local_experts"),
        "topk": text.size("num_experts_per_tok"),
        "shared_experts": 1,
        "moe_every": text.size("interleave_moe_layer_step", default=1),
        "qk_norm": text.flag("use_qk_norm", True),
    }


def _bert(config: Config) -> Keys:
    positions = {
        "absolute": "learned",
        "relative_key": "relative",
        "relative_key_query": "relative",
    }
    rates = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    return _sizes(config, "bert") | {
        "ffn_hidden": config.size("intermediate_size"),
        "position": config.choice("position_embedding_type", positions, "absolute"),
        "activation": config.choice("hidden_act", PLAIN, "gelu"),
        "dropout": config.any(rates),
        "tied_embeddings": config.flag("tie_word_embeddings", True),
    }


def _t5(config: Config) -> Keys:
    blocks = PLAIN | {f"gated-{name}": ours for name, ours in GATED.items()}
    layers = config.size("num_layers")
    # Positions are relative: no length is built in. T5 was trained on 512 tokens.
    length = config.size("n_positions", default=512)
    return {
        "family": "t5",
        "layers": layers,
        "decoder_layers": config.size("num_decoder_layers", default=layers),
        "hidden": config.size("d_model"),
        "heads": config.size("num_heads"),
        "head_size": config.size("d_kv"),
        "ffn_hidden": config.size("d_ff"),
        "vocab": config.size("vocab_size"),
        "seq_len": length,
        "decoder_seq_len": length,
        "activation": config.choice("feed_forward_proj", blocks, "relu"),
        "dropout": config.any({"dropout_rate": 0.1}),
        "tied_embeddings": config.flag("tie_word_embeddings", True),
    }


def _vit(config: Config) -> Keys:
    image, patch = config.size("image_size", default=224), config.size("patch_size", default=16)
    labels = config.part("id2label").table
    rates = {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}
    return {
        "family": "vit",
        "layers": config.size("num_hidden_layers"),
        "hidden": config.size("hidden_size"),
        "heads": config.size("num_attention_heads"),
        "ffn_hidden": config.size("intermediate_size"),
        "image": image,
        "patch": patch,
        "seq_len": (image // patch) ** 2 + 1,
        "classes": config.size("num_labels", default=len(labels) or ()),
        "activation": config.choice("hidden_act", PLAIN, "gelu"),
        "qkv_bias": config.flag("qkv_bias", True),
        "dropout": config.any(rates),
    }


MODEL_TYPES: Mapping[str, Callable[[Config], Keys]] = {
    "bert": _bert,
    "bloom": _bloom,
    "dbrx": _dbrx,
    "deepseek": _deepseek,
    "deepseek_v2": _deepseek_v2,
    "deepseek_v3": _deepseek_v2,
    "falcon": _falcon,
    "gemma": _gemma,
    "gemma2": _gemma,
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "gpt_oss": _gpt_oss,
    "kimi_k2": _deepseek_v2,
    "llama": _llama,
    "llama4": _llama4,
    "llama4_text": _llama4,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "mpt": _mpt,
    "nemotron": _nemotron,
    "opt": _opt,
    "phi3": _mistral,
    "qwen2": _qwen2,
    "qwen2_moe": _qwen2_moe,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "t5": _t5,
    "vit": _vit,
}
"""How to read the file, by its `model_type`."""
