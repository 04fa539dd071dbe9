"""Objects, fenced: bytes under names, in a local folder or in a bucket."""

from typing import TYPE_CHECKING, Any

from fencegate_adapters.objects.resource import FolderObjects

if TYPE_CHECKING:
    from fencegate_adapters.objects.bucket import BucketObjects

__all__ = ["BucketObjects", "FolderObjects"]


def __getattr__(name: str) -> Any:
    """A folder must not need the packages that a bucket needs."""
    if name == "BucketObjects":
        from fencegate_adapters.objects.bucket import BucketObjects

        return BucketObjects
    raise AttributeError(name)
