"""The page in a real browser, on a cluster with 10,000 partitions of three replicas, which loses a broker."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.console.test_browser import elsewhere, sees, source_of, visiting
from tests.integration import clusters

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from kreplog.cluster.local_cluster import LocalCluster

PARTITIONS = 10_000
WITHIN_S = 300.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with clusters.running(tmp_path_factory.mktemp("large") / "c", clusters.GROUPS) as made:
        admin = AdminClient({"bootstrap.servers": made.bootstrap(), "socket.timeout.ms": int(1000 * WITHIN_S)})
        admin.create_topics([NewTopic("big", PARTITIONS, 3)], request_timeout=WITHIN_S)["big"].result()
        yield made


@pytest.mark.long
def test_ten_thousand_partitions_of_a_cluster(
    cluster: LocalCluster, browser: Browser, figure: Callable[[str], None]
) -> None:
    with visiting(browser, source_of(cluster)) as visit:
        page = visit.page
        page.context.set_default_timeout(1000 * WITHIN_S)
        page.goto(f"{visit.console.origin}/#/topic/big")
        sees(page, "10,000 partitions, 0 degraded")
        page.locator(".virtual").focus()
        page.keyboard.press("End")
        last = page.locator(".partition-row", has=page.get_by_role("link", name=str(PARTITIONS - 1), exact=True))
        last.locator(".replica[data-state=leader]").wait_for()
        producer = Producer({"bootstrap.servers": cluster.bootstrap(), "log_level": 0})
        for number in range(1234):
            producer.produce("big", b"%d" % number, partition=PARTITIONS - 1)
        assert producer.flush(WITHIN_S) == 0
        for at in range(3):
            last.locator(".replica").nth(at).locator("small", has_text="1,234").wait_for()
        os.kill(clusters.pid_of(cluster, 2), signal.SIGKILL)
        killed = time.monotonic()
        sees(page, "broker 2 does not respond", "#health")
        silent_s = time.monotonic() - killed
        sees(page, "10,000 partitions, 10,000 degraded")
        degraded_s = time.monotonic() - killed
        last.locator(".replica[data-state=down]").wait_for()
        elsewhere(lambda: cluster.wait_until_gone(2))
        elsewhere(lambda: cluster.start([2], timeout_s=WITHIN_S))
        sees(page, "10,000 partitions, 0 degraded")
        figure(
            f"{PARTITIONS:,} partitions: a killed broker is shown after {silent_s:.2f} s, all as degraded after "
            f"{degraded_s:.1f} s, none after {time.monotonic() - killed:.1f} s"
        )
