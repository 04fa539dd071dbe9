"""Object names in order, read from as few directories as a page needs.

The order is that of the name's bytes, in which `a!` comes before `a/b`, and `a/b` before `a0`. A heap holds what is
known but not yet told, directories under the prefix that all their names share; one is opened only when it comes up,
and its names then mix with the others (those of a long segment's `x.c` lie on both sides of those of `x.d`). A page
reads whole directories, but never one that lies before the cursor, beside the prefix or behind the page.
"""

import heapq
import os
from collections.abc import Iterator
from typing import NamedTuple

from fencegate_adapters.objects.disk import Tree
from fencegate_adapters.objects.names import FilePath, piece


class _Node(NamedTuple):
    name: bytes
    is_object: bool
    path: FilePath


def names(tree: Tree, prefix: str, after: str) -> Iterator[tuple[str, FilePath]]:
    """Names that start with `prefix` and are above `after`, in order, and where the objects are; tombstones too."""
    first, last_told = prefix.encode(errors="surrogatepass"), after.encode(errors="surrogatepass")
    heap = [_Node(b"", False, ())]
    while heap:
        node = heapq.heappop(heap)
        if node.is_object:
            yield node.name.decode(), node.path
            continue
        for child in _children(tree, node):
            if _wanted(child, first, last_told):
                heapq.heappush(heap, child)


def _children(tree: Tree, node: _Node) -> Iterator[_Node]:
    with tree.directory(node.path) as directory, os.scandir(directory) as entries:
        for entry in entries:
            part = piece(entry.name)
            if part is None or entry.is_symlink():
                continue
            name = node.name + part.raw + (b"/" if part.suffix == ".d" else b"")
            yield _Node(name, part.suffix == ".o", (*node.path, entry.name))


def _wanted(node: _Node, prefix: bytes, after: bytes) -> bool:
    if node.is_object:
        return node.name.startswith(prefix) and node.name > after
    may_match = node.name.startswith(prefix) or prefix.startswith(node.name)
    return may_match and (node.name > after or after.startswith(node.name))
