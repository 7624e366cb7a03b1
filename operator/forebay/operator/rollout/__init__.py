"""How a deployment moves from one revision to another: pure planning over observed facts."""
