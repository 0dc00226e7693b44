"""Fetch, both directions: requests and responses 4 to 17. Each reader stands beside its mirror image.

    request     replica_id int32 (-14), max_wait_ms int32, min_bytes int32, max_bytes int32, isolation int8,
                session_id int32, session_epoch int32 (both 7+), [topic], [forgotten] (7+), rack_id string (11+)
      tags      1: replica_id int32, broker_epoch int64 (15+, KIP-903)
    topic       name string (-12) or topic_id uuid (13+), [partition]
    partition   index int32, current_leader_epoch int32 (9+), fetch_offset int64, last_fetched_epoch int32 (12+),
                log_start_offset int64 (5+), max_bytes int32
    forgotten   name string (-12) or topic_id uuid (13+), [index int32]

    response    throttle_time_ms int32, error int16, session_id int32 (both 7+), [topic]
      tags      0: [node id int32, host string, port int32, rack string|null] (16+, KIP-951)
    topic       name string (-12) or topic_id uuid (13+), [partition]
    partition   index int32, error int16, high_watermark int64, last_stable_offset int64, log_start_offset int64 (5+),
                [producer_id int64, first_offset int64]|null of aborted transactions,
                preferred_read_replica int32 (11+), records bytes|null
      tags      0: diverging epoch int32, end_offset int64; 1: leader int32, leader_epoch int32 (both 12+, KIP-595)

Version 12 is flexible. Without transactions the last stable offset is the high watermark, and nothing is aborted. The
records stay where they are: a response's are slices of its frame, those of one being written are handed on.
Source: Kafka protocol guide, Fetch; KIP-227, KIP-320, KIP-482, KIP-516.
"""

cimport cython
from libc.stdint cimport int16_t, int32_t, int64_t

from kreplog._native.wire cimport (
    BUDGET,
    Frame,
    Input,
    Output,
    Slots,
    close_message,
    close_tag,
    count_runs,
    end_struct,
    error_of,
    number_of,
    partition_of,
    read_array,
    read_count,
    read_int8,
    read_int16,
    read_int32,
    read_int64,
    read_records,
    read_tag,
    read_tag_count,
    read_text,
    read_topic_id,
    run_end,
    topic_of,
)

from kreplog.errors import ErrorCode, UsageError
from kreplog.types import EpochEndOffset

cdef enum:
    FIRST_VERSION = 4
    LAST_VERSION = 17
    WITH_START = 5
    WITH_SESSIONS = 7
    WITH_EPOCHS = 9
    WITH_RACK = 11
    FLEXIBLE_FROM = 12
    WITH_IDS = 13
    WITH_STATE = 15
    WITH_NODES = 16

# Numbers of the fields, by class, in their order; PLACE is the first of each.
cdef enum:
    PLACE = 0

    ASKED_ID = 1
    ASKED_EPOCH = 2
    ASKED_OFFSET = 3
    ASKED_LAST_EPOCH = 4
    ASKED_START = 5
    ASKED_BYTES = 6

    REPLICA = 0
    BROKER_EPOCH = 1
    MAX_WAIT = 2
    MIN_BYTES = 3
    MAX_BYTES = 4
    PARTITIONS = 5
    FORGOTTEN = 6
    ASKED_SESSION = 7
    ASKED_SESSION_EPOCH = 8

    TOLD_ERROR = 1
    TOLD_HIGH_WATERMARK = 2
    TOLD_START = 3
    TOLD_DIVERGING = 4
    TOLD_LEADER = 5
    TOLD_LEADER_EPOCH = 6
    TOLD_RECORDS = 7

    ERROR = 0
    SESSION = 1
    ANSWERS = 2

cdef int UNKNOWN_TOPIC_ID = ErrorCode.UNKNOWN_TOPIC_ID


