"""Hostile functions in message transforms: they fail at a bounded cost and affect no other project."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from subscriptions.transforms.functions import Function
from subscriptions.transforms.results import Failed, Input, Transformed
from subscriptions.transforms.sandboxes import PROGRAM, Sandboxes, _engine_folder
from subscriptions.transforms.systemcalls import why_unrestricted
from tests.ports import wait_for

pytestmark = pytest.mark.any_database

SECONDS = 60.0
NEEDS_FILTER = pytest.mark.skipif(bool(why_unrestricted()), reason="this machine has no filter for system calls")
#: Starts a sandbox, writes its process id, and dies without stopping it.
PARENT = """
import os
from subscriptions.transforms.functions import Function
from subscriptions.transforms.sandboxes import Sandboxes
sandboxes = Sandboxes(1)
assert not sandboxes.check("shop", Function("f", "function f(m) { return m; }"))
print(sandboxes._sandboxes["shop"].pid, flush=True)
os._exit(0)
"""
#: Confines itself as a sandbox does, and then does what native code would do that broke out of QuickJS. It writes the
#: names of the calls that the kernel carried out.
NATIVE = """
import ctypes, os, runpy, socket, sys
program, engine_folder = sys.argv[1:]
sys.argv[1] = engine_folder
sandbox = runpy.run_path(program)
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_ssize_t
nothing, parent, machine, eperm = ctypes.c_void_p(), os.getppid(), os.uname().machine, 1

def memory(protection):
    private_and_anonymous = 34
    return libc.mmap(nothing, ctypes.c_size_t(4096), protection, private_and_anonymous, -1, ctypes.c_long(0))

def fork():
    child = libc.fork()
    return child or os._exit(0)

