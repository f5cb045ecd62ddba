"""Peak memory of processes, read from the system while they run."""

from __future__ import annotations

import threading
import time
from pathlib import Path


class PeakMemory:
    """Largest memory of each process so far, in kB; nothing where the system does not report it."""

    def __init__(self, processes: dict[str, int]) -> None:
        self.peaks: dict[str, int] = {}
        self._processes = processes
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        alive = dict(self._processes)
        while alive:
            for name, pid in list(alive.items()):
                try:
                    status = Path(f"/proc/{pid}/status").read_text()
                except OSError:
                    del alive[name]
                    continue
                lines = [line for line in status.splitlines() if line.startswith("VmHWM")]
                if lines:
                    self.peaks[name] = max(self.peaks.get(name, 0), int(lines[0].split()[1]))
                else:
                    del alive[name]  # it has ended
            time.sleep(0.05)
