"""``mpisim list``: the models, clusters, GPUs, schedules, experiments, … that have names."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ..base.errors import InputError
from ..base.text import aligned, percentage

__all__ = ["add_parser", "run"]

EXAMPLES = """\
examples:
  mpisim list                      what there is to list
  mpisim list models               every model
  mpisim list models llama         those with "llama" in their name, title or other names
  mpisim list models moe           those with experts; as well dense, hybrid, cnn, dlrm
  mpisim list gpus h100 sxm        those with both words
  mpisim list experiments echo     experiments from the Echo paper, and where the files are
"""


class Listing(NamedTuple):
    """A table for people.

    Attributes
    ----------
    head : tuple of str
        Titles of the columns.
    rows : sequence of (cells, aliases)
        The first cell is the name. Filters also look at the aliases, which are not shown.
    left : tuple of int
        Columns aligned to the left.
    note : str
        A line below.
    """

    head: tuple[str, ...]
    rows: Sequence[tuple[Sequence[str], Sequence[str]]]
    left: tuple[int, ...]
    note: str


class Catalogue(NamedTuple):
    """Something that has names.

    Attributes
    ----------
    key : str
        Where a name is given.
    title : str
        What the names are of.
    make : callable
        Reads the catalogue; only those that are printed are read.
    """

    key: str
    title: str
    make: Callable[[], Listing]


def add_parser(subparsers: Any) -> None:
    """Add the parser of ``mpisim list``."""
    parser = subparsers.add_parser(
        "list",
        help="list models, clusters, GPUs, frameworks, schedules, experiments, …",
        description="List what an experiment can name: models, clusters, GPUs, frameworks, "
        "pipeline schedules, fleets that fail, storages; or the example experiments.",
        epilog=EXAMPLES,
    )
    parser.add_argument(
        "what",
        metavar="WHAT",
        nargs="?",
        choices=tuple(LISTINGS),
        help=f"{', '.join(LISTINGS)}; without it, what each of these is",
    )
    parser.add_argument("words", metavar="WORD", nargs="*", help="only lines with these words")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the names of one catalogue, with what each stands for."""
    if args.what is None:
        head = ("what", "where it is named", "")
        catalogues = [(what, each.key, each.title) for what, each in LISTINGS.items()]
        lines = aligned([head, *catalogues], left=(0, 1, 2))
        print("\n".join([*lines, "", "mpisim list WHAT [WORD ...]"]))
        return 0
    listing = LISTINGS[args.what].make()
    rows = [cells for cells, aliases in listing.rows if _matches(args.words, cells, aliases)]
    if not rows:
        raise InputError(
            f"none of {len(listing.rows)} {args.what} has {' and '.join(map(repr, args.words))} "
            "in its name or title"
        )
    print("\n".join([*aligned([listing.head, *rows], left=listing.left), "", listing.note]))
    return 0


def _matches(words: Sequence[str], cells: Sequence[str], aliases: Sequence[str]) -> bool:
    text = " ".join([*cells, *aliases]).casefold()
    return all(word.casefold() in text for word in words)


HYBRID = "hybrid"
"""Kind of models whose layers are recurrent in part; those with experts are found by it, too."""


def _models() -> Listing:
    from ..experiment.model_presets import model_presets

    rows = []
    for name, preset in model_presets().items():
        also = (*preset.aliases, HYBRID) if preset.table.get("pattern") else preset.aliases
        rows.append(((name, *_model(preset.table), preset.title), also))
    return Listing(
        ("name", "kind", "parameters", "layers × width", "sample", "title"),
        rows,
        (0, 1, 5),
        '[model] preset = "NAME", in an experiment; sources: data/models',
    )


