"""Redis behind the core: RQ's wire format, the events under lease, and the books."""
