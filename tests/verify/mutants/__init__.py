"""Planted bugs, each a small change to the real code while a simulation runs: the campaign must notice every one."""

from tests.verify.mutants.client import CLIENT
from tests.verify.mutants.fence import FENCE
from tests.verify.mutants.queue import QUEUE
from tests.verify.mutants.service import SERVICE
from tests.verify.mutants.straight import STRAIGHT
from tests.verify.mutants.tokens import TOKENS

MUTANTS = {**FENCE, **TOKENS, **SERVICE, **QUEUE, **CLIENT, **STRAIGHT}
