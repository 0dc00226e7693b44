"""The state changes of replicas and partitions that a controller may make: a second copy, which checks its own table.

Source: the v3 document and the study of the state machines."""

_NEW, _ONLINE, _OFFLINE = "NewReplica", "OnlineReplica", "OfflineReplica"
_STARTED, _DELETED = "ReplicaDeletionStarted", "ReplicaDeletionSuccessful"
_INELIGIBLE, _NONE = "ReplicaDeletionIneligible", "NonExistentReplica"

LEGAL = {
    _NEW: {_NONE},
    _ONLINE: {_NEW, _ONLINE, _OFFLINE, _INELIGIBLE},
    _OFFLINE: {_NEW, _ONLINE, _OFFLINE, _INELIGIBLE},
    _STARTED: {_OFFLINE},
    _DELETED: {_STARTED},
    _INELIGIBLE: {_OFFLINE, _STARTED},
    _NONE: {_DELETED},
    "NewPartition": {"NonExistentPartition"},
    "OnlinePartition": {"NewPartition", "OnlinePartition", "OfflinePartition"},
    "OfflinePartition": {"NewPartition", "OnlinePartition", "OfflinePartition"},
    "NonExistentPartition": {"OfflinePartition"},
}
"""State -> the states that it may be entered from."""

_FIRST = {_ONLINE, _OFFLINE, "NewPartition", "OnlinePartition", "OfflinePartition"}
"""States that a new controller may find: it enters them from NonExistent, once."""


def is_legal(old: str, new: str) -> bool:
    return old in LEGAL.get(new, ()) or (old.startswith("NonExistent") and new in _FIRST)
