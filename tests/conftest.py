"""What every test shares: hypothesis settings that hold on a busy machine, and a header saying what was built."""

from __future__ import annotations

import os

import hypothesis

import kreplog
from kreplog._native import crc32c

# On CI examples are the same in every run, so that a red run can be repeated; elsewhere they are new each time.
hypothesis.settings.register_profile("local", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "local")


def pytest_report_header() -> str:
    return f"kreplog {kreplog.__version__}, crc32c by {crc32c.implementation()}"
