"""The topic file, `<folder>/<topic>.topic`: how many partitions a topic in a folder has, and its topic id.

    version: 0
    topic_id: AAAAAAAAAAAAAAAAAAAAAQ      as in partition.metadata, 22 characters of base64url
    partitions: 4                         wanted
    created: 2                            of them, the first so many have their directories
    crc32c: 1c2b3a4d                      of the lines above

It is replaced atomically, before directories are made and again afterwards, so that a creation that was broken off is
completed by the next opening. Everything in it but the number of partitions wanted can be found in their directories.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from kreplog._native.checkpoint import atomic_write
from kreplog._native.crc32c import crc32c
from kreplog._native.files import error_of
from kreplog.errors import CorruptCheckpointError
from kreplog.syncing import sync_directory
from kreplog.types import MAX_PARTITION

_FORM = re.compile(
    rb"(version: 0\ntopic_id: ([A-Za-z0-9_-]{22})\npartitions: ([1-9][0-9]{0,9})\ncreated: (0|[1-9][0-9]{0,9})\n)"
    rb"crc32c: ([0-9a-f]{8})\n"
)
_LONGEST = 4096
GROUPS_FILE = 0o640


@dataclass(frozen=True, slots=True)
class TopicFile:
    """The content of a topic file. partitions: wanted. created: of them, the first so many have their directories."""

    topic_id: str
    partitions: int
    created: int


def topic_file_path(folder: str, topic: str) -> str:
    return os.path.join(folder, topic + ".topic")


def read_topic_file(path: str) -> TopicFile | None:
    """Read the topic file; None if there is none. Raises CorruptCheckpointError, StorageError."""
    try:
        with open(path, "rb", buffering=0) as file:
            data = file.read(_LONGEST)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise error_of("cannot read", path, error) from error
    found = _FORM.fullmatch(data)
    if found is not None and crc32c(found[1]) == int(found[5], 16):
        content = TopicFile(found[2].decode(), int(found[3]), int(found[4]))
        if content.created <= content.partitions <= MAX_PARTITION:
            return content
    raise CorruptCheckpointError(
        f"{path} is damaged: delete it, and the next opening finds the topic's partitions by their directories",
        path=path,
    )


def write_topic_file(path: str, content: TopicFile, group: int | None = None) -> None:
    """Replace the file, durably. group: may read it, too. Raises StorageError."""
    lines = (
        f"version: 0\ntopic_id: {content.topic_id}\npartitions: {content.partitions}\ncreated: {content.created}\n"
    ).encode()
    data = lines + f"crc32c: {crc32c(lines):08x}\n".encode()
    if group is None:
        atomic_write(path, data)
        return
    shared = path + ".shared"  # readers find the file when they may read it, not before
    atomic_write(shared, data)
    share(shared, group)
    try:
        os.replace(shared, path)
    except OSError as error:
        raise error_of("cannot replace", path, error) from error
    sync_directory(os.path.dirname(path) or ".")


def share(path: str, group: int) -> None:
    """Let a group read the file, if it may not. Raises StorageError."""
    try:
        status = os.stat(path)
        if status.st_gid != group:
            os.chown(path, -1, group)
        if status.st_mode & 0o777 != GROUPS_FILE:
            os.chmod(path, GROUPS_FILE)
    except OSError as error:
        raise error_of("cannot let a group read", path, error) from error