@cython.final
cdef class FetchCodec:
    """Made once with the four dataclasses that it reads into and writes from."""

    cdef Slots request
    cdef Slots asked
    cdef Slots response
    cdef Slots told

    def __init__(self, request, request_partition, response, response_partition):
        self.request = Slots(
            request, "replica_id", "broker_epoch", "max_wait_ms", "min_bytes", "max_bytes", "partitions", "forgotten",
            "session_id", "session_epoch",
        )
        self.asked = Slots(
            request_partition, "partition", "topic_id", "current_leader_epoch", "fetch_offset", "last_fetched_epoch",
            "log_start_offset", "max_bytes",
        )
        self.response = Slots(response, "error", "session_id", "partitions")
        self.told = Slots(
            response_partition, "partition", "error", "high_watermark", "log_start_offset", "diverging", "leader",
            "leader_epoch", "records",
        )

    def decode_request(self, data, Py_ssize_t start, int version, name_of, int budget=BUDGET):
        """(request, unknown) from byte `start` of `data` on; what stands behind it is passed over.

        name_of: from a topic id to the topic's name or None; asked from version 13 on. unknown: (topic id, partition)
        of what was asked for but has no name here. What the version lacks is -1, 0 for the session. budget: of topics,
        partitions and tags.
        """
        cdef Input input
        cdef Frame frame = Frame(data)
        cdef int32_t replica = -1
        cdef int64_t broker_epoch = -1
        cdef int32_t max_wait
        cdef int32_t min_bytes
        cdef int32_t max_bytes
        cdef int32_t session = 0
        cdef int32_t session_epoch = -1
        cdef list partitions = []
        cdef list forgotten = []
        cdef list unknown = []
        cdef Py_ssize_t _
        check_version(version)
        frame.open(&input, start, version >= FLEXIBLE_FROM)
        input.budget = budget
        if version < WITH_STATE:
            replica = read_int32(&input)
        max_wait = read_int32(&input)
        min_bytes = read_int32(&input)
        max_bytes = read_int32(&input)
        read_int8(&input)
        if version >= WITH_SESSIONS:
            session = read_int32(&input)
            session_epoch = read_int32(&input)
        for _ in range(read_array(&input, 3)):
            self.read_asked(&input, version, name_of, partitions, unknown)
        if version >= WITH_SESSIONS:
            for _ in range(read_array(&input, 3)):
                read_forgotten(&input, version, name_of, forgotten)
        if version >= WITH_RACK:
            read_text(&input)
        if version >= FLEXIBLE_FROM:
            read_request_tags(&input, version, &replica, &broker_epoch)
        request = self.request.new()
        self.request.set(request, REPLICA, replica)
        self.request.set(request, BROKER_EPOCH, broker_epoch)
        self.request.set(request, MAX_WAIT, max_wait)
        self.request.set(request, MIN_BYTES, min_bytes)
        self.request.set(request, MAX_BYTES, max_bytes)
        self.request.set(request, PARTITIONS, tuple(partitions))
        self.request.set(request, FORGOTTEN, tuple(forgotten))
        self.request.set(request, ASKED_SESSION, session)
        self.request.set(request, ASKED_SESSION_EPOCH, session_epoch)
        return request, tuple(unknown)

    cdef int read_asked(self, Input* input, int version, name_of, list partitions, list unknown) except -1:
        cdef str topic
        cdef str topic_id = ""
        cdef int32_t number
        cdef int32_t epoch = -1
        cdef int64_t offset
        cdef int32_t last_epoch = -1
        cdef int64_t log_start = -1
        cdef int32_t max_bytes
        cdef Py_ssize_t _
        if version >= WITH_IDS:
            topic_id = read_topic_id(input)
            topic = name_of(topic_id)
        else:
            topic = read_text(input)
        for _ in range(read_array(input, 16)):
            number = read_int32(input)
            if version >= WITH_EPOCHS:
                epoch = read_int32(input)
            offset = read_int64(input)
            if version >= FLEXIBLE_FROM:
                last_epoch = read_int32(input)
            if version >= WITH_START:
                log_start = read_int64(input)
            max_bytes = read_int32(input)
            end_struct(input)
            if topic is None:
                unknown.append((topic_id, number))
                continue
            asked = self.asked.new()
            self.asked.set(asked, PLACE, partition_of(topic, number))
            self.asked.set(asked, ASKED_ID, topic_id)
            self.asked.set(asked, ASKED_EPOCH, epoch)
            self.asked.set(asked, ASKED_OFFSET, offset)
            self.asked.set(asked, ASKED_LAST_EPOCH, last_epoch)
            self.asked.set(asked, ASKED_START, log_start)
            self.asked.set(asked, ASKED_BYTES, max_bytes)
            partitions.append(asked)
        return end_struct(input)

    def encode_request(self, bytes header, request, int version, id_of):
        """The frame as a list of buffers. id_of: from a forgotten topic's name to its id; asked from 13 on."""
        cdef Output out = Output(header, version >= FLEXIBLE_FROM)
        check_version(version)
        self.request.expect(request)
        if version < WITH_STATE:
            out.int32(self.request.get(request, REPLICA))
        out.int32(self.request.get(request, MAX_WAIT))
        out.int32(self.request.get(request, MIN_BYTES))
        out.int32(self.request.get(request, MAX_BYTES))
        out.int8(0)
        if version >= WITH_SESSIONS:
            out.int32(self.request.get(request, ASKED_SESSION))
            out.int32(self.request.get(request, ASKED_SESSION_EPOCH))
        self.write_asked(out, version, self.request.get(request, PARTITIONS))
        if version >= WITH_SESSIONS:
            write_forgotten(out, version, id_of, self.request.get(request, FORGOTTEN))
        if version >= WITH_RACK:
            out.text("")
        if version >= WITH_STATE:
            write_replica_state(
                out, self.request.get(request, REPLICA), self.request.get(request, BROKER_EPOCH)
            )
        else:
            out.end_struct()
        return out.finish()

    cdef int write_asked(self, Output out, int version, tuple partitions) except -1:
        cdef Py_ssize_t at = 0
        cdef Py_ssize_t end
        cdef Py_ssize_t topics = 0
        while at < len(partitions):
            at = self.end_of_topic(partitions, at)
            topics += 1
        out.array(topics)
        at = 0
        while at < len(partitions):
            end = self.end_of_topic(partitions, at)
            if version >= WITH_IDS:
                out.topic_id(self.asked.get(partitions[at], ASKED_ID))
            else:
                out.text(topic_of(self.asked.get(partitions[at], PLACE)))
            out.array(end - at)
            while at < end:
                asked = partitions[at]
                out.int32(number_of(self.asked.get(asked, PLACE)))
                if version >= WITH_EPOCHS:
                    out.int32(self.asked.get(asked, ASKED_EPOCH))
                out.int64(self.asked.get(asked, ASKED_OFFSET))
                if version >= FLEXIBLE_FROM:
                    out.int32(self.asked.get(asked, ASKED_LAST_EPOCH))
                if version >= WITH_START:
                    out.int64(self.asked.get(asked, ASKED_START))
                out.int32(self.asked.get(asked, ASKED_BYTES))
                out.end_struct()
                at += 1
            out.end_struct()
        return 0

    cdef Py_ssize_t end_of_topic(self, tuple partitions, Py_ssize_t start) except -1:
        """As run_end, and a topic of the same name but another id is another."""
        cdef Py_ssize_t end = run_end(partitions, start, self.asked, PLACE)
        cdef Py_ssize_t at
        cdef str topic_id = self.asked.get(partitions[start], ASKED_ID)
        for at in range(start + 1, end):
            other = self.asked.get(partitions[at], ASKED_ID)
            if other is not topic_id and other != topic_id:
                return at
        return end

    def decode_response(self, data, Py_ssize_t start, int version, name_of):
        """The response from byte `start` of `data` to its end; what its version lacks is -1.

        name_of: as for decode_request; partitions of a topic without a name are left out.
        """
        cdef Input input
        cdef Frame frame = Frame(data)
        cdef int16_t error = 0
        cdef int32_t session = 0
        cdef list partitions = []
        cdef Py_ssize_t _
        check_version(version)
        frame.open(&input, start, version >= FLEXIBLE_FROM)
        read_int32(&input)
        if version >= WITH_SESSIONS:
            error = read_int16(&input)
            session = read_int32(&input)
        for _ in range(read_array(&input, 3)):
            self.read_told(&input, frame.view, version, name_of, partitions)
        end_struct(&input)
        close_message(&input)
        response = self.response.new()
        self.response.set(response, ERROR, error_of(error))
        self.response.set(response, SESSION, session)
        self.response.set(response, ANSWERS, tuple(partitions))
        return response

    cdef int read_told(self, Input* input, view, int version, name_of, list partitions) except -1:
        cdef str topic
        cdef int32_t number
        cdef int16_t error
        cdef int64_t high_watermark
        cdef int64_t log_start = -1
        cdef Py_ssize_t count
        cdef Py_ssize_t _
        cdef Parting parting
        if version >= WITH_IDS:
            topic = name_of(read_topic_id(input))
        else:
            topic = read_text(input)
        for _ in range(read_array(input, 20)):
            number = read_int32(input)
            error = read_int16(input)
            high_watermark = read_int64(input)
            read_int64(input)
            if version >= WITH_START:
                log_start = read_int64(input)
            count = read_count(input, 16)
            if count > 0:
                skip_aborted(input, count)
            if version >= WITH_RACK:
                read_int32(input)
            records = read_records(input, view)
            read_partition_tags(input, &parting)
            if topic is None:
                continue
            told = self.told.new()
            self.told.set(told, PLACE, partition_of(topic, number))
            self.told.set(told, TOLD_ERROR, error_of(error))
            self.told.set(told, TOLD_HIGH_WATERMARK, high_watermark)
            self.told.set(told, TOLD_START, log_start)
            self.told.set(
                told, TOLD_DIVERGING, EpochEndOffset(parting.epoch, parting.end_offset) if parting.diverging else None
            )
            self.told.set(told, TOLD_LEADER, parting.leader)
            self.told.set(told, TOLD_LEADER_EPOCH, parting.leader_epoch)
            self.told.set(told, TOLD_RECORDS, records)
            partitions.append(told)
        return end_struct(input)

    def encode_response(self, bytes header, response, int version, id_of, unknown, nodes):
        """The frame as a list of buffers; the records between its small parts are the response's own objects.

        id_of: from a topic's name to its id; asked from 13 on. unknown: (topic id, partition) to be answered with
        UNKNOWN_TOPIC_ID. nodes: Brokers that the partitions name as leaders; told from 16 on.
        """
        cdef Output out = Output(header, version >= FLEXIBLE_FROM)
        cdef tuple partitions
        cdef Py_ssize_t at = 0
        cdef Py_ssize_t end
        check_version(version)
        self.response.expect(response)
        out.int32(0)
        if version >= WITH_SESSIONS:
            out.int16(self.response.get(response, ERROR))
            out.int32(self.response.get(response, SESSION))
        partitions = self.response.get(response, ANSWERS)
        if version < WITH_IDS:
            unknown = ()
        out.array(count_runs(partitions, self.told, PLACE) + len(unknown))
        while at < len(partitions):
            end = run_end(partitions, at, self.told, PLACE)
            topic = topic_of(self.told.get(partitions[at], PLACE))
            if version >= WITH_IDS:
                out.topic_id(id_of(topic))
            else:
                out.text(topic)
            out.array(end - at)
            while at < end:
                self.write_told(out, version, partitions[at])
                at += 1
            out.end_struct()
        for topic_id, number in unknown:
            out.topic_id(topic_id)
            out.array(1)
            write_offsets(out, version, number, UNKNOWN_TOPIC_ID, -1, -1)
            out.put_records(b"")
            out.end_struct()
            out.end_struct()
        if version >= WITH_NODES and nodes:
            write_nodes(out, nodes)
        else:
            out.end_struct()
        return out.finish()

    cdef int write_told(self, Output out, int version, told) except -1:
        cdef int32_t leader = self.told.get(told, TOLD_LEADER)
        cdef int32_t leader_epoch = self.told.get(told, TOLD_LEADER_EPOCH)
        cdef bint with_leader = leader != -1 or leader_epoch != -1
        diverging = self.told.get(told, TOLD_DIVERGING)
        write_offsets(
            out, version, number_of(self.told.get(told, PLACE)), self.told.get(told, TOLD_ERROR),
            self.told.get(told, TOLD_HIGH_WATERMARK), self.told.get(told, TOLD_START),
        )
        out.put_records(self.told.get(told, TOLD_RECORDS))
        if version < FLEXIBLE_FROM:
            return 0
        out.int8((diverging is not None) + with_leader)
        if diverging is not None:
            out.int8(0)
            out.int8(13)
            out.int32(diverging.leader_epoch)
            out.int64(diverging.end_offset)
            out.end_struct()
        if with_leader:
            out.int8(1)
            out.int8(9)
            out.int32(leader)
            out.int32(leader_epoch)
            out.end_struct()
        return 0


