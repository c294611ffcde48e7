"""Models from Hugging Face: ``config.json`` → keys of ``[model]``.

Each architecture names its sizes in its own way; what one name means stands in the function of its
`model_type`: in :mod:`.huggingface_dense`, in :mod:`.huggingface_encoders`, or for those with
experts or recurrences in :mod:`.huggingface_mixed`. A `model_type` without a function is read as
Llama's or Mixtral's where its keys allow, which is said, and carried in the error bar. Keys that a
file may leave out have the default of the architecture's class in ``transformers``
(github.com/huggingface/transformers, ``src/transformers/models``). :mod:`.huggingface_config`
checks each value as it is read.

What the keys of ``[model]`` cannot say is left out: windows of Gemma 2, attention and feed-forward
blocks side by side (Falcon, GPT-NeoX, Cohere, Phi), norms behind a block (Gemma 2 and 3, GLM-4,
OLMo 2), rotary positions of a part of a head (GLM-4, Qwen3-Next), towers for images and sound.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from ..base.errors import InputError, nearest
from ..base.presets import packaged
from ..base.quantity import Quantity
from ..base.schema import build
from . import huggingface_dense as dense
from . import huggingface_encoders as encoders
from . import huggingface_mixed as mixed
from .huggingface_config import Config, read_config
from .huggingface_dense import Keys
from .huggingface_unknown import LIKE, like_known
from .likely_models import Guess

__all__ = ["MODEL_TYPES", "from_config"]

FILE = "huggingface.toml"


def from_config(path: str | Path) -> tuple[Keys, Guess | None]:
    """``config.json`` → keys of ``[model]``, and what was guessed of it.

    Parameters
    ----------
    path : str or Path
        The file, or the folder of a checkpoint, which has one.

    Returns
    -------
    keys : dict
        `seq_len` is the longest sequence the file allows; it is left out where the file names
        none, and has to be given beside `hf_config` then.
    guess : Guess or None
        None for a `model_type` of `MODEL_TYPES` that is all there is to the model.

    Raises
    ------
    InputError
        If the file cannot be read, its `model_type` is not known and nothing like Llama's, or a key
        is missing or makes no sense; the message names file and key.
    """
    file = Path(path, "config.json") if os.path.isdir(path) else Path(path)
    whole = read_config(file)
    outer = _type_of(whole)
    config, notes = whole, []
    if whole.table.get("text_config") is not None:
        config = whole.part("text_config")
        notes.append(f"{outer}: its text model alone; towers for images or sound are left out")
    inner = config.text("model_type", "") or outer
    known = next((name for name in (inner, outer) if name in MODEL_TYPES), None)
    error = 0.0
    if known is not None:
        keys = MODEL_TYPES[known](config)
    else:
        keys = _unknown(config, inner)
        notes.append(f"model_type {inner!r} is not known: read as {LIKE[keys['family']]}'s keys")
        error = _unknown_error()
    keys = {key: value for key, value in keys.items() if value != ()}
    return keys, Guess(known or LIKE[keys["family"]], tuple(notes), error) if notes else None


def _unknown_error() -> float:
    """Return the relative error of the work of a model of an unknown type: a standard deviation."""
    return build(Quantity, packaged(FILE)["unknown_type"], FILE, "unknown_type").error


def _type_of(config: Config) -> str:
    found = config.text("model_type", "")
    if not found:
        raise InputError(f"{config.file}: key 'model_type' is missing")
    return found


def _unknown(config: Config, model_type: str) -> Keys:
    """Return a model of an unknown type as Llama's, or say why it is none."""
    try:
        return like_known(config)
    except InputError as error:
        why = str(error).removeprefix(f"{config.file}: ")
        raise InputError(
            f"{config.file}: key 'model_type' is {model_type!r}{nearest(model_type, MODEL_TYPES)}, "
            f"which is not known, nor can it be read as Llama's ({why}); known: "
            f"{', '.join(MODEL_TYPES)}"
        ) from error


