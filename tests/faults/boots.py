"""Another boot of the host: what is in files may be older than what processes have seen."""

from __future__ import annotations

import uuid

import pytest

from kreplog._native import recovery


def reboot(patch: pytest.MonkeyPatch) -> None:
    """From now on, this process and its forks open logs in a boot in which none was written yet."""
    id = str(uuid.uuid4())
    patch.setattr(recovery, "boot_id", lambda: id)
