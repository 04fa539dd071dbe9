"""A wall clock that a test or a campaign can move, for a server that asks the C library for the time."""

import shutil
import subprocess
from pathlib import Path

HOW_TO_GET = "the clock of a server can only be moved where there is a C compiler (cc) and LD_PRELOAD"


class MovedClock:
    """Start a server with `environment`, then `move` its clock. The clocks of all others stay as they are."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / "moved"
        self._file.write_bytes(bytes(8))
        library = folder / "moved_clock.so"
        source = Path(__file__).with_suffix(".c")
        subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", library, source, "-ldl"], check=True, timeout=60)
        self.environment = {"LD_PRELOAD": str(library), "MOVED_CLOCK": str(self._file)}

    def move(self, seconds: float) -> None:
        """Set it so many seconds off the real time; 0 sets it right."""
        with self._file.open("r+b") as file:  # in place: the server has mapped it
            file.write(int(seconds * 1_000_000).to_bytes(8, "little", signed=True))


def missing() -> str | None:
    """Why no clock can be moved here, for `pytest.skip`."""
    return None if shutil.which("cc") and Path("/proc/self/maps").exists() else HOW_TO_GET
