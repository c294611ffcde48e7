"""Tables of an experiment, profile of its framework → the tables with the keys that were blank.

Entries of the profile are gone through in their order; each sees what those before it have set
(`mpisim.experiment.profile_conditions`). What the user writes is never changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..base.errors import InputError
from ..base.frozen import frozen
from .models import Model
from .plan_keys import set_key
from .profile_conditions import MAY_HOLD_BY, keys_looked_at, may_hold, plan_holds
from .profiles import NEWEST, NO_FRAMEWORK, Entry, chosen_profile, common_practice
from .traced import Traced

__all__ = ["Filler", "ProfileKey", "filled"]


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

    Raises
    ------
    InputError
        If ``framework.name`` or ``framework.version`` is not known.
    """
    return Filler(tables, model, source, with_model=with_model).filled(tables)


class Filler:
    """What a framework's profile adds to experiments that differ in ``[plan]`` alone.

    Entries that version, recipe, model or GPU rule out are looked at once, for all of them.

    Parameters
    ----------
    tables, model, source, with_model
        As for `filled`, of one of the experiments.

    Raises
    ------
    InputError
        As `filled`.
    """

    def __init__(
        self,
        tables: Mapping[str, Any],
        model: Model | Traced,
        source: str,
        *,
        with_model: bool = True,
    ) -> None:
        self._entries: list[tuple[Entry, dict[str, Any]]] = []
        self._may_change = False
        if isinstance(model, Traced):
            return
        self._model = model
        chosen = tables.get("framework", {})
        if not isinstance(chosen, dict):
            return  # which is refused where it is read
        name = chosen.get("name")
        if name == NO_FRAMEWORK:
            return
        if name is not None and not isinstance(name, str):
            raise InputError(
                f"{source}: key 'framework.name' is {name!r}; it must be a text in quotes"
            )
        profile, version = common_practice(), NEWEST
        try:
            if name is not None:
                profile, version = chosen_profile(chosen, source)
        except InputError as error:
            key = "" if str(error).startswith("framework.version") else "key 'framework.name': "
            raise InputError(f"{source}: {key}{error}") from error
        recipe = chosen.get("recipe", "none") == "performance"
        set_keys = [key for _, values in profile.entries for key in values]
        self._may_change = any(key.startswith(MAY_HOLD_BY) for key in set_keys)
        for entry, values in profile.entries:
            if (entry.recipe and not recipe) or not entry.holds_for(version):
                continue
            if self._may_change or may_hold(entry.where, tables, model):
                own = {k: v for k, v in values.items() if with_model or not k.startswith("model.")}
                self._entries.append((entry, own))

    @property
    def looks_at(self) -> frozenset[str]:
        """Keys of ``[plan]``, sub-tables as a whole, by whose values entries hold or not."""
        return frozenset[str]().union(*(keys_looked_at(each.where) for each, _ in self._entries))

    def filled(self, tables: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, ProfileKey]]:
        """Tables of one of the experiments → the tables and keys that `filled` returns."""
        found: dict[str, Any] = dict(tables)
        set_by: dict[str, ProfileKey] = {}
        if not isinstance(tables.get("plan", {}), dict):
            return found, set_by  # which is refused where it is read
        for entry, values in self._entries:
            if self._may_change and not may_hold(entry.where, found, self._model):
                continue
            if not plan_holds(entry.where, found, self._model):
                continue
            for key, value in values.items():
                if key in set_by or not _has(tables, key):
                    set_key(found, key.split("."), value)
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
