"""Shipped: a reader or writer that says in one sentence that a Spark worker lacks the packages, or has another version.

Pickles name classes by their modules, so that a worker without these would fail somewhere in Spark's pickling, and one
with another version anywhere. A Shipped object is pickled as bytes and a function, itself pickled as code, that looks
first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark import cloudpickle

import kreplog
from pyspark_kreplog import worker_memory

dumps: Callable[[object], bytes] = cloudpickle.dumps
"""As Spark pickles what it sends to workers."""


class Shipped:
    """Base of readers and writers. Pickled by `dumps` alone: plain pickle does not take code."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[object, ...]]:
        pickled = _unpack, (kreplog.__version__, dumps((type(self), self.__dict__)))
        worker_memory.freeze_modules()
        return pickled


def _unpack(version: str, content: bytes) -> Any:
    """Runs where neither package may be, so it has no names but its own."""
    import pickle
    import socket
    import sys

    remedy = (
        f"pip install 'kreplog[spark]=={version}' for {sys.executable} on {socket.gethostname()}, as on every worker"
    )
    try:
        import kreplog
        from pyspark_kreplog import worker_memory
    except ImportError as error:
        raise ImportError(f"kreplog cannot be imported by this Spark worker ({error}): {remedy}") from None
    if kreplog.__version__ != version:
        raise ImportError(f"this Spark worker has kreplog {kreplog.__version__} and the driver has {version}: {remedy}")
    cls, state = pickle.loads(content)
    made = object.__new__(cls)
    made.__dict__.update(state)
    worker_memory.freeze_modules()
    return made


# As of a function typed in by hand, cloudpickle then pickles its code, not the name of this module.
_unpack.__module__ = "__main__"
