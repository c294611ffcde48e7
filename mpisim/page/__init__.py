"""The report page: a run, or two compared → one HTML file that needs nothing else.

Read in this order.

``shown``, ``rows``, ``timeline``, ``path``, ``usage``, ``tables``, ``words``
    The run, and which ranks are shown; rows of one, and of all of them; the critical path;
    memory and links; tables; what a result says in words.
``payload``
    All of it as one dict: what the page shows.
``columns``, ``html``
    A payload → a page: numbers as packed columns, all of it one HTML file. What draws it in the
    browser lies in ``assets``.
``write``
    A page → a file, whole or not at all.
"""
