"""A party whose clock is wrong: `wrong_clock.py [run_party arguments]`."""

import datetime
import sys

from secure_sccvfl.launch import run_party
from secure_sccvfl.protocols.net import certificates

if __name__ == "__main__":
    certificates._now = lambda: datetime.datetime(2001, 1, 1, tzinfo=datetime.UTC)
    sys.exit(run_party.main(sys.argv[1:]))
