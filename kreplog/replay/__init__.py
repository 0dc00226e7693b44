"""Replays: runs of a cluster, step by step, as one self-contained page.

`recorder` observes the simulator, `lessons` runs scenarios, `broker_logs` reads what real brokers have logged; `page`
renders what they have recorded.

A replay file has a JSON object a line, in UTF-8. The first is the header, each other one an event, in the order in
which they took place. Times are microseconds since the start.

Header:

    format      "kreplog-replay 1"
    title       shown above the page
    about       sentences about the run
    command     the command that replays it, "" for none
    began       the time of day at the start, in ISO 8601; "" for virtual time
    brokers     their ids
    partitions  their names, as in t-0
    guarantees  name and meaning of each guarantee that was checked, by name
    notes       sentences about what was left out

Event; only `at` and `kind` are always there:

    at          when
    kind        comment: of a lesson; fault, admin: from outside; client; broker: an event or effect of a core of it;
                message: from host to host; checker: an expectation that holds; violation: of a guarantee
    actor       the core, client or other source of the event
    broker      id of the broker that acts, for its column
    text        the event in words; of a message, its content
    label       of a message: its name
    partitions  concerned; none means all
    source, target   hosts of a message: "b1" for broker 1, the name of a client otherwise
    until       when the message arrived; without it, it was lost
    idle        true: polling that changes nothing, and repetitions
    changes     what is different from now on, each of them

    {"broker": 1, "status": "up"}            up, paused, down; with "disk failed" after a comma; before, unknown
    {"controller": 1}                        in the store; -1 for none
    {"partition": "t-0", "leader": 1, "leader_epoch": 0, "isr": [1, 2], "elr": []}    in the store; leader -1 for none
    {"partition": "t-0", "deleted": true}
    {"broker": 1, "partition": "t-0", "role": "leader", "leader_epoch": 0, "start": 0, "end": 2, "high_watermark": 1,
     "records": [[0, "a"], [0, "b"]]}        a replica and its log; records: leader epoch and value of each new record,
                                             the last at end - 1; whatever was at their offsets before is gone
    {"broker": 1, "partition": "t-0", "role": "leader", "leader_epoch": 0}            where its log is not known
    {"broker": 1, "partition": "t-0", "role": "none"}                                 it has no replica any more
    {"violation": "two leaders"}             a guarantee is violated
"""
