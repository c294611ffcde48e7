"""``mpisim watch``: the progress of a run that was started with ``--monitor``."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from ..base.errors import UsageError

__all__ = ["add_parser", "run"]

EXAMPLES = """\
examples:
  mpisim run mine.toml --monitor here.json      a run that says how it stands ...
  mpisim watch here.json                        ... and how it does, until it ends
  mpisim watch here.json --once                 once; exit code 1 if the run failed or was killed
  mpisim watch here.json --serve                as a page, for browsers on this machine
  mpisim watch runs/                            the newest of a folder
"""

INTERVAL = 1.0
"""Seconds between two looks at the file."""

LINE_INTERVAL = 60.0
"""Seconds between two lines where standard output is no terminal, unless the run's state or phase
changes."""

DEFAULT_PORT = 8266


def add_parser(subparsers: Any) -> None:
    """Add the parser of ``mpisim watch``."""
    parser = subparsers.add_parser(
        "watch",
        help="follow a run that was started with --monitor",
        description="Follow a run that was started with --monitor, until it ends: its phase and "
        "what is left of it, simulated time of the slowest and of the fastest rank, links in use, "
        "memory. Exit code: 0 if it ended well, or --once finds that it goes on; 1 if it failed, "
        "was killed, or has been silent for a minute.",
        epilog=EXAMPLES,
    )
    parser.add_argument("path", metavar="FILE", help="the status file, or a folder of them")
    parser.add_argument("--once", action="store_true", help="print how it stands, and end")
    parser.add_argument(
        "--serve",
        metavar="PORT",
        nargs="?",
        type=int,
        const=DEFAULT_PORT,
        help=f"show it as a page on 127.0.0.1 (default port: {DEFAULT_PORT}; 0: any that is free)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Follow a run, or serve its page."""
    if args.once and args.serve is not None:
        raise UsageError("--once prints and ends, --serve goes on: choose one")
    if args.serve is not None and not 0 <= args.serve <= 65535:
        raise UsageError(f"--serve {args.serve}: a port is from 0 to 65535")
    from ..base.status_file import find_status

    path = find_status(args.path)
    if args.serve is not None:
        from .watch_page import serve

        return serve(path, args.serve)
    return _once(path) if args.once else _follow(path)


def _once(path: Path) -> int:
    from ..base.status_file import condition, read_status, this_host
    from ..report.status import render_status

    status, now, host = read_status(path), time.time(), this_host()
    print(render_status(status, now, host))
    return 0 if condition(status, now, host) in ("running", "ended") else 1


def _follow(path: Path) -> int:
    """Show the status again and again, until the run is over; return 1 if it did not end well."""
    from ..base.status_file import condition, read_status, this_host
    from ..report.status import render_status, status_line

    terminal, host = sys.stdout.isatty(), this_host()
    drawn, written = 0, 0.0
    before: tuple[str, str] | None = None
    while True:
        status, now = read_status(path), time.time()
        how = condition(status, now, host)
        if terminal:
            text = render_status(status, now, host)
            # Up to the first line of what stands there, and every line cleared before it is drawn.
            up = f"\x1b[{drawn}A" if drawn else ""
            print(up + "\n".join("\x1b[2K" + line for line in text.split("\n")) + "\x1b[J")
            drawn = text.count("\n") + 1
        else:
            seen = (how, status["phase"]["name"])
            if seen != before or now - written >= LINE_INTERVAL:
                print(status_line(status, now, host), flush=True)
                written, before = now, seen
        if how != "running":
            return 0 if how == "ended" else 1
        time.sleep(INTERVAL)
