"""Folders of files: on this machine, or in a bucket of an object store (`s3://bucket/folder`, `gs://bucket/folder`).

Credentials, regions and other endpoints come from the environment variables that each store's own tools read. An
address holds none, so that it may be logged.
"""

from __future__ import annotations

import fcntl
import io
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, Literal
from urllib.parse import urlsplit

from pushhub.common.errors import InvalidArgument, first_line

if TYPE_CHECKING:
    import pyarrow.parquet as pq

SCHEMES = ("s3", "gs")
#: How long a request to Cloud Storage is repeated while the store fails. Arrow's default is 15 minutes, in which a
#: worker would do nothing else.
GCS_RETRY_SECONDS = 10


def is_remote(address: str | Path | Store) -> bool:
    return "://" in str(address)


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file, by its name below the folder of its store."""

    name: str
    bytes: int


class Store:
    """The files below an address. Names are paths below it, with slashes. Methods may raise OSError."""

    def __init__(self, address: str | Path | Store) -> None:
        self.address = str(address).rstrip("/") if is_remote(address) else str(Path(str(address)).absolute())
        if is_remote(address):
            check_address(self.address)
        self.is_local = not is_remote(address)
        #: The folder as Arrow's file system names it.
        self.root = self.address if self.is_local else self.address.partition("://")[2]

    def __str__(self) -> str:
        return self.address

    @property
    def filesystem(self) -> Any:
        """The pyarrow file system."""
        return _filesystem(self.address.partition("://")[0] if not self.is_local else "file", os.getpid())

    def path(self, name: str) -> str:
        """Return the path that `filesystem` has for a name."""
        return f"{self.root}/{name}" if name else self.root

    def open(self, name: str) -> Any:
        """Open a file for reading at any position. Raises FileNotFoundError."""
        return self.filesystem.open_input_file(self.path(name))

    def exists(self, name: str) -> bool:
        return bool(self._info(name).is_file)

    def size(self, name: str) -> int:
        """Return the bytes of a file. Raises FileNotFoundError."""
        info = self._info(name)
        if not info.is_file:
            raise FileNotFoundError(f"{self.address}/{name} does not exist")
        return int(info.size)

    def delete(self, name: str) -> None:
        """Delete a file, if it exists."""
        try:
            self.filesystem.delete_file(self.path(name))
        except FileNotFoundError:
            return

    def files(self, under: str = "") -> Iterator[StoredFile]:
        """Yield every file of a folder and of its subfolders, in the order of their names."""
        import pyarrow.fs as fs

        selector = fs.FileSelector(self.path(under), recursive=True, allow_not_found=True)
        infos = [info for info in self.filesystem.get_file_info(selector) if info.is_file]
        for info in sorted(infos, key=lambda info: info.path):
            yield StoredFile(info.path.removeprefix(f"{self.root}/"), int(info.size))

    @contextmanager
    def write(self, name: str) -> Iterator[BinaryIO]:
        """Write a file, or replace it.

        In a folder, the file is complete and on the disk, or it doesn't exist. In an object store, a failed write may
        leave a part of the file, so readers must find out in other ways which files are valid.
        """
        if not self.is_local:
            try:
                # By default Arrow compresses files with names such as a.gz.
                with self.filesystem.open_output_stream(self.path(name), compression=None) as stream:
                    yield stream
            except OSError as error:
                # Cloud Storage's errors don't name the file or its bucket.
                raise OSError(f"{self.address}/{name} cannot be written: {first_line(error)}") from error
            return
        with replaced_file(Path(self.root, name)) as file:
            yield file

    def write_bytes(self, name: str, content: bytes) -> None:
        """Write a file completely or not at all, because an object store gets it in one piece."""
        with self.write(name) as file:
            file.write(content)

    def read_text(self, name: str) -> str:
        """Return the text of a file, or "" if it doesn't exist."""
        try:
            with self.open(name) as file:
                return bytes(file.read()).decode()
        except FileNotFoundError:
            return ""

    def _info(self, name: str) -> Any:
        return self.filesystem.get_file_info(self.path(name))


def check_address(address: str) -> None:
    """Raise InvalidArgument unless the address is that of an object store, without credentials or settings."""
    parts = urlsplit(address)
    if parts.scheme not in SCHEMES:
        raise InvalidArgument(f"There are no files at {parts.scheme}://: give a folder, or an s3:// or gs:// address.")
    if "@" in parts.netloc or parts.query:
        # The message doesn't include the address, which may contain a secret.
        raise InvalidArgument(
            f"The {parts.scheme}:// address has credentials or settings in it: give them as environment variables."
        )
    if not parts.netloc:
        raise InvalidArgument(f"{address} names no bucket.")


@contextmanager
def replaced_file(path: Path) -> Iterator[BinaryIO]:
    """Write a file of this machine, or replace it: it is complete and on the disk, or as it was before."""
    make_folders(path.parent)
    hidden = path.with_name(f".{path.name}.new")
    with open(hidden, "wb", opener=open_private) as file, replacing(path, file):
        yield file


