"""The Lua scripts, each put together from files beside this one."""

import hashlib
from importlib import resources

_FOLDER = resources.files(__package__)


class Script:
    """A script, and the name that the server knows it by."""

    def __init__(self, *parts: str) -> None:
        self.text = "\n".join((_FOLDER / f"{part}.lua").read_text("utf-8") for part in ("numbers", *parts))
        self.sha = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


ENTER = Script("enter")
FLOOR = Script("floor")
CLAIM = Script("record", "fence", "claim")
STRING_READ = Script("record", "fence", "string_read")
STRING_WRITE = Script("record", "fence", "conditions", "string_write")
STRING_LIST = Script("record", "string_list")
ROW_READ = Script("record", "fence", "row", "row_read")
ROW_WRITE = Script("record", "fence", "row", "conditions", "row_write")
COMMAND = Script("command")
RIGHTS = Script("rights")
