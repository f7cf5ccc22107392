"""The bare push client against nginx answering 204, beside wrk in the same run.

    python -m bench.client [--seconds 5] [--outstanding 64 1000] [--tls] [--profile FILE]

Prints requests a second and microseconds of CPU a request. Client and endpoint share the machine's cores, and wrk sends
the same bytes. nginx and wrk come from the system's packages.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import cProfile
import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import uvloop

from deliveries.client.client import ClientOptions, PushClient, PushResult

#: Like a signed push request: a JWT of 700 bytes and an envelope of 300.
HEADERS = [("Content-Type", "application/json"), ("Authorization", "Bearer " + "x" * 700)]
BODY = json.dumps({"message": {"data": "eA==" * 50, "messageId": "1"}, "subscription": "projects/p/subscriptions/s"})

NGINX = """
daemon off; pid {folder}/nginx.pid; error_log {folder}/error.log crit; worker_processes 1;
events {{ worker_connections 40000; multi_accept on; }}
http {{
  {words} access_log off; keepalive_requests 1000000000; keepalive_timeout 60s;
  client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
  uwsgi_temp_path {folder}; scgi_temp_path {folder};
  server {{ listen 127.0.0.1:{port} {ssl} backlog=4096; location / {{ return 204; }} }}
}}
"""


class Load:
    """Keeps a number of requests outstanding and counts the responses."""

    def __init__(self, client: PushClient, url: str, outstanding: int) -> None:
        self.client = client
        self.endpoint = client.prepare(url, headers=HEADERS)
        self.outstanding = outstanding
        self.body = BODY.encode()
        self.acked = 0
        self.failed: dict[str, int] = {}
        self.running = True

    def start(self) -> None:
        for _ in range(self.outstanding):
            self._post()

    def _post(self) -> None:
        self.client.post(self.endpoint, self.body, timeout_s=10.0, on_done=self._done)

    def _done(self, result: PushResult) -> None:
        if result.status == 204:
            self.acked += 1
        else:
            word = result.reason or str(result.status)
            self.failed[word] = self.failed.get(word, 0) + 1
        if self.running:
            self._post()


@contextlib.contextmanager
def nginx(folder: Path, *, tls: bool) -> Iterator[int]:
    """Run an endpoint that answers 204, and yield its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    if tls:
        subprocess.run(
            [
                *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"),
                *("-addext", "subjectAltName=DNS:localhost"),
                *("-keyout", folder / "key.pem", "-out", folder / "cert.pem"),
            ],
            check=True,
            capture_output=True,
        )
    conf = folder / "nginx.conf"
    words = f"ssl_certificate {folder}/cert.pem; ssl_certificate_key {folder}/key.pem;" if tls else ""
    conf.write_text(NGINX.format(folder=folder, port=port, ssl="ssl" if tls else "", words=words))
    process = subprocess.Popen([shutil.which("nginx") or "/usr/sbin/nginx", "-c", str(conf), "-p", str(folder)])
    try:
        _wait_for_port(port)
        yield port
    finally:
        process.terminate()
        process.wait()


def _wait_for_port(port: int) -> None:
    for _ in range(500):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.01)
    raise SystemExit("nginx did not start")


def wrk(url: str, outstanding: int, seconds: float, folder: Path) -> float:
    """Return the requests per second of wrk with one thread and the same headers and body."""
    script = folder / "post.lua"
    lines = [f"wrk.headers[{json.dumps(name)}] = {json.dumps(value)}" for name, value in HEADERS]
    script.write_text("\n".join(['wrk.method = "POST"', f"wrk.body = {json.dumps(BODY)}", *lines]))
    command = ["wrk", "-t1", f"-c{outstanding}", f"-d{int(seconds)}s", "-s", str(script), url]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rate = re.search(r"Requests/sec:\s+([\d.]+)", shown)
    assert rate is not None, shown
    return float(rate[1])


async def measure(url: str, outstanding: int, seconds: float, options: ClientOptions) -> dict[str, object]:
    client = PushClient(asyncio.get_running_loop(), options=options)
    load = Load(client, url, outstanding)
    load.start()
    await asyncio.sleep(1)
    acked, before, started = load.acked, os.times(), time.perf_counter()
    await asyncio.sleep(seconds)
    acked, after, wall = load.acked - acked, os.times(), time.perf_counter() - started
    load.running = False
    connections = sum(len(pool._open) for pool in client._pools.values())
    await client.close()
    return {
        "outstanding": outstanding,
        "requests_per_second": round(acked / wall),
        "user_us_per_request": round((after.user - before.user) / acked * 1e6, 2),
        "system_us_per_request": round((after.system - before.system) / acked * 1e6, 2),
        "connections": connections,
        "failed": load.failed,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--outstanding", type=int, nargs="+", default=[64, 1000])
    parser.add_argument("--tls", action="store_true")
    parser.add_argument("--profile", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        with nginx(folder, tls=args.tls) as port:
            url = f"{'https' if args.tls else 'http'}://localhost:{port}/push"
            options = ClientOptions(
                allow_http=True, allow_private=True, ca_file=str(folder / "cert.pem") if args.tls else ""
            )
            for outstanding in args.outstanding:
                with cProfile.Profile() if args.profile else contextlib.nullcontext() as profile:
                    line = uvloop.run(measure(url, outstanding, args.seconds, options))
                if profile is not None:
                    profile.dump_stats(args.profile)
                line["wrk_requests_per_second"] = round(wrk(url, outstanding, args.seconds, folder))
                print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
