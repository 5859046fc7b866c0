"""Files written whole or not at all, and what a disk that takes no more is called."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO}


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file so that there is the old content or the new, never a part. What is no file is written as it is.

    Raises OSError as writing does.
    """
    content = content.encode() if isinstance(content, str) else content
    if path.exists() and not path.is_file():  # /dev/stdout, a pipe
        path.write_bytes(content)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
