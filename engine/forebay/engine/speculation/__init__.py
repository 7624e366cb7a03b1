"""Speculation: who proposes tokens that the model then verifies in one step."""
