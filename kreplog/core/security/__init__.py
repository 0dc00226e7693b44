"""Who a client is and what it may do, without I/O.

principal: the principal of a connection. distinguished_name, principal_mapping: its name, from a client's certificate.
acls: access control lists. authorizer: the decisions by them. acl_requests: their node in the coordination store, and
requests that change them.
sasl: SASL on a connection, by the mechanisms of scram and plain. credentials: those of users, in the store and in a
broker's memory. user_requests: their changes.
"""
