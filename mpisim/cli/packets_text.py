"""Packet simulation → the text and JSON of ``mpisim packets``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from ..topo.packets import PacketRun

__all__ = ["as_json", "draw_lines", "report_lines", "settings_line"]

MAX_LINKS = 8
"""Links printed; files have all."""

NOTE = """\
links, spread evenly: what the fullest link takes if every flow used all of its paths alike, without
latencies, as in the flow model.\
"""

CONTROLS = {
    "dcqcn": "DCQCN",
    "dctcp": "DCTCP",
    "hpcc": "HPCC",
    "hpcc-pint": "HPCC-PINT",
    "timely": "TIMELY",
    "none": "no congestion control",
}

NOTE_HASHED = " links, as hashed: the same with the path that ECMP gave each."


def settings_line(found: PacketRun) -> str:
    """Run → the settings that matter, in a line."""
    from ..base.text import counted

    settings = found.settings
    many = found.plan.most_paths
    control = CONTROLS[settings.congestion]
    if settings.window or settings.window_rtts:
        control += ", windows"
    pfc = "PFC" if settings.pfc else "no PFC, endless buffers"
    if settings.recovery != "none":
        pfc = f"losses, {settings.recovery}"
    packets = int(found.link_packets[_first_links(found)].sum())
    how = f"ECMP over up to {many} paths"
    if many == 1:
        how = "one path for each flow"
    elif settings.routing == "spray":
        how = f"packets sprayed over up to {many} paths"
    elif settings.routing == "adaptive":
        how = f"packets over the emptiest of up to {many} paths"
    return (
        f"{how}, {control}, {pfc}, {settings.switching}: "
        f"{counted(len(found.plan.cap), 'queue pair')}, {counted(packets, 'packet')} of up to "
        f"{settings.mtu:,} B, {counted(found.events, 'event')}"
    )


def report_lines(found: PacketRun, price: int | None) -> list[str]:
    """Run, and what the flow model takes for the same → lines for the terminal.

    Parameters
    ----------
    found : PacketRun
    price : int, optional
        In ps.
    """
    from ..base.text import aligned

    even = found.even
    rows = [("", "ms", "of even")]
    hashed = _is_hashed(found)
    for name, ps in (
        ("links, spread evenly", even),
        ("links, as hashed", found.collided if hashed else None),
        ("packets", float(found.duration)),
        ("mpisim comm", None if price is None else float(price)),
    ):
        if ps is not None:
            rows.append((name, f"{ps / 1e9:.3f}", f"{ps / even:.2f}"))
    return [
        settings_line(found),
        "",
        *aligned(rows),
        "",
        *_flow_lines(found),
        *_waiting_lines(found),
        "",
        *_link_lines(found),
        "",
        *(NOTE + NOTE_HASHED * hashed).splitlines(),
    ]


def draw_lines(runs: list[PacketRun]) -> list[str]:
    """Runs of several seeds → a line for each, and their range."""
    from ..base.text import aligned

    hashed = _is_hashed(runs[0])
    lossy = runs[0].settings.recovery != "none"
    last = "dropped" if lossy else "pauses"
    marks = ("marked",) * _heeds_marks(runs[0])
    rows = [("seed", *(("links, as hashed",) * hashed), "packets", "of even", *marks, last)]
    for found in runs:
        rows.append(
            (
                str(found.settings.seed),
                *((f"{found.collided / 1e9:.3f} ms",) * hashed),
                f"{found.duration / 1e9:.3f} ms",
                f"{found.duration / found.even:.2f}",
                *(f"{_marked(found):.1%}" for _ in marks),
                str(int((found.dropped if lossy else found.pauses).sum())),
            )
        )
    ratio = np.array([found.duration / found.even for found in runs])
    return [
        f"links, spread evenly: {runs[0].even / 1e9:.3f} ms",
        "",
        *aligned(rows, left=()),
        "",
        f"Of even: {ratio.mean():.2f} in the mean, {ratio.min():.2f} to {ratio.max():.2f}.",
    ]


def as_json(found: PacketRun, price: int | None) -> dict[str, Any]:
    """Run, and what the flow model takes → JSON object; times in seconds.

    Parameters
    ----------
    found : PacketRun
    price : int, optional
        In ps.
    """
    (used,) = np.nonzero(found.link_packets)
    return {
        "seed": found.settings.seed,
        "parameters": found.settings.parameters,
        "seconds": found.duration / 1e12,
        "links_even_seconds": found.even / 1e12,
        "links_hashed_seconds": found.collided / 1e12,
        "flow_model_seconds": None if price is None else price / 1e12,
        "queue_pairs": len(found.plan.cap),
        "messages": len(found.message_end),
        "events": found.events,
        "marked": _marked(found),
        "notifications": int(found.notifications.sum()),
        "pauses": int(found.pauses.sum()),
        "paused_seconds": float(found.paused.max()) / 1e12,
        "dropped": int(found.dropped.sum()),
        "resent": int(found.resent.sum()),
        "timeouts": int(found.timeouts.sum()),
        "flow_end_seconds": {
            str(share): float(np.quantile(found.flow_end, share / 100)) / 1e12
            for share in (0, 50, 99, 100)
        },
        "links": [
            {
                "name": found.topology.link_name(link),
                "utilisation": _used(found, link),
                "bytes": int(found.link_bytes[link]),
                "queue_max": int(found.queue_max[link]),
                "queue_mean": float(found.queue_mean[link]),
                "marked": int(found.link_marked[link]),
                "dropped": int(found.dropped[link]),
                "pauses": int(found.pauses[link]),
                "paused_seconds": float(found.paused[link]) / 1e12,
            }
            for link in used.tolist()
        ],
    }


def _is_hashed(found: PacketRun) -> bool:
    """Return whether ECMP had a choice for any flow."""
    return found.plan.most_paths > 1 and found.settings.routing == "ecmp"


def _first_links(found: PacketRun) -> np.ndarray:
    """Links that queue pairs feed: no packet goes over two of them on fabrics with NICs."""
    plan = found.plan
    return np.unique(plan.path_link[plan.path_first[plan.pair_first[:-1]]])


def _heeds_marks(found: PacketRun) -> bool:
    """Whether senders slow down for ECN marks, so that their share is worth printing."""
    return found.settings.congestion in ("dcqcn", "dctcp")


def _marked(found: PacketRun) -> float:
    """Return the share of packets over marking links that were marked there."""
    over = found.link_packets[found.plan.marking > 0].sum()
    return float(found.link_marked.sum() / over) if over else 0.0


def _thresholds(found: PacketRun) -> str:
    """Return from what length on queues of switches mark: of the rate that is the most frequent."""
    marking = found.plan.marking > 0
    if not marking.any():
        return "none: no switches of a fabric"
    rates, links, many = np.unique(
        found.topology.bandwidth[marking], return_index=True, return_counts=True
    )
    link = int(np.flatnonzero(marking)[links[many.argmax()]])
    low, high = found.plan.low[link] / 1e3, found.plan.high[link] / 1e3
    rate = rates[many.argmax()] / 1e9 * 8
    return f"from {low:,.1f} kB in a queue on, all from {high:,.1f} kB, at {rate:,.1f} Gb/s"


def _used(found: PacketRun, link: int) -> float:
    """Return the share of a link's capacity that was used."""
    return float(found.link_bytes[link] / found.plan.rate[link] / found.duration)


