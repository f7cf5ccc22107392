"""Forks, of a process of its own, as the process of the tests has threads."""

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
from pushhub.runtime.forking import fork_and_call, import_everything, start_process

import_everything()
# The supervisor forks at any time, so what it imports must start no thread.
assert len(psutil.Process().threads()) == 1
lock = open(os.devnull)

# Output and exit status are those of the command, and environment variables are its own.
command = [sys.executable, "-m", "pushhub.runtime.webserver"]
for words, environment, expected, status in (
    ([*command, "--help"], {"COLUMNS": "40"}, b"PUSHHUB_WEB_WORKERS", 0),
    ([*command, "--nonsense"], {}, b"unrecognized arguments: --nonsense", 2),
    ([sys.executable, "-c", "import os; print(os.environ['A'])"], {"A": "other modules"}, b"other modules", 0),
):
    started = start_process(words, environment)
    assert psutil.Process(started.pid).ppid() == os.getpid()
    assert expected in os.fdopen(os.dup(started.output), "rb").read()
    assert started.wait_for_exit() == status

# A process has no files of the supervisor's, such as the lock of the data folder, and its own session and handlers.
signal.signal(signal.SIGTERM, lambda *_: None)
def tell() -> int:
    own = os.getsid(0) == os.getpid(), signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    os.write(1, f"{os.listdir('/proc/self/fd')} {own}".encode())
    signal.pause()
started = fork_and_call(tell)
written = os.read(started.output, 1000)
assert written == b"['0', '1', '2', '3'] (True, True)", written  # the last file is the listing itself
os.kill(started.pid, signal.SIGTERM)
assert started.wait_for_exit() == -signal.SIGTERM

# Ctrl-C at a terminal reaches a fork until it has a session of its own.
def interrupted() -> int:
    signal.raise_signal(signal.SIGINT)
    return 0
started = fork_and_call(interrupted)
assert os.read(started.output, 1000) == b""
assert started.wait_for_exit() == 130

# Forks draw numbers of their own for message ids.
node = storing._message_ids._node
read, write = os.pipe()
if not os.fork():
    os.write(write, b"%d" % storing._message_ids._node)
    os._exit(0)
os.wait()
assert int(os.read(read, 10)) != node

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
