"""A package, so that the ZooKeeper of its fixture ends with its last test."""
