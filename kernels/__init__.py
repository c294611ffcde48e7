"""How long one kernel takes on a GPU."""
