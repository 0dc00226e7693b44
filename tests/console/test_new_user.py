"""Questions of a new user of the console or `kreplog top`, while a cluster under load fails.

Which replica is behind, since when, and why? Who reads this topic, and how far behind? What happened in that failover?
Each answer is on the first page, or one click or key from it."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from kafka import KafkaConsumer

from kreplog.cluster.local_cluster import LocalCluster
from tests.console.test_browser import elsewhere, sees, source_of, visiting
from tests.console.test_terminal import top
from tests.integration import clusters

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PARTITIONS = 12
TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ"


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with clusters.running(tmp_path_factory.mktemp("new-user") / "c", clusters.GROUPS) as made:
        servers = made.bootstrap().split(",")
        with clusters.admin_of(made.bootstrap()) as admin:
            admin.create_topics({"events": {"num_partitions": PARTITIONS, "replication_factor": 3}})
        clusters.wait_for_topic(made, "events", PARTITIONS)
        with under_load(made):
            settings = {"auto_offset_reset": "earliest", "consumer_timeout_ms": 60_000, "enable_auto_commit": False}
            with KafkaConsumer("events", group_id="late", bootstrap_servers=servers, **settings) as consumer:
                for _ in zip(range(5), consumer, strict=False):
                    pass
                consumer.commit()
            yield made


@pytest.fixture
def cluster(shared_cluster: LocalCluster) -> Iterator[LocalCluster]:
    yield shared_cluster
    elsewhere(lambda: clusters.mend(shared_cluster))


@contextmanager
def under_load(cluster: LocalCluster) -> Iterator[None]:
    """A producer writes to all partitions, until the end."""
    stop = threading.Event()
    producer = Producer({"bootstrap.servers": cluster.bootstrap(), "linger.ms": 20, "log_level": 0})

    def produce() -> None:
        while not stop.is_set():
            for partition in range(PARTITIONS):
                producer.produce("events", b"v", partition=partition)
            producer.poll(0)
            stop.wait(0.1)  # its rate

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        producer.purge()


@contextmanager
def paused(cluster: LocalCluster, broker: int) -> Iterator[None]:
    pid = clusters.pid_of(cluster, broker)
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def reason_of(broker: int) -> re.Pattern[str]:
    """The line that says that a paused broker is behind, since when, and why."""
    times = rf"since {TIME}: it (does not respond|is not running) since {TIME}"
    return re.compile(rf"broker {broker} is out of sync in \d+ partitions {times}")


def controller_of(page: Page) -> int:
    row = page.locator("tr", has_text="controller of epoch").or_(page.locator("tr", has_text="live, controller"))
    return int(row.first.locator("td").first.text_content() or "")


@pytest.mark.long
def test_answers_in_the_browser(cluster: LocalCluster, browser: Browser) -> None:
    with visiting(browser, source_of(cluster)) as visit:
        page = visit.page
        sees(page, "Healthy: 3 brokers")
        topic = visit.tab("/#/topic/events")
        topic.locator(".replica small", has_text=re.compile(r"\d")).nth(3 * PARTITIONS - 1).wait_for()
        leader = controller_of(page)
        follower = (leader + 1) % 3

        page.bring_to_front()
        with paused(cluster, follower):
            # Which replica is behind, since when, and why: on the first page, and on that of the topic.
            page.locator(".problems li", has_text=reason_of(follower)).wait_for()
            page.get_by_role("link", name="events", exact=True).first.click()
            page.locator(".problems li", has_text=re.compile(rf"{follower} is out of sync in {PARTITIONS} ")).wait_for()
            behind = page.locator(".replica[data-state=down]", has_text=re.compile(r"lag [\d,]+"))
            behind.first.wait_for()
            assert behind.first.locator("b").text_content() == str(follower)
            # Who reads this topic, and how far behind: on the same page.
            readers = page.locator("section", has=page.get_by_role("heading", name="Read by"))
            late = readers.locator("tr", has=page.get_by_role("link", name="late", exact=True))
            late.locator(".bad", has_text=re.compile(r"^(≥ )?[\d,]+$")).wait_for()
        sees(page, f"{PARTITIONS} partitions, 0 degraded")

        # What happened in that failover: a few lines of the time line on the first page.
        os.kill(clusters.pid_of(cluster, leader), signal.SIGKILL)
        page.get_by_role("link", name="cluster", exact=True).click()
        for text in (
            f"broker {leader} does not respond",
            f"ISR shrinks: broker {leader} leaves",
            f"controller {leader} → ",
            f"broker {leader} is gone",
        ):
            sees(page, text, ".events li")
        lines = [each for each in page.locator(".events li").all_text_contents() if f"leader {leader} → " in each]
        assert len(lines) == 2, lines  # one for each broker that leads instead, not for each partition
        assert all(re.search(r"leader \d → \d, epochs? .*: .*events \d", line) for line in lines)
        elsewhere(lambda: cluster.wait_until_gone(leader))
        elsewhere(lambda: cluster.start([leader], timeout_s=300))
        sees(page, "Healthy: 3 brokers")


@pytest.mark.long
def test_answers_in_the_terminal(cluster: LocalCluster) -> None:
    with top(cluster, width=140, height=40) as terminal:
        shown = terminal.sees("Healthy: 3 brokers", "controller ", "events")
        found = re.search(r"controller (\d)", shown)
        assert found is not None
        leader = int(found[1])
        follower = (leader + 1) % 3
        with paused(cluster, follower):
            terminal.until(lambda frame: reason_of(follower).search(frame))
            terminal.type(b"/events\r\r")
            terminal.until(lambda frame: re.search(r"read by late, lag >?=?[\d,]+", frame))
            terminal.until(lambda frame: re.search(rf"{follower} down", frame))
        terminal.type(b"\x1b\x1b")
        terminal.sees("Healthy: 3 brokers")
        clusters.kill(cluster, leader)
        terminal.type(b"\t\t")
        terminal.sees(f"broker {leader} is gone", f"leader {leader} → ", f"ISR shrinks: broker {leader} leaves")
        elsewhere(lambda: cluster.start([leader], timeout_s=300))
        terminal.sees("Healthy: 3 brokers")
        terminal.type(b"q")
        assert terminal.wait() == 0
