"""The id of the host's boot: files that were written in another may lack what power losses took away since."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

_LENGTH = 37  # of a UUID as text, with the NUL of C


@cache
def boot_id() -> str:
    """An id that differs for each boot, of 36 characters; empty if the system has none."""
    return _of_macos() if sys.platform == "darwin" else _of_linux()


def _of_linux() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _of_macos() -> str:
    import ctypes  # here alone: elsewhere nothing needs it

    text = ctypes.create_string_buffer(_LENGTH)
    size = ctypes.c_size_t(_LENGTH)
    failed = ctypes.CDLL(None).sysctlbyname(b"kern.bootsessionuuid", text, ctypes.byref(size), None, 0)
    return "" if failed else text.value.decode()
