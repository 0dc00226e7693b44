"""kreplog for PySpark: `spark.read.format("kreplog")` finds DefaultSource here, and session() makes a ready session.

Spark imports every top-level module named pyspark_* when it looks for formats, and gives up on all of them when a
single import fails. So this module never raises: without pyspark or pyarrow it has no DefaultSource.
"""

from pyspark_kreplog.session import session

__all__ = ["session"]

try:
    from pyspark_kreplog.explain import explain, explain_write
    from pyspark_kreplog.source import KreplogDataSource as DefaultSource
except ImportError:
    pass
else:
    __all__ += ["DefaultSource", "explain", "explain_write"]
