# Used by other native modules through its .pxd; nothing here is for Python callers.
