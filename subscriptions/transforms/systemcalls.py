"""Restricts a process to the few system calls that a sandbox needs, with a filter of the kernel (seccomp).

Whoever broke out of QuickJS could still compute, and read and write on the socket that the process has. The program of
the sandbox needs no other call once it runs. Like that program, this module imports no other module of PushHub.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from collections.abc import Iterator
from typing import NamedTuple

PR_SET_NO_NEW_PRIVS = 38
PR_SET_SECCOMP = 22
SECCOMP_MODE_FILTER = 2
PROT_EXEC = 4

#: Verdicts of the filter. A refused call returns EPERM and does nothing.
ALLOW = 0x7FFF0000
REFUSE = 0x00050000 | errno.EPERM
#: Instructions of the filter: load a word of the call, compare it, end with a verdict.
LOAD, IS_EQUAL, HAS_BIT, RETURN = 0x20, 0x15, 0x45, 0x06
#: Where a call's number, its architecture and the low half of its third argument are (`struct seccomp_data`).
NUMBER, ARCHITECTURE, THIRD_ARGUMENT = 0, 4, 32


class Machine(NamedTuple):
    """An architecture: its number for the filter, and the numbers of its system calls."""

    architecture: int
    mmap: int
    others: tuple[int, ...]


#: The other calls are clock_gettime, gettimeofday, setitimer, read, write, brk, munmap, mremap, madvise, futex,
#: rt_sigreturn and exit_group, in this order.
MACHINES = {
    "x86_64": Machine(0xC000003E, 9, (228, 96, 38, 0, 1, 12, 11, 25, 28, 202, 15, 231)),
    "aarch64": Machine(0xC00000B7, 222, (113, 169, 103, 63, 64, 214, 215, 216, 233, 98, 139, 94)),
}


class Filter(ctypes.Structure):
    """`struct sock_fprog`: the number of a filter's instructions, and their address."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def why_unrestricted() -> str:
    """Return why `restrict_calls` has no effect on this machine, or ""."""
    system = os.uname()
    is_32_bit = sys.maxsize < 2**32  # which a kernel of 64 bits runs too, with other numbers for its calls
    if sys.platform != "linux" or system.machine not in MACHINES or is_32_bit:
        return f"PushHub has no list of system calls for {system.sysname} on {system.machine}"
    # A kernel that has filters looks for one at this address, and finds none.
    return "" if _control(PR_SET_SECCOMP, SECCOMP_MODE_FILTER) == errno.EFAULT else "the kernel has no seccomp filters"


def restrict_calls() -> None:
    """Refuse all other system calls to this thread and to those that it starts. Raises OSError if that fails."""
    if why_unrestricted():
        return
    program = b"".join(_instructions(MACHINES[os.uname().machine]))
    instructions = ctypes.create_string_buffer(program, len(program))
    call_filter = Filter(len(program) // len(_instruction(RETURN, ALLOW)), ctypes.addressof(instructions))
    for option, value, address in (
        (PR_SET_NO_NEW_PRIVS, 1, None),
        (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(call_filter)),
    ):
        if error := _control(option, value, address):
            raise OSError(error, os.strerror(error))


def _control(option: int, value: int, address: object = None) -> int:
    """Call prctl. Return the number of the error, or 0."""
    libc = ctypes.CDLL(None, use_errno=True)
    return ctypes.get_errno() if libc.prctl(option, ctypes.c_ulong(value), address, None, None) else 0


def _instructions(machine: Machine) -> Iterator[bytes]:
    """Yield a filter's program. Calls of other architectures have other numbers, so the architecture comes first."""
    yield _instruction(LOAD, ARCHITECTURE)
    yield _instruction(IS_EQUAL, machine.architecture, if_true=1)
    yield _instruction(RETURN, REFUSE)
    yield _instruction(LOAD, NUMBER)
    for number in machine.others:
        yield _instruction(IS_EQUAL, number, if_false=1)
        yield _instruction(RETURN, ALLOW)
    # Memory may be had, but not for code.
    yield _instruction(IS_EQUAL, machine.mmap, if_false=3)
    yield _instruction(LOAD, THIRD_ARGUMENT)
    yield _instruction(HAS_BIT, PROT_EXEC, if_true=1)
    yield _instruction(RETURN, ALLOW)
    yield _instruction(RETURN, REFUSE)


def _instruction(code: int, value: int, *, if_true: int = 0, if_false: int = 0) -> bytes:
    """Return one `struct sock_filter`. A comparison skips as many instructions as its result says."""
    return struct.pack("=HBBI", code, if_true, if_false, value)
