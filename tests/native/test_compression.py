"""Kafka's framings: byte vectors, what other writers send, damage at every byte, and bombs under a memory bound."""

import contextlib
import random
import resource
import struct
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import lz4.frame
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplog._native.compression import CODECS, compress, decompress
from kreplog.errors import ArgumentTypeError, CorruptBatchError, UnsupportedCompressionError, UsageError

cramjam = pytest.importorskip("cramjam")
zstandard = pytest.importorskip("zstandard")

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
FRAMED = (GZIP, SNAPPY, LZ4, ZSTD)
SNAPPY_HEADER = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
PLAIN = b"".join(b'{"flight": %d, "carrier": "UA"}' % i for i in range(4000))


@pytest.fixture(params=list(CODECS.values()), ids=list(CODECS))
def codec(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.mark.parametrize("size", [0, 1, 15, 32767, 32768, 65535, 65536, 65537, 120_000])
@pytest.mark.parametrize("kind", ["zeros", "noise", "text"])
def test_round_trip(codec: int, size: int, kind: str) -> None:
    data = {"zeros": bytes(size), "noise": random.Random(size).randbytes(size), "text": PLAIN[:size]}[kind]
    packed = compress(codec, memoryview(data))
    assert decompress(codec, memoryview(bytearray(packed)), size) == data
    assert decompress(codec, packed, 2**40) == data
    if size:
        with pytest.raises(CorruptBatchError, match=f"{size - 1} bytes allowed"):
            decompress(codec, packed, size - 1)


@pytest.mark.parametrize("size", [4 << 20, (4 << 20) + 1, 8 << 20, (8 << 20) + 1])
def test_round_trip_of_more_than_one_piece(codec: int, size: int) -> None:
    data = (PLAIN * (size // len(PLAIN) + 1))[:size]
    packed = compress(codec, data)
    assert decompress(codec, packed, size) == data
    with pytest.raises(CorruptBatchError, match=f"{size - 1} bytes allowed"):
        decompress(codec, packed, size - 1)
    if codec != NONE:
        with pytest.raises(CorruptBatchError):
            decompress(codec, packed[:-1], size)


def test_ids_are_those_of_the_batch_attributes() -> None:
    assert CODECS == {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


def test_lz4_vector() -> None:
    """Version 1, independent blocks, no sizes or checksums (60), 64 KiB (40), header checksum 82; one stored block."""
    assert compress(LZ4, b"abc") == bytes.fromhex("04224d18 60 40 82 03000080 616263 00000000")


def test_lz4_blocks_hold_64_kib() -> None:
    frame = compress(LZ4, random.Random(0).randbytes(150_000))
    sizes, position = [], 7
    while size := int.from_bytes(frame[position : position + 4], "little"):
        sizes.append(size & 0x7FFFFFFF)
        position += 4 + sizes[-1]
    assert sizes == [65536, 65536, 150_000 - 2 * 65536]


def test_snappy_vector() -> None:
    """Header, then one block: 5 bytes of raw snappy, size 3 and a literal of 3."""
    assert compress(SNAPPY, b"abc") == SNAPPY_HEADER + bytes.fromhex("00000005 03 08 616263")


def test_gzip_is_one_member() -> None:
    assert zlib.decompress(compress(GZIP, PLAIN), wbits=31) == PLAIN


@pytest.mark.parametrize("block_size", [4, 5, 6, 7])
@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("checksums", [False, True])
@pytest.mark.parametrize("sized", [False, True])
def test_lz4_frames_of_other_writers(block_size: int, linked: bool, checksums: bool, sized: bool) -> None:
    frame = lz4.frame.compress(
        PLAIN,
        block_size=block_size,
        block_linked=linked,
        content_checksum=checksums,
        block_checksum=checksums,
        store_size=sized,
    )
    assert decompress(LZ4, frame, len(PLAIN)) == PLAIN


def test_lz4_frames_flushed_early() -> None:
    context = lz4.frame.create_compression_context()
    frame = lz4.frame.compress_begin(context, auto_flush=True, block_size=4, block_linked=False)
    for start in range(0, 5000, 100):
        frame += lz4.frame.compress_chunk(context, PLAIN[start : start + 100])
    frame += lz4.frame.compress_flush(context)
    assert decompress(LZ4, frame, 5000) == PLAIN[:5000]


def test_raw_snappy_is_read() -> None:
    assert decompress(SNAPPY, bytes(cramjam.snappy.compress_raw(PLAIN)), len(PLAIN)) == PLAIN


def test_snappy_blocks_of_any_size() -> None:
    blocks = [bytes(cramjam.snappy.compress_raw(PLAIN[start : start + 7000])) for start in range(0, 21_000, 7000)]
    stream = SNAPPY_HEADER + b"".join(struct.pack(">i", len(block)) + block for block in blocks)
    assert decompress(SNAPPY, stream, 21_000) == PLAIN[:21_000]


@pytest.mark.parametrize("sized", [False, True])
@pytest.mark.parametrize("checksum", [False, True])
@pytest.mark.parametrize("data", [b"", b"a", bytes(300_000), PLAIN], ids=["empty", "one", "zeros", "text"])
def test_zstd_frames_of_other_writers(data: bytes, sized: bool, checksum: bool) -> None:
    whole = zstandard.ZstdCompressor(write_content_size=sized, write_checksum=checksum)
    assert decompress(ZSTD, whole.compress(data), len(data)) == data
    stream = whole.compressobj()
    assert decompress(ZSTD, stream.compress(data) + stream.flush(), len(data)) == data


def test_threads_at_once(codec: int) -> None:
    """More than there are idle compressors; some frames are damaged."""
    blocks = [PLAIN[at : at + 30_000] for at in range(0, 48_000, 3_000)]
    start = threading.Barrier(len(blocks))

    def work(data: bytes) -> bool:
        start.wait()
        same = True
        for _ in range(20):
            packed = compress(codec, data)
            with contextlib.suppress(CorruptBatchError):
                decompress(codec, packed[:-1], len(data))
            same = same and decompress(codec, packed, len(data)) == data
        return same

    with ThreadPoolExecutor(len(blocks)) as threads:
        assert all(threads.map(work, blocks))


def test_memory_of_a_large_zstd_window_is_given_back() -> None:
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=26, write_content_size=False)
    writer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    packed = writer.compress(bytes(1000)) + writer.flush()
    decompress(ZSTD, compress(ZSTD, b"loads the package"), 1000)
    before = _mapped_bytes()
    for _ in range(8):
        assert decompress(ZSTD, packed, 1000) == bytes(1000)
    assert _mapped_bytes() - before < 32 << 20, "a window of 64 MiB stays"


def _mapped_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


@pytest.mark.parametrize("codec", FRAMED)
def test_every_prefix_is_refused(codec: int) -> None:
    packed = compress(codec, PLAIN[:3000])
    for end in range(len(packed)):
        if codec == SNAPPY and end == len(SNAPPY_HEADER):
            continue  # the framing has no end mark: a bare header is the whole of nothing
        with pytest.raises(CorruptBatchError):
            decompress(codec, packed[:end], 10_000)


@pytest.mark.parametrize("codec", FRAMED)
def test_what_follows_a_frame_is_refused(codec: int) -> None:
    packed = compress(codec, PLAIN[:3000])
    for rest in (b"\0", packed):
        with pytest.raises(CorruptBatchError):
            decompress(codec, packed + rest, 10_000)


@pytest.mark.parametrize("codec", FRAMED)
def test_every_flipped_bit_is_refused_or_stays_in_bounds(codec: int) -> None:
    """The batch's CRC finds flips; here they must only do no harm."""
    packed = bytearray(compress(codec, PLAIN[:1500]))
    for bit in range(len(packed) * 8):
        packed[bit // 8] ^= 1 << bit % 8
        with contextlib.suppress(CorruptBatchError):
            assert len(decompress(codec, packed, 2000)) <= 2000
        packed[bit // 8] ^= 1 << bit % 8


HEADS = {
    GZIP: bytes.fromhex("1f8b0800000000000003"),
    SNAPPY: SNAPPY_HEADER,
    LZ4: bytes.fromhex("04224d18604082"),
    ZSTD: bytes.fromhex("28b52ffd0058"),
}


@given(codec=st.sampled_from(FRAMED), with_head=st.booleans(), data=st.binary(max_size=200))
def test_any_bytes_raise_corrupt_batch_error_or_nothing(codec: int, with_head: bool, data: bytes) -> None:
    with contextlib.suppress(CorruptBatchError):
        assert len(decompress(codec, (HEADS[codec] if with_head else b"") + data, 1000)) <= 1000


def zstd_frame(descriptor: int, header: bytes, *blocks: tuple[int, int, bytes]) -> bytes:
    """Blocks are (type, size, content); the last is marked so."""
    frame = b"\x28\xb5\x2f\xfd" + bytes([descriptor]) + header
    for i, (kind, size, content) in enumerate(blocks):
        frame += (size << 3 | kind << 1 | (i == len(blocks) - 1)).to_bytes(3, "little") + content
    return frame


def lz4_bomb(blocks: int, content_size: int | None = None) -> bytes:
    """64 KiB of zeros in each block."""
    block = compress(LZ4, bytes(65536))[7:-4]
    if content_size is None:
        return HEADS[LZ4] + block * blocks + bytes(4)
    head = bytearray(lz4.frame.compress(bytes(65536), block_size=4, block_linked=False)[:15])
    assert int.from_bytes(head[6:14], "little") == 65536
    return bytes(head) + block * blocks + bytes(4)


BOMBS: dict[str, tuple[int, Callable[[], bytes]]] = {
    "gzip, 256 MiB": (GZIP, lambda: zlib.compress(bytes(256 << 20), 1, wbits=31)),
    "lz4, 256 MiB": (LZ4, lambda: lz4_bomb(4096)),
    "lz4, more than its content size": (LZ4, lambda: lz4_bomb(4096, 65536)),
    "lz4, blocks of 4 MiB": (LZ4, lambda: lz4.frame.compress(bytes(256 << 20), block_size=7, store_size=False)),
    "snappy, claims 4 GiB": (SNAPPY, lambda: b"\xff\xff\xff\xff\x0f" + bytes(1000)),
    "snappy, claims 2**35": (SNAPPY, lambda: b"\xff\xff\xff\xff\x7f" + bytes(1000)),
    "snappy, 256 MiB": (SNAPPY, lambda: compress(SNAPPY, bytes(256 << 20))),
    "snappy, raw, 256 MiB": (SNAPPY, lambda: bytes(cramjam.snappy.compress_raw(bytes(256 << 20)))),
    "snappy, block longer than the rest": (SNAPPY, lambda: SNAPPY_HEADER + b"\x7f\xff\xff\xff" + bytes(1000)),
    "snappy, negative block": (SNAPPY, lambda: SNAPPY_HEADER + b"\xff\xff\xff\xff" + bytes(1000)),
    "zstd, 256 MiB": (ZSTD, lambda: zstandard.ZstdCompressor().compress(bytes(256 << 20))),
    "zstd, 256 MiB, size not given": (
        ZSTD,
        lambda: zstandard.ZstdCompressor(write_content_size=False).compress(bytes(256 << 20)),
    ),
    "zstd, 2 GiB of repeats": (ZSTD, lambda: zstd_frame(0x00, b"\x58", *[(1, 1 << 17, b"x")] * (1 << 14))),
    "zstd, claims 2**62": (ZSTD, lambda: zstd_frame(0xE0, struct.pack("<Q", 1 << 62), (0, 3, b"abc"))),
    "zstd, claims 2**64 - 1": (ZSTD, lambda: zstd_frame(0xE0, b"\xff" * 8, (0, 3, b"abc"))),
    "zstd, claims 2**39": (ZSTD, lambda: zstd_frame(0xE0, struct.pack("<Q", 1 << 39), (0, 3, b"abc"))),
    "zstd, claims 1 GiB": (ZSTD, lambda: zstd_frame(0xA0, struct.pack("<I", 1 << 30), (0, 3, b"abc"))),
    "zstd, window of 2**41": (ZSTD, lambda: zstd_frame(0x00, b"\xff", (0, 3, b"abc"), (2, 3, b"abc"))),
}

MEASURE = """
import re, sys
from kreplog._native.compression import compress, decompress
from kreplog.errors import CorruptBatchError
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) << 10
codec, max_size, packed = int(sys.argv[1]), int(sys.argv[2]), sys.stdin.buffer.read()
decompress(codec, compress(codec, bytes(1000)), 1000)
before = peak()
try:
    print("returned", len(decompress(codec, packed, max_size)))
except CorruptBatchError:
    print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads peak memory from /proc")
@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_within_bounded_memory(name: str) -> None:
    codec, make = BOMBS[name]
    arguments = [sys.executable, "-c", MEASURE, str(codec), str(1 << 20)]
    done = subprocess.run(arguments, input=make(), capture_output=True, timeout=60)
    assert done.stderr == b""
    assert int(done.stdout) <= 8 << 20


def test_sizes_that_lie_are_refused_under_any_limit() -> None:
    for name in ("snappy, claims 4 GiB", "zstd, claims 2**62", "zstd, claims 2**39", "lz4, more than its content size"):
        codec, make = BOMBS[name]
        with pytest.raises(CorruptBatchError):
            decompress(codec, make(), 2**40)


@pytest.mark.parametrize(("codec", "package", "extra"), [(SNAPPY, "cramjam", "snappy"), (ZSTD, "zstandard", "zstd")])
def test_a_missing_package_names_the_extra(
    codec: int, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = compress(codec, b"abc")
    monkeypatch.setitem(sys.modules, package, None)
    calls: list[Callable[[], bytes]] = [lambda: compress(codec, b"abc"), lambda: decompress(codec, packed, 10)]
    for call in calls:
        with pytest.raises(UnsupportedCompressionError, match=rf"pip install 'kreplog\[{extra}\]'"):
            call()


@pytest.mark.parametrize("codec", [-1, 5, 7])
def test_unknown_codecs(codec: int) -> None:
    calls: list[Callable[[], bytes]] = [lambda: compress(codec, b"abc"), lambda: decompress(codec, b"abc", 10)]
    for call in calls:
        with pytest.raises(UnsupportedCompressionError, match=str(codec)):
            call()


@pytest.mark.parametrize("data", ["abc", None, 3, memoryview(b"abcd")[::2]])
def test_what_is_no_contiguous_buffer(codec: int, data: object) -> None:
    with pytest.raises(ArgumentTypeError):
        compress(codec, data)  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError):
        decompress(codec, data, 10)  # type: ignore[arg-type]


def test_a_negative_limit() -> None:
    with pytest.raises(UsageError):
        decompress(LZ4, compress(LZ4, b""), -1)
