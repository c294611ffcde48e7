"""The report page: a run, or two compared → one HTML file that needs nothing else.

``columns``, ``html``
    A payload → a page: numbers as packed columns, all of it one HTML file. What draws it in the
    browser lies in ``assets``.
"""
