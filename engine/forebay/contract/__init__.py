"""What two planes must agree on: names, wire shapes, versions, errors, the clock.

A leaf: it imports the standard library only, so that every other package may import it.
"""
