"""Files written whole or not at all, what a disk that takes no more is called, and names as file systems spell them."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import tempfile
import unicodedata
from collections.abc import Collection
from pathlib import Path

DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO}
ROOM = 4 << 20  # bytes that a folder must take, to be blamed for nothing


def write_whole(path: Path, content: str | bytes, public: bool = False) -> None:
    """Write a file so that a reader, or a run after a crash, finds the old content or the new, never a part.

    It can be read by its owner alone; if `public`, by whom the umask lets. What is no file, as a pipe, is written as it
    is. Raises OSError as writing does.
    """
    content = content.encode() if isinstance(content, str) else content
    if path.exists() and not path.is_file():  # /dev/stdout, a pipe
        path.write_bytes(content)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if public else 0o600)
        with open(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def require_space(*folders: Path, room: int = ROOM) -> None:
    """Raise OSError, as writing does, unless these folders, or what will hold them, take a file of so many bytes.

    To ask once something has failed: nbgrader tells the failures of a disk and of a notebook apart by their text alone,
    which may quote a student.
    """
    for folder in folders:
        there = next(each for each in (folder, *folder.absolute().parents) if each.is_dir())
        try:
            with tempfile.TemporaryFile(dir=there) as file:
                if room:
                    file.write(bytes(room))
                    file.flush()
                    os.fsync(file.fileno())
        except OSError as error:
            error.filename = str(there)  # and not a file that nobody knows
            raise


def disk_trouble(error: OSError) -> str | None:
    """Return a sentence for an error that a full or read-only disk has raised; None for another one."""
    if error.errno not in DISK:
        return None
    where = f" at {error.filename}" if error.filename else ""
    return (
        f"the disk takes no more{where} ({os.strerror(error.errno)}): see to it and run the command again; what is "
        "finished is kept, and no file is half-written"
    )


def changed(folder: Path) -> int:
    """Return when the last of the files in a folder came there, in nanoseconds; 0 for a folder that cannot be read.

    That is not when it was written, which `unzip` and `rsync` set to an earlier time.
    """
    try:
        with os.scandir(folder) as entries:
            found = [each.stat(follow_symlinks=False) for each in entries]
            return max((time for status in found for time in (status.st_mtime_ns, status.st_ctime_ns)), default=0)
    except OSError:
        return 0


def spelling(path: Path, names: Collection[str]) -> str:
    """Return which of the names in its folder a path is there by: its own, or one that the file system takes for it.

    To many, as those of macOS and Windows, upper case is lower, and a letter with its accent two characters or one.
    """
    if path.name in names or not os.path.lexists(path):
        return path.name
    return next((name for name in sorted(names) if _folded(name) == _folded(path.name)), path.name)


def _folded(name: str) -> str:
    return composed(composed(name).casefold())


def composed(name: str) -> str:
    """Return a name in Unicode's form NFC, which students' names have; some file systems list it in another."""
    return unicodedata.normalize("NFC", name)
