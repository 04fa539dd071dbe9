"""A real blob server that speaks Azure's protocol: Azurite, of npm."""

import base64
import hashlib
import hmac
import http.client
import shutil
from email.utils import formatdate

from fencegate_demo.startable.process import ServerProcess

HOW_TO_GET = "no Azure blob server: npm install -g azurite (or put azurite-blob on PATH)"
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The account that every Azurite has, as its documentation tells."""


def missing() -> str | None:
    """Why there is no server, for `pytest.skip`."""
    return None if shutil.which("azurite-blob") else HOW_TO_GET


class AzuriteServer(ServerProcess):
    """It keeps its blobs in its folder."""

    @property
    def endpoint(self) -> str:
        return f"http://{self.address}/{ACCOUNT}"

    def launch(self) -> None:
        program = shutil.which("azurite-blob")
        assert program is not None, HOW_TO_GET
        where = ["--blobHost", self.host, "--blobPort", str(self.port), "--location", str(self._folder)]
        self._spawn([program, *where, "--silent", "--skipApiVersionCheck", "--disableTelemetry"])

    def answers(self) -> bool:
        try:
            return self._ask("GET", "", "comp=list") == 200
        except OSError:
            return False

    def make_container(self, name: str) -> None:
        assert self._ask("PUT", f"/{name}", "restype=container") == 201

    def _ask(self, method: str, path: str, query: str) -> int:
        """The status of a request that is signed as Azure wants it."""
        headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-12-02"}
        canonical = "".join(f"{name}:{value}\n" for name, value in headers.items())
        signed = f"{method}{12 * chr(10)}{canonical}/{ACCOUNT}/{ACCOUNT}{path or '/'}\n{query.replace('=', ':')}"
        digest = hmac.new(base64.b64decode(KEY), signed.encode(), hashlib.sha256).digest()
        headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
        line = http.client.HTTPConnection(self.host, self.port, timeout=10)
        try:
            line.request(method, f"/{ACCOUNT}{path or '/'}?{query}", headers=headers | {"Content-Length": "0"})
            return line.getresponse().status
        finally:
            line.close()
