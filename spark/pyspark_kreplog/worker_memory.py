"""Memory of Spark's Python workers, which live on from task to task."""

from __future__ import annotations

import gc
import sys

_DAEMON = "pyspark.daemon"
"""The program that Spark's Python workers are forked from."""

_frozen_modules = 0


def freeze_modules() -> None:
    """In a Python worker of Spark, exempt what was loaded from garbage collection (gc.freeze), again after new imports.

    A worker collects in full after every task: 10 to 20 ms for the modules of PySpark, Arrow and kreplog alone. Does
    nothing in other processes, whose memory is their program's.
    """
    global _frozen_modules
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    if main is not None and main.name == _DAEMON and len(sys.modules) != _frozen_modules:
        gc.freeze()
        _frozen_modules = len(sys.modules)
