"""Compiled loops over small arrays. `distinct`: the different values of an array, and its rows."""
