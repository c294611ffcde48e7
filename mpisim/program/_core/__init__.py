"""Compiled loops over the columns of tables.

`columns`: communications by slot; CPU time of all rows.
"""
