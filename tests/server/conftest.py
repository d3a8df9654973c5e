from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from tests.server.served import Served, served


@pytest.fixture(scope="package")
def server() -> Iterator[Served]:
    with served() as server:
        yield server


@pytest.fixture(scope="package")
def client(server: Served) -> openai.OpenAI:
    return server.client()
