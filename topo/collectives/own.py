"""A user's own platform: where its measurements were taken, and what is fitted to them.

Only the numbers of what was measured, inside nodes or across them, are fitted, near those of the
calibration that comes along; the others stay with that calibration (`overlay`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from mpisim.base.errors import InputError, UsageError

from ..cluster import Cluster
from ..nccl import System, version_of
from .batches import Batch
from .calibrate import FEWEST, bins, completed, rounded, sources
from .calibration import ANY, NUMBERS, REGIMES, Bin, Regime, Table, ours
from .fit import DEEPEP, cross_validate, fit, setup
from .measurement import Measurement
from .models import form_of
from .overlay import Serving, served
from .platforms import Platform, definitions, fabric_of, platform_of
from .run import OUTPUTS

__all__ = ["calibrate_own", "name_of", "one_platform", "placed"]


def placed(name: str, cluster: Cluster | None) -> Callable[[Measurement], Platform]:
    """Return what finds the platform of measurements that were all taken on one.

    Parameters
    ----------
    name : str
        Of the platform.
    cluster : Cluster, optional
        What it is; without it, what the measurements say of their GPUs and networks.

    Raises
    ------
    UsageError
        If it cannot be the name of a platform.
    """
    if not re.fullmatch(r"[A-Za-z0-9_-]+", name) or name in (ANY, DEEPEP):
        raise UsageError(
            f"--platform is {name!r}; it must be letters, digits, - and _, and neither {ANY!r} nor "
            f"{DEEPEP!r}"
        )

    def where(row: Measurement) -> Platform:
        found = platform_of(row) if cluster is None else _of_cluster(row, cluster)
        return replace(found, name=name, behind=_behind(found))

    return where


def one_platform(measured: Sequence[Batch]) -> str | None:
    """Return the name of the platform of some batches, if it is a single one.

    Outputs of nccl-tests on GPUs of one name are of one, though those of a single node do not say
    what the network is.
    """
    if not measured or any(each.library.startswith(DEEPEP) for each in measured):
        return None
    names = {each.platform.name for each in measured}
    if len(names) == 1:
        return names.pop()
    outputs = all(each.rows[0].source in OUTPUTS for each in measured)
    if outputs and len({each.rows[0].gpu for each in measured}) == 1:
        return _owners(measured)[0]
    return None


def calibrate_own(name: str, measured: Sequence[Batch], split: str) -> Table:
    """Fit a user's own platform.

    Errors are those of set-ups left out in turn, by regime. Those of a single set-up say little of
    the next one: its regime has the larger of them and of the errors behind it.

    Parameters
    ----------
    name : str
    measured : sequence of Batch
        Of that platform.
    split : str
        What to call the half that they are.

    Raises
    ------
    InputError
        If the batches are of several architectures, or of what NCCL's model does not cover.
    """
    form = form_of(measured[0].library)
    archs = sorted({each.platform.arch for each in measured})
    if len(archs) > 1 or any(each.library.startswith(DEEPEP) for each in measured):
        what = f"{' and '.join(archs)} GPUs" if len(archs) > 1 else "kernels of DeepEP"
        raise InputError(f"the platform {name!r} has rows of {what}; it must be one machine's NCCL")
    behind = _owners(measured)
    wider = served(ours(), behind)
    regimes = [each for each in REGIMES if any(one.regime == each for one in measured)]
    free = [number for regime in regimes for number in NUMBERS[regime]]
    found = fit(form, measured, wider.numbers, free=free)
    if not found.curves:
        raise InputError(f"the platform {name!r}: NCCL's model covers none of the rows")
    unseen = cross_validate(form, measured, wider.numbers, free=free)
    errors: list[Bin] = []
    mine: tuple[Bin, ...]
    own: set[bool] = set()
    for regime in regimes:
        left_out = [(batch, each) for batch, each in unseen if batch.regime == regime]
        mine, beyond = (), _known(wider, regime)
        if left_out:
            mine = bins(left_out, beyond)
            enough = len({setup(batch) for batch, _ in left_out}) >= FEWEST
            mine = mine if enough else _larger(mine, beyond)
            own.add(enough)
        errors += [replace(each, regime=regime) for each in completed(mine, beyond)]
    return Table(
        form=form.name,
        numbers=rounded({number: found.numbers[number] for number in free}),
        source=sources(measured),
        files=tuple(sorted({row.file for each in measured for row in each.rows})),
        split=split,
        curves=found.curves,
        rows=found.rows,
        held_out="set-ups" if True in own else "wider",
        errors=tuple(errors),
        behind=behind,
    )


def _of_cluster(row: Measurement, cluster: Cluster) -> Platform:
    """Return the platform of a measurement taken on a cluster."""
    printed = re.match(r"2\.\d+(\.\d+)?", row.version)
    system = System.of(cluster, version_of(printed.group()) if printed else None)
    per_node = -(-row.gpus // row.nodes)
    racks = cluster.node is not None and cluster.node.tray is not None
    if per_node > system.gpus_per_node:
        raise InputError(
            f"{row.file}: {row.gpus} GPUs on {row.nodes} nodes; the cluster has "
            f"{system.gpus_per_node} a node"
        )
    try:
        theirs = platform_of(row).arch
    except InputError:  # a GPU that nobody knows; the user says which machine it is
        theirs = system.arch
    if theirs != system.arch:
        raise InputError(
            f"{row.file}: the GPUs are {row.gpu!r}, of the architecture {theirs}; "
            f"those of the cluster are {cluster.gpu!r}, of {system.arch}"
        )
    named = cluster.nccl.platform
    family = definitions()[named].fabric if named in definitions() else ""
    return Platform(
        name=named or f"{system.arch}-{fabric_of(row.across)}",
        family=f"{system.arch}-{family or fabric_of(row.across)}",
        arch=system.arch,
        system=system,
        group=cluster.gpus_per_node if racks else 0,
    )


def _behind(platform: Platform) -> tuple[str, ...]:
    """Return the owners behind a platform: its own, its family, its architecture, all machines."""
    vague = (f"{platform.arch}-none", f"{platform.arch}-unknown")
    alone = not platform.system.nics
    wide = [each for each in (platform.name, platform.family) if alone or each not in vague]
    return tuple(dict.fromkeys((*wide, platform.arch, ANY)))


def _owners(measured: Iterable[Batch]) -> tuple[str, ...]:
    """Return the owners behind all batches: those across nodes know the fabric, if they say it."""
    found = [
        (each.platform.behind or _behind(each.platform), each.regime == "across")
        for each in measured
    ]
    return max(found, key=lambda each: (len(each[0]) > 2, each[1], len(each[0]), each[0]))[0]


def _known(wider: Serving, regime: Regime) -> tuple[Bin, ...]:
    """Return the errors of a regime behind a platform."""
    return tuple(each for each in wider.tables[regime].errors if each.regime in ("", regime))


def _larger(own: Iterable[Bin], wider: Sequence[Bin]) -> tuple[Bin, ...]:
    """Return an owner's errors, none below the wider owner's of the nearest decade."""
    return tuple(
        replace(
            each,
            p90=max(each.p90, min(wider, key=lambda bin: abs(bin.decade - each.decade)).p90),
        )
        for each in own
    )


def name_of(cluster: str) -> str:
    """Return the name of the platform of a cluster: its file's, without folder and ending."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", cluster.rsplit("/", 1)[-1].removesuffix(".toml"))
