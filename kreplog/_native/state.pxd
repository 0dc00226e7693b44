# The file `kreplog.state` in a partition directory, 4096 bytes, little-endian, mapped by writer and readers:
#
#      0  8  magic "KREPLOG1"        8  4  pid of the last writer     12  4  CRC-32C of 0..12
#    128  slot 0                   256  slot 1
#    384  8  first offset of a bulk append   392  4  1 while it is under way, else 0   396  4  CRC-32C of 384..396
#    448  8  first unstable offset, 0 for none        456  8  its bits inverted
#    512  8  incarnation id, 0 for none      520  4  CRC-32C of 512..520
#    576  4  wake word                       584  8  high watermark that the first waiting reader wants, 0 for none
#    592  8  monotonic ns when a waiting reader last began to look whether the writer lives, -1 where it was found dead
#    640  8  number of the writer session, 0 for none   648  4  its state   652  4  CRC-32C of 640..652
#    704  16 changes of segments, of 24 bytes each: 8 generation after it, 8 log end offset after it,
#         4 how many in a row, up to this one, were swaps of compaction (else 0), 4 CRC-32C of the 20 before
#   1152 36  id of the boot in which the log was last opened for writing, 0 where it is unknown or its owner's matter
#
# A slot is a Position plus the CRC-32C over it. The writer fills the slots in turn, so one of them is always whole;
# readers take the valid one with the higher sequence. Odd `generation`: files are being cut right now.
#
# The bulk append's first offset is durable before its first byte is written, and gone before its records are published:
# recovery cuts there where a damaged ledger (`kreplog.writers`) does not say whether the append was committed.
#
# The first unstable offset is where the oldest transaction begins that is open, or whose marker is not committed yet.
# It is lowered before the position is published that has its first record, and raised after the position and the index
# entry of its marker; so a reader that has read a position, then it, never takes a record for stable that is not.
#
# The incarnation id is drawn when the directory of a log without replicas is made. Another in the same place: the
# partition was deleted and created again, which its topic id, the one of its neighbours, does not show.
#
# Readers that wait sleep on the wake word: see wake_impl.h. Only there do processes write that are not the writer.
#
# A writer session begins when a log is opened for writing. A reader that waits sees by it whether the writer has
# closed the log, was killed, or is another; by the changes, whether records that it has read were cut. The one to
# generation g is in place g / 2 mod 16. A swap cuts nothing, its offset is 2^63 - 1; it counts the swaps right before
# it, so that a reader which has slept through any number of them knows that they were nothing else.
#
# In one boot a page is what was published last, whoever was killed. In another, power may have been lost in between:
# the page may be an older one, and records that were visible be gone without a trace, even after a clean end.
#
# A published slot is not a durable one. `unsettled` says that the page on disk may be from before a cut, or the names
# of the files not there yet: whoever opens the log next makes both durable before a record is appended. Else a loss
# of power would bring back a page that says that a cut, finished long since, is under way.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t


cdef enum:
    WITH_PRODUCERS = 1  # of `has_producers`
    WITH_TRANSACTIONS = 2
    SWAPPING = 2  # of `unsettled`: the generation is odd since compaction replaces segments, and nothing is to be cut


cdef struct Position:
    uint64_t sequence
    int64_t high_watermark
    int64_t leo
    int64_t log_start_offset
    int64_t recovery_point
    int64_t active_base  # base offset and size of the last segment
    int64_t active_size
    int64_t generation  # raised before and after every truncation
    int64_t dense_from  # from here on every offset is taken: a gap is damage
    uint8_t has_producers  # WITH_PRODUCERS, WITH_TRANSACTIONS: what has ever been written here
    uint8_t in_use  # whether anything was appended since the log was last closed
    uint8_t epoch_noted  # whether `leader_epoch` begins at `leo` and is in no file yet
    uint8_t unsettled  # SWAPPING, or whether the page, or the names of files, may not be durable as they are published
    uint32_t epochs_crc  # CRC-32C of the leader epoch entries in their file, which lacks it
    int32_t leader_epoch  # the highest that was assigned to this log
    uint32_t crc


cdef enum:
    SESSION_UNKNOWN = 0  # of a writer that notes none, or damaged
    SESSION_OPEN = 1
    SESSION_CLOSED = 2
    AFTER_DEATH = 16  # flag: the session before this one was not closed
    LOCKED_DIRECTORY = 256  # flag: the writer has a lock on the partition directory, which shows that it lives
    LOCKED_BY_OWNER = 512  # flag: on its owner's file in the data directory
    LOCKED_BY_TOPIC = 1024  # flag: on its topic's file there


cdef struct Session:
    uint64_t number
    uint32_t flags
    uint32_t crc


cdef struct Change:
    int64_t generation
    int64_t end
    uint32_t swaps
    uint32_t crc


cdef class StateFile:
    cdef str path
    cdef uint8_t* data  # mapped; the file itself is open only while it is used
    cdef uint64_t seen  # the highest sequence read
    cdef uint64_t device  # with `inode`: which file is mapped
    cdef uint64_t inode
    cdef uint8_t* shared  # a page that this process may write the wake word of; NULL where it may not
    cdef bint tried_to_share

    cdef void publish(self, Position* position) noexcept nogil
    cdef bint read(self, Position* out) noexcept nogil
    cdef int writer_pid(self) noexcept
    cdef int sync(self) except -1
    cdef void mark_bulk_append(self, int64_t start, bint under_way) noexcept nogil
    cdef int64_t bulk_append_start(self) noexcept nogil
    cdef void publish_unstable(self, int64_t offset) noexcept nogil
    cdef int64_t first_unstable(self) noexcept nogil
    cdef void set_incarnation(self, uint64_t incarnation) noexcept nogil
    cdef uint64_t incarnation(self) noexcept nogil
    cdef int require_at_path(self, str partition) except -1
    cdef Session session(self) noexcept nogil
    cdef void begin_session(self, uint32_t lock) noexcept nogil
    cdef void end_session(self) noexcept nogil
    cdef void write_session(self, uint64_t number, uint32_t flags) noexcept nogil
    cdef void note_truncation(self, int64_t generation, int64_t end) noexcept nogil
    cdef void note_swap(self, int64_t generation) noexcept nogil
    cdef void write_change(self, Change* change) noexcept nogil
    cdef bint is_of_boot(self, bytes id) noexcept
    cdef void set_boot(self, bytes id) noexcept
    cdef bint read_change(self, int64_t generation, Change* change) noexcept nogil
    cdef int64_t lowest_truncation(self, int64_t since, int64_t generation) noexcept nogil
    cdef void wake_at(self, int64_t high_watermark) noexcept
    cdef void wake_all(self) noexcept nogil
    cdef uint8_t* page_to_wait_on(self) except? NULL


cdef StateFile open_state(str path, bint writable)
