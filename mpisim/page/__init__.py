"""The report page: a run → one HTML file to be opened in a browser.

``columns``
    Arrays → blocks that a browser unpacks.
``html``
    `page_html`: payload → the file, with ``assets/`` in it.

Scripts in ``assets/`` are read in the order of `html.SCRIPTS`: small functions for elements
(``dom.js``) and figures (``format.js``), the data (``data.js``), then a file for each section.
"""

from .html import page_html

__all__ = ["page_html"]
