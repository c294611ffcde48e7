"""Models that are not described in full → the likeliest published architecture that fits.

What is stated of a model counts: sizes, its number of parameters, a size in its name. What is not
stated (inner width, norm, activation, vocabulary, heads of keys and values, …) is taken from the
published model (``data/models``) that is nearest to it:

- with layers or a hidden size, the nearest in those sizes that are stated, and in the parameters
  that the completed model would have;
- with a number of parameters alone, one of that size: those that share a word of the name first,
  then those built like Llama, as most are since 2023; of several the one with the middle number of
  FLOPs. Where none has that size, layers are added to
  or taken from the nearest.

Others that fit nearly as well say how far the answer may be off: the error of a guess is the spread
of the FLOPs a token takes over them.
"""

from __future__ import annotations

import difflib
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, NamedTuple

from ..base.errors import InputError
from ..base.frozen import frozen
from ..base.presets import normalized_name
from . import model_counts
from .model_presets import ModelPreset, model_presets
from .models import FAMILIES, Transformer

__all__ = ["Guess", "complete", "like_named", "parameters_of", "size_in_name"]

SUFFIXES = {"M": 1e6, "B": 1e9, "T": 1e12}

SIZE = re.compile(r"(?<![\w.])(?:(\d+)x)?(\d+(?:\.\d+)?)([mbt])(?![a-z0-9])", re.IGNORECASE)
"""``7B``, ``8x7B``, ``350M`` in a name."""

ACTIVE = re.compile(r"-a(\d+(?:\.\d+)?)b(?![a-z0-9])")
"""``A3B`` in a name: the parameters that a token passes."""

MIXTURE = re.compile(r"(?<![a-z])moe(?![a-z])")
"""In the name of a model with experts."""

MIN_NAME_SIMILARITY = 0.85
"""Likeness of two names (difflib) above which one is the other, misspelt."""

MISSPELT_SIZE_TOLERANCE = 0.1
"""Relative difference of sizes up to which that holds."""

LEAST_COUNT, MOST_COUNT = 1e6, 1e15
"""Numbers of parameters that a model may be told by."""

PARAMETERS = re.compile(r"(\d+(?:\.\d+)?(?:e\d+)?)\s*([mbt]?)", re.IGNORECASE)

SIZE_TOLERANCE = 0.15
"""Logarithm of a ratio: within it models have the size that a name says. Llama-2-7B has 6.74e9
parameters, Gemma-7B 8.5e9."""

LIKELY_MARGIN = 0.4
"""Of the distance between models: those as much farther than the nearest are as likely, nearly."""

COUNT_WEIGHT = 4.0
"""Of the number of parameters, where a size has 1: it depends on all that is not said."""

LEAST_COMPARED = 3
"""Candidates whose spread is the error, however much farther they are."""

VOCABULARY_WEIGHT = 0.3
"""Of the vocabulary, where other sizes have 1: models are retrained with another."""

LEAST_ERROR = 0.02
"""Of a guess on which all candidates agree."""

SIZES = (
    "layers",
    "hidden",
    "heads",
    "kv_heads",
    "ffn_hidden",
    "vocab",
    "experts",
    "topk",
    "moe_ffn_hidden",
)

KINDS = ("gpt", "llama", "moe")
"""Families among which is chosen where none is stated."""

WIDTH_MULTIPLE = 128
"""Widths that are completed are rounded to a multiple of this, as those of published models are."""

COMPARED_LENGTH = 4096
"""Tokens of a sequence at which candidates are compared."""


@frozen
class Guess:
    """What was not said of a model and was taken from a published one.

    Attributes
    ----------
    like : str
        Name of the published model.
    notes : tuple of str
        What was taken, lines for people.
    error : float
        Relative error of the FLOPs of a step that comes with it, one standard deviation.
    """

    like: str
    notes: tuple[str, ...]
    error: float


class _Candidate(NamedTuple):
    name: str
    keys: dict[str, Any]
    model: Transformer
    distance: float

    @property
    def work(self) -> float:
        """FLOPs of a sequence of `COMPARED_LENGTH` tokens."""
        return float(model_counts.model_flops(self.model, 1)) / self.model.seq_len


def parameters_of(value: object) -> float:
    """Number of parameters as a number or a text (``7e9``, ``"7e9"``, ``"7B"``) → float.

    Parameters
    ----------
    value : object
        As the file has it.

    Returns
    -------
    float
        1e6 to 1e15.

    Raises
    ------
    InputError
        If it is no such number.
    """
    count = math.nan
    if isinstance(value, str):
        found = PARAMETERS.fullmatch(value.strip())
        if found:
            count = float(found[1]) * SUFFIXES.get(found[2].upper(), 1)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        count = float(value)
    if not LEAST_COUNT <= count <= MOST_COUNT:
        raise InputError(
            f"parameters is {value!r}; it must be a number of parameters from 1e6 to 1e15, as "
            '7e9 or "7B"'
        )
    return count