def _flow_lines(found: PacketRun) -> list[str]:
    first, half, most, last = (
        f"{float(np.quantile(found.flow_end, share)) / 1e9:.3f}" for share in (0, 0.5, 0.99, 1)
    )
    return [f"flows end         {first} ms the first, {half} half of them, {most} 99 %, {last} all"]


def _waiting_lines(found: PacketRun) -> list[str]:
    from ..base.text import counted

    lines = []
    if _heeds_marks(found):
        word = "notification" if found.settings.congestion == "dcqcn" else "cut"
        told = counted(int(found.notifications.sum()), word)
        lines += [
            f"marked (ECN)      {_marked(found):.2%} of packets in queues of switches; {told}",
            f"marks             {_thresholds(found)}",
        ]
    if found.settings.recovery != "none":
        return [*lines, *_loss_lines(found)]
    pauses = int(found.pauses.sum())
    if pauses:
        worst = int(found.paused.argmax())
        lines.append(
            f"paused (PFC)      {pauses:,} times; {found.topology.link_name(worst)} for "
            f"{found.paused[worst] / 1e9:.3f} ms"
        )
    else:
        lines.append("paused (PFC)      never")
    return lines


def _loss_lines(found: PacketRun) -> list[str]:
    from ..base.text import counted

    dropped = int(found.dropped.sum())
    if not dropped and not found.resent.any():
        return ["lost              nothing"]
    worst = int(found.dropped.argmax())
    where = f", {found.dropped[worst]:,} of them before {found.topology.link_name(worst)}"
    timeouts = counted(int(found.timeouts.sum()), "timeout")
    return [
        f"lost              {counted(dropped, 'packet')}{where if dropped else ''}",
        f"sent again        {counted(int(found.resent.sum()), 'packet')}; {timeouts}",
    ]


def _link_lines(found: PacketRun) -> list[str]:
    from ..base.text import aligned

    fabric = np.flatnonzero(found.plan.marking)
    order = fabric[np.lexsort((fabric, -found.queue_max[fabric], -found.link_bytes[fabric]))]
    shown = [link for link in order[:MAX_LINKS].tolist() if found.link_packets[link]]
    if not shown:
        return ["nothing went over a switch of the fabric"]
    lossy = found.settings.recovery != "none"
    last = "dropped" if lossy else "paused"
    marks = ("marked",) * _heeds_marks(found)
    rows = [("busiest links", "used", "queue at most", "in the mean", *marks, last)]
    for link in shown:
        rows.append(
            (
                found.topology.link_name(link),
                f"{_used(found, link):.0%}",
                f"{found.queue_max[link] / 1e3:,.0f} kB",
                f"{found.queue_mean[link] / 1e3:,.1f} kB",
                *(f"{found.link_marked[link] / found.link_packets[link]:.1%}" for _ in marks),
                f"{found.dropped[link]:,}" if lossy else f"{found.paused[link] / 1e9:.3f} ms",
            )
        )
    return aligned(rows)
