"""CRC-32C: every implementation that this machine has against crcmod's own function, and against published vectors."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from types import FrameType

import pytest
from crcmod.predefined import mkPredefinedCrcFun

from kreplog import errors
from kreplog._native.crc32c import available, crc32c, crc32c_with, implementation

by_crcmod = mkPredefinedCrcFun("crc-32c")

# RFC 3720, appendix B.4, and the check value of the catalogue of CRCs.
VECTORS = {
    b"": 0x00000000,
    b"123456789": 0xE3069283,
    bytes(32): 0x8A9136AA,
    b"\xff" * 32: 0x62A8AB43,
    bytes(range(32)): 0x46DD794E,
    bytes(range(31, -1, -1)): 0x113FDB5C,
    bytes.fromhex(
        "01c00000000000000000000000000000140000000000040000000014000000182800000000000000 0200000000000000"
    ): 0xD9963A56,
}


@pytest.fixture(scope="module")
def noise() -> bytes:
    return random.Random(3720).randbytes(3 << 20)


@pytest.fixture(params=available())
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_the_fastest_is_in_use_unless_the_environment_names_another() -> None:
    assert implementation() == os.environ.get("KREPLOG_CRC32C", available()[-1])
    assert available()[0] == "crcmod"


@pytest.mark.parametrize("data", VECTORS, ids=lambda data: data[:8].hex())
def test_published_vectors(name: str, data: bytes) -> None:
    assert crc32c_with(name, data) == VECTORS[data]


def test_every_length_up_to_5000(name: str, noise: bytes) -> None:
    # One byte longer each time, so that crcmod's sum of each length costs one byte.
    expected = 0
    for length in range(5001):
        assert crc32c_with(name, noise[:length]) == expected, length
        expected = by_crcmod(noise[length : length + 1], expected)


def test_every_alignment(name: str, noise: bytes) -> None:
    view = memoryview(noise)
    for length in (1, 7, 8, 63, 64, 95, 96, 97, 255, 256, 257, 511, 1000, 4096, 6144, 6145, 20000):
        for start in range(65):
            piece = view[start : start + length]
            assert crc32c_with(name, piece) == by_crcmod(piece), (start, length)


def test_random_pieces(name: str, noise: bytes) -> None:
    rng = random.Random(name)
    view = memoryview(noise)
    for _ in range(300):
        length = int(2 ** rng.uniform(0, 18))
        start = rng.randrange(len(noise) - length)
        value = rng.randrange(2**32)
        piece = view[start : start + length]
        assert crc32c_with(name, piece, value) == by_crcmod(piece, value), (start, length, value)


def test_large(name: str, noise: bytes) -> None:
    assert crc32c_with(name, noise) == by_crcmod(noise)


def test_chaining_gives_the_sum_of_the_whole(name: str, noise: bytes) -> None:
    rng = random.Random(1)
    whole = by_crcmod(noise[:100_000])
    for _ in range(50):
        cuts = sorted(rng.randrange(100_001) for _ in range(rng.randrange(1, 6)))
        crc = 0
        for start, end in zip([0, *cuts], [*cuts, 100_000], strict=True):
            crc = crc32c_with(name, noise[start:end], crc)
        assert crc == whole, cuts


def test_threads(name: str, noise: bytes) -> None:
    expected = by_crcmod(noise)
    sums: list[int] = []
    threads = [
        threading.Thread(target=lambda: sums.extend(crc32c_with(name, noise) for _ in range(5))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sums == [expected] * 20


@pytest.mark.parametrize("data", [b"abc", bytearray(b"abc"), memoryview(b"xabc")[1:], memoryview(b"abc").cast("b")])
def test_buffers(data: bytes) -> None:
    assert crc32c(data) == by_crcmod(b"abc")


@pytest.mark.parametrize("data", ["abc", None, 3, memoryview(b"abcd")[::2], [1, 2]])
def test_what_is_no_contiguous_buffer(data: object) -> None:
    with pytest.raises(errors.ArgumentTypeError):
        crc32c(data)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [-1, 2**32, "1", None, 1.5])
def test_what_is_no_crc(value: object) -> None:
    with pytest.raises(errors.UsageError):
        crc32c(b"abc", value)  # type: ignore[arg-type]


def test_unknown_implementation() -> None:
    with pytest.raises(errors.UsageError, match="crcmod"):
        crc32c_with("abacus", b"")


def run_with(name: str, code: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "KREPLOG_CRC32C": name}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)


def test_the_fallback_forced_on() -> None:
    done = run_with(
        "crcmod",
        "from kreplog._native.crc32c import crc32c, implementation\n"
        "print(implementation(), crc32c(b'123456789'), crc32c(bytes(1 << 20)))",
    )
    assert done.stderr == ""
    assert done.stdout.split() == ["crcmod", str(0xE3069283), str(by_crcmod(bytes(1 << 20)))]


def test_an_unknown_name_in_the_environment() -> None:
    assert "UsageError" in run_with("abacus", "import kreplog._native.crc32c").stderr


def test_an_interrupt_never_spoils_a_sum_of_the_fallback() -> None:
    """A handler raises in the middle of crcmod's Python code: the sum stays right, one interrupt comes after it.

    A sum that is slow enough meets the timer more than once; its interrupts are one, as two SIGINT in a row may be.
    """
    data = random.Random(2).randbytes(100)
    expected = by_crcmod(data)
    assert crc32c_with("crcmod", data) == expected  # crcmod is imported by now: its import may not be interrupted
    raised: list[int] = []
    arrived: list[int] = []

    def interrupt(signum: int, frame: FrameType | None) -> None:
        if frame is not None and "crcmod" in frame.f_code.co_filename:
            raised.append(signum)
            raise KeyboardInterrupt

    handlers = {
        signal.SIGALRM: signal.signal(signal.SIGALRM, interrupt),
        signal.SIGINT: signal.signal(signal.SIGINT, lambda signum, frame: arrived.append(signum)),
    }
    interrupted_sums = 0
    signal.setitimer(signal.ITIMER_REAL, 0.0003, 0.0003)
    try:
        deadline = time.monotonic() + 20
        while interrupted_sums < 5 and time.monotonic() < deadline:
            before = len(raised)
            assert crc32c_with("crcmod", data) == expected
            interrupted_sums += len(raised) > before
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for signum, handler in handlers.items():
            signal.signal(signum, handler)
    assert len(arrived) == interrupted_sums >= 5
