"""The HTTP side of the engine: parsing, streaming, limits, metrics and the process's life."""
