"""Peak memory and processor seconds of processes, read from the system while they run."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path


class Usage:
    """Largest memory of each process so far, in kB, and its processor seconds; nothing where nobody reports them."""

    def __init__(self, processes: dict[str, int]) -> None:
        self.peaks: dict[str, int] = {}
        self.processor: dict[str, float] = {}
        self._processes = processes
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        alive = dict(self._processes)
        while alive:
            for name, pid in list(alive.items()):
                try:
                    status = Path(f"/proc/{pid}/status").read_text()
                    self.processor[name] = processor_seconds(Path(f"/proc/{pid}/stat").read_text())
                except OSError:
                    del alive[name]
                    continue
                lines = [line for line in status.splitlines() if line.startswith("VmHWM")]
                if lines:
                    self.peaks[name] = max(self.peaks.get(name, 0), int(lines[0].split()[1]))
                else:
                    del alive[name]  # it has ended
            time.sleep(0.05)


def processor_seconds(stat: str) -> float:
    """User and system time from the line of a process; its name, in brackets, may have any characters."""
    fields = stat.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
