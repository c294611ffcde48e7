"""Compiled loops of the workloads: a table from the blocks it consists of."""
