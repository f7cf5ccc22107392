"""The settings of the tests: those of `make up`, with a data folder of their own.

The environment is set before `pushhub.settings` reads it; processes that a test starts inherit it.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

KEPT = {"PUSHHUB_DATABASE_URL"}  # set by tests/with_postgresql.py

for name in [name for name in os.environ if name.startswith("PUSHHUB_") and name not in KEPT]:
    del os.environ[name]

# The machine's folder for temporary files, also in processes of this run, which inherit the TMPDIR set below.
TEMPORARY = os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
DATA = Path(tempfile.mkdtemp(prefix="pushhub-test-", dir=TEMPORARY))
atexit.register(shutil.rmtree, DATA, ignore_errors=True)

# Temporary files go to a folder of this run's own, so that tests/leftovers.py sees which test leaves one behind.
# pytest's tmp_path stays where pytest keeps the folders of the last runs.
os.environ["TMPDIR"] = str(DATA / "tmp")
(DATA / "tmp").mkdir()
tempfile.tempdir = None

os.environ.update(
    PUSHHUB_DATA=str(DATA),
    PUSHHUB_DEVELOPMENT="1",
    PUSHHUB_ALLOW_HTTP="1",
    PUSHHUB_ALLOW_PRIVATE="1",
    PUSHHUB_ANONYMOUS="user:developer@localhost",
    PUSHHUB_JOURNAL="off",  # the tests of the journal switch it on themselves
    PUSHHUB_METRICS="off",  # the tests of the metrics switch them on themselves
)

from pushhub.settings import *  # noqa: E402, F403
from pushhub.settings import DATABASES, IS_SQLITE  # noqa: E402

if IS_SQLITE:
    # A file and not memory, so that threads and processes meet SQLite's real locks.
    DATABASES["default"]["TEST"] = {"NAME": str(DATA / "test.sqlite3")}
    # No test needs its data after a power cut, so commits need not wait for the disk.
    DATABASES["default"]["OPTIONS"]["init_command"] += " PRAGMA synchronous=OFF;"
    SQLITE_SYNCHRONOUS = "OFF"

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

# Otherwise each test client looks at every static file again, which is a third of the time of most tests of REST.
WHITENOISE_AUTOREFRESH = True
