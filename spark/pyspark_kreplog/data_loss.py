"""The rule for records that are gone, Spark's failOnDataLoss: raise with partition and offset, or warn and go on.

Every part of a read that meets such records applies this rule, so that all of them report a loss in the same words.
"""

from __future__ import annotations

import logging

from kreplog.errors import OffsetOutOfRangeError
from kreplog.types import TopicPartition

_log = logging.getLogger("pyspark_kreplog")

_REMEDY = {
    False: "load() again for a new plan, keep records for longer, or set the option failOnDataLoss to false to go on "
    "with the records that are left",
    True: "Restart the query with the option failOnDataLoss = false to go on with the records that are left, or with a "
    "new checkpointLocation to start over",
}


def report_data_loss(
    partition: TopicPartition, loss: str, offset: int, *, fail: bool, stream: bool, path: str | None = None
) -> None:
    """Raise OffsetOutOfRangeError if `fail`, else log a warning.

    loss: which records are missing and why, a clause without a full stop. stream: whether a streaming query reads.
    """
    if fail:
        raise OffsetOutOfRangeError(
            f"{partition}: {loss}. {_REMEDY[stream]}", partition=str(partition), offset=offset, path=path
        )
    _log.warning("%s: %s; going on with the records that are left (failOnDataLoss = false)", partition, loss)
