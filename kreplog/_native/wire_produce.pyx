"""Produce, both directions: requests 0 to 12, responses 0 to 12. Each decoder is next to its encoder.

    request     transactional_id string|null (3+), acks int16, timeout_ms int32, [topic]
    topic       name string, [partition]
    partition   index int32, records bytes|null

    response    [topic], throttle_time_ms int32 (1+)
    topic       name string, [partition]
    partition   index int32, error int16, base_offset int64, log_append_time_ms int64 (2+), log_start_offset int64 (5+),
                [batch_index int32, message string|null] (8+), message string|null (8+)

Version 9 is flexible; 10 to 12 have the same fields, but for tagged ones that are not written. Requests 0 to 2 carry
batches older than magic 2, so they can only be refused. The records are never copied: those of a decoded request are
slices of its frame, those of an encoded one its own objects.
Source: Kafka protocol guide, Produce; KIP-467, KIP-482.
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
    count_runs,
    end_struct,
    error_of,
    number_of,
    partition_of,
    read_array,
    read_int16,
    read_int32,
    read_int64,
    read_nullable_text,
    read_records,
    read_text,
    run_end,
    topic_of,
)

from kreplog.errors import UsageError

cdef enum:
    FLEXIBLE_FROM = 9
    LAST_VERSION = 12

# Numbers of the fields, by class, in their order.
cdef enum:
    ACKS = 0
    TIMEOUT = 1
    PARTITIONS = 2

    PARTITION = 0
    RECORDS = 1

    ERROR = 1
    BASE_OFFSET = 2
    APPEND_TIME = 3
    LOG_START = 4
    MESSAGE = 5


@cython.final
cdef class ProduceCodec:
    """Made once with the four dataclasses that it reads into and writes from."""

    cdef Slots request
    cdef Slots request_partition
    cdef Slots response
    cdef Slots response_partition

    def __init__(self, request, request_partition, response, response_partition):
        self.request = Slots(request, "acks", "timeout_ms", "partitions")
        self.request_partition = Slots(request_partition, "partition", "records")
        self.response = Slots(response, "partitions")
        self.response_partition = Slots(
            response_partition, "partition", "error", "base_offset", "log_append_time_ms", "log_start_offset",
            "message",
        )

    def decode_request(self, data, Py_ssize_t start, int version, int budget=BUDGET):
        """(request, transactional id or None) from byte `start` of `data` on; what stands behind it is passed over.

        budget: of topics, partitions and tags."""
        cdef Input input
        cdef Frame frame = Frame(data)
        cdef str transactional_id = None
        cdef str topic
        cdef list partitions = []
        cdef int32_t number
        cdef Py_ssize_t _topic
        cdef Py_ssize_t _partition
        check_version(version)
        frame.open(&input, start, version >= FLEXIBLE_FROM)
        input.budget = budget
        if version >= 3:
            transactional_id = read_nullable_text(&input)
        acks = read_int16(&input)
        timeout = read_int32(&input)
        for _topic in range(read_array(&input, 3)):
            topic = read_text(&input)
            for _partition in range(read_array(&input, 6)):
                number = read_int32(&input)
                records = read_records(&input, frame.view)
                end_struct(&input)
                partition = self.request_partition.new()
                self.request_partition.set(partition, PARTITION, partition_of(topic, number))
                self.request_partition.set(partition, RECORDS, records)
                partitions.append(partition)
            end_struct(&input)
        end_struct(&input)
        request = self.request.new()
        self.request.set(request, ACKS, acks)
        self.request.set(request, TIMEOUT, timeout)
        self.request.set(request, PARTITIONS, tuple(partitions))
        return request, transactional_id

    def encode_request(self, bytes header, request, str transactional_id, int version):
        """The frame as a list of buffers; the records between its small parts are the request's own objects."""
        cdef Output out = Output(header, version >= FLEXIBLE_FROM)
        cdef tuple partitions
        cdef Py_ssize_t at = 0
        cdef Py_ssize_t end
        check_version(version)
        self.request.expect(request)
        partitions = self.request.get(request, PARTITIONS)
        if version >= 3:
            out.text(transactional_id)
        out.int16(self.request.get(request, ACKS))
        out.int32(self.request.get(request, TIMEOUT))
        out.array(count_runs(partitions, self.request_partition, PARTITION, -1))
        while at < len(partitions):
            end = run_end(partitions, at, self.request_partition, PARTITION, -1)
            out.text(topic_of(self.request_partition.get(partitions[at], PARTITION)))
            out.array(end - at)
            while at < end:
                partition = partitions[at]
                out.int32(number_of(self.request_partition.get(partition, PARTITION)))
                out.put_records(self.request_partition.get(partition, RECORDS))
                out.end_struct()
                at += 1
            out.end_struct()
        out.end_struct()
        return out.finish()

    def decode_response(self, data, Py_ssize_t start, int version):
        """The response from byte `start` of `data` to its end. What its version lacks is -1 or ""."""
        cdef Input input
        cdef Frame frame = Frame(data)
        cdef list partitions = []
        cdef str topic
        cdef str message
        cdef int32_t number
        cdef int16_t error
        cdef int64_t base_offset
        cdef int64_t append_time = -1
        cdef int64_t log_start = -1
        cdef Py_ssize_t _topic
        cdef Py_ssize_t _partition
        cdef Py_ssize_t _record
        check_version(version)
        frame.open(&input, start, version >= FLEXIBLE_FROM)
        for _topic in range(read_array(&input, 3)):
            topic = read_text(&input)
            for _partition in range(read_array(&input, 14)):
                number = read_int32(&input)
                error = read_int16(&input)
                base_offset = read_int64(&input)
                if version >= 2:
                    append_time = read_int64(&input)
                if version >= 5:
                    log_start = read_int64(&input)
                message = None
                if version >= 8:
                    for _record in range(read_array(&input, 5)):
                        read_int32(&input)
                        read_nullable_text(&input)
                        end_struct(&input)
                    message = read_nullable_text(&input)
                end_struct(&input)
                partition = self.response_partition.new()
                self.response_partition.set(partition, PARTITION, partition_of(topic, number))
                self.response_partition.set(partition, ERROR, error_of(error))
                self.response_partition.set(partition, BASE_OFFSET, base_offset)
                self.response_partition.set(partition, APPEND_TIME, append_time)
                self.response_partition.set(partition, LOG_START, log_start)
                self.response_partition.set(partition, MESSAGE, message or "")
                partitions.append(partition)
            end_struct(&input)
        if version >= 1:
            read_int32(&input)
        end_struct(&input)
        close_message(&input)
        response = self.response.new()
        self.response.set(response, 0, tuple(partitions))
        return response

    def encode_response(self, bytes header, response, int version):
        """The frame as a list of buffers."""
        cdef Output out = Output(header, version >= FLEXIBLE_FROM)
        cdef tuple partitions
        cdef Py_ssize_t at = 0
        cdef Py_ssize_t end
        check_version(version)
        self.response.expect(response)
        partitions = self.response.get(response, 0)
        out.array(count_runs(partitions, self.response_partition, PARTITION, -1))
        while at < len(partitions):
            end = run_end(partitions, at, self.response_partition, PARTITION, -1)
            out.text(topic_of(self.response_partition.get(partitions[at], PARTITION)))
            out.array(end - at)
            while at < end:
                partition = partitions[at]
                out.int32(number_of(self.response_partition.get(partition, PARTITION)))
                out.int16(self.response_partition.get(partition, ERROR))
                out.int64(self.response_partition.get(partition, BASE_OFFSET))
                if version >= 2:
                    out.int64(self.response_partition.get(partition, APPEND_TIME))
                if version >= 5:
                    out.int64(self.response_partition.get(partition, LOG_START))
                if version >= 8:
                    out.array(0)
                    out.text(self.response_partition.get(partition, MESSAGE) or None)
                out.end_struct()
                at += 1
            out.end_struct()
        if version >= 1:
            out.int32(0)
        out.end_struct()
        return out.finish()


cdef int check_version(int version) except -1:
    if version < 0 or version > LAST_VERSION:
        raise UsageError(f"Produce version {version} is not supported: 0 to {LAST_VERSION}")
    return 0
