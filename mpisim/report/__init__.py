"""Reports: where the time of a step went, for people and for programs.

- `render`: a result as text.
- `figures`: the same as numbers, ready for JSON.
"""

from .figures import figures
from .text import render

__all__ = ["figures", "render"]
