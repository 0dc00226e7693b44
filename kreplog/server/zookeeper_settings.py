"""Settings of a broker's connection to ZooKeeper: their names, types and defaults."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from kreplog.coord.zookeeper_security import AUTHENTICATION, NO_SECURITY, ZooKeeperSecurity
from kreplog.core.setting_values import BOOLEAN, SECRET, TEXT, ConfigType, ValueType, one_of, texts
from kreplog.server.broker_values import some_of
from kreplog.tls import PROTOCOLS

NAMES = {f"zookeeper.{field.name.replace('_', '.')}": field.name for field in fields(ZooKeeperSecurity)}
"""Fields of ZooKeeperSecurity by names of settings, which are Kafka's where it has them."""

_TYPES = {
    "set_acl": BOOLEAN,
    "authentication": one_of(*AUTHENTICATION),
    "user": TEXT,
    "password": SECRET,
    "ssl_client_enable": BOOLEAN,
    "ssl_keystore_location": TEXT,
    "ssl_keystore_password": SECRET,
    "ssl_truststore_location": TEXT,
    "ssl_enabled_protocols": some_of(*PROTOCOLS),
    "ssl_cipher_suites": ValueType(ConfigType.LIST, "names of the IANA", texts),
    "ssl_endpoint_identification_algorithm": one_of("https", ""),
}

TYPES: dict[str, tuple[ValueType, Any]] = {
    name: (_TYPES[field], getattr(NO_SECURITY, field)) for name, field in NAMES.items()
}
"""Type and default, by name."""
