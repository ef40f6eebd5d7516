"""Where a run can go besides this machine: a Ray cluster, real devices on Flower."""

from __future__ import annotations
