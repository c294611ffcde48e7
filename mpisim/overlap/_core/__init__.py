"""The overlap pass's loops over rows, compiled: `intervals` and `rows`."""