@contextmanager
def rewritten_file(path: Path) -> Iterator[IO[bytes]]:
    """Write a file that the user named: it is complete, or as it was before, unless it is a pipe or a device."""
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield file
        return
    path = path.resolve()
    with path.with_name(f".{path.name}.new").open("wb") as file, replacing(path, file):
        yield file


@contextmanager
def created_file(path: Path) -> Iterator[BinaryIO]:
    """Write a file for its owner alone, which must not exist: it is complete and on the disk, or deleted again."""
    with open(path, "xb", opener=open_private) as file:
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())
        except BaseException:
            path.unlink()
            raise


def make_folders(folder: Path) -> None:
    """Create a folder and its parents, readable by this user only."""
    for missing in reversed([parent for parent in (folder, *folder.parents) if not parent.exists()]):
        missing.mkdir(mode=0o700, exist_ok=True)
        synchronize(missing.parent)


@contextmanager
def replacing(path: Path, unfinished: IO[bytes]) -> Iterator[None]:
    """Have an open file take the place of `path` once the block is through; after an error it is deleted."""
    written = Path(unfinished.name)
    try:
        yield
        unfinished.flush()
        os.fsync(unfinished.fileno())
        written.replace(path)
    except BaseException:
        written.unlink(missing_ok=True)
        raise
    synchronize(path.parent)


def synchronize(folder: Path) -> None:
    """Write the directory entries of a folder to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def lock_file(file: int | IO[Any]) -> bool:
    """Lock an open file; return False if another handle holds the lock."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


@cache
def _filesystem(scheme: str, process_id: int) -> Any:
    """Return the file system of a scheme. Processes can't share connections, so each has its own."""
    import pyarrow.fs as fs

    if scheme == "file":
        return fs.LocalFileSystem()
    return _s3() if scheme == "s3" else _gcs()


def _s3() -> Any:
    import pyarrow.fs as fs

    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    options: dict[str, Any] = {}
    if region := os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"):
        options["region"] = region
    if endpoint:
        options |= {"endpoint_override": endpoint, "scheme": urlsplit(endpoint).scheme or "https"}
    return fs.S3FileSystem(**options)


def _gcs() -> Any:
    import pyarrow.fs as fs

    emulator = os.environ.get("STORAGE_EMULATOR_HOST", "")
    options: dict[str, Any] = {"retry_time_limit": timedelta(seconds=GCS_RETRY_SECONDS)}
    if emulator:
        parts = urlsplit(emulator if "://" in emulator else f"http://{emulator}")
        options |= {"anonymous": True, "scheme": parts.scheme, "endpoint_override": parts.netloc}
    return fs.GcsFileSystem(**options)


@dataclass(frozen=True, slots=True, order=True)
class RemoteFile:
    """A file of an object store, with the part of pathlib.Path that readers of files need."""

    address: str

    def __str__(self) -> str:
        return self.address

    @property
    def name(self) -> str:
        return self.address.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        return Path(self.name).suffix

    @property
    def store(self) -> Store:
        """The folder of the file."""
        return Store(self.address.rpartition("/")[0])

    def absolute(self) -> RemoteFile:
        return self

    def open(self, mode: Literal["rb"] = "rb") -> io.BufferedReader:
        """Open the file for reading. Raises OSError."""
        return io.BufferedReader(self.store.open(self.name))


AnyFile = Path | RemoteFile


def open_parquet(path: AnyFile, **options: Any) -> pq.ParquetFile:
    """Open a Parquet file of this machine or of an object store. Raises OSError and pyarrow.ArrowException."""
    import pyarrow.parquet as pq

    if isinstance(path, RemoteFile):
        return pq.ParquetFile(path.store.path(path.name), filesystem=path.store.filesystem, **options)
    return pq.ParquetFile(path, **options)


def file_of(address: str) -> AnyFile:
    """Return the file of an address, or of a path of this machine."""
    return RemoteFile(address) if is_remote(address) else Path(address)


def files_matching(address: str) -> list[RemoteFile]:
    """Return the files of an address in the order of their names. It names a file, a folder or a pattern.

    In a pattern, `*` matches any text without a slash, and `**` any number of folders.
    """
    check_address(address)
    bucket, _, path = address.partition("://")[2].partition("/")
    folder = re.split(r"[^/]*[*]", path, maxsplit=1)[0].rstrip("/")
    store = Store(f"{address.partition('://')[0]}://{bucket}")
    if store.exists(path):
        return [RemoteFile(f"{store}/{path}")]
    names = [file.name for file in store.files(folder)]
    if folder == path.rstrip("/"):
        return [RemoteFile(f"{store}/{name}") for name in names if not is_hidden(name.removeprefix(f"{folder}/"))]
    pattern = re.compile(_translated(path))
    return [RemoteFile(f"{store}/{name}") for name in names if pattern.fullmatch(name)]


def is_hidden(name: str) -> bool:
    """Whether a file is left out of its folder: a part of its path begins with a dot or an underscore."""
    return any(part.startswith((".", "_")) for part in name.split("/"))


def _translated(pattern: str) -> str:
    """Return the regular expression for a shell pattern."""
    words = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*"}
    return "".join(words.get(word, re.escape(word)) for word in re.findall(r"\*\*/|\*\*|\*|[^*]+", pattern))