def _model(table: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """Return kind, parameters, shape and size of a sample."""
    from ..base.schema import build
    from ..experiment import FAMILIES, Cnn, Plan, PrecisionOptions, Transformer
    from ..experiment.model_counts import parameters
    from ..workloads.grid import Grid
    from ..workloads.operators import total

    cls, common = FAMILIES[table["family"]]
    model = build(cls, {**common, **table}, "preset", "model")
    if isinstance(model, Transformer):
        shape = f"{model.layers} × {model.hidden:,}"
        kind = "moe" if model.experts else HYBRID if model.pattern else "dense"
        return kind, _billions(parameters(model)), shape, f"{model.seq_len:,} tokens"
    # Of one GPU, for any model.
    plan = Plan(global_batch=1, precision=PrecisionOptions("fp32"), optimizer="sgd")
    grid = Grid.of(plan, 1)
    if isinstance(model, Cnn):
        from ..workloads.cnn import cnn_network

        network = cnn_network(model, plan, grid)
        kind, shape, sample = "cnn", f"depth {model.depth}", f"{model.image} × {model.image}"
    else:
        from ..workloads.dlrm import dlrm_networks

        (network,), _ = dlrm_networks(model, plan, grid)
        widths = sorted(set(model.widths))
        width = f"{widths[0]} to {widths[-1]}" if len(widths) > 1 else str(widths[0])
        kind, shape = "dlrm", f"{len(model.table_entries)} tables × {width}"
        sample = f"{sum(map(model.lookups, range(len(model.table_entries)))):,} lookups"
    size = total(each for layer in network.layers for each in layer.parameters)
    return kind, _billions(size), shape, sample


def _billions(number: int) -> str:
    """Write a number of parameters with three digits: 355 M, 8.03 B."""
    unit, size = next(each for each in UNITS if number >= 0.9995 * each[1])
    return f"{number / size:.3g} {unit}"


UNITS = (("T", 1e12), ("B", 1e9), ("M", 1e6), ("", 1))


def _clusters() -> Listing:
    from ..data import path
    from ..topo import cluster_names, find_cluster

    rows = []
    for name in cluster_names():
        found = find_cluster(name)
        measured = found.alpha_beta
        # Of GPUs that are joined to a fabric without NICs nothing was.
        network = measured.network_bandwidth if measured else None
        rows.append(
            (
                (
                    name,
                    str(found.gpus_per_node),
                    found.gpu,
                    f"{measured.node_bandwidth.si / 1e9:.0f}" if measured else "-",
                    f"{network.si / 1e9:.3g}" if network else "one box" if measured else "-",
                    found.title,
                ),
                found.aliases,
            )
        )
    return Listing(
        ("name", "GPUs a node", "GPU", "node GB/s", "network GB/s", "title"),
        rows,
        (0, 2, 5),
        "GB/s: what one GPU sends in a ring, in a node and across nodes. [cluster] preset\n"
        f"Files, to copy and change: {path('clusters')}",
    )


def _gpus() -> Listing:
    from ..kernels import find_gpu, gpu_names

    rows = []
    for name in gpu_names():
        gpu = find_gpu(name)
        peaks = tuple(
            f"{gpu.peak(each).si / 1e12:.0f}" if each in gpu.formats else "-"
            for each in ("fp32", "tf32", "fp16", "bf16", "fp8", "nvfp4")
        )
        memory, bandwidth = f"{gpu.memory.si / 1e9:.0f}", f"{gpu.bandwidth.si / 1e9:,.0f}"
        rows.append(((name, *peaks, memory, bandwidth, gpu.family, gpu.title), gpu.aliases))
    return Listing(
        ("name", "fp32", "tf32", "fp16", "bf16", "fp8", "nvfp4", "GB", "GB/s", "family", "title"),
        rows,
        (0, 9, 10),
        "Dense TFLOP/s of matrix products by format, memory and its bandwidth. [kernels] gpu",
    )


def _frameworks() -> Listing:
    from ..experiment.profiles import profiles

    rows = [
        (
            (each.name, each.versions, str(len(each.entries)), each.title, each.url),
            (*each.aliases, *each.programs),
        )
        for each in profiles()
    ]
    return Listing(
        ("name", "versions", "entries", "title", "documentation"),
        rows,
        (0, 1, 3, 4),
        "What each sets, and by which source: data/frameworks. [framework] name, version, recipe",
    )


def _schedules() -> Listing:
    from ..schedules import SCHEDULES

    rows = [
        ((name, each.title, each.bubble, each.in_flight, each.source, each.chunks), ())
        for name, each in SCHEDULES.items()
    ]
    return Listing(
        ("name", "title", "bubble", "in flight", "source", "model chunks a stage"),
        rows,
        (0, 1, 2, 3, 4, 5),
        "p stages, m micro-batches, v chunks; times of one stage: F forward, B backward, W its\n"
        "gradients of weights, F&B a forward and a backward overlapped. In flight: micro-batches\n"
        "whose activations the first stage keeps. [plan] pipeline",
    )


def _experiments() -> Listing:
    from ..data import names, path, text
    from ..experiment import read

    folder = "experiments"
    rows = []
    for name in names(folder):
        experiment = read(text(f"{folder}/{name}.toml"), f"{name}.toml")
        rows.append(((name, experiment.cluster.preset, experiment.title), ()))
    return Listing(("name", "cluster", "title"), rows, (0, 1, 2), f"Files: {path(folder)}")


def _fleets() -> Listing:
    from ..job.fleets import find_fleet, fleet_names

    rows = []
    for name in fleet_names():
        _, fleet = find_fleet(name)
        counted = f"{fleet.interruptions}" if fleet.interruptions else "-"
        rate = (f"{1000 * fleet.per_gpu_day:.3g}", percentage(fleet.rate_error))
        rows.append(((name, counted, *rate, fleet.title), fleet.aliases))
    return Listing(
        ("name", "failures", "of 1,000 GPU-days", "±", "title"),
        rows,
        (0, 4),
        "How often jobs were interrupted, planned interruptions aside. [job] failures",
    )


def _storages() -> Listing:
    from ..job.storage import find_storage, storage_names

    rows = []
    for name in storage_names():
        _, storage = find_storage(name)
        rates = (storage.node_write, storage.total_write, storage.node_read, storage.total_read)
        cells = ("-" if each is None else f"{each.si / 1e9:,.4g}" for each in rates)
        rows.append(((name, *cells, storage.title), storage.aliases))
    return Listing(
        ("name", "node writes", "all write", "node reads", "all read", "title"),
        rows,
        (0, 5),
        "GB/s of checkpoints; what is not given does not limit. [job] storage",
    )


LISTINGS: Mapping[str, Catalogue] = {
    "models": Catalogue("[model] preset", "models with their sizes", _models),
    "clusters": Catalogue("[cluster] preset", "nodes, their GPUs and what joins them", _clusters),
    "gpus": Catalogue("[kernels] gpu, --gpu", "peak rates and memory of GPUs", _gpus),
    "frameworks": Catalogue("[framework] name", "what frameworks do by themselves", _frameworks),
    "schedules": Catalogue("[plan] pipeline", "pipeline schedules and their bubbles", _schedules),
    "experiments": Catalogue("mpisim run NAME", "experiments that come along", _experiments),
    "fleets": Catalogue("[job] failures", "clusters whose failures were counted", _fleets),
    "storages": Catalogue("[job] storage", "what checkpoints are written to", _storages),
}
