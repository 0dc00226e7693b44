# Used by other native modules through its .pxd.
