"""The notebooks in a stranger's folder or archive: nothing is unpacked to where its name says, or without end."""

from __future__ import annotations

import io
import os
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

from autograder.classroom.restore import MAX_BYTES, read_file
from autograder.text import one_line

DEPTH = 2  # archives within the archive that are opened
MAX_ARCHIVE = 64 << 20  # bytes of an archive within another
MAX_MEMBERS = 10_000  # of such a one, with those of archives in it
MAX_UNPACKED = 256 << 20  # bytes of the notebooks and archives in such a one, with those of archives in it
MAX_NOTEBOOKS = 5000  # the same
PIECE = 1 << 16  # bytes that are unpacked at a time: a member may hold more than its size says
SHARE = 4  # an archive in such a one may take that part of what it may hold
MAX_OUTER = 200_000  # members of the archive itself
MAX_PATH = 1000  # characters of a path
MAX_FOLDERS = 50  # of it
ENTRY = b"PK\x01\x02"  # what each member of an archive begins with in its table
MOST_SHOWN = 40  # characters of a longer one
LONG = f"its path has more than {MAX_PATH} characters or {MAX_FOLDERS} folders"
LINK = "it is a link, which is not followed"
HIDDEN = "it is hidden, by a dot that its name begins with, or a folder's around it: give that another name"
BROKEN = (zipfile.BadZipFile, zlib.error, OSError, EOFError, RuntimeError, ValueError, struct.error)


@dataclass
class Room:
    """What an archive within another may still hold, with those in it: these take of the `outer` one's as well."""

    members: int = MAX_MEMBERS
    unpacked: int = MAX_UNPACKED
    notebooks: int = MAX_NOTEBOOKS
    outer: Room | None = None

    def share(self) -> Room:
        """Return what an archive in it may hold."""
        most = MAX_MEMBERS // SHARE, MAX_UNPACKED // SHARE, MAX_NOTEBOOKS // SHARE
        return Room(*map(min, most, (self.members, self.unpacked, self.notebooks)), self)

    def take(self, members: int = 0, unpacked: int = 0, notebooks: int = 0) -> None:
        """Note what was found, which may be more than there was room for."""
        self.members, self.unpacked = self.members - members, self.unpacked - unpacked
        self.notebooks -= notebooks
        if self.outer:
            self.outer.take(members, unpacked, notebooks)


@dataclass(frozen=True)
class File:
    """A file in an archive: its path there; its content, if it is a notebook; why it was not read, if so.

    An empty folder is one whose name is "".
    """

    parts: tuple[str, ...]
    content: bytes | None = None
    time: datetime | None = None
    problem: str = ""

    @property
    def shown(self) -> str:
        """Its path, fit for a terminal."""
        return one_line("/".join(self.parts), 300)


def is_notebook(name: str) -> bool:
    """Return whether a file is a notebook by its name."""
    return name.lower().endswith(".ipynb")


def files(source: Path) -> Iterator[File]:
    """Yield what a folder, a .zip archive or a notebook holds. What is hidden, or left behind by a system, is not read.

    Raises OSError for a source that is none of these.
    """
    if source.is_dir():
        for name in sorted(os.listdir(source)):
            yield from _on_disk(source / name, (name,))
    elif is_notebook(source.name):
        yield from _on_disk(source, (source.name,))
    elif zipfile.is_zipfile(source):
        with _opened(source) as archive:
            if len(archive.infolist()) > MAX_OUTER:
                raise OSError(f"{source} holds more than {MAX_OUTER} files: give its parts one at a time")
            yield from _members(archive, (), 0)
    else:
        raise OSError(f"{source} is no folder, no .zip archive and no notebook{repack([source.name])}")


def repack(names: Sequence[str]) -> str:
    """Return what to do with files of which some are archives of another kind; "" where none is."""
    packed = any(name.lower().endswith((".gz", ".tar", ".tgz", ".7z", ".rar", ".xz", ".bz2")) for name in names)
    return ": unpack it, or pack it as .zip" if packed else ""


