"""Schedules: in which order, and how many at a time, cells are decoded. One file a schedule, one line in this table."""

from mmspec.core.registry import Registry

SCHEDULES = Registry(
    "schedule",
    {
        "zipar": "mmspec.image.zipar:ZipARSchedule",
    },
)
