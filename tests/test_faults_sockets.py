"""Faults at the sockets of a run: a frozen process, strangers at its ports."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from cluster import Run


@pytest.mark.system
@pytest.mark.slow
def test_a_frozen_supervisor_goes_on(tmp_path: Path) -> None:
    """Ctrl+Z and `fg`, or a laptop's lid: longer than any time-out of ZeroMQ, with full queues when it wakes up."""
    with Run(tmp_path, "buffer_backend=native", "report_interval_s=0.01") as run:
        run.wait_running()
        run.wait_trained(20)
        run.process.send_signal(signal.SIGSTOP)
        time.sleep(14)
        run.process.send_signal(signal.SIGCONT)
        epoch, update = run.checkpoints()[-1]
        run.wait_trained(update + 40, epoch)
        assert run.interrupt() == 0, run.text()
        assert run.processes() == []