cdef struct Parting:
    bint diverging
    int32_t epoch
    int64_t end_offset
    int32_t leader
    int32_t leader_epoch


cdef int check_version(int version) except -1:
    if version < FIRST_VERSION or version > LAST_VERSION:
        raise UsageError(f"Fetch version {version} is not known here: {FIRST_VERSION} to {LAST_VERSION} are")
    return 0


cdef int read_forgotten(Input* input, int version, name_of, list forgotten) except -1:
    """Partitions of a topic without a name are left out: name_of knows that it was asked."""
    cdef str topic
    cdef int32_t number
    cdef Py_ssize_t _
    if version >= WITH_IDS:
        topic = name_of(read_topic_id(input))
    else:
        topic = read_text(input)
    for _ in range(read_array(input, 4)):
        number = read_int32(input)
        if topic is not None:
            forgotten.append(partition_of(topic, number))
    return end_struct(input)


cdef int write_forgotten(Output out, int version, id_of, tuple forgotten) except -1:
    cdef Py_ssize_t at = 0
    cdef Py_ssize_t end
    cdef Py_ssize_t topics = 0
    cdef str topic
    while at < len(forgotten):
        at = same_topic(forgotten, at)
        topics += 1
    out.array(topics)
    at = 0
    while at < len(forgotten):
        end = same_topic(forgotten, at)
        topic = topic_of(forgotten[at])
        if version >= WITH_IDS:
            out.topic_id(id_of(topic))
        else:
            out.text(topic)
        out.array(end - at)
        while at < end:
            out.int32(number_of(forgotten[at]))
            at += 1
        out.end_struct()
    return 0


