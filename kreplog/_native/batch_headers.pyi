from typing_extensions import Buffer

from kreplog._native.view import LogView

def packed(log: LogView, buffer: Buffer, offset: int) -> bytes: ...
