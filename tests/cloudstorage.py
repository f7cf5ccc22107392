"""Cloud Storage for tests, in a process of its own: `python -m tests.cloudstorage PORT BUCKET`.

Arrow holds Python's lock while it waits for a file's size, so a server in the same process could not answer.
"""

from __future__ import annotations

import sys
from http import server

from gcp_storage_emulator.server import create_server


def main(port: int, bucket: str) -> None:
    """Serve an empty bucket on loopback until the process is ended."""
    # Arrow asks for a range of a file on a second connection, before it has read the first to its end.
    server.HTTPServer = server.ThreadingHTTPServer  # type: ignore[misc]
    create_server("127.0.0.1", port, in_memory=True, default_bucket=bucket).run()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
