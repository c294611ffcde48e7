"""Keys of ``[model]`` → the model: by its name, its ``config.json``, its family or its size.

Which dataclass it is depends on the family, so the keys that a name or a configuration stands for
are looked up first (`model_of`). Of a model that is not described in full the rest is taken from
published models like it (:mod:`.likely_models`), and said to be a guess.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base.errors import InputError, nearest, one_of
from ..base.schema import build, check_value
from .models import FAMILIES, Model, Transformer, image_length, model_key
from .tables import ALL_KEYS, tables_with

if TYPE_CHECKING:
    from .likely_models import Guess

__all__ = ["model_and_guess", "model_of"]

MODEL_SIZES = ("layers", "hidden", "heads", "kv_heads", "ffn_hidden", "seq_len", "vocab", "experts")
"""Keys of ``[model]`` that a model without a name is told by: whole numbers."""


def model_of(table: Mapping[str, Any], source: str) -> Model:
    """Keys of ``[model]`` → model: defaults of the family, preset or config.json, given keys.

    Later ones replace earlier ones.

    Parameters
    ----------
    table : mapping
        The keys of ``[model]``.
    source : str
        The file they stand in, for messages and relative paths.
    """
    return model_and_guess(table, source)[0]


def model_and_guess(table: Mapping[str, Any], source: str) -> tuple[Model, Guess | None]:
    """Keys of ``[model]`` → the model as of `model_of`, and what had to be guessed of it.

    Parameters
    ----------
    table, source
        As for `model_of`.
    """
    given = dict(table)
    base: dict[str, Any] = {}
    guess = None
    preset, config = given.pop("preset", None), given.pop("hf_config", None)
    for key, value in (("preset", preset), ("hf_config", config)):
        if value is not None and not isinstance(value, str):
            raise InputError(f"{source}: key 'model.{key}' is {value!r}; it must be a text")
    if preset is not None and config is not None:
        raise InputError(f"{source}: [model] has both 'preset' and 'hf_config'; give one")
    if preset is not None:
        base, guess = _named(preset, given, source)
    elif config is not None:
        from .huggingface import from_config

        try:
            base, guess = from_config(Path(source).parent / config)
        except InputError as error:
            raise InputError(f"{source}: key 'model.hf_config': {error}") from error
    if "seq_len" not in given:
        given |= image_length(given, base)
    if not base:
        given, guess = _completed(given, source)
    elif "parameters" in given:
        known = "preset" if config is None else "hf_config"
        raise InputError(f"{source}: [model] has both '{known}' and 'parameters'; give one")
    family = given.get("family", base.get("family"))
    if family is None:
        raise InputError(
            f"{source}: [model] needs one of 'preset', 'hf_config', 'family' and 'parameters', or "
            "layers, hidden and heads"
        )
    if not isinstance(family, str) or family not in FAMILIES:
        near = nearest(family, FAMILIES) if isinstance(family, str) else ""
        raise InputError(
            f"{source}: key 'model.family' is {family!r}{near}; allowed: {', '.join(FAMILIES)}"
        )
    cls, common = FAMILIES[family]
    allowed = ("preset", "hf_config", "parameters", *(each.name for each in fields(cls)))
    for key in given:
        if key not in allowed:
            meant = model_key(key)
            near = f" (did you mean {meant!r}?); {ALL_KEYS}" if meant in allowed else ""
            near = near or tables_with(key, "model") or one_of(key, allowed, ALL_KEYS)
            raise InputError(f"{source}: unknown key {key!r} in [model]{near}")
    model: Model = build(cls, {**common, **base, **given}, source, "model")
    return model, guess


def _named(name: str, given: Mapping[str, Any], source: str) -> tuple[dict[str, Any], Guess | None]:
    """Return the keys of a published model, or of the likeliest for a name with a size."""
    from .model_presets import find_model

    try:
        return find_model(name), None
    except InputError as error:
        unknown = error
    from .likely_models import like_named

    sizes = {key: given[key] for key in MODEL_SIZES if key in given}
    _check_values(sizes, source)
    try:
        found = like_named(name, sizes)
    except InputError as error:
        raise InputError(f"{source}: key 'model.preset': {error}") from error
    if found is None:
        raise InputError(f"{source}: key 'model.preset': {unknown}") from unknown
    return found


def _check_values(keys: Mapping[str, Any], source: str) -> None:
    """Refuse values that no transformer has, before others are taken to go with them."""
    for key, value in keys.items():
        check_value(Transformer, key, value, source, f"model.{key}")


def _completed(given: dict[str, Any], source: str) -> tuple[dict[str, Any], Guess | None]:
    """Return keys of a model that has no name, with those that it needs and that were not given."""
    family, count = given.get("family"), given.pop("parameters", None)
    if family is not None and (
        not isinstance(family, str) or FAMILIES.get(family, (None,))[0] is not Transformer
    ):
        if count is not None:
            raise InputError(f"{source}: key 'model.parameters' is for transformers")
        return given, None
    needs = ["family", "layers", "hidden", "heads", "seq_len"]
    needs += [] if family == "vit" else ["vocab"]
    shaped = {"layers", "hidden", "heads"} <= given.keys()
    if count is None and not (shaped and any(key not in given for key in needs)):
        return given, None
    from .likely_models import complete, parameters_of

    allowed = {each.name for each in fields(Transformer)}
    known = {key: value for key, value in given.items() if key in allowed}
    _check_values(known, source)
    try:
        keys, guess = complete(known, None if count is None else parameters_of(count))
    except InputError as error:
        raise InputError(f"{source}: [model]: {error}") from error
    return {**keys, **given}, guess
