"""`fencegate run`: a lock that is held while a command runs, and a command that never outlives its lock.

Three processes. The *holder* has the lease and renews it. The *guard* is the command's parent: it is told each new
deadline, and ends the command when the holder dies or when the deadline comes near without news. So a holder that is
paused or killed can't leave a command behind that works without the lock. The *command* is a process group of its own.
"""

from fencegate.run.holder import Holder, Wanted

__all__ = ["Holder", "Wanted"]
