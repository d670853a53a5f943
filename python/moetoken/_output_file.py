"""A file that appears whole or not at all, as the command-line tool writes it.

The content goes into a temporary file in the same folder, is brought to the disk, and gets its
name last. What is no regular file - a FIFO, a terminal, a device - has no such state in between
and is written to.
"""

from __future__ import annotations

import errno
import io
import os
import secrets
import stat
from typing import BinaryIO, Callable, Optional

__all__ = ["write_whole"]

_TRIES = 100


def _status(path: str) -> Optional[os.stat_result]:
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None


def _open_temporary(directory: str) -> tuple[int, str]:
    """A new file with the permissions that any new file has here: the umask is the kernel's."""
    for _ in range(_TRIES):
        path = os.path.join(directory, f".moetoken-{os.getpid()}-{secrets.token_hex(4)}.tmp")
        try:
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666), path
        except FileExistsError:
            continue
    raise FileExistsError(errno.EEXIST, "no free name for a temporary file", directory)


def _sync_directory(directory: str) -> None:
    """Brings the new name to the disk, where the file system can do that."""
    try:
        handle = os.open(directory, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        pass
    finally:
        os.close(handle)


def write_whole(path: str, write: Callable[[BinaryIO], None]) -> None:
    """Calls `write` with a file and gives the file the name `path`, where a link is followed."""
    path = os.path.realpath(path)
    before = _status(path)
    if before is not None and not stat.S_ISREG(before.st_mode):
        content = io.BytesIO()  # zip archives cannot be written to a pipe piece by piece
        write(content)
        with open(os.open(path, os.O_WRONLY | os.O_CLOEXEC), "wb") as file:
            file.write(content.getbuffer())
        return
    directory = os.path.dirname(path)
    handle, temporary = _open_temporary(directory)
    try:
        with open(handle, "wb") as file:
            write(file)
            if before is not None:
                os.fchmod(handle, stat.S_IMODE(before.st_mode))
            file.flush()
            os.fsync(handle)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    _sync_directory(directory)
