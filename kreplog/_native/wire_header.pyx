"""Decoding of request headers (by a broker) and response headers (by the sender of the request).

    request     api key int16, version int16, correlation id int32, client id string|null, tags
    response    correlation id int32, tags

Tags end the headers of flexible versions; never the response's of ApiVersions. The client id is a plain string always.
Source: Kafka protocol guide, headers; KIP-482, KIP-511.
"""

cimport cython
from libc.stdint cimport int16_t, int32_t

from kreplog._native.wire cimport (
    Frame,
    Input,
    Slots,
    end_struct,
    read_int16,
    read_int32,
    read_nullable_text,
)

from kreplog.errors import PeerProtocolError

cdef enum:
    API_KEY = 0
    API_VERSION = 1
    CORRELATION = 2
    CLIENT = 3
    BODY = 4
    KNOWN = 5


@cython.final
cdef class HeaderCodec:
    """Made once. flexible_from: by API key. always_known: the API that gets a response in any version (ApiVersions)."""

    cdef Slots header
    cdef dict flexible_from
    cdef int always_known

    def __init__(self, header, flexible_from, int always_known):
        self.header = Slots(
            header, "api_key", "api_version", "correlation_id", "client_id", "body", "known"
        )
        self.flexible_from = dict(flexible_from)
        self.always_known = always_known

    def decode_request(self, data, ranges):
        """The header; PeerProtocolError for what `ranges`, from API key to (first, last) version, does not offer."""
        cdef Input input
        cdef Frame frame = Frame(data)
        cdef int16_t version
        cdef int32_t correlation
        cdef int first = 0
        cdef int last = -1
        cdef str client = None
        cdef bint known
        frame.open(&input, 0, False)
        key = read_int16(&input)
        version = read_int16(&input)
        correlation = read_int32(&input)
        offered = ranges.get(key)
        if offered is not None:
            first, last = offered
        known = first <= version <= last
        if known:
            client = read_nullable_text(&input)
            input.flexible = version >= <int> self.flexible_from[key]
            end_struct(&input)
        elif key != self.always_known:
            raise PeerProtocolError(f"API {key} in version {version} is not offered")
        header = self.header.new()
        self.header.set(header, API_KEY, key)
        self.header.set(header, API_VERSION, version)
        self.header.set(header, CORRELATION, correlation)
        self.header.set(header, CLIENT, client)
        self.header.set(header, BODY, input.at - input.start)
        self.header.set(header, KNOWN, known)
        return header

    def decode_response(self, data, int32_t correlation, bint flexible):
        """Where the message begins; PeerProtocolError when it is the response to another request."""
        cdef Input input
        cdef Frame frame = Frame(data)
        cdef int32_t found
        frame.open(&input, 0, flexible)
        found = read_int32(&input)
        if found != correlation:
            raise PeerProtocolError(f"the response to request {found} came for request {correlation}")
        end_struct(&input)
        return input.at - input.start
