"""The fork server, in a process of its own, as the process of the tests has threads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
PROGRAM = """
import os, signal, sys
import django
import psutil

django.setup()
from deliveries.publish import storing
from pushhub.runtime.forkserver import ForkServer

server = ForkServer()
command = [sys.executable, "-m", "pushhub.runtime.webserver"]
assert server.can_run(command)
assert not server.can_run([sys.executable, "-m", "http.server"])
assert not server.can_run(["redis-server", "--port", "0"])

# Output and exit status are those of the command, and environment variables are its own.
started = server.start([*command, "--help"], {"COLUMNS": "40"})
assert psutil.Process(started.pid).ppid() == os.getpid()
assert b"--worker" in started.stdout.read()
assert started.wait() == 0
started = server.start([*command, "--nonsense"], {})
assert b"unrecognized arguments: --nonsense" in started.stdout.read()
assert started.wait() == 2

# A signal ends a process, and its end is that of a child.
started = server.start(command, {"PATH": os.environ["PATH"]})
os.kill(started.pid, signal.SIGKILL)
assert started.wait() == -signal.SIGKILL
started.stdout.close()

# Forks draw numbers of their own for message ids.
node = storing._message_ids._node
read, write = os.pipe()
if not os.fork():
    os.write(write, b"%d" % storing._message_ids._node)
    os._exit(0)
os.wait()
assert int(os.read(read, 10)) != node

# Without the fork server, whoever asks is told so.
os.kill(server._pid, signal.SIGKILL)
try:
    server.start(command, {})
except OSError:
    pass
else:
    raise AssertionError("nobody can have started it")

server.close()
assert psutil.Process().children() == []
print("done")
"""


def test_a_fork_behaves_like_a_started_process() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
