"""ZooKeeper's packets: what is asked, as bytes, and what is answered, from bytes. Pure: no socket, no state.

A request is `length, xid, kind, body`; an answer is `length, xid, zxid, error, body`. They are answered in the order in
which they were asked, so that any number of them may be under way on one connection.
"""

from collections.abc import Callable, Iterable, Sequence
from struct import Struct
from typing import NamedTuple

CREATE, DELETE, EXISTS, GET, SET = 1, 2, 3, 4, 5
PING, CHILDREN, CHECK, MULTI = 11, 12, 13, 14
REMOVE_WATCHES, AUTH, ADD_WATCH, CLOSE = 18, 100, 106, -11
EVENT_XID, PING_XID, AUTH_XID = -1, -2, -4
CREATED, CHANGED = 1, 3
"""Kinds of events."""
PERSISTENT, RECURSIVE = 0, 1
"""Kinds of watches that stay, since ZooKeeper 3.6."""
SEQUENTIAL = 2

UNIMPLEMENTED, NO_NODE, NO_AUTH, BAD_VERSION, NODE_EXISTS, NOT_EMPTY = -6, -101, -102, -103, -110, -111
_ERRORS = {
    UNIMPLEMENTED: "it does not know this request",
    NO_NODE: "no such node",
    NO_AUTH: "not allowed: check user and password, and the access list of the node",
    BAD_VERSION: "another version",
    NODE_EXISTS: "the node is there already",
    NOT_EMPTY: "the node has children",
    -112: "the session has expired",
    -115: "user or password is wrong",
    -118: "the session has moved",
    -122: "a quota of this part of the tree is exceeded",
}

_int = Struct("!i")
_head = Struct("!ii")
_reply = Struct("!iqi")
_op_head = Struct("!iBi")
_stat = Struct("!qqqqiiiqiiq")
_connect = Struct("!iqiq")
_connected = Struct("!iiq")
_OPS_END = _op_head.pack(-1, 1, -1)


class Stat(NamedTuple):
    """What ZooKeeper tells of a node beside its data."""

    czxid: int
    mzxid: int
    ctime: int
    mtime: int
    version: int
    cversion: int
    aversion: int
    owner: int
    size: int
    children: int
    pzxid: int


class Refused(Exception):
    """ZooKeeper answered with an error: what was asked was not done. `place` is the operation of a multi."""

    def __init__(self, code: int, place: int = 0) -> None:
        super().__init__(_ERRORS.get(code, f"error {code}"))
        self.code = code
        self.place = place


class Op(NamedTuple):
    """A request, or one operation of a multi."""

    kind: int
    body: bytes


# --- what is asked ---------------------------------------------------------------------------------------------------


def _text(text: str) -> bytes:
    raw = text.encode()
    return _int.pack(len(raw)) + raw


def _buffer(raw: bytes) -> bytes:
    return _int.pack(len(raw)) + raw


def access(scheme: str, who: str) -> bytes:
    """An access list of one line: everything is allowed to `who`."""
    return _int.pack(1) + _int.pack(31) + _text(scheme) + _text(who)


OPEN = access("world", "anyone")
CREATOR = access("auth", "")


def create(path: str, data: bytes, acl: bytes, flags: int = 0) -> Op:
    return Op(CREATE, b"".join((_text(path), _int.pack(len(data)), data, acl, _int.pack(flags))))


def delete(path: str) -> Op:
    return Op(DELETE, _text(path) + b"\xff\xff\xff\xff")


def put(path: str, data: bytes, version: int = -1) -> Op:
    return Op(SET, b"".join((_text(path), _int.pack(len(data)), data, _int.pack(version))))


def check(path: str, version: int = -1) -> Op:
    """That the node is there; with a version, that its data is that one."""
    return Op(CHECK, _text(path) + _int.pack(version))


def get(path: str) -> Op:
    return Op(GET, _text(path) + b"\0")


def exists(path: str) -> Op:
    return Op(EXISTS, _text(path) + b"\0")


def children(path: str) -> Op:
    return Op(CHILDREN, _text(path) + b"\0")