def size_in_name(name: str) -> float | None:
    """Name of a model → number of parameters that its name tells.

    ``"Foo-7B"`` has 7e9, ``"Mixtral-like-8x7B"`` 8 × 7e9, which counts shared parts 8 times.

    Parameters
    ----------
    name : str

    Returns
    -------
    float or None
        None if the name tells none from 1e6 to 1e15.
    """
    found = SIZE.search(name.replace("_", "-"))
    if found is None:
        return None
    count = int(found[1] or 1) * float(found[2]) * SUFFIXES[found[3].upper()]
    return count if LEAST_COUNT <= count <= MOST_COUNT else None


def like_named(name: str, given: Mapping[str, Any]) -> tuple[dict[str, Any], Guess] | None:
    """Name that no published model has, keys that are given → all keys, and what was guessed.

    Parameters
    ----------
    name : str
        With a size: ``"Foo-7B"``, ``"Mixtral-like-8x7B"``, ``"Foo-30B-A3B"``, of which 3e9 are
        active.
    given : mapping
        Keys of ``[model]``; with layers and a hidden size they count, and the name says the number
        of parameters.

    Returns
    -------
    tuple or None
        None if the name says no size, or is nearly that of a published model: a slip.
    """
    count = size_in_name(name)
    if count is None or _is_slip(name):
        return None
    label = name.replace("_", "-").casefold()
    times, active = SIZE.search(label)[1], ACTIVE.search(label)  # type: ignore[index]
    mixed = {"family": "moe"} if times or active or MIXTURE.search(label) else {}
    if times:  # what experts share counts once in truth
        whole = SIZE.search(label)[0]  # type: ignore[index]
        equal = [preset for other, preset in model_presets().items() if whole in other]
        shared = 0.85 if not equal else None
        count = count * shared if shared else _count_of(equal[0].table)
    known = {**mixed, **given}
    if "layers" in known and "hidden" in known:
        keys, guess = complete(known, count)
        return keys, Guess(guess.like, (f"{name!r}: {guess.notes[0]}",), guess.error)
    pool = list(_pool(known))
    akin = _sharing(label, pool)
    if active:
        as_active = [each for each in pool if _has_active(each[1], float(active[1]) * 1e9)]
        akin = [as_active] if as_active else akin
    # A family's name and a size that only its model with experts has: "DeepSeek V3 671B".
    akin_mixed = [] if mixed else _sharing(label, list(_pool({**known, "family": "moe"})))
    keys, guess = _of_size(count, akin, akin_mixed, pool)
    return keys, Guess(guess.like, (f"model {name!r}: {guess.notes[0]}",), guess.error)


def _sharing(name: str, pool: list[tuple[str, ModelPreset]]) -> list[list[tuple[str, ModelPreset]]]:
    """Return the published models whose names share a word with one: groups, most shared first.

    A word has three letters in a row; then numbers and versions count, too: "Qwen3" is nearer to
    "qwen3-8b" than to "qwen2-7b".
    """
    words = {word for word in re.split(r"[^a-z]+", name) if len(word) > 2}
    parts = set(re.split(r"[^a-z0-9.]+", name))
    groups: dict[int, list[tuple[str, ModelPreset]]] = {}
    for each in pool:
        if words & set(re.split(r"[^a-z]+", each[0])):
            shared = len(parts & set(re.split(r"[^a-z0-9.]+", each[0])))
            groups.setdefault(shared, []).append(each)
    return [groups[shared] for shared in sorted(groups, reverse=True)]


def _is_slip(name: str) -> bool:
    """Whether a name is nearly that of a published model, of the same version and size."""
    matcher = difflib.SequenceMatcher(a=normalized_name(name))
    *version, size = _numbers(name) or [0.0]
    for known in model_presets():
        matcher.set_seq2(known)
        *other, count = _numbers(known) or [0.0]
        if (
            matcher.ratio() > MIN_NAME_SIMILARITY
            and version == other
            and abs(size - count) <= MISSPELT_SIZE_TOLERANCE * count
        ):
            return True
    return False


def _numbers(name: str) -> list[float]:
    """Return the numbers in a name, in order: version, then size."""
    return [float(each) for each in re.findall(r"\d+(?:\.\d+)?", name)]


