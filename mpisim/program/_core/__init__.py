"""Compiled loops over the rows and columns of tables.

`building`: rows as tuples → arrays.
`columns`: communications by slot; CPU time of all rows.
"""
