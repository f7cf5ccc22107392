"""Runs `pushhub emulator` as a child process on free ports."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Self

READY = re.compile(r"Server started, listening on (\d+)")
CONSOLE = re.compile(r"console and REST at (\S+)/")
STOP_SECONDS = 30.0
#: Runs the emulator of this installation. The folder of the tests may have a package `subscriptions` of its own. The
#: pipe from the tests closes when they were killed.
PROGRAM = f"""\
import os, signal, sys, threading

def end_with_parent():
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGTERM)

threading.Thread(target=end_with_parent, daemon=True).start()
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from pushhub.emulator.command import main
sys.exit(main(sys.argv[1:]))
"""


class EmulatorError(RuntimeError):
    """The emulator didn't start. The text includes its output."""


class Emulator:
    """An emulator of its own for a test run, on free ports of 127.0.0.1. Use it as a context manager."""

    def __init__(
        self,
        *,
        projects: Sequence[str] = (),
        resources: Path | None = None,
        data_dir: Path | None = None,
        time_scale: float = 1.0,
        start_seconds: float = 120.0,
    ) -> None:
        self._command = [sys.executable, "-P", "-c", PROGRAM, "--host-port=127.0.0.1:0"]
        self._command += [f"--project={project}" for project in projects]
        self._command += [f"--resources={resources}"] if resources else []
        self._command += [f"--data-dir={data_dir}"] if data_dir else []
        self._command += [f"--time-scale={time_scale}"]
        self._start_seconds = start_seconds
        self._process: subprocess.Popen[str] | None = None
        self._lines: list[str] = []
        self._answered = threading.Event()
        self._reader: threading.Thread | None = None
        #: `127.0.0.1:PORT` for PUBSUB_EMULATOR_HOST: gRPC, and REST too.
        self.host_port = ""
        #: The URL of the console and of REST.
        self.console_url = ""

    @property
    def printed(self) -> str:
        """The output of the emulator so far."""
        return "".join(self._lines)

    def start(self) -> Self:
        """Start the emulator and wait until it is ready. Raises EmulatorError if that takes too long."""
        self._process = subprocess.Popen(  # noqa: S603
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._reader = threading.Thread(target=self._read, name="emulator output", daemon=True)
        self._reader.start()
        self._answered.wait(self._start_seconds)
        if not self.host_port:
            self.stop()
            raise EmulatorError(f"the emulator is not ready:\n{self.printed}")
        return self

    def reset(self) -> None:
        """Delete every resource and message, then create the initial resources again."""
        address = f"http://{self.host_port}/emulator/reset"
        request = urllib.request.Request(address, data=b"", method="POST")
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=60):
            pass

    def stop(self) -> None:
        """Stop the emulator and wait for its end. Without a data folder, all of its data is lost."""
        if self._process is None or self._reader is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append(line)
            if console := CONSOLE.search(line):
                self.console_url = console[1]
            if ready := READY.search(line):
                self.host_port = f"127.0.0.1:{ready[1]}"
                self._answered.set()
        self._answered.set()
