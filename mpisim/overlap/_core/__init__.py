"""Compiled loops of the overlap pass.

`intervals`: load of communications over time. `progress`: kernels and communications beside each
other. `rows`: distinct rows, sums.
"""
