"""What is durable of the files below a directory while processes work there and are killed, and what a power cut may
leave of them.

An image follows one of two rules about metadata. "unordered" is what POSIX promises: a file's bytes and size are
durable when it is fsynced, a directory's names when that is, and the rest in any combination. "ordered" is a journal as
ext4's: an fsync of anything makes all sizes and names before it durable; other files' bytes may be there or not.

Needs the shim, which says what was synced. No directory below the root may be removed meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import stat
import threading
import traceback
from dataclasses import dataclass
from pathlib import Path

from tests.faults.power_loss import SECTOR, torn


@dataclass
class Shadow:
    """What is durable of the files below `root`, kept in `home` so that it outlives the process that is killed.

    Files' inodes are held by a hard link, so that none is reused under another name.
    """

    root: Path
    home: Path

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        for name in ("held", "durable", "names"):
            (self.home / name).mkdir(parents=True, exist_ok=True)

    def synced(self, fd: int) -> None:
        """Note a successful fsync of `fd`. Called from C, which would swallow an exception: one ends the process."""
        try:
            with self._lock:
                self._note(fd)
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    def all_synced(self, fd: int) -> None:
        """Note a successful syncfs of the root's file system, in the same way. Lock files are left out, since to open
        and close one would give up the locks of LMDB."""
        try:
            with self._lock:
                for folder, _, files in os.walk(self.root):
                    self._put(f"names/{os.stat(folder).st_ino}", self._listing(Path(folder)))
                    for path in (Path(folder, name) for name in files if not name.endswith("lock")):
                        self._put(f"durable/{path.stat().st_ino}", path.read_bytes())
                self._put("journal", self.tree())
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    def _note(self, fd: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        if not path.is_relative_to(self.root):
            return
        facts = os.fstat(fd)
        if stat.S_ISDIR(facts.st_mode):
            self._put(f"names/{facts.st_ino}", self._listing(path))
        else:
            self._put(f"durable/{facts.st_ino}", _content(fd))
        self._put("journal", self.tree())

    def tree(self) -> dict[str, tuple[int, int]]:
        """(inode, size) of every file now, by its path below the root."""
        while True:
            try:
                return self._tree()
            except FileNotFoundError:  # another thread has just given a directory another name
                continue

    def _tree(self) -> dict[str, tuple[int, int]]:
        """Raises FileNotFoundError."""
        found = {}
        for folder, _, _ in os.walk(self.root, onerror=_raise):
            for name, inode in self._listing(Path(folder)).items():
                path = Path(folder, name)
                if (self.home / "held" / str(inode)).exists():
                    with contextlib.suppress(FileNotFoundError):
                        found[str(path.relative_to(self.root))] = inode, path.stat().st_size
        return found

    def _listing(self, folder: Path) -> dict[str, int]:
        """Inodes of files and directories, by name."""
        names = {entry.name: entry.inode() for entry in os.scandir(folder)}
        for name, inode in names.items():
            held = self.home / "held" / str(inode)
            if (folder / name).is_file() and not held.exists():
                with contextlib.suppress(FileNotFoundError):  # it is removed just now
                    os.link(folder / name, held)
        return names

    def _put(self, name: str, value: object) -> None:
        temporary = self.home / "temporary"
        temporary.write_bytes(pickle.dumps(value))
        os.replace(temporary, self.home / name)

    def _get(self, name: str, default: object) -> object:
        try:
            return pickle.loads((self.home / name).read_bytes())
        except FileNotFoundError:
            return default

    def image(self, rng: random.Random, ordered: bool) -> dict[str, bytes]:
        """The files that a loss of power now may leave."""
        return self._ordered(rng) if ordered else self._unordered(rng)

    def folders(self) -> set[str]:
        """The directories whose names are durable, with files in them or without."""
        return self._durable_names()[1]

    def _durable(self, inode: int) -> bytes:
        data = self._get(f"durable/{inode}", b"")
        assert isinstance(data, bytes)
        return data

    def _cached(self, inode: int) -> bytes:
        held = self.home / "held" / str(inode)
        return held.read_bytes() if held.exists() else b""

    def _ordered(self, rng: random.Random) -> dict[str, bytes]:
        journal = self._get("journal", {})
        assert isinstance(journal, dict)
        lazy = rng.random() < 0.3  # nothing but what was synced
        out = {}
        for name, (inode, size) in journal.items():
            durable = bytearray(self._durable(inode)[:size].ljust(size, b"\0"))
            cached = self._cached(inode)[:size]
            for at in range(0, 0 if lazy else len(cached), SECTOR):
                if rng.random() < 0.5:
                    durable[at : at + SECTOR] = cached[at : at + SECTOR]
            out[name] = bytes(durable)
        return out

    def _unordered(self, rng: random.Random) -> dict[str, bytes]:
        least = rng.random() < 0.3
        was, folders = self._durable_names()
        now = {name: inode for name, (inode, _) in self.tree().items()}
        out = {}
        for name in sorted({*was, *now}):
            inode = was.get(name) if least or (was.get(name) != now.get(name) and rng.random() < 0.5) else now.get(name)
            if inode is not None and str(Path(name).parent) in folders:
                durable = self._durable(inode)
                out[name] = durable if least else torn(durable, self._cached(inode), rng)
        return out

    def _durable_names(self) -> tuple[dict[str, int], set[str]]:
        """Inodes of the files whose names are durable, by path; and the directories' paths."""
        files: dict[str, int] = {}
        folders = {"."}

        def walk(inode: int, at: Path) -> None:
            listing = self._get(f"names/{inode}", {})
            assert isinstance(listing, dict)
            for name, child in listing.items():
                if (self.home / "held" / str(child)).exists():
                    files[str(at / name)] = child
                else:
                    folders.add(str(at / name))
                    walk(child, at / name)

        walk(self.root.stat().st_ino, Path())
        return files, folders


def _raise(error: OSError) -> None:
    raise error


def _content(fd: int) -> bytes:
    """By `fd` itself: to close another descriptor of the file would give up its locks."""
    try:
        return os.pread(fd, os.fstat(fd).st_size, 0)
    except OSError:  # it is open for writing alone
        return Path(f"/proc/self/fd/{fd}").read_bytes()
