"""What can become of a conditional write, beside success."""

from fencegate.core.errors import ResourceUnavailable


class Refused(Exception):
    """The server compared, and did not write."""


class NotSent(Exception):
    """The server could not be reached: nothing was written."""


class Unsettled(Exception):
    """The write was sent, and its fate is unknown."""


class Throttled(ResourceUnavailable):
    """The server wants less haste: nothing was written, and a moment later it would be."""


class Moved(Exception):
    """What was asked for is no longer the version that is there."""
