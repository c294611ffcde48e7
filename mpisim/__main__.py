"""``python -m mpisim``: the same as the command ``mpisim``."""

import sys

from mpisim.cli import main

if __name__ == "__main__":
    sys.exit(main())
