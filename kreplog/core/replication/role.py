"""Role: what one broker does with its replica of a partition.

role      | entered by                                           | the replica
IDLE      | creation, StopReplica, no leader, deposed, fenced    | answers NOT_LEADER_OR_FOLLOWER
LEADER    | LeaderAndIsr that names this broker as the leader    | appends, serves, maintains ISR and high watermark
FOLLOWER  | LeaderAndIsr that names another broker               | fetches from the leader, truncates, appends; serves
          |                                                      | fetches of consumers that name a rack (KIP-392)
OFFLINE   | a failed log                                         | does nothing until the broker is restarted
"""

from __future__ import annotations

from enum import Enum, auto


class Role(Enum):
    """The role of a replica; the table of the module says what each does."""

    IDLE = auto()
    LEADER = auto()
    FOLLOWER = auto()
    OFFLINE = auto()


LEADER_ALONE = (Role.LEADER,)
LEADER_OR_FOLLOWER = (Role.LEADER, Role.FOLLOWER)
ANY_ROLE = tuple(Role)
"""The roles in which a replica serves a request: most requests, a fetch of a consumer in a rack, one for this very
replica."""