MODEL_TYPES: Mapping[str, Callable[[Config], Keys]] = {
    "apertus": dense.apertus,
    "arcee": dense.arcee,
    "bert": encoders.bert,
    "biogpt": dense.biogpt,
    "bitnet": dense.llama,
    "bloom": dense.bloom,
    "camembert": encoders.bert,
    "codegen": dense.gptj,
    "cohere": dense.cohere,
    "cohere2": dense.cohere,
    "cwm": dense.mistral,
    "dbrx": mixed.dbrx,
    "deepseek": mixed.deepseek,
    "deepseek_v2": mixed.deepseek_v2,
    "deepseek_v3": mixed.deepseek_v3,
    "distilbert": encoders.distilbert,
    "dots1": mixed.dots1,
    "ernie4_5": dense.ernie4_5,
    "ernie4_5_moe": mixed.ernie4_5_moe,
    "exaone4": dense.with_qk_norm,
    "falcon": dense.falcon,
    "flex_olmo": mixed.olmoe,
    "gemma": dense.gemma,
    "gemma2": dense.gemma,
    "gemma3": dense.gemma3,
    "gemma3_text": dense.gemma3,
    "glm": dense.glm4,
    "glm4": dense.glm4,
    "glm4_moe": mixed.glm4_moe,
    "glm4_moe_lite": mixed.glm4_moe_lite,
    "gpt-sw3": dense.gpt2,
    "gpt2": dense.gpt2,
    "gpt_bigcode": dense.gpt_bigcode,
    "gpt_neo": dense.gpt_neo,
    "gpt_neox": dense.gpt_neox,
    "gpt_oss": mixed.gpt_oss,
    "gptj": dense.gptj,
    "granite": dense.llama,
    "granitemoe": mixed.granitemoe,
    "granitemoehybrid": mixed.granitemoehybrid,
    "granitemoeshared": mixed.granitemoe,
    "helium": dense.llama,
    "hunyuan_v1_dense": dense.with_qk_norm,
    "hyperclovax": dense.llama,
    "internlm3": dense.llama,
    "iquestcoder": dense.llama,
    "jais2": dense.jais2,
    "kimi_k2": mixed.deepseek_v3,
    "llama": dense.llama,
    "llama4": mixed.llama4,
    "llama4_text": mixed.llama4,
    "mamba2": mixed.mamba2,
    "megatron-bert": encoders.bert,
    "minicpm3": dense.latent_llama,
    "minimax_m2": mixed.minimax_m2,
    "ministral": dense.head_of_128,
    "ministral3": dense.head_of_128,
    "mistral": dense.mistral,
    "mixtral": mixed.mixtral,
    "modernbert": encoders.modernbert,
    "mpt": dense.mpt,
    "mt5": encoders.t5,
    "nanochat": dense.nanochat,
    "nemotron": dense.nemotron,
    "nemotron_h": mixed.nemotron_h,
    "olmo": dense.olmo,
    "olmo2": dense.with_qk_norm,
    "olmo3": dense.with_qk_norm,
    "olmoe": mixed.olmoe,
    "opt": dense.opt,
    "persimmon": dense.persimmon,
    "phi": dense.phi,
    "phi3": dense.mistral,
    "phimoe": mixed.phimoe,
    "qwen2": dense.qwen2,
    "qwen2_5_vl": dense.qwen2,
    "qwen2_5_vl_text": dense.qwen2,
    "qwen2_moe": mixed.qwen2_moe,
    "qwen2_vl": dense.qwen2,
    "qwen2_vl_text": dense.qwen2,
    "qwen3": dense.qwen3,
    "qwen3_5_moe_text": mixed.qwen3_5_moe,
    "qwen3_5_text": mixed.qwen3_5,
    "qwen3_moe": mixed.qwen3_moe,
    "qwen3_next": mixed.qwen3_next,
    "qwen3_vl_moe_text": mixed.qwen3_moe,
    "qwen3_vl_text": dense.qwen3,
    "roberta": encoders.bert,
    "seed_oss": dense.head_of_128,
    "smollm3": dense.smollm3,
    "solar_open": mixed.solar_open,
    "stablelm": dense.stablelm,
    "starcoder2": dense.starcoder2,
    "t5": encoders.t5,
    "umt5": encoders.t5,
    "vaultgemma": dense.gemma,
    "vit": encoders.vit,
    "xglm": dense.xglm,
    "xlm-roberta": encoders.bert,
    "youtu": dense.latent_llama,
}
"""How to read the file, by its `model_type`."""
