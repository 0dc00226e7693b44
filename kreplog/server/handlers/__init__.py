"""Requests by API: what a core does not answer is answered here, by the metadata and through the store."""
