"""Structured output: grammars from requests, compiled in a process of their own, matched token by token in the core."""