def _has_active(preset: ModelPreset, count: float) -> bool:
    active = model_counts.active_matrices(_model(preset.table))
    return abs(math.log(active / count)) <= 2 * SIZE_TOLERANCE


def complete(given: Mapping[str, Any], count: float | None) -> tuple[dict[str, Any], Guess]:
    """Keys of ``[model]`` that are stated, number of parameters → all keys, and what was guessed.

    Parameters
    ----------
    given : mapping
        Of a transformer; `family` need not be among them.
    count : float, optional
        Parameters of the model, if known.

    Returns
    -------
    keys : dict
        Those given among them.
    guess : Guess

    Raises
    ------
    InputError
        If nothing identifies a model, or no published one is of this kind.
    """
    pool = list(_pool(given))
    if not pool:
        raise InputError("no published model is of this kind: its sizes have to be given")
    if "layers" not in given and "hidden" not in given:
        if count is None:
            raise InputError("layers is missing, and so is parameters, the number of them")
        keys, guess = _of_size(count, [], [], pool)
        return {**keys, **given}, guess
    candidates, refusals = [], []
    for name, preset in pool:
        try:
            candidates.append(_candidate(name, preset, given, count))
        except InputError as error:
            refusals.append(str(error))
    if not candidates:
        ((why, _),) = Counter(refusals).most_common(1)
        raise InputError(f"no published model can be fitted to these sizes: {why}")
    candidates.sort(key=lambda each: each.distance)
    best = candidates[0]
    near = [
        each
        for rank, each in enumerate(candidates)
        if rank < LEAST_COMPARED or each.distance <= best.distance + LIKELY_MARGIN
    ]
    taken = [
        f"{key} = {best.keys[key]}"
        for key in ("family", "layers", *SIZES[1:], "seq_len", "norm", "activation")
        if key in best.keys and key not in given
    ]
    note = f"model: {', '.join(taken) or 'the rest'} as in {best.name}, the nearest published model"
    return best.keys, Guess(best.name, (note,), _spread(near))


# --- choosing -------------------------------------------------------------------------------------


def _pool(given: Mapping[str, Any]) -> Iterator[tuple[str, ModelPreset]]:
    """Published transformers of a kind: of the family that is stated, with experts if any are."""
    family = given.get("family")
    mixed = any(given.get(key) for key in ("experts", "moe_ffn_hidden", "topk"))
    hybrid = bool(given.get("pattern"))
    for name, preset in model_presets().items():
        table = preset.table
        if FAMILIES[table["family"]][0] is not Transformer:
            continue
        if table["family"] not in (KINDS if family is None else (family,)):
            continue
        if hybrid != bool(table.get("pattern")) or table.get("memory"):
            continue  # who has a hybrid or a Transformer-XL says so
        if family is None and mixed != bool(table.get("experts")):
            continue
        yield name, preset


