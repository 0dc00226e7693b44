"""Authentication of clients: the parts that read the coordination store and take threads.

credential_cache: the credentials of users, as the store has them now.
"""
