"""Whether the compiled modules are those of the sources beside them.

Of a checkout that is installed to be edited: there a pull changes the sources, and yesterday's
binaries would run on. What is compiled, and from what, is said here once: ``setup.py`` builds it
and leaves its digest, ``run_scripts/setup.sh`` builds again when the digest is another, and the
command line refuses to run when it is. An installed wheel has neither sources nor digest.

Only the standard library is used: ``setup.py`` runs this file before anything is installed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

FOLDERS = ("mpisim", "kernels", "topo")
"""Where compiled modules are looked for, from the root of the repository."""

STAMP = "mpisim/built.stamp"
"""The digest of what was compiled, from the root of the repository."""

_SUFFIXES = {".pyx", ".pxd", ".pxi", ".h"}


def cores(root: Path) -> list[Path]:
    """Return the folders of compiled modules, those named ``_core``."""
    folders = (Path(path) for name in FOLDERS for path, _, _ in os.walk(root / name))
    return sorted(folder for folder in folders if folder.name == "_core")


def sources(root: Path) -> list[Path]:
    """Return every file that compiled modules are made from, and what says how."""
    files = (path for core in cores(root) for path in core.iterdir() if path.suffix in _SUFFIXES)
    return [root / "setup.py", *sorted(files)]


def digest(root: Path) -> str:
    """Return one number, as text, for names and contents of all sources."""
    import hashlib  # and with it OpenSSL, which no installed wheel needs

    found = hashlib.sha256()
    for path in sources(root):
        content = path.read_bytes()
        found.update(f"{path.relative_to(root).as_posix()} {len(content)}\n".encode() + content)
    return found.hexdigest()


def check_built(root: Path = ROOT) -> None:
    """Refuse binaries that were made from other sources than those beside them.

    Parameters
    ----------
    root : Path
        Of the repository; what lies two folders above this file.

    Raises
    ------
    UsageError
        Naming the command that builds them. Never where there is no digest.
    """
    try:
        built = (root / STAMP).read_text()
    except OSError:
        return
    if built != digest(root):
        from .base.errors import UsageError

        raise UsageError(
            f"the compiled modules in {root} were made from other sources than are there now; "
            "build them again: bash run_scripts/setup.sh"
        )


if __name__ == "__main__":
    sys.stdout.write(digest(ROOT) + "\n")
