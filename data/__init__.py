"""Presets, calibrations, validation tables and small example traces."""
