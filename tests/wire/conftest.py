"""One engine with the real model for all wire tests of a session."""

from collections.abc import Iterator

import pytest

from engine_process import EngineProcess, running_engine


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """A ready engine that tests share; they leave it as they found it."""
    with running_engine(tmp_path_factory.mktemp("engine")) as process:
        yield process
