"""``mpisim validate published``: the experiments of papers beside what these report."""

from __future__ import annotations

import argparse
from typing import Any

from ..base.errors import UsageError
from .output import add_file_options, add_monitor_option, write_figures, write_page_text

__all__ = ["add_kind", "run"]

EXAMPLES = """\
examples:
  mpisim validate published                        every experiment with published figures
  mpisim validate published llama3                 those with "llama3" in their name
  mpisim validate published --markdown docs/published.md
"""


def add_kind(kinds: Any) -> None:
    """Add the parser of ``mpisim validate published``."""
    parser = kinds.add_parser(
        "published",
        help="experiments of papers beside what these report",
        description="Simulate the experiments that come with mpisim and have published figures, "
        "and print both.",
        epilog=EXAMPLES,
    )
    parser.add_argument("words", metavar="WORD", nargs="*", help="only names with these words")
    add_file_options(parser, monitor=False)
    parser.add_argument(
        "--markdown", metavar="FILE", help="also write the table into this page (Markdown)"
    )
    add_monitor_option(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Simulate and print the table; under a launcher only the first process does."""
    from .output import check_files, page_of

    check_files(args)
    page = "" if args.markdown is None else page_of(args.markdown)
    from ..validate.published import as_json, markdown, published_runs, render

    runs = published_runs(args.words)
    if not runs:
        raise UsageError(
            f"no experiment with published figures has {' '.join(args.words)!r} in its name; see "
            "mpisim list experiments"
        )
    print(render(runs))
    if args.markdown is not None:
        write_page_text(args, markdown(runs, page))
    write_figures(args, as_json(runs))
    return 0
