"""Files of a `model_type` that is not known → what they would be, were they built like others.

What has experts is read as Mixtral, what drops attention probabilities out by the key of BERT as
BERT, the rest as Llama. How far that is off was found on the classes of ``transformers`` that are
read so (``data/huggingface.toml``).
"""

from __future__ import annotations

from ..base.errors import InputError
from .huggingface_config import Config
from .huggingface_dense import PLAIN, Keys, latent_attention, llama, windows
from .huggingface_encoders import bert

__all__ = ["LIKE", "like_known"]

LIKE = {"bert": "BERT", "llama": "Llama", "moe": "Mixtral"}
"""Family of ``[model]`` that a file of an unknown type is read as → model whose keys it shares."""

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
TOPK = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k", "moe_k")
EXPERT_WIDTH = ("moe_intermediate_size", "expert_ffn_hidden_size", "moe_ffn_hidden_size")
SHARED = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
DENSE = ("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index")
"""Names of one size each, in files of models with experts."""

OTHER_MIXERS = ("linear_", "mamba", "recurrent", "ssm", "rwkv", "conv", "delta", "lightning", "kda")
"""In keys and kinds of layers of models that mix tokens by other means than attention."""


def like_known(config: Config) -> Keys:
    """File of an unknown `model_type` → keys of ``[model]``.

    Parameters
    ----------
    config : Config
        A ``config.json`` whose keys have the names that known kinds use.

    Returns
    -------
    dict
        Keys of ``[model]``, guessed from the keys that are there.

    Raises
    ------
    InputError
        If sizes are missing that Llama has, or there are layers without attention.
    """
    given = config.table.get("layer_types") or []
    if not isinstance(given, list):
        raise config.refuse("layer_types", "it must be a list of texts")
    kinds = [each for each in given if isinstance(each, str)]
    for word in (*config.table, *kinds):
        if any(each in word for each in OTHER_MIXERS) and config.table.get(word, True):
            raise InputError(f"{config.file}: {word!r}: layers that mix tokens without attention")
    if "attention_probs_dropout_prob" in config.table:
        return bert(config)
    width = next((config.size(key) for key in EXPERT_WIDTH if config.table.get(key)), ())
    filled = config if width == () else config.filled({"intermediate_size": width})
    experts = next((config.size(key) for key in EXPERTS if config.table.get(key)), 0)
    if config.table.get("hidden_act") in ("relu", "relu2", "gelu_new", "gelu_fast"):
        found = llama(filled, "moe" if experts else "llama", PLAIN)
    else:
        found = llama(filled, "moe" if experts else "llama")
    if config.table.get("kv_lora_rank") and config.table.get("qk_nope_head_dim"):
        found |= latent_attention(config)
    if "sliding_attention" in kinds:
        found |= windows(config, {each: _kind_of(each) for each in kinds})
    if not experts:
        return found
    shared = config.count("shared_expert_intermediate_size")
    return found | {
        "experts": experts,
        "topk": config.size(*TOPK),
        "moe_ffn_hidden": width,
        "shared_experts": 1 if shared else max(config.count(key) for key in SHARED),
        "shared_ffn_hidden": shared or (),
        "dense_layers": max(config.count(key) for key in DENSE),
    }


def _kind_of(layer: str) -> str:
    return "window" if layer == "sliding_attention" else "full"
