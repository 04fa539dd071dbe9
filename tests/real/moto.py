"""A fake of S3: moto's server in a process of its own, one request at a time, so that its conditions are atomic."""

import importlib.util
import sys
import urllib.request

from tests.real.process import ServerProcess

HOW_TO_GET = "no fake of S3: pip install 'moto[server,s3]'"

_PROGRAM = """
import sys
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple
run_simple(sys.argv[1], int(sys.argv[2]), DomainDispatcherApplication(create_backend_app), threaded=False)
"""


def missing() -> str | None:
    """Why there is no server, for `pytest.skip`."""
    there = all(importlib.util.find_spec(name) for name in ("moto", "flask", "flask_cors"))
    return None if there else HOW_TO_GET


class MotoServer(ServerProcess):
    """It keeps everything in memory."""

    @property
    def endpoint(self) -> str:
        return f"http://{self.address}"

    def launch(self) -> None:
        self._spawn([sys.executable, "-c", _PROGRAM, self.host, str(self.port)])

    def answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.endpoint}/moto-api/", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def make_bucket(self, name: str) -> None:
        with urllib.request.urlopen(urllib.request.Request(f"{self.endpoint}/{name}", method="PUT"), timeout=30):
            pass
