"""RedisServer: a redis-server of a benchmark's own, which listens at a Unix socket in its folder alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any


class RedisServer:
    """Raises OSError where it does not start. options: of its command line; without, nothing is written to the disk."""

    @staticmethod
    def missing() -> str:
        """Why there is none here; empty if there is."""
        if find_spec("redis") is None:
            return "the package redis is not installed: pip install -e '.[bench]'"
        return "" if shutil.which("redis-server") else "redis-server is not installed"

    def __init__(self, directory: Path, *options: str) -> None:
        address = str(directory / "socket")
        command = ["redis-server", "--port", "0", "--unixsocket", address, "--save", "", "--dir", str(directory)]
        self._process = subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 10
        while not os.path.exists(address):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.close()
                raise OSError(f"redis-server does not listen at {address}")
            time.sleep(0.01)  # redis-server reports nowhere that it listens

    @staticmethod
    def client(directory: Path) -> Any:
        """A client of the server in that folder."""
        import redis

        return redis.Redis(unix_socket_path=str(directory / "socket"))

    def cpu_s(self) -> float:
        """CPU time of all its threads; Linux only."""
        threads = Path(f"/proc/{self._process.pid}/task").glob("*/schedstat")
        return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()