cdef Py_ssize_t same_topic(tuple partitions, Py_ssize_t start) except -1:
    cdef Py_ssize_t at = start + 1
    cdef str topic = topic_of(partitions[start])
    while at < len(partitions) and topic_of(partitions[at]) == topic:
        at += 1
    return at


cdef int read_request_tags(Input* input, int version, int32_t* replica, int64_t* broker_epoch) except -1:
    cdef Input content
    cdef Py_ssize_t _
    for _ in range(read_tag_count(input)):
        if read_tag(input, &content) == 1 and version >= WITH_STATE:
            replica[0] = read_int32(&content)
            broker_epoch[0] = read_int64(&content)
            end_struct(&content)
            close_tag(input, &content)
    return 0


cdef int write_replica_state(Output out, int32_t replica, int64_t broker_epoch) except -1:
    """The last tags of a request; as elsewhere, what has its default is left out."""
    if replica == -1 and broker_epoch == -1:
        return out.end_struct()
    out.int8(1)
    out.int8(1)
    out.int8(13)
    out.int32(replica)
    out.int64(broker_epoch)
    return out.end_struct()


cdef int skip_aborted(Input* input, Py_ssize_t count) except -1:
    cdef Py_ssize_t _
    for _ in range(count):
        read_int64(input)
        read_int64(input)
        end_struct(input)
    return 0


