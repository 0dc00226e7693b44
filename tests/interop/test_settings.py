"""What the page of settings says of Kafka's names and defaults is what Kafka itself prints of them."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest

pytest.importorskip("sphinx", reason="the page of settings is made by Sphinx, the extra `docs`")

from generated import KAFKA_DEFAULTS, NOT_OF_KAFKA, NOT_OF_KAFKA_4, default_of

from kreplog.core.topic_settings import NAMES, UNUSED
from kreplog.server.settings import SETTINGS
from kreplog.server.settings_of_kafka import refusal
from tests.interop.jvm import NEWEST, Kafka

UNPRINTED = {
    *("producer.id.expiration.check.interval.ms", "super.users", "allow.everyone.if.no.acl.found"),
    *("leader.replication.throttled.rate", "follower.replication.throttled.rate"),
    "replica.alter.log.dirs.io.max.bytes.per.second",
}
"""Settings of Kafka's that it does not print: an internal one, its authorizer's, and those that have no place in a file
of settings, as they are only ever altered while a broker runs (KIP-73, KIP-113)."""

UNORDERED = "listener.security.protocol.map"


def printed(kafka: Kafka, main: str) -> dict[str, str]:
    """The defaults in a page that a class of Kafka's prints of its settings, without the words in brackets."""
    defaults = {}
    for section in kafka.run(main).split("<h4>")[1:]:
        name = re.search(r'<a id="[^"_]*_([^"]+)"', section)
        default = re.search(r"<th>Default:</th><td>(.*?)</td>", section, re.DOTALL)
        if name and default:
            text = html.unescape(re.sub("<.*?>", "", default[1]))
            defaults[name[1]] = re.sub(r" \(.*\)$", "", text).replace("null", "none")
    return defaults


@pytest.mark.parametrize("version", [None, NEWEST])
def test_every_setting_of_kafkas_brokers_is_one_here_or_is_refused_with_a_reason(
    tmp_path: Path, version: str | None
) -> None:
    names = printed(Kafka(tmp_path, version), "kafka.server.KafkaConfig").keys()
    assert len(names) > 200
    assert [name for name in names if name not in SETTINGS and refusal(name) is None] == []


@pytest.mark.parametrize("version", [None, NEWEST])
def test_the_page_of_settings_says_what_kafka_says(tmp_path: Path, version: str | None) -> None:
    kafka = Kafka(tmp_path, version)
    broker = printed(kafka, "kafka.server.KafkaConfig")
    topic = printed(kafka, "org.apache.kafka.storage.internals.log.LogConfig")
    assert len(broker) > 200 and len(topic) > 30
    ours = [(name, default_of(name), broker) for name in SETTINGS]
    ours += [(name, default_of(name), topic) for name in (*NAMES, *UNUSED)]
    wrong = []
    for name, default, theirs in ours:
        page, same = KAFKA_DEFAULTS.get(name, "the same"), default.removesuffix(" (no limit)").replace(", ", ",")
        if name == UNORDERED:
            same = theirs[name] if sorted(same.split(",")) == sorted(theirs[name].split(",")) else same
        stated = same if page.startswith("the same") else page.split(" ")[0].rstrip(":,")
        newer = re.search(r"\((\S+) (?:from Kafka 4\.\d on|in Kafka 4\.4)\)", page)
        if newer and version == NEWEST:
            stated = newer[1]
        if name in NOT_OF_KAFKA or (version == NEWEST and name in NOT_OF_KAFKA_4):
            right = name not in theirs
        else:  # what the page says more is of another setting, which Kafka takes where this one is none
            right = name in UNPRINTED or theirs.get(name, "none") in (stated, "none" if page != "the same" else stated)
        if not right:
            wrong.append(f"{name}: ours {default}, Kafka's {theirs.get(name)}, the page: {page}")
    assert not wrong
