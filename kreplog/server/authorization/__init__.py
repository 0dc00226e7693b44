"""Authorization of clients' requests, between their decoding and their handlers.

authorization_table: by API, what a request needs, and how the refused part of it is answered; it is made of
partition_rules, group_rules and admin_rules. checks: the check of one request. guard: where Api applies the table.
fetch_sessions: sessions whose partitions lose READ. acl_cache: this broker's copy of the ACLs. audit_log: the log of
the decisions.
"""
