"""The names by which logging configurations import what hands log records over; see ``producer.log_handlers``.

handlers: {slack: {class: dispatcher.handlers.DispatcherHandler, category: errors, level: ERROR}}
"""

from __future__ import annotations

from dispatcher.producer.log_handlers import DispatcherHandler, structlog_processor

__all__ = ["DispatcherHandler", "structlog_processor"]
