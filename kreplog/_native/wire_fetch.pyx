"""Fetch, both directions: requests and responses 4 to 18. Each decoder is next to its encoder.

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

Version 12 is flexible. The last stable offset of a message is -1 where it is the high watermark. The records are never
copied: those of a decoded response are slices of its frame, those of an encoded one its own objects.
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
    LAST_VERSION = 18
    WITH_START = 5
    WITH_SESSIONS = 7
    WITH_EPOCHS = 9
    WITH_RACK = 11
    FLEXIBLE_FROM = 12
    WITH_IDS = 13
    WITH_STATE = 15
    WITH_NODES = 16

# Numbers of the fields, by class, in their order.
cdef enum:
    REQUEST_REPLICA = 0
    REQUEST_BROKER_EPOCH = 1
    REQUEST_MAX_WAIT = 2
    REQUEST_MIN_BYTES = 3
    REQUEST_MAX_BYTES = 4
    REQUEST_PARTITIONS = 5
    REQUEST_FORGOTTEN = 6
    REQUEST_SESSION = 7
    REQUEST_SESSION_EPOCH = 8
    REQUEST_ISOLATION = 9
    REQUEST_RACK = 10

    RESPONSE_ERROR = 0
    RESPONSE_SESSION = 1
    RESPONSE_PARTITIONS = 2

    PARTITION = 0  # of a partition in a request or response

    REQUEST_TOPIC_ID = 1
    REQUEST_EPOCH = 2
    REQUEST_OFFSET = 3
    REQUEST_LAST_EPOCH = 4
    REQUEST_LOG_START = 5
    REQUEST_PARTITION_BYTES = 6

    RESPONSE_PARTITION_ERROR = 1
    RESPONSE_HIGH_WATERMARK = 2
    RESPONSE_LOG_START = 3
    RESPONSE_DIVERGING = 4
    RESPONSE_LEADER = 5
    RESPONSE_LEADER_EPOCH = 6
    RESPONSE_RECORDS = 7
    RESPONSE_TOPIC_ID = 8
    RESPONSE_ABORTED = 9
    RESPONSE_PREFERRED = 10
    RESPONSE_LAST_STABLE = 11

cdef int UNKNOWN_TOPIC_ID = ErrorCode.UNKNOWN_TOPIC_ID


@cython.final
cdef class FetchCodec:
    """Made once with the four dataclasses that it reads into and writes from."""

    cdef Slots request
    cdef Slots request_partition
    cdef Slots response
    cdef Slots response_partition

    def __init__(self, request, request_partition, response, response_partition):
        self.request = Slots(
            request, "replica_id", "broker_epoch", "max_wait_ms", "min_bytes", "max_bytes", "partitions", "forgotten",
            "session_id", "session_epoch", "isolation_level", "rack",
        )
        self.request_partition = Slots(
            request_partition, "partition", "topic_id", "current_leader_epoch", "fetch_offset", "last_fetched_epoch",
            "log_start_offset", "max_bytes",
        )
        self.response = Slots(response, "error", "session_id", "partitions")
        self.response_partition = Slots(
            response_partition, "partition", "error", "high_watermark", "log_start_offset", "diverging", "leader",
            "leader_epoch", "records", "topic_id", "aborted", "preferred_read_replica", "last_stable_offset",
        )

    def decode_request(self, data, Py_ssize_t start, int version, name_of, int budget=BUDGET):
        """(request, unknown) from byte `start` of `data` on; bytes after it are ignored.

        name_of: from a topic id to the topic's name or None; called from version 13 on. unknown: (topic id, partition)
        of each requested topic id that has no name here. Fields that the version lacks are -1, the session id 0.
        budget: of topics, partitions and tags.
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
        cdef int isolation
        cdef str rack = ""
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
        isolation = read_int8(&input)
        if version >= WITH_SESSIONS:
            session = read_int32(&input)
            session_epoch = read_int32(&input)
        for _ in range(read_array(&input, 3)):
            self.read_request_topic(&input, version, name_of, partitions, unknown)
        if version >= WITH_SESSIONS:
            for _ in range(read_array(&input, 3)):
                read_forgotten(&input, version, name_of, forgotten)
        if version >= WITH_RACK:
            rack = read_text(&input)
        if version >= FLEXIBLE_FROM:
            read_request_tags(&input, version, &replica, &broker_epoch)
        request = self.request.new()
        self.request.set(request, REQUEST_REPLICA, replica)
        self.request.set(request, REQUEST_BROKER_EPOCH, broker_epoch)
        self.request.set(request, REQUEST_MAX_WAIT, max_wait)
        self.request.set(request, REQUEST_MIN_BYTES, min_bytes)
        self.request.set(request, REQUEST_MAX_BYTES, max_bytes)
        self.request.set(request, REQUEST_PARTITIONS, tuple(partitions))
        self.request.set(request, REQUEST_FORGOTTEN, tuple(forgotten))
        self.request.set(request, REQUEST_SESSION, session)
        self.request.set(request, REQUEST_SESSION_EPOCH, session_epoch)
        self.request.set(request, REQUEST_ISOLATION, isolation)
        self.request.set(request, REQUEST_RACK, rack)
        return request, tuple(unknown)

    cdef int read_request_topic(self, Input* input, int version, name_of, list partitions, list unknown) except -1:
        cdef str topic
        cdef str topic_id
        cdef int32_t number
        cdef int32_t epoch = -1
        cdef int64_t offset
        cdef int32_t last_epoch = -1
        cdef int64_t log_start = -1
        cdef int32_t max_bytes
        cdef Py_ssize_t _
        topic, topic_id = read_topic(input, version, name_of)
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
            partition = self.request_partition.new()
            self.request_partition.set(partition, PARTITION, partition_of(topic, number))
            self.request_partition.set(partition, REQUEST_TOPIC_ID, topic_id)
            self.request_partition.set(partition, REQUEST_EPOCH, epoch)
            self.request_partition.set(partition, REQUEST_OFFSET, offset)
            self.request_partition.set(partition, REQUEST_LAST_EPOCH, last_epoch)
            self.request_partition.set(partition, REQUEST_LOG_START, log_start)
            self.request_partition.set(partition, REQUEST_PARTITION_BYTES, max_bytes)
            partitions.append(partition)
        return end_struct(input)

    def encode_request(self, bytes header, request, int version, id_of):
        """The frame as a list of buffers. id_of: from a forgotten topic's name to its id; called from version 13 on."""
        cdef Output out = Output(header, version >= FLEXIBLE_FROM)
        check_version(version)
        self.request.expect(request)
        if version < WITH_STATE:
            out.int32(self.request.get(request, REQUEST_REPLICA))
        out.int32(self.request.get(request, REQUEST_MAX_WAIT))
        out.int32(self.request.get(request, REQUEST_MIN_BYTES))
        out.int32(self.request.get(request, REQUEST_MAX_BYTES))
        out.int8(self.request.get(request, REQUEST_ISOLATION))
        if version >= WITH_SESSIONS:
            out.int32(self.request.get(request, REQUEST_SESSION))
            out.int32(self.request.get(request, REQUEST_SESSION_EPOCH))
        self.write_request_topics(out, version, self.request.get(request, REQUEST_PARTITIONS))
        if version >= WITH_SESSIONS:
            write_forgotten(out, version, id_of, self.request.get(request, REQUEST_FORGOTTEN))
        if version >= WITH_RACK:
            out.text(self.request.get(request, REQUEST_RACK))
        if version >= WITH_STATE:
            write_replica_state(
                out, self.request.get(request, REQUEST_REPLICA), self.request.get(request, REQUEST_BROKER_EPOCH)
            )
        else:
            out.end_struct()
        return out.finish()

    cdef int write_request_topics(self, Output out, int version, tuple partitions) except -1:
        cdef Py_ssize_t at = 0
        cdef Py_ssize_t end
        out.array(count_runs(partitions, self.request_partition, PARTITION, REQUEST_TOPIC_ID))
        while at < len(partitions):
            end = run_end(partitions, at, self.request_partition, PARTITION, REQUEST_TOPIC_ID)
            if version >= WITH_IDS:
                out.topic_id(self.request_partition.get(partitions[at], REQUEST_TOPIC_ID))
            else:
                out.text(topic_of(self.request_partition.get(partitions[at], PARTITION)))
            out.array(end - at)
            while at < end:
                self.write_request_partition(out, version, partitions[at])
                at += 1
            out.end_struct()
        return 0

    cdef int write_request_partition(self, Output out, int version, partition) except -1:
        out.int32(number_of(self.request_partition.get(partition, PARTITION)))
        if version >= WITH_EPOCHS:
            out.int32(self.request_partition.get(partition, REQUEST_EPOCH))
        out.int64(self.request_partition.get(partition, REQUEST_OFFSET))
        if version >= FLEXIBLE_FROM:
            out.int32(self.request_partition.get(partition, REQUEST_LAST_EPOCH))
        if version >= WITH_START:
            out.int64(self.request_partition.get(partition, REQUEST_LOG_START))
        out.int32(self.request_partition.get(partition, REQUEST_PARTITION_BYTES))
        return out.end_struct()

    def decode_response(self, data, Py_ssize_t start, int version, name_of):
        """The response from byte `start` of `data` to its end; fields that its version lacks are -1.

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
            self.read_response_topic(&input, frame.view, version, name_of, partitions)
        end_struct(&input)
        close_message(&input)
        response = self.response.new()
        self.response.set(response, RESPONSE_ERROR, error_of(error))
        self.response.set(response, RESPONSE_SESSION, session)
        self.response.set(response, RESPONSE_PARTITIONS, tuple(partitions))
        return response

    cdef int read_response_topic(self, Input* input, view, int version, name_of, list partitions) except -1:
        cdef str topic
        cdef int32_t number
        cdef int16_t error
        cdef int64_t high_watermark
        cdef int64_t last_stable
        cdef int64_t log_start = -1
        cdef int32_t preferred = -1
        cdef tuple aborted
        cdef Py_ssize_t count
        cdef Py_ssize_t _
        cdef PartitionTags tags
        topic, _topic_id = read_topic(input, version, name_of)
        for _ in range(read_array(input, 20)):
            number = read_int32(input)
            error = read_int16(input)
            high_watermark = read_int64(input)
            last_stable = read_int64(input)
            if version >= WITH_START:
                log_start = read_int64(input)
            count = read_count(input, 16)
            aborted = read_aborted(input, count) if count > 0 else ()
            if version >= WITH_RACK:
                preferred = read_int32(input)
            records = read_records(input, view)
            read_partition_tags(input, &tags)
            if topic is None:
                continue
            partition = self.response_partition.new()
            self.response_partition.set(partition, PARTITION, partition_of(topic, number))
            self.response_partition.set(partition, RESPONSE_PARTITION_ERROR, error_of(error))
            self.response_partition.set(partition, RESPONSE_HIGH_WATERMARK, high_watermark)
            self.response_partition.set(partition, RESPONSE_LOG_START, log_start)
            self.response_partition.set(
                partition, RESPONSE_DIVERGING, EpochEndOffset(tags.epoch, tags.end_offset) if tags.diverging else None
            )
            self.response_partition.set(partition, RESPONSE_LEADER, tags.leader)
            self.response_partition.set(partition, RESPONSE_LEADER_EPOCH, tags.leader_epoch)
            self.response_partition.set(partition, RESPONSE_RECORDS, records)
            self.response_partition.set(partition, RESPONSE_TOPIC_ID, "")
            self.response_partition.set(partition, RESPONSE_ABORTED, aborted)
            self.response_partition.set(partition, RESPONSE_PREFERRED, preferred)
            self.response_partition.set(
                partition, RESPONSE_LAST_STABLE, -1 if last_stable == high_watermark else last_stable
            )
            partitions.append(partition)
        return end_struct(input)

    def encode_response(self, bytes header, response, int version, id_of, unknown, nodes):
        """The frame as a list of buffers; the records between its small parts are the response's own objects.

        id_of: from a topic's name to its id; called from version 13 on for partitions without a topic id. unknown:
        (topic id, partition) that get UNKNOWN_TOPIC_ID. nodes: registrations of the brokers that the partitions name as
        leaders; from version 16 on.
        """
        cdef Output out = Output(header, version >= FLEXIBLE_FROM)
        cdef tuple partitions
        cdef Py_ssize_t at = 0
        cdef Py_ssize_t end
        check_version(version)
        self.response.expect(response)
        out.int32(0)
        if version >= WITH_SESSIONS:
            out.int16(self.response.get(response, RESPONSE_ERROR))
            out.int32(self.response.get(response, RESPONSE_SESSION))
        partitions = self.response.get(response, RESPONSE_PARTITIONS)
        if version < WITH_IDS:
            unknown = ()
        out.array(count_runs(partitions, self.response_partition, PARTITION, RESPONSE_TOPIC_ID) + len(unknown))
        while at < len(partitions):
            end = run_end(partitions, at, self.response_partition, PARTITION, RESPONSE_TOPIC_ID)
            topic_id = self.response_partition.get(partitions[at], RESPONSE_TOPIC_ID)
            if version >= WITH_IDS and topic_id:
                out.topic_id(topic_id)
            else:
                write_topic(out, version, topic_of(self.response_partition.get(partitions[at], PARTITION)), id_of)
            out.array(end - at)
            while at < end:
                self.write_response_partition(out, version, partitions[at])
                at += 1
            out.end_struct()
        for topic_id, number in unknown:
            out.topic_id(topic_id)
            out.array(1)
            write_offsets(out, version, number, UNKNOWN_TOPIC_ID, -1, -1, -1, (), -1)
            out.put_records(b"")
            out.end_struct()
            out.end_struct()
        if version >= WITH_NODES and nodes:
            write_nodes(out, nodes)
        else:
            out.end_struct()
        return out.finish()

    cdef int write_response_partition(self, Output out, int version, partition) except -1:
        cdef Slots slots = self.response_partition
        cdef int32_t leader = slots.get(partition, RESPONSE_LEADER)
        cdef int32_t leader_epoch = slots.get(partition, RESPONSE_LEADER_EPOCH)
        cdef bint with_leader = leader != -1 or leader_epoch != -1
        diverging = slots.get(partition, RESPONSE_DIVERGING)
        write_offsets(
            out, version, number_of(slots.get(partition, PARTITION)), slots.get(partition, RESPONSE_PARTITION_ERROR),
            slots.get(partition, RESPONSE_HIGH_WATERMARK), slots.get(partition, RESPONSE_LAST_STABLE),
            slots.get(partition, RESPONSE_LOG_START),
            slots.get(partition, RESPONSE_ABORTED), slots.get(partition, RESPONSE_PREFERRED),
        )
        out.put_records(slots.get(partition, RESPONSE_RECORDS))
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


cdef struct PartitionTags:
    bint diverging
    int32_t epoch
    int64_t end_offset
    int32_t leader
    int32_t leader_epoch


cdef int check_version(int version) except -1:
    if version < FIRST_VERSION or version > LAST_VERSION:
        raise UsageError(f"Fetch version {version} is not supported: {FIRST_VERSION} to {LAST_VERSION}")
    return 0


cdef int read_forgotten(Input* input, int version, name_of, list forgotten) except -1:
    """Partitions of a topic without a name are left out: name_of knows that it was partition."""
    cdef str topic
    cdef int32_t number
    cdef Py_ssize_t _
    topic, _topic_id = read_topic(input, version, name_of)
    for _ in range(read_array(input, 4)):
        number = read_int32(input)
        if topic is not None:
            forgotten.append(partition_of(topic, number))
    return end_struct(input)


cdef int write_forgotten(Output out, int version, id_of, tuple forgotten) except -1:
    cdef Py_ssize_t at = 0
    cdef Py_ssize_t end
    out.array(count_runs(forgotten, None, 0, -1))
    while at < len(forgotten):
        end = run_end(forgotten, at, None, 0, -1)
        write_topic(out, version, topic_of(forgotten[at]), id_of)
        out.array(end - at)
        while at < end:
            out.int32(number_of(forgotten[at]))
            at += 1
        out.end_struct()
    return 0


cdef tuple read_topic(Input* input, int version, name_of):
    """(name or None, topic id or "") of a topic, which versions from 13 on name by its id."""
    cdef str topic_id
    if version >= WITH_IDS:
        topic_id = read_topic_id(input)
        return name_of(topic_id), topic_id
    return read_text(input), ""


cdef int write_topic(Output out, int version, str topic, id_of) except -1:
    if version >= WITH_IDS:
        return out.topic_id(id_of(topic))
    return out.text(topic)


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


cdef tuple read_aborted(Input* input, Py_ssize_t count):
    """(producer id, first offset) of each aborted transaction."""
    cdef list aborted = []
    cdef int64_t producer
    cdef Py_ssize_t _
    for _ in range(count):
        producer = read_int64(input)
        aborted.append((producer, read_int64(input)))
        end_struct(input)
    return tuple(aborted)


cdef int read_partition_tags(Input* input, PartitionTags* tags) except -1:
    cdef Input content
    cdef int64_t tag
    cdef Py_ssize_t _
    tags.diverging = False
    tags.epoch = tags.leader = tags.leader_epoch = -1
    tags.end_offset = -1
    if not input.flexible:
        return 0
    for _ in range(read_tag_count(input)):
        tag = read_tag(input, &content)
        if tag == 0:
            tags.diverging = True
            tags.epoch = read_int32(&content)
            tags.end_offset = read_int64(&content)
        elif tag == 1:
            tags.leader = read_int32(&content)
            tags.leader_epoch = read_int32(&content)
        else:
            continue
        end_struct(&content)
        close_tag(input, &content)
    return 0


cdef int write_offsets(
    Output out, int version, int32_t number, int16_t error, int64_t high_watermark, int64_t last_stable,
    int64_t log_start, tuple aborted, int32_t preferred
) except -1:
    """A partition of a response as far as its records."""
    out.int32(number)
    out.int16(error)
    out.int64(high_watermark)
    out.int64(high_watermark if last_stable < 0 else last_stable)
    if version >= WITH_START:
        out.int64(log_start)
    out.array(len(aborted))
    for producer, first_offset in aborted:
        out.int64(producer)
        out.int64(first_offset)
        out.end_struct()
    if version >= WITH_RACK:
        out.int32(preferred)
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
