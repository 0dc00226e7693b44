"""Plans as text: which tasks a batch read has and where each finds its records; how often a write's rows are there.

Spark's own explain() cannot show it: of a Python source PySpark 4.3 prints the name alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from kreplog.types import TopicPartition
from pyspark_kreplog import network, short_circuit
from pyspark_kreplog.options import parse_batch
from pyspark_kreplog.plan import Task, plan
from pyspark_kreplog.sink_options import SinkOptions, parse_sink


def explain(options: Mapping[str, str], cores: int | None = None) -> str:
    """One line for each task of a batch read with these options: its offsets, and the files or the leader it reads.

    With localLogDirs a line names the hosts of the partition's replicas, where its task reads files, and which replica
    serves it on the host of the caller. cores: how many the job may use, by default those of this machine. Raises
    UsageError as load() does.
    """
    checked = parse_batch(options)
    tasks = plan(checked, cores or os.cpu_count() or 1)
    hosts: Mapping[TopicPartition, network.ReplicaHosts] = {}
    if checked.bootstrap is not None:
        hosts = network.replica_hosts(checked.bootstrap, {task.topic for task in tasks}, checked.consumer)
    return "\n".join(f"{task.topic_partition} [{task.start}, {task.stop}): {_origin(task, hosts)}" for task in tasks)


def explain_write(options: Mapping[str, str]) -> str:
    """Where df.write and df.writeStream write with these options, and how often a row is there after failures. Nothing
    is opened and no broker connected to. Raises UsageError as save() does."""
    checked = parse_sink(options)
    if isinstance(checked, SinkOptions):
        return f"logs in {checked.path}: exactly once; all rows of a write or none, each batch of a stream once"
    if checked.transactional_id is None:
        return (
            f"leaders of the cluster at {checked.bootstrap}: at least once; a task, and a batch of a stream, that runs "
            "again writes its rows again"
        )
    return (
        f"the cluster at {checked.bootstrap}, in transactions of {checked.transactional_id}: exactly once for readers "
        "with isolation.level=read_committed; all rows of a write or none, each batch of a stream once"
    )


def _origin(task: Task, hosts: Mapping[TopicPartition, network.ReplicaHosts]) -> str:
    if task.bootstrap is None:
        return f"files of {task.path}"
    known = hosts.get(task.topic_partition)
    leader = "none known" if known is None or known.leader is None else known.leader
    if task.fence is None:
        return f"fetched from the leader, {leader}"
    path = short_circuit.usable_replica(task)
    here = "fetched on this host" if path is None else f"files of {path} on this host"
    return f"files on {_listed(known.replicas if known else ())}, else the leader, {leader}; {here}"


def _listed(hosts: Iterable[str]) -> str:
    return ", ".join(sorted(set(hosts))) or "no known host"
