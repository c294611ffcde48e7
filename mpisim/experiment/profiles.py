"""Name and version of a framework → the keys that an experiment leaves blank.

A profile is a file of ``data/frameworks``: what the framework does by its documentation and code,
by range of versions, each with its source. What the user writes counts; then the last entry of the
profile that holds; then the defaults of experiments.

    [framework]
    name = "nemo"
    version = "25.07"
    recipe = "performance"    # also what its published recipes for performance set

An entry holds for versions (``versions = ">=24.03,<25.04"``) and conditions on the experiment
(``where = { gpu = "hopper", tp = ">1" }``), which see what the entries before have set.

Where no framework is named, ``data/practice.toml`` takes the place of a profile: what frameworks of
today do by default for such a plan. ``name = "none"`` has neither.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from ..base.errors import InputError, one_of
from ..base.frozen import frozen
from ..base.presets import SUFFIX, find_file, packaged
from ..base.schema import build
from ..data import names
from ..kernels.gpu import Gpu, find_gpu
from ..topo import find_cluster
from .models import Cnn, Model, Transformer
from .plan_keys import key_path
from .traced import Traced

__all__ = [
    "NO_FRAMEWORK",
    "Entry",
    "Profile",
    "ProfileKey",
    "Where",
    "chosen_profile",
    "common_practice",
    "filled",
    "find_profile",
    "named_in",
    "profile_of",
    "profiles",
]

FOLDER = "frameworks"

PRACTICE_FILE = "practice.toml"
"""Stands for a profile where no framework is named."""

NO_FRAMEWORK = "none"
"""``framework.name`` of experiments that nothing is to be filled in of."""

STATES = 18
"""Bytes a parameter of weights, gradients and Adam's states where nothing is sharded
(huggingface.co/docs/transformers model_memory_anatomy)."""

Version = tuple[int, ...]

NEWEST: Version = (10**9,)
"""Stands for a version that is not given."""

FIRST_YEAR = 20
"""What versions that are dates begin with, at least: ``23.09``, ``2020-10``."""

CENTURY, MONTHS = 2000, 12

COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}

VERSION = r"\d[\w.-]*"
"""A version in a text, as of `Profile.versions`."""

_COMPARISON = re.compile(r"(>=|<=|>|<)\s*(\S+)")


@frozen
class Where:
    """What an experiment must be for an entry to hold; alternatives stand between ``|``.

    Attributes
    ----------
    gpu : str
        Names of ``mpisim list gpus``, or of their architectures (``"hopper"``).
    model : str
        What the name of the model's preset begins with.
    family : str
        ``"transformer"``, ``"cnn"`` or ``"dlrm"``.
    kind : str
        ``family`` of ``[model]``: ``"bert"``, ``"gpt"``.
    precision, recompute, fp8_scaling, kernels : str
        Main keys of these sub-tables, ``precision.fp8_scaling`` and ``framework.kernels``;
        ``recompute = "unset"``: neither the experiment nor an entry before says anything of
        recomputation.
    experts : bool, optional
        Whether the model has experts.
    sp : bool, optional
        Whether sequences are shared by tensor-parallel ranks.
    blocking : bool, optional
        Whether the CPU waits for each kernel it launches.
    style : str
        Whose rules data parallelism follows: ``framework.dp_style``, or what takes its place.
    replicas : bool, optional
        Whether data parallelism is the only one: tp, pp, cp and ep are 1.
    tp, pp, vpp, cp, ep, zero, hidden, seq_len, memory, gpus : str
        Numbers: ``"2|4"``, ``">1"``, ``">=1024"``; hidden, seq_len and memory are the model's.
    states : str
        The same: `STATES` of the whole model in percent of a GPU's memory; transformers.
    """

    gpu: str = ""
    model: str = ""
    family: str = ""
    kind: str = ""
    precision: str = ""
    recompute: str = ""
    fp8_scaling: str = ""
    kernels: str = ""
    experts: bool | None = None
    sp: bool | None = None
    blocking: bool | None = None
    style: str = ""
    replicas: bool | None = None
    tp: str = ""
    pp: str = ""
    vpp: str = ""
    cp: str = ""
    ep: str = ""
    zero: str = ""
    hidden: str = ""
    seq_len: str = ""
    memory: str = ""
    gpus: str = ""
    states: str = ""


@frozen
class Entry:
    """Keys that a framework sets, and when.

    Attributes
    ----------
    source : str
        Where that is documented, and what it says.
    versions : str
        As ``">=24.03,<25.04"``; all if empty.
    where : Where
    recipe : bool
        Whether only the framework's published recipes for performance do so.
    analogy : bool
        Whether it is inferred from similar software, not documented.
    """

    source: str
    versions: str = ""
    where: Where = field(default_factory=Where)
    recipe: bool = False
    analogy: bool = False


@frozen
class Profile:
    """A framework.

    Attributes
    ----------
    name : str
        Of the file.
    title : str
        How the framework calls itself.
    versions : str
        What is covered, as ``"24.03 to 25.11"``.
    url : str
    host : str
        Its name under ``[host]`` of step constants (`mpisim.prediction.step_constants`).
    aliases : tuple of str
    entries : tuple of (Entry, dict)
        In the order of the file, each with values by full key.
    by_date : bool
        Whether its versions are dates, as ``25.04`` or ``2025-06``.
    releases : mapping of str to str
        Where they are: releases that have numbers, by their first two, and the date of each.
    own_kernels : bool
        Whether norms, softmax and elementwise kernels are its own: not PyTorch's or NVIDIA's, whose
        times the kernel models were fitted to.
    models : tuple of str
        Families of models that it trains (transformer, cnn, dlrm); any if empty.
    parallel : tuple of str
        Kinds of parallelism that it has (tp, pp, cp, ep, dp); all if empty.
    """

    name: str
    title: str
    versions: str
    url: str
    host: str
    aliases: tuple[str, ...]
    entries: tuple[tuple[Entry, dict[str, Any]], ...]
    by_date: bool
    releases: Mapping[str, str]
    own_kernels: bool = False
    models: tuple[str, ...] = ()
    parallel: tuple[str, ...] = ()

    def version_of(self, text: str) -> Version:
        """Version as a user writes it → its numbers, those of its date where versions are dates.

        Raises
        ------
        InputError
            If it does not begin with numbers, or is a release of which no date is known.
        """
        found = _version(text, "framework.version")
        if not self.by_date or not found:
            return found
        if found[0] >= FIRST_YEAR:  # 25.04 and 2025-04 are one
            if not all(1 <= month <= MONTHS for month in found[1:2]):
                raise InputError(
                    f"framework.version is {text!r}; versions of {self.title} are dates here, with "
                    f"months from 1 to {MONTHS}: {self.versions}"
                )
            century = CENTURY * (self._covered[0][0] >= CENTURY) if self._covered else 0
            return (found[0] % CENTURY + century, *found[1:])
        release = ".".join(map(str, (*found, 0)[:2]))
        if release in self.releases:
            return _version(self.releases[release])
        known = ", ".join(f"{each} ({date})" for each, date in self.releases.items())
        raise InputError(
            f"framework.version is {text!r}; versions of {self.title} are dates here: "
            f"{self.versions}" + (f"; releases: {known}" if known else "")
        )

    def is_newer(self, version: str) -> bool:
        """Whether a version came after the last that is covered, where the file names one."""
        covered = self._covered
        return bool(covered) and self.version_of(version) > max(covered)

    def is_older(self, version: str) -> bool:
        """Whether a version came before the first that is covered, where the file names one."""
        covered, parts = self._covered, self.version_of(version)
        return bool(covered) and parts < min(covered)[: len(parts)]

    def stands_for(self, version: str) -> str:
        """Version → that whose behaviour is taken for it, as the file writes it; empty if itself.

        Entries of the last version that is covered hold for those after it, too, entries of the
        first for those before it.
        """
        texts = re.findall(VERSION, self.versions)
        if self.is_newer(version):
            return str(max(texts, key=_version))
        return str(min(texts, key=_version)) if self.is_older(version) else ""

    @property
    def _covered(self) -> list[Version]:
        """Versions that the file names."""
        return [_version(each) for each in re.findall(VERSION, self.versions)]


@frozen
class ProfileKey:
    """A key that a profile has set.

    Attributes
    ----------
    value : object
    source : str
        Why.
    analogy : bool
        Whether it is inferred from similar software.
    """

    value: object
    source: str
    analogy: bool = False


@frozen
class _Head:
    """Keys of a file besides its entries."""

    title: str
    versions: str
    url: str
    version_form: Literal["calendar", "semantic"] = "semantic"
    host: str = ""
    aliases: tuple[str, ...] = ()
    releases: dict[str, str] = field(default_factory=dict)
    own_kernels: bool = False
    models: tuple[Literal["transformer", "cnn", "dlrm"], ...] = ()
    parallel: tuple[Literal["tp", "pp", "cp", "ep", "dp"], ...] = ()


def profile_of(name: str, source: str) -> Profile:
    """``framework.name`` of an experiment, its file → the profile; errors as of `find_profile`."""
    return find_profile(str(Path(source).parent / name) if name.endswith(SUFFIX) else name)


def chosen_profile(chosen: Mapping[str, Any], source: str) -> tuple[Profile, Version]:
    """Table ``[framework]`` with a name, its file → the profile, and the version as numbers.

    Raises
    ------
    InputError
        As of `find_profile` and `Profile.version_of`.
    """
    profile = profile_of(chosen["name"], source)
    return profile, profile.version_of(str(chosen.get("version", ""))) or NEWEST


def find_profile(name: str) -> Profile:
    """Name, alias or path of a framework's file → its profile.

    Raises
    ------
    InputError
        If there is none of that name, or the file is not a framework's.
    """
    return _profile(name)


@cache
def common_practice() -> Profile:
    """Return what stands for a profile where no framework is named."""
    return _built("", packaged(PRACTICE_FILE), PRACTICE_FILE)


def profiles() -> Iterator[Profile]:
    """Yield the profiles that come with mpisim, in the order of their names."""
    for name in names(FOLDER):
        yield find_profile(name)


def named_in(text: str) -> tuple[Profile, str] | None:
    """Text that names a framework, with its version or without → its profile, and the version.

    Names, titles and aliases count as whole words. The first in the text is the one that ran, what
    follows is what it stands on ("NeMo/Megatron-Core"); of those that begin there, the longest is
    meant ("NeMo AutoModel" is not NeMo).
    """
    found = [
        (-match.start(), len(name), profile.name, match[1] or "")
        for profile in profiles()
        for name in (profile.name, profile.title, *profile.aliases)
        if (match := _naming(name).search(text))
    ]
    if not found:
        return None
    *_, name, version = max(found)
    return find_profile(name), version


@cache
def _naming(name: str) -> re.Pattern[str]:
    """Name of a framework → what finds it in a text as whole words, and the version behind it."""
    words = re.escape(name).replace(r"\-", "[ -]")
    return re.compile(rf"(?<![\w-]){words}(?:[ -]v?(\d+(?:\.\d+)+))?(?![\w-])", re.IGNORECASE)


@cache
def _profile(name: str) -> Profile:
    preset = find_file(name, FOLDER, "framework")
    return _built(preset.name, preset.table, preset.source)


def _built(name: str, contents: Mapping[str, Any], source: str) -> Profile:
    """Name of a profile, contents of its file, what to call that in messages → the profile."""
    table = dict(contents)
    defaults = table.pop("defaults", [])
    head = build(_Head, table, source, listed="docs/frameworks.md explains them")
    if not isinstance(defaults, list) or not all(isinstance(each, dict) for each in defaults):
        raise InputError(f"{source}: key 'defaults' must be tables, [[defaults]]")
    entries = []
    for number, given in enumerate(defaults):
        rest = dict(given)
        values = rest.pop("set", None)
        where = f"defaults[{number}]"
        if not isinstance(values, dict) or not values:
            raise InputError(f"{source}: key '{where}.set' must be a table of keys with values")
        entry = build(Entry, rest, source, where)
        try:
            _check_conditions(entry)
        except InputError as error:
            raise InputError(f"{source}: [{where}] {error}") from error
        entries.append((entry, {".".join(key_path(k.split("."))): v for k, v in values.items()}))
    return Profile(
        name, head.title, head.versions, head.url, head.host or name, head.aliases,
        tuple(entries), head.version_form == "calendar", MappingProxyType(dict(head.releases)),
        head.own_kernels, head.models, head.parallel,
    )  # fmt: skip


def filled(
    tables: Mapping[str, Any], model: Model | Traced, source: str, *, with_model: bool = True
) -> tuple[dict[str, Any], dict[str, ProfileKey]]:
    """Tables of an experiment, its model → the tables with what its framework's profile adds.

    Where no framework is named, that is what is common practice, which never touches the model.

    Parameters
    ----------
    tables : mapping
        Sub-tables are tables (`mpisim.experiment.plan_keys.with_sub_tables`).
    model : Model or Traced
        As ``[model]`` says it. Nothing is filled in for what was traced.
    source : str
        The file, for messages.
    with_model : bool
        Whether keys of ``[model]`` may be set, too: it does not have all of them already.

    Returns
    -------
    tables : dict
    keys : dict of str to ProfileKey
        What the profile has set, by full key.
    """
    if not all(isinstance(tables.get(key, {}), dict) for key in ("plan", "framework")):
        return dict(tables), {}  # which is refused where these are read
    chosen = tables.get("framework", {})
    name = chosen.get("name")
    if name == NO_FRAMEWORK or isinstance(model, Traced):
        return dict(tables), {}
    if name is not None and not isinstance(name, str):
        raise InputError(f"{source}: key 'framework.name' is {name!r}; it must be a text in quotes")
    profile, version = common_practice(), NEWEST
    try:
        if name is not None:
            profile, version = chosen_profile(chosen, source)
    except InputError as error:
        key = "" if str(error).startswith("framework.version") else "key 'framework.name': "
        raise InputError(f"{source}: {key}{error}") from error
    recipe = chosen.get("recipe", "none") == "performance"
    found: dict[str, Any] = {
        key: dict(value) if isinstance(value, dict) else value for key, value in tables.items()
    }
    set_by: dict[str, ProfileKey] = {}
    for entry, values in profile.entries:
        if (entry.recipe and not recipe) or not _holds_version(entry.versions, version):
            continue
        if not _holds(entry.where, found, model):
            continue
        for key, value in values.items():
            if not with_model and key.startswith("model."):
                continue
            if key in set_by or not _has(tables, key):
                _put(found, key, value)
                set_by[key] = ProfileKey(value, entry.source, entry.analogy)
    return found, set_by


def _has(tables: Mapping[str, Any], key: str) -> bool:
    """Whether the user has given a key."""
    within: Any = tables
    for name in key.split("."):
        if not isinstance(within, dict) or name not in within:
            return False
        within = within[name]
    return True


def _put(tables: dict[str, Any], key: str, value: object) -> None:
    """Set a key of tables, which are copied on the way: others share them."""
    *path, last = key.split(".")
    within = tables
    for name in path:
        inner = within.get(name)
        within[name] = dict(inner) if isinstance(inner, dict) else {}
        within = within[name]
    within[last] = value


# --- versions -------------------------------------------------------------------------------------


def _version(text: str, key: str = "version") -> Version:
    """``"25.07"`` → (25, 7); empty → ()."""
    if not text:
        return ()
    numbers = re.match(r"[a-zA-Z]*(\d+(?:[.-]\d+)*)", text)
    if numbers is None:
        raise InputError(f'{key} is {text!r}; it must begin with numbers, as "25.07" or "0.12.1"')
    return tuple(map(int, re.split(r"[.-]", numbers[1])))


def _conditions(versions: str) -> Iterator[tuple[Callable[[Any, Any], bool], Version]]:
    for each in filter(None, (part.strip() for part in versions.split(","))):
        match = _COMPARISON.fullmatch(each)
        if match is None:
            raise InputError(f"versions is {versions!r}; it must be as '>=24.03,<25.04'")
        yield COMPARISONS[match[1]], _version(match[2])


def _holds_version(versions: str, version: Version) -> bool:
    return all(compare(version, limit) for compare, limit in _conditions(versions))


# --- conditions -----------------------------------------------------------------------------------


def _check_conditions(entry: Entry) -> None:
    """Refuse what can never be read."""
    list(_conditions(entry.versions))
    for name in NUMBERS:
        _number_holds(getattr(entry.where, name), 1)
    families = ("transformer", "cnn", "dlrm")
    for each in filter(None, entry.where.family.split("|")):
        if each not in families:
            raise InputError(f"where.family is {each!r}{one_of(each, families)}")


OF_MODELS = ("hidden", "seq_len", "memory")

NUMBERS = ("tp", "pp", "vpp", "cp", "ep", "zero", *OF_MODELS, "gpus", "states")


def _holds(where: Where, tables: Mapping[str, Any], model: Model) -> bool:
    """Whether an experiment is as `where` says."""
    plan = _table(tables, "plan")
    experts = isinstance(model, Transformer) and model.experts > 0
    if where.family and _family(model) not in where.family.split("|"):
        return False
    if where.kind and getattr(model, "family", "") not in where.kind.split("|"):
        return False
    if where.experts is not None and where.experts != experts:
        return False
    if where.sp is not None and where.sp != plan.get("sp", plan.get("tp", 1) != 1):
        return False
    blocking = _table(tables, "framework").get("launch_blocking", False)
    if where.blocking is not None and where.blocking != blocking:
        return False
    if where.model and not _is_model(where.model, tables):
        return False
    if where.gpu and not _is_gpu(where.gpu, tables):
        return False
    precision, recompute = _table(plan, "precision"), _table(plan, "recompute")
    words = {
        "precision": precision.get("products", "bf16"),
        "recompute": recompute.get("granularity", "unset"),
        "fp8_scaling": precision.get("fp8_scaling", "delayed"),
        "kernels": _table(tables, "framework").get("kernels", "flash"),
        "style": _style(tables, model),
    }
    if any(
        getattr(where, name) and value not in getattr(where, name).split("|")
        for name, value in words.items()
    ):
        return False
    numbers = {name: plan.get(name, 1) for name in ("tp", "pp", "vpp", "cp", "ep")}
    if where.replicas is not None:
        axes = (numbers["tp"], numbers["pp"], numbers["cp"], numbers["ep"])
        if where.replicas != (axes == (1, 1, 1, 1)):
            return False
    numbers["zero"] = plan.get("zero", 0)
    numbers |= {name: getattr(model, name, 0) for name in OF_MODELS}
    if where.gpus:
        numbers["gpus"] = _gpus(tables)
    if where.states:
        numbers["states"] = _states(tables, model)
    return all(_number_holds(getattr(where, name), value) for name, value in numbers.items())


def _family(model: Model) -> str:
    if isinstance(model, Transformer):
        return "transformer"
    return "cnn" if isinstance(model, Cnn) else "dlrm"


def _is_model(texts: str, tables: Mapping[str, Any]) -> bool:
    """Whether the name of the model's preset begins as one of the texts says."""
    preset = tables.get("model", {}).get("preset")
    if preset is None:
        return False
    from .model_presets import preset_name

    try:
        name = preset_name(preset)
    except InputError:  # a name with a size, which stands for a published model
        from .likely_models import like_named

        found = like_named(preset, {})
        if found is None:
            return False
        name = found[1].like
    return any(name.startswith(each) for each in texts.split("|"))


