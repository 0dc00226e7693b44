"""Fifty groups of real brokers in the browser: their lags, the filter, who reads a topic, hostile names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.console.test_browser import HOSTILE, sees, source_of, visiting
from tests.integration import clusters

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from kreplog.cluster.local_cluster import LocalCluster

PARTITIONS, RECORDS = 4, 100
NAMES = [*(name for name in HOSTILE if "\x00" not in name), *(f"group-{number:02}" for number in range(44))]
"""librdkafka takes no name with a zero byte."""

WITHIN_S = 120.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Group number N has read N records of each partition."""
    with clusters.running(tmp_path_factory.mktemp("groups") / "c", clusters.GROUPS) as made:
        admin = AdminClient({"bootstrap.servers": made.bootstrap()})
        admin.create_topics([NewTopic("read", PARTITIONS, 3)])["read"].result(WITHIN_S)
        clusters.wait_for_topic(made, "read", PARTITIONS)
        producer = Producer({"bootstrap.servers": made.bootstrap(), "log_level": 0})
        for number in range(PARTITIONS * RECORDS):
            producer.produce("read", b"v", partition=number % PARTITIONS)
        assert producer.flush(WITHIN_S) == 0
        for number, name in enumerate(NAMES):
            offsets = [TopicPartition("read", partition, number) for partition in range(PARTITIONS)]
            request = [ConsumerGroupTopicPartitions(name, offsets)]

            def committed(request: list[ConsumerGroupTopicPartitions] = request) -> bool:
                (future,) = admin.alter_consumer_group_offsets(request, request_timeout=WITHIN_S).values()
                return all(each.error is None for each in future.result(WITHIN_S).topic_partitions)

            clusters.eventually(committed, f"offsets of {name!r} are committed", WITHIN_S)
        yield made


@pytest.mark.long
def test_fifty_groups(cluster: LocalCluster, browser: Browser) -> None:
    assert len(NAMES) == 50
    with visiting(browser, source_of(cluster)) as visit:
        page = visit.page
        page.context.set_default_timeout(1000 * WITHIN_S)
        page.goto(f"{visit.console.origin}/#/groups")
        rows = page.locator("main tbody tr")
        rows.nth(len(NAMES) - 1).wait_for()
        for number, name in enumerate(NAMES):
            row = rows.filter(has=page.get_by_role("link", name=name, exact=True))
            row.locator("td", has_text=str(PARTITIONS * (RECORDS - number))).first.wait_for()
        assert rows.first.get_by_role("link").text_content() == NAMES[0]  # with most lag
        page.get_by_label("Filter groups").fill("group-43")
        rows.nth(1).wait_for(state="detached")
        page.get_by_role("link", name="group-43").click()
        sees(page, f"lag {PARTITIONS * (RECORDS - NAMES.index('group-43'))}")
        page.goto(f"{visit.console.origin}/#/topic/read")
        readers = page.locator("section", has=page.get_by_role("heading", name="Read by"))
        readers.locator("tbody tr").nth(len(NAMES) - 1).wait_for()
        assert page.locator("img, body script").count() == 0
