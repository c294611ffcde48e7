"""Reports: where the time of a step went, for people and for programs.

Read in this order.

``tables``
    The columns of every table, as text and as JSON: to add one, change this module alone.
``text``
    `render`: results → all tables as text.
``summary``, ``drawing``
    `summarise`: results → the short report; bars and colours, where they can be shown.
``figures``
    `figures`: results → numbers, ready for JSON.
``comparison``
    Two runs beside each other, part by part.
``status``
    The status of a run that may go on.
``tornado``
    A step with other hardware: text, numbers, picture.
``kernel_names``
    Names of kernels short enough for a table.
"""

from .figures import figures
from .summary import summarise
from .text import render

__all__ = ["figures", "render", "summarise"]
