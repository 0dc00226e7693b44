"""Every view of the page in the browser, of a live cluster under load with metrics, users, ACLs and a group."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from kreplog.cli import main
from kreplog.cluster.files import free_ports
from kreplog.cluster.local_cluster import LocalCluster
from kreplog.commands.console import cluster_source, log_folders
from kreplog.console.replays import Replays
from tests.console.test_browser import HOSTILE, elsewhere, sees, visiting
from tests.console.test_new_user import under_load
from tests.integration import clusters

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PARTITIONS = 12
"""As many as `under_load` writes to."""

SECRET = "never-to-be-shown"
SETTINGS = (
    *clusters.GROUPS,
    '"authorizer.class.name" = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"',
    '"super.users" = "User:ANONYMOUS"',
    f'"ssl.key.password" = "{SECRET}"',
)
WITHIN_S = 60.0


def kreplog(*words: str) -> None:
    with pytest.raises(SystemExit) as left:
        main(list(words))
    assert not left.value.code


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    made = LocalCluster.create(tmp_path_factory.mktemp("views") / "c", (0, 1, 2), 0, SETTINGS)
    for broker, port in zip(made.brokers, free_ports(len(made.brokers)), strict=True):
        with (made.home(broker) / "broker.toml").open("a") as file:
            file.write(f'"metrics.listener" = "127.0.0.1:{port}"\n')
    at = ("--cluster", str(made.directory))
    try:
        made.start(timeout_s=clusters.START_S)
        kreplog("topic", "create", "events", "--partitions", str(PARTITIONS), "--replication-factor", "3", *at)
        kreplog("acl", "add", "--allow-principal", "User:reader", "--operation", "Read", "--topic", "events", *at)
        with under_load(made):
            producer = Producer({"bootstrap.servers": made.bootstrap(), "message.max.bytes": 1 << 21, "log_level": 0})
            producer.produce("events", HOSTILE[0].encode(), HOSTILE[1].encode(), 0, headers=[(HOSTILE[2], b"h")])
            producer.produce("events", b"1" * 1_000_000, b"long", 1)
            assert producer.flush(WITHIN_S) == 0
            admin = AdminClient({"bootstrap.servers": made.bootstrap()})
            offsets = [TopicPartition("events", partition, 0) for partition in range(PARTITIONS)]
            request = [ConsumerGroupTopicPartitions(HOSTILE[0], offsets)]

            def committed() -> bool:
                (future,) = admin.alter_consumer_group_offsets(request, request_timeout=WITHIN_S).values()
                return all(each.error is None for each in future.result(WITHIN_S).topic_partitions)

            clusters.eventually(committed, "offsets are committed once their coordinator is there", WITHIN_S)
            yield made
    finally:
        clusters.end(made)


def grows(page: Page, selector: str, pattern: str) -> None:
    """Until the number in the first element's text is larger than it was."""
    element = page.locator(selector, has_text=re.compile(pattern)).first
    element.wait_for()

    def shown() -> int:
        found = re.search(pattern, element.text_content() or "")
        assert found is not None
        return int(found[1].replace(",", ""))

    before = shown()

    def has_grown() -> bool:
        page.wait_for_timeout(100)  # in which the page receives what is new
        return shown() > before

    clusters.eventually(has_grown, f"{selector} stays {before}", WITHIN_S)


@pytest.mark.long
def test_every_view(cluster: LocalCluster, browser: Browser) -> None:
    source = partial(cluster_source, cluster.directory, None, None)
    replays = Replays(None, log_folders(cluster.directory, None), source)
    with visiting(browser, source(), replays=replays, allow_writes=True) as visit:
        page, origin = visit.page, visit.console.origin
        page.context.set_default_timeout(1000 * WITHIN_S)

        sees(page, "Healthy: 3 brokers")
        sees(page, "live, controller of epoch ", "td")
        for title in ("Produced, a second", "Mean time of a Produce request", "Longest pause of the event loop"):
            page.locator("figure", has_text=title).locator("path").first.wait_for(state="attached")
        sees(page, "are now OnlinePartition", "li")

        page.goto(f"{origin}/#/topic/events")
        sees(page, f"{PARTITIONS} partitions, 0 degraded")
        grows(page, ".replica[data-state=leader] small", r"([\d,]+)")
        grows(page, ".replica[data-state='in sync'] small", r"([\d,]+)")
        readers = page.locator("section", has=page.get_by_role("heading", name="Read by"))
        readers.get_by_role("link", name=HOSTILE[0], exact=True).wait_for()

        for partition, key in ((0, HOSTILE[1]), (1, "long")):
            page.goto(f"{origin}/#/records/events/{partition}")
            page.get_by_label("Only this key").fill(key)
            page.get_by_label("Offset, time or number of records").fill("1")
            page.get_by_role("button", name="Show", exact=True).click()
            sees(page, "no record with this key at the offsets", "main")
            page.get_by_label("From", exact=True).select_option("offset")
            page.get_by_label("Offset, time or number of records").fill("0")
            page.get_by_role("button", name="Show", exact=True).click()
            page.locator("tbody tr:visible").first.wait_for()
            if partition == 0:
                sees(page, HOSTILE[0], "pre")
                sees(page, HOSTILE[2], "tbody")
        page.get_by_role("button", name="show all").click()
        page.get_by_role("button", name="show all").wait_for(state="detached")
        assert len(page.locator("pre").last.text_content() or "") == 1_000_000
        page.get_by_label("Only this key").fill("")
        page.get_by_label("From", exact=True).select_option("newest")
        page.get_by_label("follow").check()
        page.get_by_role("button", name="Show", exact=True).click()
        rows = page.locator("tbody tr").count()
        page.wait_for_function("(rows) => document.querySelectorAll('tbody tr').length > rows", arg=rows)

        page.goto(f"{origin}/#/groups")
        page.get_by_role("link", name=HOSTILE[0], exact=True).click()
        grows(page, "main p", r"lag (?:at least )?([\d,]+)")
        page.locator("figure path").first.wait_for(state="attached")
        sees(page, "It has no members", "p")

        for path, text in (
            ("topic/events", "min.insync.replicas"),
            ("broker/1", "broker.id"),
            ("acls", "User:reader"),
            ("users", "none"),
        ):
            page.goto(f"{origin}/#/settings/{path}")
            sees(page, text, "main")
            assert SECRET not in page.content()
            assert path != "broker/1" or page.locator("tr", has_text="ssl.key.password(not shown)").count() == 1

        page.goto(f"{origin}/#/replays/topic/events")
        page.get_by_role("button", name="Begin").click()
        page.wait_for_timeout(1500)  # of what is traced
        os.kill(clusters.pid_of(cluster, 1), signal.SIGKILL)
        sees(page, "broker 1 does not respond", "#health")
        page.get_by_role("button", name="Stop").click()
        page.get_by_role("link", name=re.compile("trace 1 of events")).click()
        page.frame_locator("iframe.replay").locator(".row").first.wait_for()

        # The group goes on in a page that was open meanwhile, and acts work.
        page.goto(f"{origin}/#/groups/{HOSTILE[0].replace('/', '%2F')}")
        grows(page, "main p", r"lag (?:at least )?([\d,]+)")
        elsewhere(lambda: cluster.wait_until_gone(1))
        elsewhere(lambda: cluster.start([1], timeout_s=clusters.START_S))
        sees(page, "Healthy: 3 brokers")
        page.get_by_text("Reset offsets").click()
        page.get_by_role("button", name="Prepare").click()
        sees(page, "kreplog group", "code")
        assert page.locator("img, body script").count() == 0
