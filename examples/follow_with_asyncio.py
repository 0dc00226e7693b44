"""Many asyncio tasks follow one log, each from its own offset. Usage: python follow_with_asyncio.py DIRECTORY"""

from __future__ import annotations

import asyncio
import sys

import kreplog


async def total_from(log: kreplog.Log, start: int) -> int:
    return sum([int(record.value or b"0") async for record in log.follow(start)])


async def main(directory: str) -> None:
    with kreplog.Log.open(f"{directory}/numbers-0") as writer:
        writer.append_many([b"1", b"2", b"3"])
        with kreplog.Log.open(writer.path, read_only=True) as log:
            tasks = [asyncio.create_task(total_from(log, start)) for start in range(3)]
            await log.wait_async(2)
            writer.append(b"4")
            writer.close()  # which ends each `async for`, after the last record
            for start, task in enumerate(tasks):
                print(f"from {start}: {await task}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:] or sys.exit(__doc__)))
