"""Tells the C library's allocator how to treat large payloads."""

from __future__ import annotations

import ctypes

#: The option of mallopt for the size from which a block gets its own mapping, and that size.
M_MMAP_THRESHOLD = -3
OWN_MEMORY_BYTES = 256 * 1024


def return_large_blocks() -> None:
    """Return every large block to the system as soon as it is freed.

    Otherwise glibc raises the threshold to the largest block so far, and later payloads fragment the heap, which
    then never shrinks. Other C libraries have no such option.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, OWN_MEMORY_BYTES)
