"""Name of a framework → its profile: what it sets in experiments, by version.

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

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from ..base.errors import InputError
from ..base.frozen import frozen
from ..base.presets import SUFFIX, find_file, normalized_name, packaged, packaged_folder
from ..base.schema import build
from ..data import names
from .plan_keys import key_path
from .profile_conditions import COMPARISON, COMPARISONS, Where, check_conditions

__all__ = [
    "NEWEST",
    "NO_FRAMEWORK",
    "Entry",
    "Profile",
    "chosen_profile",
    "common_practice",
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

Version = tuple[int, ...]

NEWEST: Version = (10**9,)
"""Stands for a version that is not given."""

PLATFORM = "pytorch"
"""Alias of the profile of plain PyTorch, which other frameworks stand on."""

AMBIGUOUS = frozenset({"lightning"})
"""Programs whose names stand for other things too in a text, such as Lightning Attention."""

FIRST_YEAR = 20
"""What versions that are dates begin with, at least: ``23.09``, ``2020-10``."""

CENTURY, MONTHS = 2000, 12

VERSION = r"\d[\w.-]*"
"""A version in a text, as of `Profile.versions`."""


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

    def holds_for(self, version: Version) -> bool:
        """Version as numbers → whether it is one of `versions`."""
        return all(compare(version, limit) for compare, limit in _conditions(self.versions))


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
    programs : tuple of str
        Programs that train with it and have versions of their own.
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
    programs: tuple[str, ...]
    entries: tuple[tuple[Entry, dict[str, Any]], ...]
    by_date: bool
    releases: Mapping[str, str]
    own_kernels: bool = False
    models: tuple[str, ...] = ()
    parallel: tuple[str, ...] = ()

    @property
    def has_recipe(self) -> bool:
        """Whether it publishes recipes for performance, which set more than its defaults."""
        return any(entry.recipe for entry, _ in self.entries)

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
class _Head:
    """Keys of a file besides its entries."""

    title: str
    versions: str
    url: str
    version_form: Literal["calendar", "semantic"] = "semantic"
    host: str = ""
    aliases: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    releases: dict[str, str] = field(default_factory=dict)
    own_kernels: bool = False
    models: tuple[Literal["transformer", "cnn", "dlrm"], ...] = ()
    parallel: tuple[Literal["tp", "pp", "cp", "ep", "dp"], ...] = ()


def profile_of(name: str, source: str) -> Profile:
    """``framework.name`` of an experiment → profile of that framework.

    Parameters
    ----------
    name : str
        Name, alias, or path of a framework's file relative to the experiment.
    source : str
        The experiment's file.

    Returns
    -------
    Profile

    Raises
    ------
    InputError
        As of `find_profile`.
    """
    return find_profile(str(Path(source).parent / name) if name.endswith(SUFFIX) else name)


def chosen_profile(chosen: Mapping[str, Any], source: str) -> tuple[Profile, Version]:
    """Table ``[framework]`` → profile of the framework, and its version as numbers.

    Parameters
    ----------
    chosen : mapping
        With ``name``.
    source : str
        The experiment's file.

    Returns
    -------
    profile : Profile
    version : tuple of int
        The newest if the table names none.

    Raises
    ------
    InputError
        As of `find_profile` and `Profile.version_of`; if the version of a program is older than
        all of the framework that it trains with.
    """
    name, given = chosen["name"], str(chosen.get("version", ""))
    profile = profile_of(name, source)
    version = profile.version_of(given) or NEWEST
    if given and normalized_name(name) in profile.programs and profile.is_older(given):
        raise InputError(
            f"framework.version is {given!r}; {name} trains with {profile.title}, whose version is "
            f"meant here: {profile.versions}"
        )
    return profile, version


def find_profile(name: str) -> Profile:
    """Name, alias or path of a framework's file, or a program that uses it → profile.

    Parameters
    ----------
    name : str

    Returns
    -------
    Profile

    Raises
    ------
    InputError
        If there is none of that name, or the file does not describe a framework.
    """
    return _profile(name)


@cache
def common_practice() -> Profile:
    """Return the profile of common practice, used where no framework is named."""
    return _built("", packaged(PRACTICE_FILE), PRACTICE_FILE)


def profiles() -> Iterator[Profile]:
    """Yield the profiles that come with mpisim, in the order of their names."""
    for name in names(FOLDER):
        yield find_profile(name)


def named_in(text: str) -> tuple[Profile, str] | None:
    """Text that names a framework → its profile, and the version that the text tells.

    Names, titles and aliases count as whole words; where there are none, so do programs, whose
    versions are no framework's ("Lightning" alone is also the name of other things). The first
    framework or program in the text is the one that ran; those after it are what it is built on
    ("NeMo/Megatron-Core"). Of names that begin at one place the longest is meant ("NeMo AutoModel"
    is not NeMo). PyTorch is what all are built on, wherever it is named ("PyTorch 2.4 (FSDP)");
    its version is that of its own parts.

    Parameters
    ----------
    text : str
        As publications describe their software.

    Returns
    -------
    (Profile, str) or None
        The version is empty where the text tells none; None if no framework is named.
    """
    found = [
        (name != PLATFORM, -match.start(), len(name), profile.name, match[1] or "")
        for profile in profiles()
        for name in (profile.name, profile.title, *profile.aliases)
        if (match := _naming(name).search(text))
    ]
    if not found:
        programs = [
            (-match.start(), len(name), name)
            for name in _programs()
            if name not in AMBIGUOUS and (match := _naming(name).search(text))
        ]
        return (find_profile(max(programs)[2]), "") if programs else None
    *_, name, version = max(found)
    profile = find_profile(name)
    if not version and any(each.startswith(f"{PLATFORM}-") for each in profile.aliases):
        below = _naming(PLATFORM).search(text)
        version = below[1] or "" if below else ""
    return profile, version


@cache
def _naming(name: str) -> re.Pattern[str]:
    """Name of a framework → what finds it in a text as whole words, and the version behind it."""
    words = re.escape(name).replace(r"\-", "[ -]")
    return re.compile(rf"(?<![\w-]){words}(?:[ -]v?(\d+(?:\.\d+)+))?(?![\w-])", re.IGNORECASE)


@cache
def _programs() -> dict[str, str]:
    """Return programs that train with a framework, and the name of its profile."""
    tables = packaged_folder(FOLDER)
    return {each: name for name in tables for each in tables[name].get("programs", ())}


@cache
def _profile(name: str) -> Profile:
    preset = find_file(_programs().get(normalized_name(name), name), FOLDER, "framework")
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
            _conditions(entry.versions)
            check_conditions(entry.where)
        except InputError as error:
            raise InputError(f"{source}: [{where}] {error}") from error
        entries.append((entry, {".".join(key_path(k.split("."))): v for k, v in values.items()}))
    return Profile(
        name, head.title, head.versions, head.url, head.host or name, head.aliases,
        head.programs, tuple(entries), head.version_form == "calendar",
        MappingProxyType(dict(head.releases)), head.own_kernels, head.models, head.parallel,
    )  # fmt: skip


# --- versions -------------------------------------------------------------------------------------


def _version(text: str, key: str = "version") -> Version:
    """``"25.07"`` → (25, 7); empty → ()."""
    if not text:
        return ()
    numbers = re.match(r"[a-zA-Z]*(\d+(?:[.-]\d+)*)", text)
    if numbers is None:
        raise InputError(f'{key} is {text!r}; it must begin with numbers, as "25.07" or "0.12.1"')
    return tuple(map(int, re.split(r"[.-]", numbers[1])))


@cache
def _conditions(versions: str) -> tuple[tuple[Callable[[Any, Any], bool], Version], ...]:
    """``">=24.03,<25.04"`` → comparisons, all of which must hold, and with what."""
    found = []
    for each in filter(None, (part.strip() for part in versions.split(","))):
        match = COMPARISON.fullmatch(each)
        if match is None:
            raise InputError(f"versions is {versions!r}; it must be as '>=24.03,<25.04'")
        found.append((COMPARISONS[match[1]], _version(match[2])))
    return tuple(found)
