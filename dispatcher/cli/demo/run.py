"""The course of the demo: set the stage, let the story happen, look until every event is accounted for."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dispatcher.app.building import build_sink
from dispatcher.app.limits import LoadedLimits, read_limits_file
from dispatcher.app.operating import build_producer, open_desk
from dispatcher.app.running import run_worker
from dispatcher.app.servers import Server, open_server
from dispatcher.cli.demo.crew import Crew
from dispatcher.cli.demo.story import EACH, OWN, SOURCES, TOGETHER, Scene, limits_yaml, scenes
from dispatcher.cli.demo.view import Moment, View, live_view, no_view, plain_view, summary
from dispatcher.cli.exits import DOES_NOT_HOLD, DONE, INTERRUPTED, Ended
from dispatcher.cli.interruption import Interruption
from dispatcher.cli.terminal import Terminal, console_on
from dispatcher.errors import DispatcherError
from dispatcher.logs.event_log import process_log
from dispatcher.producer.blocking import Producer
from dispatcher.settings.environment import Settings
from dispatcher.stand_in import REALISTIC, Setup, StandIn
from dispatcher.store.snapshot import Books

_WORKERS: Final = 2
_LOOK_EVERY_S: Final = 0.05
_WATCHED_S: Final = 3.0
_PLAIN_S: Final = 1.0
"""How long the story takes: where somebody watches, and line by line. Else as long as the machine needs."""
_BATCH: Final = 16
"""Small, so that two workers decide about in the order of the story."""
_GIVE_UP_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class _Stage:
    producer: Producer
    books: Books
    crew: Crew
    stand_in: StandIn


def run_demo(terminal: Terminal, *, as_json: bool) -> int:
    """Run it; returns the exit code: 0 when the figures are as promised."""
    watched = not as_json and sys.stdout.isatty() and not console_on(sys.stdout).is_dumb_terminal
    with Interruption() as interruption:
        try:
            # Whatever is set up is taken down as well, and an interruption does not come in between.
            with (
                interruption.held_back(),
                _stage() as stage,
                _view(terminal, as_json=as_json, watched=watched) as view,
            ):
                _play(stage, view, interruption, seconds=0.0 if as_json else _WATCHED_S if watched else _PLAIN_S)
                stage.crew.end()
                moment = _moment(stage)
                view.end(summary(moment, _reasons(stage.crew)))
        except KeyboardInterrupt:
            raise Ended(INTERRUPTED, "interrupted; nothing is left running, nothing is kept") from None
    if as_json:
        terminal.print_json(_document(moment))
    for fault in (faults := _faults(moment)):
        terminal.fail(fault)
    return DOES_NOT_HOLD if faults else DONE


@contextmanager
def _stage() -> Iterator[_Stage]:
    """A server, two workers, a Slack. Nothing of the environment or of .env decides anything here."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dispatcher-demo-")))
        file = directory / "limits.yaml"
        file.write_text(limits_yaml(), encoding="utf-8")
        limits = read_limits_file(file)
        settings = Settings.isolated(data_dir=directory / "data")
        server = stack.enter_context(open_server(settings, start=True))
        stand_in = StandIn(setup=Setup(rate=REALISTIC))
        crew = Crew(
            lambda base_url: _work(server, limits, settings.data_dir, base_url, stand_in.token),
            [directory / f"worker-{number}.log" for number in range(_WORKERS)],
        )
        stack.callback(crew.end)
        crew.begin(stack.enter_context(stand_in).base_url)
        yield _Stage(build_producer(settings, server), open_desk(settings, server).books, crew, stand_in)


def _work(server: Server, limits: LoadedLimits, data_dir: Path, base_url: str, token: str) -> None:
    settings = Settings.isolated(
        data_dir=data_dir,
        slack_token=token,
        slack_base_url=base_url,
        slack_timeout=2,
        batch=_BATCH,
        log_format="json",
    )
    with process_log(settings.log_level, settings.log_format, settings.secrets()) as (log, _):
        run_worker(settings, limits, server, build_sink(settings), log, burst=False)


def _view(terminal: Terminal, *, as_json: bool, watched: bool) -> AbstractContextManager[View]:
    if as_json:
        return no_view()
    return live_view() if watched else plain_view(terminal)


def _play(stage: _Stage, view: View, interruption: Interruption, *, seconds: float) -> None:
    """Send each event at its moment, and return when all are accounted for."""
    began = time.monotonic()
    story = scenes()
    sent = 0
    while True:
        now = time.monotonic() - began
        happened = [scene for scene in story[sent:] if scene.at * seconds <= now]
        _send(stage.producer, happened)
        sent += len(happened)
        moment = _moment(stage)
        view.show(moment)
        if sent == len(story) and not moment.is_busy:
            return
        if interruption.asked:
            raise KeyboardInterrupt
        stage.crew.check()
        if stage.crew.lost or now > _GIVE_UP_S:
            raise DispatcherError(f"the demo did not come to its end: {_last_words(stage.crew)}")
        time.sleep(_LOOK_EVERY_S)


def _send(producer: Producer, happened: list[Scene]) -> None:
    events = ({"category": scene.source.category, "text": scene.text} for scene in happened)
    for _ in producer.enqueue_chunks(events):
        pass


def _moment(stage: _Stage) -> Moment:
    return Moment(stage.books.snapshot(), stage.stand_in.ledger.per_channel())


def _reasons(crew: Crew) -> Counter[str]:
    """How often each reason stands in the workers' decision lines, one for each event."""
    reasons: Counter[str] = Counter()
    for log in crew.logs:
        for line in log.read_text(encoding="utf-8").splitlines():
            entry = json.loads(line) if line.startswith("{") else {}
            if entry.get("event") == "event.settled":
                reasons[entry["reason"]] += 1
    return reasons


def _last_words(crew: Crew) -> str:
    lines = [line for log in crew.logs if log.exists() for line in log.read_text("utf-8", "replace").splitlines()]
    return f"a worker ended, its log: {' '.join(lines[-3:])}" if crew.lost else "it took longer than a minute"


def _document(moment: Moment) -> dict[str, Any]:
    totals = moment.snapshot.overall()
    return {
        "enqueued": totals["enqueued"],
        "sent": totals["sent"],
        "dropped": totals["dropped"],
        "slack_received": moment.slack_received,
        "categories": {
            source.category: {"sent": moment.sent(source), "dropped": moment.dropped(source)} for source in SOURCES
        },
    }


def _faults(moment: Moment) -> list[str]:
    """A sentence for each figure that is not as promised."""
    totals = moment.snapshot.overall()
    events = EACH * len(SOURCES)
    expected = {"enqueued": events, "sent": TOGETHER.max, "dropped": events - TOGETHER.max}
    faults = [f"{totals[name]} {name}, expected {count}" for name, count in expected.items() if totals[name] != count]
    if moment.slack_received != TOGETHER.max:
        faults.append(f"Slack received {moment.slack_received}, expected {TOGETHER.max}")
    faults += [
        f"{moment.sent(source)} of {source.category} sent, expected at most {OWN.max}"
        for source in SOURCES
        if moment.sent(source) > OWN.max
    ]
    return faults + moment.snapshot.imbalances()