def _style(tables: Mapping[str, Any], model: Model) -> str:
    """Return whose rules data parallelism follows, as `mpisim.experiment.plan.Plan.style`."""
    given = _table(tables, "framework").get("dp_style")
    if given is not None:
        return str(given)
    if _table(tables, "plan").get("zero", 0) in (2, 3):
        return "fsdp"
    return "megatron" if isinstance(model, Transformer) else "ddp"


def _states(tables: Mapping[str, Any], model: Model) -> int | None:
    """Return `STATES` of a transformer in percent of a GPU's memory; None for other models."""
    if not isinstance(model, Transformer):
        return None
    from .model_counts import parameters

    _, gpu = _named_gpu(tables)
    return None if gpu is None else math.ceil(100 * STATES * parameters(model) / gpu.memory.si)


def _named_gpu(tables: Mapping[str, Any]) -> tuple[str, Gpu | None]:
    """Return the experiment's GPU by the name it has there; None if there is none of that name."""
    named, cluster = _table(tables, "kernels").get("gpu"), _table(tables, "cluster")
    try:
        if named is None:
            named = find_cluster(str(cluster.get("preset", ""))).gpu
        return str(named), find_gpu(str(named))
    except InputError:  # which is refused where these tables are read
        return str(named), None


def _table(tables: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return a table; an empty one for what is none, which is refused where it is read."""
    found = tables.get(key)
    return found if isinstance(found, dict) else {}


def _is_gpu(texts: str, tables: Mapping[str, Any]) -> bool:
    """Whether the experiment's GPU, or its architecture, is one of those named."""
    named, gpu = _named_gpu(tables)
    return gpu is not None and any(each in (named, gpu.family) for each in texts.split("|"))


def _gpus(tables: Mapping[str, Any]) -> int:
    cluster = _table(tables, "cluster")
    per_node = cluster.get("gpus_per_node") or find_cluster(cluster["preset"]).gpus_per_node
    return int(cluster.get("gpus") or cluster.get("nodes", 1) * per_node)


def _number_holds(text: str, value: object) -> bool:
    """Whether a number is as ``"2|4"`` or ``">1"`` says; any if the text is empty."""
    if not text:
        return True
    if not isinstance(value, int):  # bad input, which is refused where the plan is built
        return False
    match = _COMPARISON.fullmatch(text)
    try:
        if match is not None:
            return COMPARISONS[match[1]](value, int(match[2]))
        return value in [int(each) for each in text.split("|")]
    except ValueError as error:
        raise InputError(f"where: {text!r} is no number; allowed: '2|4', '>1'") from error
