"""Tells the C library's allocator how to treat large payloads."""

from __future__ import annotations

import ctypes

#: mallopt's name for the size from which a block gets memory of its own, and the size of the smallest such block.
M_MMAP_THRESHOLD = -3
OWN_MEMORY_BYTES = 256 * 1024


def return_large_blocks() -> None:
    """Let every large block go back to the system as soon as it is freed.

    Otherwise glibc raises that size with the largest block it has seen, and later payloads fragment the heap, which
    then never shrinks. Other C libraries have no such option.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, OWN_MEMORY_BYTES)
