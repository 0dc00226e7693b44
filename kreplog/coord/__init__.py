"""Coordination: a tree of small versioned nodes with sessions, ephemerals and one-shot watches, in three stores."""
