"""What a producer does between the two questions that an explanation may take, whether it blocks or not."""

from __future__ import annotations

from dispatcher.server.keys import Keys
from dispatcher.store.explanations import Findings
from dispatcher.store.forecast import Forecast


def forecast_of(findings: Findings, keys: Keys) -> Forecast | None:
    """The second question, if an event waits for room in the limits in force."""
    if findings.limits is None:
        return None
    from dispatcher.settings.content import policy_if_readable

    return findings.forecast(keys, policy_if_readable(findings.limits))
