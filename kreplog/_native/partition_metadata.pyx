"""partition.metadata: the topic id of a partition directory, as Kafka writes it (KIP-516).

    version: 0
    topic_id: 9hB4ZVdbQ9uIPXAdzGhMrA        16 bytes in URL-safe base64, without padding

Written once, when the directory is made.
"""

from posix.fcntl cimport O_RDONLY

import os
import re

from kreplog._native.checkpoint import atomic_write
from kreplog._native.files import error_of
from kreplog.errors import CorruptCheckpointError
from kreplog.types import check_topic_id, topic_uuid

METADATA_NAME = "partition.metadata"

cdef int _MAX_BYTES = 4096

cdef object _topic_id = re.compile(rb"^topic_id: ([a-zA-Z0-9_-]{1,64})\s*$", re.MULTILINE).search


def read_topic_id(str directory):
    """The topic id in `directory`, as text; None without the file.

    Raises CorruptCheckpointError (the file names no topic id), ResourceExhaustedError, StorageError."""
    cdef str path = f"{directory}/{METADATA_NAME}"
    try:
        file = os.open(path, O_RDONLY | os.O_CLOEXEC)
        try:
            content = os.read(file, _MAX_BYTES)
        finally:
            os.close(file)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise error_of("cannot read", path, error) from error
    named = _topic_id(content)
    if named is None:
        raise CorruptCheckpointError(f"{path} names no topic id, but {content[:80]!r}", path=path)
    return named[1].decode("ascii")


def read_topic_uuid(str directory not None, str partition not None):
    """The topic id in the `directory` of a partition; None without the file. Raises as read_topic_id."""
    text = read_topic_id(directory)
    try:
        return None if text is None else topic_uuid(text)
    except ValueError as error:
        raise CorruptCheckpointError(
            f"{partition}: {text} in {METADATA_NAME} is no topic id of 16 bytes", path=f"{directory}/{METADATA_NAME}",
        ) from error


def write_topic_id(str directory, str topic_id, bint durable=True):
    """Give `directory` its topic id. durable: as in atomic_write. Raises InvalidTopicError, StorageError."""
    check_topic_id(topic_id)
    atomic_write(f"{directory}/{METADATA_NAME}", f"version: 0\ntopic_id: {topic_id}\n".encode(), durable)
