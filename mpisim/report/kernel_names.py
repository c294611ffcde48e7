"""Names of kernels short enough for a table, those that differ still different.

C++ names are long, and templates of one kernel differ somewhere in the middle. What is cut first
says least: the return type, namespaces, the parameters. What is cut then lies between the parts in
which names differ.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache

from ..base.text import one_line

__all__ = ["short_names"]

_NAMESPACES = re.compile(r"(?<![\w>)])(?:(?:\w+|\(anonymous namespace\)|<unnamed>)::)+(?=\w)")
_RETURNS = re.compile(r"^(?:void|__global__|static) ")
_TOKEN = re.compile(r"\w+|::|.", re.DOTALL)
_CUT = "…"


def short_names(names: Sequence[str], width: int) -> list[str]:
    """Return names of at most so many characters each; names that differ stay different.

    Parameters
    ----------
    names : sequence of str
    width : int
        12 or more.

    Examples
    --------
    >>> short_names(["void at::native::add<float>(int)", "void at::native::add<half>(int)"], 16)
    ['add<float>(int)', 'add<half>(int)']
    """
    lines = [one_line(name) for name in names]
    fitting = _fitting(list(dict.fromkeys(lines)), max(width, 12))
    return [fitting[line] for line in lines]


def _fitting(lines: Sequence[str], width: int) -> dict[str, str]:
    """Shorten distinct names in the first way that leaves them distinct."""
    found = {line: line for line in lines if len(line) <= width}
    taken = set(found.values())
    for way in (_plain, _without_parameters):
        by_short: dict[str, list[str]] = {}
        for line in lines:
            if line not in found:
                by_short.setdefault(way(line), []).append(line)
        for short, those in by_short.items():
            if len(those) == 1 and len(short) <= width and short not in taken:
                found[those[0]] = short
                taken.add(short)
    rest = [line for line in lines if line not in found]
    tokens = {line: _TOKEN.findall(_plain(line)) for line in rest}
    for line in rest:
        others = (tokens[other] for other in rest if other != line)
        short = _elided(tokens[line], others, width)
        number = 1
        while short in taken:  # they differ in more places than there is room for
            number += 1
            mark = f"{_CUT}#{number}"
            short = short.partition(f"{_CUT}#")[0][: width - len(mark)] + mark
        found[line] = short
        taken.add(short)
    return found


@cache
def _plain(name: str) -> str:
    """Leave out the return type and namespaces."""
    return _NAMESPACES.sub("", _RETURNS.sub("", name))


@cache
def _without_parameters(name: str) -> str:
    """Leave out what is in the last parentheses, too."""
    plain = _plain(name)
    if not plain.endswith(")"):
        return plain
    depth = 0
    for at in range(len(plain) - 1, -1, -1):
        depth += (plain[at] == ")") - (plain[at] == "(")
        if not depth:
            return plain[:at] or plain
    return plain


def _elided(own: Sequence[str], others: Iterable[Sequence[str]], width: int) -> str:
    """Keep the tokens in which a name differs from others, then as many from its begin as fit."""
    kept: set[int] = set()
    for other in others:
        same = 0
        for a, b in zip(own, other, strict=False):
            if a != b:
                break
            same += 1
        kept.add(min(same, len(own) - 1))
    # The nearest names differ last, and are distinguished by nothing else: those tokens come first.
    chosen: set[int] = set()
    for token in [*sorted(kept, reverse=True), *range(len(own))]:
        if len(_joined(own, chosen | {token})) > width:
            if token not in kept:
                break
            continue
        chosen.add(token)
    if not chosen:
        return "".join(own)[: width - 1] + _CUT
    text = _joined(own, chosen)
    return text if 0 in chosen else own[0][: width - len(text)] + text


def _joined(tokens: Sequence[str], chosen: set[int]) -> str:
    """Put chosen tokens together, with a mark for what was left out between them."""
    text, last = "", -1
    for token in sorted(chosen):
        text += (_CUT if token > last + 1 else "") + tokens[token]
        last = token
    return text + (_CUT if last < len(tokens) - 1 else "")
