"""The report page: a run, or two compared → one HTML file that needs nothing else.

Read in this order: `shown` (the run, and which ranks are shown), `timeline`, `path`, `use` (memory
and links), `tables`, `words`, `payload` (all sections), `html` (as a page), `write` (to a file).
"""
