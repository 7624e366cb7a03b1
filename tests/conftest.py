"""Settings of every test: a busy machine must not fail a property because one example took long."""

from hypothesis import settings

settings.register_profile("forebay", deadline=None)
settings.load_profile("forebay")
