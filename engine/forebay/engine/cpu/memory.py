"""Gives memory that a load has freed back to the machine.

glibc keeps freed blocks of some megabytes in its arenas; after a load these are a second copy of the weights that
nothing will use again.
"""

import ctypes


def return_free_memory() -> None:
    """Return all free pages of the allocator's arenas; does nothing with another C library."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))
