"""What can become of a conditional write, beside success."""


class Refused(Exception):
    """The server compared, and did not write."""


class NotSent(Exception):
    """The server could not be reached: nothing was written."""


class Unsettled(Exception):
    """The write was sent, and its fate is unknown."""


class Moved(Exception):
    """What was asked for is no longer the version that is there."""
