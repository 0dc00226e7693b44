"""Requests by API: what a core does not answer is answered here, by the metadata and through the store.

A request is refused

    before it is dispatched   wire/frames.py (an API or version that the listener does not offer), max_entries of
                              server/network/slices.py (more entries than the cluster justifies)
    by ACLs                   server/authorization (what the client may not do or see)
    by what it is             core/broker/client_requests.py (internal topics, acks of transactions, clients that fetch
                              as followers, batches too large decompressed), `refusals` of inspection.py (batches that
                              are corrupt)
    by its epochs             core/replication/control_fencing.py (of controller and broker)
    by role and leader epoch  core/replication/local_replica.py
    by a coordinator          core/groups/coordinator.py, core/transactions/transaction_coordinator.py
    as a change of topics     core/controller: new_partitions.py, admin_operations.py, admin_requests.py,
                              partition_limits.py
"""
