"""Memory of the fast path: large pages for large buffers, and freed blocks given back after a load.

Page walks of scattered KV pages cost as much as the reads when pages are 4 KiB. glibc keeps freed blocks of some
megabytes in its arenas; after a load these are a second copy of the weights that nothing will use again.
"""

import ctypes
from typing import Final

import torch

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_LARGE_PAGE_BYTES: Final = 2 << 20
_MADV_HUGEPAGE: Final = 14


def zeros_in_large_pages(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A zeroed tensor, in 2 MiB pages where the kernel grants them. All of it is resident from now on."""
    tensor = torch.empty(shape, dtype=dtype)
    begin = -(-tensor.data_ptr() // _LARGE_PAGE_BYTES) * _LARGE_PAGE_BYTES
    length = (tensor.data_ptr() + tensor.nbytes - begin) // _LARGE_PAGE_BYTES * _LARGE_PAGE_BYTES
    if length > 0 and hasattr(_LIBC, "madvise"):
        # Advice only: a kernel without large pages refuses it, and nothing else changes.
        _LIBC.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(length), _MADV_HUGEPAGE)
    return tensor.zero_()


def return_free_memory() -> None:
    """Return all free pages of the allocator's arenas; does nothing with another C library."""
    if hasattr(_LIBC, "malloc_trim"):
        _LIBC.malloc_trim(ctypes.c_size_t(0))