def add_watch(path: str, mode: int) -> Op:
    return Op(ADD_WATCH, _text(path) + _int.pack(mode))


def remove_watches(path: str) -> Op:
    return Op(REMOVE_WATCHES, _text(path) + _int.pack(3))


def multi(ops: Iterable[Op]) -> Op:
    """All of these, or none."""
    parts = []
    for kind, body in ops:
        parts.append(_op_head.pack(kind, 0, -1))
        parts.append(body)
    parts.append(_OPS_END)
    return Op(MULTI, b"".join(parts))


def auth(user: str, password: str) -> bytes:
    return packet(AUTH_XID, Op(AUTH, _int.pack(0) + _text("digest") + _buffer(f"{user}:{password}".encode())))


def packet(xid: int, op: Op) -> bytes:
    return _int.pack(len(op.body) + 8) + _head.pack(xid, op.kind) + op.body


def hello(timeout_ms: int) -> bytes:
    """Opens a new session. It says nothing of what an earlier one saw: after a restore the server would refuse it."""
    return _buffer(_connect.pack(0, 0, timeout_ms, 0) + _buffer(bytes(16)) + b"\0")


# --- what is answered ------------------------------------------------------------------------------------------------


class Welcome(NamedTuple):
    timeout_ms: int
    session_id: int
    password: bytes


def read_welcome(raw: bytes) -> Welcome:
    _, timeout_ms, session_id = _connected.unpack_from(raw)
    return Welcome(timeout_ms, session_id, _read_buffer(raw, _connected.size)[0])


def read_reply(raw: bytes) -> tuple[int, int]:
    """The xid, and the error (0: none). What follows begins at `BODY`."""
    xid, _, error = _reply.unpack_from(raw)
    return xid, error


BODY = _reply.size


def _read_buffer(raw: bytes, at: int) -> tuple[bytes, int]:
    (length,) = _int.unpack_from(raw, at)
    end = at + 4 + max(0, length)
    return raw[at + 4 : end], end


def read_event(raw: bytes) -> tuple[int, str]:
    """What happened, and to which node."""
    kind, _ = _head.unpack_from(raw, BODY)
    return kind, _read_buffer(raw, BODY + 8)[0].decode()


def _read_stat(raw: bytes, at: int = BODY) -> Stat:
    return Stat._make(_stat.unpack_from(raw, at))


def _read_data(raw: bytes) -> tuple[bytes, Stat]:
    data, end = _read_buffer(raw, BODY)
    return data, _read_stat(raw, end)


def _read_children(raw: bytes) -> tuple[list[str], Stat]:
    (count,) = _int.unpack_from(raw, BODY)
    names, at = [], BODY + 4
    for _ in range(count):
        name, at = _read_buffer(raw, at)
        names.append(name.decode())
    return names, _read_stat(raw, at)


def _read_multi(raw: bytes) -> Sequence[str | Stat | None]:
    """One result for each operation: the path that was made, or what became of the node. Refused when it failed."""
    results: list[str | Stat | None] = []
    at = BODY
    while True:
        kind, done, _ = _op_head.unpack_from(raw, at)
        at += _op_head.size
        if done:
            return results
        if kind == -1:
            (error,) = _int.unpack_from(raw, at)
            if error:
                raise Refused(error, len(results))
            at += 4
            results.append(None)
        elif kind == CREATE:
            path, at = _read_buffer(raw, at)
            results.append(path.decode())
        elif kind == SET:
            results.append(_read_stat(raw, at))
            at += _stat.size
        else:
            results.append(None)


def _read_path(raw: bytes) -> str:
    return _read_buffer(raw, BODY)[0].decode()


_READERS: dict[int, Callable[[bytes], object]] = {
    CREATE: _read_path,
    EXISTS: _read_stat,
    GET: _read_data,
    SET: _read_stat,
    CHILDREN: _read_children,
    MULTI: _read_multi,
}


def read_answer(kind: int, raw: bytes) -> object:
    reader = _READERS.get(kind)
    return reader(raw) if reader is not None else None
