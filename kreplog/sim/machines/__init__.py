"""The simulated machines: virtual time, network, coordination store, disks and the logs on them."""
