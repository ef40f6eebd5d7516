"""What a run can be played on besides this process: other processes, a Ray cluster, real devices."""

from __future__ import annotations
