"""A service that is reached by https is the one that its certificate says, or nothing is sent to it."""

import asyncio
import ipaddress
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fencegate.core.errors import ResourceUnavailable
from fencegate.core.ports import Outgoing
from fencegate_adapters.http import Upstream

WRITE = Outgoing("PUT", b"/k", body=b"x", writes=True)


def certified(folder: Path) -> Path:
    """A key and a certificate for 127.0.0.1 alone, which vouches for itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a service")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .sign(key, hashes.SHA256())
    )
    file = folder / "service.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file.write_bytes(private + certificate.public_bytes(serialization.Encoding.PEM))
    return file


@asynccontextmanager
async def upstream(folder: Path, url: str, ca_file: Path | None) -> AsyncIterator[Upstream]:
    made = Upstream(
        "api", url, fence=f"sqlite:///{folder / 'fence.db'}", ca_file=None if ca_file is None else str(ca_file)
    )
    await made.open()
    yield made
    await made.close()


async def test_only_the_service_that_its_certificate_names_is_spoken_to(tmp_path: Path) -> None:
    pem = certified(tmp_path)
    heard: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(pem)
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    async with asyncio.timeout(30):
        for host, ca_file in (("127.0.0.1", None), ("localhost", pem)):  # nobody vouches for it; of another name
            async with upstream(tmp_path, f"https://{host}:{port}", ca_file) as stranger:
                with pytest.raises(ResourceUnavailable, match="certificate") as refused:
                    await stranger.forward(WRITE, "api:k", 7)
                assert refused.value.outcome == "not-written"
        assert heard == []
        async with upstream(tmp_path, f"https://127.0.0.1:{port}", pem) as known:
            answer, _ = await known.forward(WRITE, "api:k", 7)
            assert (answer.status, b"".join([part async for part in answer.body])) == (200, b"")
    assert len(heard) == 1
    server.close()