sandbox["confine"]()
assert memory(protection=3) > 0
results = {
    "close": libc.close(0),
    "open": libc.open(b"/etc/passwd", os.O_RDONLY),
    "openat": libc.openat(-100, b"/etc/passwd", os.O_RDONLY),
    "dup": libc.dup(1),
    "socket": libc.socket(socket.AF_INET, socket.SOCK_STREAM, 0),
    "connect": libc.connect(1, bytes(16), 16),
    "sendmsg": libc.sendmsg(1, bytes(64), 0),
    "kill": libc.kill(parent, 0),
    "prlimit": libc.prlimit(0, 7, nothing, (ctypes.c_ulong * 2)()),
    "mprotect": libc.mprotect(nothing, 0, 5),
    "memory for code": memory(protection=7),
    "getpid of the x32 ABI": libc.syscall(ctypes.c_long(0x40000000 + 39)) if machine == "x86_64" else -1,
    "fork": fork(),
    "execve": -1 if libc.execve(b"/nothing", nothing, nothing) and ctypes.get_errno() == eperm else 0,
}
os.write(1, " ".join(name for name, result in results.items() if result != -1).encode())
"""
GOOD = Function("f", "function f(m) { m.attributes.seen = typeof leaked; return m; }")
#: One native operation that takes minutes, in which the engine doesn't look at the clock.
ENDLESS_NATIVE = 'function f() { return {data: "" + "a".repeat(1e7).indexOf("a".repeat(5e6) + "b")}; }'
HOSTILE = {
    "endless loop": "function f() { for (;;); }",
    "endless loop that catches": "function f() { for (;;) { try { for (;;); } catch (error) {} } }",
    "native operation without end": ENDLESS_NATIVE,
    "memory": "function f() { const all = []; for (;;) all.push(new Array(1000).fill(all.length + 'x')); }",
    "buffers": "function f() { const all = []; for (;;) all.push(new ArrayBuffer(1 << 24)); }",
    "string": "function f() { let s = 'x'; for (;;) s += s; }",
    "huge array": "function f() { return new Array(4e9).fill(1); }",
    "recursion": "function f() { return f() + 1; }",
    "regular expression": "function f() { return {data: '' + /^(a+)+$/.test('a'.repeat(40) + 'b')}; }",
    "sort": "function f() { return [3, 2, 1].sort(() => { for (;;); }); }",
    "big integers": "function f() { let x = 3n; for (;;) x *= x; }",
    "deep JSON": "function f() { return JSON.parse('['.repeat(1e6)); }",
    "deep result": "function f() { let a = []; for (let i = 0; i < 1e5; i++) a = [a]; JSON.stringify(a); }",
    "wait": "function f() { Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0); }",
    "getter": "function f() { return {get data() { for (;;); }}; }",
    "giant data": "function f() { return {data: 'x'.repeat(5e7)}; }",
    "giant attributes": "function f() { return {data: '', attributes: Object.assign({}, Array(101).fill('x'))}; }",
    "proxy": "function f() { return new Proxy({}, {get() { return 1; }, ownKeys() { for (;;); }}); }",
}


@pytest.fixture
def sandboxes() -> Iterator[Sandboxes]:
    sandboxes = Sandboxes(3)
    yield sandboxes
    sandboxes.close()


def run(sandboxes: Sandboxes, function: Function, *data: bytes, project: str = "evil") -> list[object]:
    return list(sandboxes.run(project, [function], [Input(payload, {}, {}) for payload in data], seconds=SECONDS))


@pytest.mark.parametrize("attack", sorted(HOSTILE))
def test_a_hostile_function_fails_and_the_next_message_succeeds(sandboxes: Sandboxes, attack: str) -> None:
    assert isinstance(run(sandboxes, Function("f", HOSTILE[attack]), b"x")[0], Failed)

    assert run(sandboxes, GOOD, b"x") == [Transformed(b"x", {"seen": "undefined"})]


def test_only_the_message_that_ends_the_process_fails(sandboxes: Sandboxes) -> None:
    code = ENDLESS_NATIVE.replace("function f() {", 'function f(m) { if (m.data !== "bad") return m;')

    results = run(sandboxes, Function("f", code), b"1", b"2", b"bad", b"3")

    assert [isinstance(result, Transformed) for result in results] == [True, True, False, True]


def test_other_projects_go_on_while_one_is_stuck(sandboxes: Sandboxes) -> None:
    stuck = threading.Thread(target=run, args=(sandboxes, Function("f", HOSTILE["endless loop"]), *[b"x"] * 5))
    stuck.start()
    try:
        for _ in range(2):
            assert isinstance(run(sandboxes, GOOD, b"x", project="good")[0], Transformed)
        assert stuck.is_alive()
    finally:
        stuck.join()


def test_nothing_passes_from_one_project_or_function_to_another(sandboxes: Sandboxes) -> None:
    leak = Function(
        "f",
        """
        function f(m) {
            globalThis.leaked = m.data;
            Object.prototype.leaked = m.data;
            return m;
        }
        """,
    )
    run(sandboxes, leak, b"secret", project="evil")

    assert run(sandboxes, GOOD, b"x", project="evil") == [Transformed(b"x", {"seen": "undefined"})]
    assert run(sandboxes, GOOD, b"x", project="good") == [Transformed(b"x", {"seen": "undefined"})]


def test_changed_prototypes_affect_only_the_function_itself(sandboxes: Sandboxes) -> None:
    code = """
        JSON.parse = JSON.stringify = Object.keys = Object.freeze = () => { throw new Error("gone"); };
        Object.prototype.toJSON = Array.prototype.toJSON = String.prototype.toJSON = () => "polluted";
        Object.defineProperty(Object.prototype, "attributes", {get() { return {evil: "yes"}; }});
        function f(m) { return m; }
    """

    [result] = run(sandboxes, Function("f", code), b"x")

    assert result == Transformed(b"x", {})
    assert run(sandboxes, GOOD, b"x") == [Transformed(b"x", {"seen": "undefined"})]


def test_a_function_has_nothing_but_the_language(sandboxes: Sandboxes) -> None:
    code = "function f() { return {data: Object.getOwnPropertyNames(globalThis).join()}; }"

    [result] = run(sandboxes, Function("f", code), b"x")

    assert isinstance(result, Transformed)
    names = set(result.data.decode().split(","))
    assert {"JSON", "Math", "Date", "RegExp", "Map"} <= names
    assert not names & {"std", "os", "console", "print", "performance", "require", "process", "fetch", "setTimeout"}
    imported = Function("f", 'async function f() { return import("os"); }')
    assert isinstance(run(sandboxes, imported, b"x")[0], Failed)


def test_a_sandbox_ends_with_the_process_that_started_it() -> None:
    parent = subprocess.run(
        [sys.executable, "-c", PARENT], capture_output=True, text=True, check=True, env=os.environ, timeout=120
    )

    wait_for(lambda: not Path(f"/proc/{int(parent.stdout)}").exists(), what="the end of the sandbox")


@NEEDS_FILTER
def test_native_code_in_a_sandbox_cannot_open_connect_fork_or_signal() -> None:
    child = subprocess.run(
        [sys.executable, "-I", "-c", NATIVE, str(PROGRAM), _engine_folder()],
        capture_output=True,
        check=True,
        timeout=60,
    )

    assert child.stdout == b""


@pytest.mark.skipif(sys.platform != "linux", reason="other kernels have no such file")
def test_where_memory_runs_out_the_kernel_ends_a_sandbox_first(sandboxes: Sandboxes) -> None:
    run(sandboxes, GOOD, b"x")
    assert Path(f"/proc/{sandboxes._sandboxes['evil'].pid}/oom_score_adj").read_text() == "1000\n"


@NEEDS_FILTER
def test_a_sandbox_runs_with_the_filter_and_gains_no_privileges(sandboxes: Sandboxes) -> None:
    run(sandboxes, GOOD, b"x")
    [thread] = Path(f"/proc/{sandboxes._sandboxes['evil'].pid}/task").iterdir()
    status = (thread / "status").read_text()

    assert "NoNewPrivs:\t1" in status
    assert "Seccomp:\t2" in status
