"""The uses that there are, by name; each is loaded when it is asked for, and with it the database library it is for."""

from collections.abc import Iterator, Mapping
from importlib import import_module

from fencegate_demo.trials.use import Use

NAMES = ("migration", "cron", "leader", "inventory", "payment", "cache", "files")


class _Uses(Mapping[str, Use]):
    def __getitem__(self, name: str) -> Use:
        if name not in NAMES:
            raise KeyError(name)
        use: Use = import_module(f"fencegate_demo.trials.{name}").USE
        return use

    def __iter__(self) -> Iterator[str]:
        return iter(NAMES)

    def __len__(self) -> int:
        return len(NAMES)

    def __contains__(self, name: object) -> bool:
        return name in NAMES


USES: Mapping[str, Use] = _Uses()
