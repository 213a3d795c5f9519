"""What SIGHUP means: that the terminal on which this process began is gone, or that the limits are to be read again."""

from __future__ import annotations

import os
import signal


class Hangup:
    """To be made at the beginning, while the terminal is there. Where SIGHUP is ignored (nohup) none is ever gone."""

    def __init__(self) -> None:
        self._began_on_terminal = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN and _has_terminal()

    def is_end(self) -> bool:
        """Whether the terminal is gone: then SIGHUP is SIGTERM."""
        return self._began_on_terminal and not _has_terminal()


def _has_terminal() -> bool:
    """Whether this process has a terminal that is not closed."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
