"""The address of Sentinels as a value, and the clients that are built for it."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import certifi
import pytest
from redis.asyncio.sentinel import SentinelManagedSSLConnection as AsyncEncrypted
from redis.sentinel import SentinelManagedConnection, SentinelManagedSSLConnection

from dispatcher.errors import ConfigError
from dispatcher.server.clients import connect, connect_async
from dispatcher.server.urls import SentinelAddress
from tests.support.raw_server import CERTIFICATE

URL = "sentinel://app:p%40ss@a:1,[::1]:2,c/the.main/7?sentinel_username=bob&sentinel_password=s%26cret"
TLS = f"&ssl=true&ssl_ca_certs={certifi.where()}&ssl_cert_reqs=required"


def options(pool: Any) -> dict[str, Any]:  # noqa: ANN401 - untyped in redis-py
    found: dict[str, Any] = pool.connection_kwargs
    return found


def test_every_part_of_an_address_is_read() -> None:
    address = SentinelAddress.parse(URL + TLS)
    assert address.hosts == (("a", 1), ("::1", 2), ("c", 26_379))
    assert (address.service, address.database) == ("the.main", 7)
    assert address.login == {"username": "app", "password": "p@ss"}
    assert address.sentinel_login == {"username": "bob", "password": "s&cret"}
    assert address.tls == {"ssl_ca_certs": certifi.where(), "ssl_cert_reqs": "required"}
    assert str(address) == "a:1, [::1]:2, c:26379"


def test_a_part_that_is_not_named_has_its_default() -> None:
    address = SentinelAddress.parse("sentinel://a/main")
    assert address == SentinelAddress((("a", 26_379),), "main", 0)
    assert SentinelAddress.parse("sentinel://:p@a/main/").login == {"password": "p"}
    assert SentinelAddress.parse("sentinel://a/main?ssl=false").tls is None


def test_no_password_is_in_the_repr_of_an_address() -> None:
    assert "ss" not in repr(SentinelAddress.parse(URL)).replace("SentinelAddress", "")


def test_the_primary_and_the_sentinels_get_the_login_that_is_theirs() -> None:
    with connect(URL, timeout_s=2) as client:
        pool: Any = client.connection_pool
        assert pool.connection_class is SentinelManagedConnection
        assert {"username": "app", "password": "p@ss", "db": 7}.items() <= options(pool).items()
        asked = [options(each.connection_pool) for each in pool.sentinel_manager.sentinels]
        assert [(each["host"], each["port"]) for each in asked] == [("a", 1), ("::1", 2), ("c", 26_379)]
        for each in asked:
            assert {"username": "bob", "password": "s&cret"}.items() <= each.items()


def test_one_time_out_bounds_asking_the_sentinels_connecting_and_the_answer() -> None:
    with connect(URL, timeout_s=2) as client:
        pool: Any = client.connection_pool
        asked = [options(each.connection_pool) for each in pool.sentinel_manager.sentinels]
        spans = [options(pool), *asked]
        assert sum(each["socket_timeout"] + each["socket_connect_timeout"] for each in spans) <= 2.001
        assert {each["retry"].get_retries() for each in spans} == {0}


def test_tls_is_for_the_primary_and_the_sentinels() -> None:
    async def main() -> None:
        client = connect_async(URL + TLS)
        assert client.connection_pool.connection_class is AsyncEncrypted
        await client.aclose()

    with connect(URL + TLS) as client:
        pool: Any = client.connection_pool
        assert pool.connection_class is SentinelManagedSSLConnection
        assert options(pool)["ssl_ca_certs"] == certifi.where()
        for each in pool.sentinel_manager.sentinels:
            assert options(each.connection_pool)["ssl_ca_certs"] == certifi.where()
    asyncio.run(main())


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("ssl_ca_certs=none.pem", "ssl_ca_certs names none.pem, which cannot be read: No such file or directory"),
        ("ssl_ca_certs=text", "ssl_ca_certs names text, expected a file of certificates (PEM)"),
        ("ssl_ca_path=text", "ssl_ca_path names text, which cannot be read: Not a directory"),
        ("ssl_certfile=none.pem", "ssl_certfile names none.pem, which cannot be read: No such file or directory"),
        ("ssl_certfile=text", "ssl_certfile names text, and no ssl_keyfile is named, expected a certificate and its"),
        ("ssl_certfile=pair.pem&ssl_keyfile=text", "ssl_certfile names pair.pem, and ssl_keyfile names text, expected"),
        ("ssl_keyfile=pair.pem", "expected ssl_certfile beside ssl_keyfile"),
    ],
)
@pytest.mark.parametrize(
    ("opened", "url"),
    [(connect, "rediss://:s3cr3t@127.0.0.1:1/0?"), (connect_async, "sentinel://:s3cr3t@a/main?ssl=true&")],
    ids=["blocking", "Sentinels, asyncio"],
)
def test_a_file_of_tls_that_cannot_be_used_is_named_with_its_option(  # noqa: PLR0913, PLR0917 - parameters and fixtures
    opened: Any,  # noqa: ANN401 - two functions
    url: str,
    query: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "text").write_text("no certificate", encoding="ascii")
    (tmp_path / "pair.pem").write_text(CERTIFICATE, encoding="ascii")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="^DISPATCHER_REDIS_URL cannot be used: " + re.escape(said)):
        opened(url + query)


def test_a_certificate_with_its_key_and_a_directory_are_taken(tmp_path: Path) -> None:
    pair = tmp_path / "pair.pem"
    pair.write_text(CERTIFICATE, encoding="ascii")
    connect(f"rediss://127.0.0.1:1/0?ssl_certfile={pair}&ssl_ca_certs={pair}&ssl_ca_path={tmp_path}").close()


@pytest.mark.parametrize("opened", [connect, connect_async], ids=["blocking", "asyncio"])
@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("sentinel://:s3cr3t@a/main?ssl=true&ssl_cert_reqs=s3cr3t", "DISPATCHER_REDIS_URL cannot be used: "),
        ("sentinel://:s3cr3t@a", "DISPATCHER_REDIS_URL cannot be used: expected sentinel://HOST:PORT"),
        ("redis://:s3cr3t@a/0?retry=s3cr3t", "DISPATCHER_REDIS_URL cannot be used: expected of the options behind "),
        ("http://:s3cr3t@a/0", "DISPATCHER_REDIS_URL cannot be used: "),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_without_a_connection(
    opened: Any,  # noqa: ANN401 - two functions
    url: str,
    message: str,
) -> None:
    with pytest.raises(ConfigError, match=message):
        opened(url)