cdef int read_partition_tags(Input* input, Parting* parting) except -1:
    cdef Input content
    cdef int64_t tag
    cdef Py_ssize_t _
    parting.diverging = False
    parting.leader = parting.leader_epoch = -1
    if not input.flexible:
        return 0
    for _ in range(read_tag_count(input)):
        tag = read_tag(input, &content)
        if tag == 0:
            parting.diverging = True
            parting.epoch = read_int32(&content)
            parting.end_offset = read_int64(&content)
        elif tag == 1:
            parting.leader = read_int32(&content)
            parting.leader_epoch = read_int32(&content)
        else:
            continue
        end_struct(&content)
        close_tag(input, &content)
    return 0


cdef int write_offsets(
    Output out, int version, int32_t number, int16_t error, int64_t high_watermark, int64_t log_start
) except -1:
    """A partition of a response as far as its records."""
    out.int32(number)
    out.int16(error)
    out.int64(high_watermark)
    out.int64(high_watermark)
    if version >= WITH_START:
        out.int64(log_start)
    out.array(0)
    if version >= WITH_RACK:
        out.int32(-1)
    return 0


cdef int write_nodes(Output out, nodes) except -1:
    """The last tags of a response; the nodes are written aside first, since their size goes before them."""
    cdef Output content = Output(b"", True)
    content.array(len(nodes))
    for node in nodes:
        content.int32(node.id)
        content.text(node.host)
        content.int32(node.port)
        content.text(node.rack)
        content.end_struct()
    out.int8(1)
    out.int8(0)
    out.unsigned(<unsigned int> (content.length - 4))
    return out.raw(content.buffer[4:content.length])
