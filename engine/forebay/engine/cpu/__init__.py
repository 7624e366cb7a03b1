"""The fast path on CPUs: a decoder compiled to a tape of the C library's routines."""
