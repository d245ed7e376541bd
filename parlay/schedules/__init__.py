"""Pipeline schedules: exact timelines and memory over time."""
