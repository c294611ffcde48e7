"""Basics of all packages: errors, files, text, schemas, quantities, presets, kinds of rows.

Read in this order. Nothing here imports another part of mpisim, and ``kernels`` and ``topo`` import
nothing of mpisim but this package.

``errors``
    The errors reported to users, and nearest valid names.
``text``, ``rank_ranges``, ``numbered_texts``
    Columns, times and sizes for people; ``"0-7,16"`` → ranks; texts that differ in a number.
``frozen``, ``distinct``
    Frozen dataclasses that are quick to make; the different values of an array.
``files``, ``csv_files``, ``hdf5``, ``hdf5_data``
    Text files, output files that are complete or absent; tables of CSV; HDF5 files, what they hold.
``schema``, ``toml``
    TOML → frozen dataclasses, strictly; values and tables → TOML.
``picture``
    Pictures that matplotlib draws: their files, and names in them.
``status_file``, ``machine_memory``
    The status of a run as a file: written, read, judged; memory of this machine and its processes.
``quantity``, ``presets``
    A number with unit, error and source; tables found by name in packaged or user's files.
``kinds``
    Kinds of rows, operations of communications, phases of a training step.
``lru_cache``
    A cache bounded in bytes or entries.
"""
