"""Brokers of one cluster in this process, for tests that look into them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from kreplog.server.broker import Broker
from kreplog.server.settings import load


@contextlib.asynccontextmanager
async def serving(root: Path, *brokers: int, **settings: Any) -> AsyncIterator[list[Broker]]:
    """As `unlimited`, for a minute at most."""
    async with asyncio.timeout(60), unlimited(root, *brokers, **settings) as made:
        yield made


@contextlib.asynccontextmanager
async def unlimited(root: Path, *brokers: int, **settings: Any) -> AsyncIterator[list[Broker]]:
    """Started, and stopped at the end. settings: for all of them, with underscores for dots; {id} is the broker's."""
    made, tasks = [], []
    for number in brokers:
        names = {
            "broker.id": number,
            "listeners": "127.0.0.1:0",
            "log.dirs": f"{root}/data-{number}",
            "coordination": f"embedded:{root}/store",
            **{name.replace("_", "."): _own(value, number) for name, value in settings.items()},
        }
        made.append(Broker(load(names, None, {})))
        tasks.append(asyncio.create_task(made[-1].run()))
    for broker in made:
        await broker.ready.wait()
    try:
        yield made
    finally:
        for broker in made:
            broker.stop()
        await asyncio.gather(*tasks)


def _own(value: Any, number: int) -> Any:
    return value.format(id=number) if isinstance(value, str) else value


async def eventually(true: Callable[[], Awaitable[bool]]) -> None:
    while not await true():
        await asyncio.sleep(0.01)


async def until_controlled(broker: Broker) -> None:
    """Until a controller has sent it UpdateMetadata."""

    async def controlled() -> bool:
        return broker.manager.metadata.from_controller

    await eventually(controlled)
