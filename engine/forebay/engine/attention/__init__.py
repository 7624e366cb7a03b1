"""Attention over the paged KV pool: step metadata and the backend that models call."""
