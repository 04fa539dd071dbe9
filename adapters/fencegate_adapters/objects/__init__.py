"""Objects, fenced: bytes under names, in a local folder."""

from fencegate_adapters.objects.resource import FolderObjects

__all__ = ["FolderObjects"]
