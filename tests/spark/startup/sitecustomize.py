"""Python imports this at its start: Spark's workers take PySpark from where it is installed, with its byte code.

Spark puts archives of the same sources before it on their path, from which each process compiles them again.
"""

from __future__ import annotations

import sys

sys.path[:] = [entry for entry in sys.path if not entry.endswith(("/pyspark.zip", "-src.zip"))]
