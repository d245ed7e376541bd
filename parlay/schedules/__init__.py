"""Pipeline schedules: exact timelines and memory over time.

`build` makes a schedule by name, `read_schedule` reads one from a file; `simulate` times it; `parlay.schedules.memory`
follows what every stage holds; `parlay.schedules.plan` decides which layers go to which stage.
"""

from __future__ import annotations

from parlay.schedules.build import NAMES, build
from parlay.schedules.costs import Costs
from parlay.schedules.schedule import Schedule
from parlay.schedules.timeline import Timeline, simulate

__all__ = ["NAMES", "Costs", "Schedule", "Timeline", "build", "simulate"]
