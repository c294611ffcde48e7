"""The ground floor: errors, files, quantities, presets, kinds of rows and operations.

Read in this order. Nothing here imports another part of mpisim, and ``kernels`` and ``topo`` import
nothing of mpisim but this package.

``errors``
    The errors a user can mend, and nearest valid names.
``text``, ``rank_ranges``, ``numbered``
    Columns, times and sizes for people; "0-7,16" → ranks; texts that differ in a number.
``files``, ``csv_files``, ``hdf5``
    Text files and outputs that appear whole; comma-separated tables; HDF5 stores.
``schema``, ``presets``
    TOML tables → frozen dataclasses; tables with named presets, laid over one another.
``quantity``
    A number with a unit, an error and a source.
``kinds``
    Kinds of rows, communication operations and phases of a training step.
"""
