"""Compiled loops: `intervals` (kernels beside communications), `rows` (distinct rows, sums)."""