def _of_size(
    count: float,
    akin: list[list[tuple[str, ModelPreset]]],
    akin_mixed: list[list[tuple[str, ModelPreset]]],
    pool: list[tuple[str, ModelPreset]],
) -> tuple[dict[str, Any], Guess]:
    """Return the likeliest of a number of parameters: those akin first, then akin with experts."""

    def measured(entries: list[tuple[str, ModelPreset]]) -> list[_Candidate]:
        found = []
        for name, preset in entries:
            keys = dict(preset.table)
            model = _model(keys)
            off = abs(math.log(model_counts.parameters(model) / count))
            found.append(_Candidate(name, keys, model, off))
        return found

    modern = [each for each in pool if each[1].table["family"] == "llama"]
    for entries in (*akin, *akin_mixed, modern, pool):
        fitting = [each for each in measured(entries) if each.distance <= SIZE_TOLERANCE]
        if fitting:
            fitting.sort(key=lambda each: (each.work, each.name))
            best = fitting[(len(fitting) - 1) // 2]
            rivals = entries if entries in akin_mixed else pool
            others = [each for each in measured(rivals) if each.distance <= SIZE_TOLERANCE]
            note = f"taken as {best.name}, of the published ones of {_billions(count)} parameters"
            return dict(best.keys), Guess(best.name, (note,), _spread(others))
    best = min(measured([*chain(*akin)] or pool), key=lambda each: (each.distance, each.name))
    keys = dict(best.keys)
    keys["layers"] = max(1, round(keys["layers"] * count / model_counts.parameters(best.model)))
    for key in ("pattern", "dense_layers"):
        if key in keys:
            keys[key] = keys[key] if key == "pattern" else min(keys[key], keys["layers"])
    scaled = _Candidate(best.name, keys, _model(keys), 0.0)
    note = f"taken as {best.name} with {keys['layers']} layers, for {_billions(count)} parameters"
    # How width and depth share the size is unknown: half of the way to the other extreme.
    error = max(LEAST_ERROR, min(0.3, 0.5 * best.distance))
    return scaled.keys, Guess(best.name, (note,), error)


def _billions(count: float) -> str:
    return f"{count / 1e9:,.3g}e9"


def _candidate(
    name: str, preset: ModelPreset, given: Mapping[str, Any], count: float | None
) -> _Candidate:
    """Return a published model in the sizes given; an InputError says why these do not go."""
    base = dict(preset.table)
    keys = _scaled(base, given, count)
    model, reference = _model(keys), _model(base)
    distance = 0.0
    for key in SIZES:
        if key in given:
            stated, published = _size(model, key), _size(reference, key)
            weight = VOCABULARY_WEIGHT if key == "vocab" else 1.0
            distance += weight * abs(math.log(max(1, stated) / max(1, published)))
    distance += sum(
        0.5
        for key, value in given.items()
        if key not in SIZES
        and key not in ("seq_len", "family")
        and getattr(reference, key) != value
    )
    if count is not None:
        distance += COUNT_WEIGHT * abs(math.log(model_counts.parameters(model) / count))
    return _Candidate(name, keys, model, distance)


def _scaled(
    base: Mapping[str, Any], given: Mapping[str, Any], count: float | None
) -> dict[str, Any]:
    """Return keys of a published model with those given, and others that go with these."""
    keys = {**base, **given}
    hidden, heads = keys["hidden"], base["heads"]
    if "heads" not in given and hidden != base["hidden"]:
        size = keys.get("head_size") or base["hidden"] // heads
        keys["heads"] = max(1, hidden // size)
        while "head_size" not in keys and hidden % keys["heads"]:
            keys["heads"] -= 1
    same = hidden == base["hidden"] and keys["heads"] == heads
    if "head_size" not in given and not same and not hidden % keys["heads"]:
        keys.pop("head_size", None)
    kv = base.get("kv_heads")
    if kv is not None and "kv_heads" not in given and keys["heads"] != heads:
        shared = heads // kv
        if not keys["heads"] % shared and kv == 1:
            keys["kv_heads"] = 1
        elif keys["heads"] % kv:
            keys["kv_heads"] = keys["heads"] // shared if not keys["heads"] % shared else 1
    for key in ("ffn_hidden", "moe_ffn_hidden", "shared_ffn_hidden"):
        if key in base and key not in given and hidden != base["hidden"]:
            width = base[key] * hidden / base["hidden"]
            keys[key] = max(1, round(width / WIDTH_MULTIPLE)) * WIDTH_MULTIPLE
    if keys.get("experts") and "topk" not in given:
        keys["topk"] = min(keys["experts"], keys.get("topk", 2))
    if "experts" in given and "expert_groups" not in given:
        keys.pop("expert_groups", None)
        keys.pop("topk_groups", None)
    if "layers" not in given and count is not None:
        one = _count_of({**keys, "layers": 1, "dense_layers": 0})
        each = _count_of({**keys, "layers": 2, "dense_layers": 0}) - one
        keys["layers"] = max(1, round((count - one) / each) + 1)
    if keys.get("dense_layers", 0) > keys["layers"]:
        keys["dense_layers"] = keys["layers"]
    return keys


def _count_of(keys: Mapping[str, Any]) -> int:
    return model_counts.parameters(_model(keys))


def _size(model: Transformer, key: str) -> int:
    """Return a size of a model, with what it has where the key is not given."""
    shown = {
        "kv_heads": model.kv,
        "ffn_hidden": model.ffn,
        "moe_ffn_hidden": model.expert_ffn,
    }
    return int(shown.get(key) or getattr(model, key))


def _model(keys: Mapping[str, Any]) -> Transformer:
    """Return the model of keys, at the length at which candidates are compared."""
    common = FAMILIES[keys["family"]][1]
    length = keys["seq_len"] if keys["family"] in ("vit", "t5") else COMPARED_LENGTH
    merged = {**common, **keys, "seq_len": length}
    merged.pop("predicted", None)
    merged.pop("example_length", None)  # of the sequences that are trained on, not of these
    return Transformer(**merged)


def _spread(candidates: list[_Candidate]) -> float:
    """Return the standard deviation of the logarithm of what candidates compute a token."""
    logs = [math.log(each.work) for each in candidates]
    mean = math.fsum(logs) / len(logs)
    variance = math.fsum((each - mean) ** 2 for each in logs) / len(logs)
    return max(LEAST_ERROR, math.sqrt(variance))
