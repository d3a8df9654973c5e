"""How many cores this process may keep busy."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

SYSTEM = Path("/sys")


def usable_cores(system: Path = SYSTEM) -> int:
    """Physical cores that the process may run on, at least 1: threads that share one only get in each other's way.

    On Linux, those of the process's affinity, and no more than its control group has time for; elsewhere, what the
    system says it has.
    """
    if not hasattr(os, "sched_getaffinity"):
        return _physical_of_mac() or os.cpu_count() or 1
    allowed = os.sched_getaffinity(0)
    cores = {_siblings(system, cpu) for cpu in allowed}
    return max(1, math.ceil(min(len(cores), _quota(system))))


def _siblings(system: Path, cpu: int) -> str:
    """What names the core that a logical processor belongs to: the list of all that do."""
    try:
        return (system / f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text().strip()
    except OSError:
        return str(cpu)


def _quota(system: Path) -> float:
    """Processors that the control group may use the whole time; infinite where nothing limits it."""
    try:
        most, period = (system / "fs/cgroup/cpu.max").read_text().split()
        return math.inf if most == "max" else int(most) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return math.inf


def _physical_of_mac() -> int | None:
    """The fast cores where there are two kinds: the slow ones would hold them up."""
    if sys.platform != "darwin":
        return None
    for name in ("hw.perflevel0.physicalcpu", "hw.physicalcpu"):
        asked = subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, check=False)
        if asked.returncode == 0 and asked.stdout.strip().isdigit():
            return int(asked.stdout)
    return None