def _opened(source: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(source)
    except BROKEN as error:
        raise OSError(f"{source} cannot be read as a .zip archive: {one_line(error, 200)}") from None


def _on_disk(path: Path, parts: tuple[str, ...]) -> Iterator[File]:
    if len(parts) > MAX_FOLDERS:
        yield File(parts[:5], problem=LONG)  # enough to say whose it is
        return
    try:
        status = os.lstat(path)
        time = _date(status.st_mtime)
        if stat.S_ISDIR(status.st_mode):
            names = sorted(os.listdir(path))
            for name in names:
                yield from _on_disk(path / name, (*parts, name))
            if not names:
                yield File((*parts, ""))
        elif any(map(is_litter, parts)):
            yield _passed_over(parts)
        elif stat.S_ISLNK(status.st_mode):
            yield File(parts, problem=LINK)
        elif is_notebook(path.name):
            yield _bounded(File(parts, read_file(path, MAX_BYTES + 1), time))
        elif path.suffix.lower() == ".zip":
            yield from _within(read_file(path, MAX_ARCHIVE + 1), parts, time, 1, Room())
        else:
            yield File(parts, time=time)
    except OSError as error:
        yield File(parts, problem=f"it cannot be read: {one_line(error.strerror or error, 200)}")


def _within(content: bytes, parts: tuple[str, ...], time: datetime | None, depth: int, room: Room) -> Iterator[File]:
    """Yield the files of an archive in another one, whose own troubles cost only itself."""
    if depth > DEPTH:
        yield File(parts, problem="it is an archive in an archive in an archive")
    elif len(content) > MAX_ARCHIVE:
        yield File(parts, problem=f"it is larger than {MAX_ARCHIVE >> 20} MiB")
    elif (count := content.count(ENTRY)) > room.members:
        yield File(parts, problem=f"it holds more than {max(0, room.members)} files")
    else:
        room.take(members=count)
        empty = True
        try:
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                for each in _members(archive, parts, depth, time, room):
                    empty = False
                    yield each
            if empty:
                yield File(parts, problem="it holds no files")
        except Exception as error:  # whatever it is made of costs this submission alone
            yield File(parts, problem=f"it cannot be read as an archive: {one_line(error, 200)}")


def _members(
    archive: zipfile.ZipFile,
    within: tuple[str, ...],
    depth: int,
    time: datetime | None = None,
    room: Room | None = None,
) -> Iterator[File]:
    names = [*sorted(map(_name, archive.infolist())), ""]
    empty = {a for a, b in pairwise(names) if a.endswith("/") and not b.startswith(a)}
    for info in archive.infolist():
        name = _name(info)
        if len(name) > MAX_PATH or name.count("/") > MAX_FOLDERS:
            yield File((*within, name[:MOST_SHOWN].replace("/", "_")), problem=LONG)
            continue
        own = [part for part in name.split("/") if part not in ("", ".")]
        parts = (*within, *own)
        if name.endswith("/"):
            if name in empty:
                yield File((*parts, ""))
            continue
        if not own:
            yield File((*within, "_"), problem="a file in the archive has no name")
            continue
        if any(map(is_litter, own)):
            yield _passed_over(parts)
            continue
        kept = File(parts, time=time or _time(info))
        if name.startswith("/") or ".." in parts or re.match("[A-Za-z]:", own[0]):
            yield File(parts, problem="its path leads out of the archive")
        elif stat.S_ISLNK(info.external_attr >> 16):
            yield File(parts, problem=LINK)
        elif not is_notebook(name) and not name.lower().endswith(".zip"):
            yield kept
        elif room and room.unpacked < 0:
            yield File(parts, problem="the archive's notebooks take more memory than there is for them")
        elif room and room.notebooks < 1:
            yield File(parts, problem="the archive holds more notebooks than a submission has")
        else:
            limit = MAX_BYTES if is_notebook(name) else MAX_ARCHIVE
            try:
                content = _unpacked(archive, info, limit + 1, room)
            except BROKEN as error:
                yield File(parts, problem=f"it cannot be unpacked: {one_line(error, 200)}")
                continue
            if room:
                room.take(notebooks=is_notebook(name))
            if is_notebook(name):
                yield _bounded(File(parts, content, kept.time))
            else:
                yield from _within(content, parts, kept.time, depth + 1, room.share() if room else Room())


def _unpacked(archive: zipfile.ZipFile, info: zipfile.ZipInfo, limit: int, room: Room | None) -> bytes:
    """Return at most so many bytes of a member, and take them from what there is room for, whatever comes of them."""
    if info.flag_bits & 1:
        raise ValueError("it has a password")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # others take memory as they say
        raise ValueError("it is packed in a way that is not read here: expected deflate")
    content = bytearray()
    try:
        with archive.open(info) as member:
            while len(content) < limit and (piece := member.read(min(PIECE, limit - len(content)))):
                content += piece
    finally:
        if room:
            room.take(unpacked=max(len(content), info.compress_size))
    return bytes(content)


def _bounded(file: File) -> File:
    if len(file.content) <= MAX_BYTES:
        return file
    return File(file.parts, problem=f"it is larger than {MAX_BYTES >> 20} MiB: have its outputs cleared")


def _name(info: zipfile.ZipInfo) -> str:
    """Return a member's name with slashes; of systems that do not say so, names in UTF-8 are taken for that."""
    name = info.filename
    if not info.flag_bits & 0x800:
        try:
            name = name.encode("cp437").decode()
        except ValueError:
            name = info.filename
    return name.replace("\\", "/")


def _date(seconds: float) -> datetime | None:
    """Return a file's time; None for one that no calendar has."""
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def _time(info: zipfile.ZipInfo) -> datetime | None:
    """Return a member's time: the one in UTC if it has that, else the local one, taken for this machine's."""
    extra = info.extra
    while len(extra) >= 4:
        kind, size = struct.unpack("<HH", extra[:4])
        if kind == 0x5455 and size >= 5 and len(extra) >= 9 and extra[4] & 1:
            return _date(struct.unpack("<i", extra[5:9])[0])
        extra = extra[4 + size :]
    try:
        return datetime(*info.date_time).astimezone(UTC) if info.date_time[0] > 1980 else None
    except (ValueError, OverflowError):
        return None


def is_litter(name: str) -> bool:
    """Return whether a file or a folder is hidden by its name, or left behind by a system."""
    return (name.startswith(".") and name != "..") or of_system(name)


def of_system(name: str) -> bool:
    """Return whether a file or a folder was left behind by a system."""
    return name.startswith("._") or name in ("__MACOSX", "Thumbs.db", "desktop.ini")


def _passed_over(parts: tuple[str, ...]) -> File:
    """Return what is told of a file that is hidden, or left behind by a system."""
    hidden = is_notebook(parts[-1]) and not any(map(of_system, parts))
    return File(parts, problem=HIDDEN if hidden else "")
