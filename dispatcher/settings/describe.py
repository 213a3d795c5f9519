"""A policy in plain English, one sentence for each rule, for an operator to read before it goes live."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, assert_never

from dispatcher.core.hooks import Hook, Verify
from dispatcher.core.limits import Bounds, Kind, Limit, longest_of
from dispatcher.core.once import BY_KEY, BY_TEXT, Then
from dispatcher.core.policy import CategoryRule, OnAmbiguous, OnLimit, OnResolved, Policy, Style, WhileWaiting
from dispatcher.core.quiet import Quiet, QuietThen, Span
from dispatcher.core.tally import Telling
from dispatcher.core.units import US
from dispatcher.settings.limits_values import written_size

_UNITS: Final = (("hour", 3_600 * US), ("minute", 60 * US), ("second", US), ("millisecond", 1_000))
_DAY_NAMES: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_IN_QUIET: Final = {
    QuietThen.DIGEST: "events are counted, and one message in each category's channel tells of them at the end",
    QuietThen.DEFER: "events wait for the end, and then go as there is room, whatever happens to others over a limit",
    QuietThen.DROP: "events are dropped with a log line",
}
_DAY_US: Final = 86_400 * US
_NOT_ACCEPTED: Final = "not accepted, its events become dead letters"


def sentences(policy: Policy) -> list[str]:
    """Every rule of the policy as a sentence: all together, each category, any other, channels, dead letters."""
    return list(rules(policy).values())


def rules(policy: Policy, also: Iterable[str] = ()) -> dict[str, str]:
    """The sentences by what they are about; ``also`` for these categories, which need not be named."""
    named: dict[str, str] = {}
    for name in dict.fromkeys([*policy.categories, *also]):
        named[f"category {name}"] = _category(name, policy)
        if policy.knows(name) or not policy.reject_unknown:
            named |= _routes(f"category {name}", name, policy.rule(name))
    unknown = {} if policy.reject_unknown else _routes("unknown categories", _any_other(policy), policy.defaults)
    return {
        "global": f"All events together: {_together(policy)}.",
        **named,
        "unknown categories": _unknown(policy),
        **unknown,
        **dict(_channels(policy)),
        **{f"quiet {each.name}": _quiet(each) for each in policy.quiet},
        **{f"hook {name}": _hook(name, hook) for name, hook in policy.hooks.items()},
        "dead letters": _dead_letters(policy.dead_letters),
        "decisions": _decisions(policy.dead_letters),
    }


def _category(name: str, policy: Policy) -> str:
    if policy.reject_unknown and not policy.knows(name):
        return f"{name}: {_NOT_ACCEPTED}."
    return f"{name}: {_rule(policy.rule(name), policy)}."


def _routes(about: str, name: str, rule: CategoryRule) -> dict[str, str]:
    """Where events are posted that match, a sentence for each route."""
    found = {}
    for number, route in enumerate(rule.routes, start=1):
        first = "an event" if number == 1 else "else an event"
        posted = f"{first} that names no channel is posted to {route.channel} if {route.matchers.in_words}"
        found[f"{about}, route {number}"] = f"{name}, route {number}: {posted}."
    return found


def _any_other(policy: Policy) -> str:
    return "Any other category" if policy.categories else "Any category"


def _together(policy: Policy) -> str:
    own = f"{_limits(policy.global_limits) or 'no limit'}{_kept(policy)}"
    return "; ".join([own, *_shadows(policy.global_shadows)])


def _shadows(limits: tuple[Limit, ...], each: str = "") -> list[str]:
    """What is counted and not enforced."""
    return [f"counted and not enforced: {_limits(limits)}{each}"] if limits else []


def _kept(policy: Policy) -> str:
    """What the guarantees cost the others."""
    longest = policy.longest_global
    if longest is None or not policy.guaranteed:
        return ""
    names = [name for name, rule in policy.categories.items() if rule.guarantee]
    return (
        f"; {policy.guaranteed} of the {longest.max} in {_each(longest)} {_window(longest)} are kept for "
        f"{_listed(names)} even while they are not used, {longest.max - policy.guaranteed} are left for all"
    )


def _unknown(policy: Policy) -> str:
    others = _any_other(policy)
    if policy.reject_unknown:
        return f"{others}: {_NOT_ACCEPTED}."
    return f"{others}, each separately: {_rule(policy.defaults, policy)}."


def _rule(rule: CategoryRule, policy: Policy) -> str:
    own = _limits(rule.limits) or "no limit of its own"
    parts = [f"{own}, posted to {rule.channel}{' unless a route matches' if rule.routes else ''}"]
    if rule.guarantee and policy.longest_global is not None:
        longest = policy.longest_global
        share = f"{rule.guarantee} in {_each(longest)} {_window(longest)}"
        also = ", if the other limits of all events together have room" if len(policy.global_limits) > 1 else ""
        parts.append(f"{share} are kept for it, whatever the others send{also}")
    for label, limits in rule.per_label.items():
        parts.append(f"{_limits(limits) or 'no limit'} for each value of the label {label}")
    parts += _shadows(rule.shadows)
    for label, limits in rule.label_shadows.items():
        parts += _shadows(limits, f" for each value of the label {label}")
    has_own = rule.limits or rule.per_label
    if has_own or policy.global_limits:
        beyond = "beyond that" if has_own else "beyond the limit of all events together"
        parts.append(f"{beyond} the event {_on_limit(rule)}")
        if rule.telling is Telling.NOTICE:
            parts.append(
                "a line says when that begins, and one when it has ended, after "
                f"{_span(rule.digest_delay_us)} without such an event"
            )
        if rule.telling is not None and (most := longest_of(rule.limits)) is not None:
            parts.append(f"of the {most.max} in {_each(most)} {_window(most)} one is kept for the {rule.telling}")
    parts += _repeats(rule)
    parts += _style(rule.style)
    if rule.fallback is not None:
        parts.append(f"if its channel is gone or archived, it is posted to {rule.fallback}")
    parts.append(f"waits at most {_span(rule.max_age_us)}")
    if rule.on_ambiguous is OnAmbiguous.DEAD_LETTER:
        parts.append("one that was perhaps posted is kept as a dead letter")
    return "; ".join(parts)


def _repeats(rule: CategoryRule) -> Iterator[str]:
    if rule.once is not None:
        by = rule.once.by
        same = {BY_KEY: "the same dedup_key", BY_TEXT: "the same text but for numbers, ids and quotes"}
        labels = "label" if len(by) == 1 else "labels"
        about = same[by] if isinstance(by, str) else f"the same {labels} {_listed(list(by))}"
        then = "dropped" if rule.once.then is Then.DROP else "counted in the message of the first"
        window = _span(rule.once.per_us).removeprefix("1 ")
        yield f"of events with {about} one is posted in any {window}, repeats are {then}"
    if rule.resolved is OnResolved.IGNORE:
        yield "a recovery posts no message"
    if rule.resolved_while_waiting is WhileWaiting.POST:
        yield "what has recovered while it waited is posted all the same"


def _style(style: Style) -> Iterator[str]:
    if style.identity is not None:
        name = f' as "{style.identity.username}"' if style.identity.username else ""
        icon = style.identity.icon_emoji or style.identity.icon_url
        yield f"shown{name}{f' with {icon}' if icon else ''}"
    if style.template is not None:
        yield "its text is made by a template"
    if style.allow_mentions:
        yield "mentions in its events' own markup notify people"


def _on_limit(rule: CategoryRule) -> str:
    match rule.on_limit:
        case OnLimit.DROP:
            return "is dropped with a log line"
        case OnLimit.DEAD_LETTER:
            return "is kept as a dead letter"
        case OnLimit.DEFER:
            return f"waits in line until there is room, with at most {rule.max_parked} of its category"
        case OnLimit.DIGEST:
            return (
                f"is counted in a digest, posted {_span(rule.digest_delay_us)} after the first and kept up to date; "
                "if it is the only one, it is posted itself"
            )
        case _:
            assert_never(rule.on_limit)


def _channels(policy: Policy) -> Iterator[tuple[str, str]]:
    for name, pace in policy.channels.items():
        yield f"channel {name}", f"Channel {name}: {_pace(pace)}."
    yield "channels", f"{'Every other' if policy.channels else 'Every'} channel: {_pace(policy.default_pace)}."


def beside_limits(policy: Policy, now_us: int) -> list[str]:
    """The sentences about repeats, routes, fallbacks and quiet hours, which a table of the limits has no place for."""
    named = dict(policy.categories)
    if not policy.reject_unknown:
        named[_any_other(policy)] = policy.defaults
    said = rules(policy)
    return [
        *(f"{name}: {sentence}." for name, rule in named.items() for sentence in _repeats(rule)),
        *(sentence for about, sentence in said.items() if ", route " in about),
        *_fallbacks(named),
        *(sentence for about, sentence in said.items() if about.startswith("quiet ")),
        *next_quiet_sentences(policy, now_us),
    ]


def _fallbacks(named: Mapping[str, CategoryRule]) -> Iterator[str]:
    """Where events are posted whose channel is gone, a sentence for each such place."""
    places: dict[str, list[str]] = {}
    for name, rule in named.items():
        if rule.fallback is not None:
            places.setdefault(rule.fallback, []).append(name if " " not in name else name.lower())
    for fallback, names in places.items():
        yield f"If the channel of an event of {_listed(names)} is gone or archived, it is posted to {fallback}."


def next_quiet(policy: Policy, now_us: int) -> dict[str, Span]:
    """The span of each quiet hours, by name, that holds at the instant, else the next."""
    spans = {each.name: each.span_at(now_us) or each.next_after(now_us) for each in policy.quiet}
    return {name: span for name, span in spans.items() if span is not None}


def next_quiet_sentences(policy: Policy, now_us: int) -> list[str]:
    """When each of the quiet hours begin next, or since when they hold, and their end, by the clock of their zone."""
    found = next_quiet(policy, now_us)
    return [
        f"Quiet hours {each.name}: {_spanned(each, found[each.name], now_us)}."
        for each in policy.quiet
        if each.name in found
    ]


def _spanned(quiet: Quiet, span: Span, now_us: int) -> str:
    begins, ends = (None if at is None else quiet.clock_time(at) for at in span)
    when = f"now, since {begins}," if span.since_us <= now_us else f"next from {begins}"
    return f"{when} until {ends} ({quiet.zone})"


def _hook(name: str, hook: Hook) -> str:
    verified = {Verify.HMAC: "signed", Verify.TOKEN: "with a token"}.get(hook.verify, f"signed as {hook.verify} does")
    some = "some of them become events" if hook.when else "each becomes an event"
    return f"Hook {name}: requests {verified}, by a secret in {hook.secret_file}; {some}."


def _quiet(quiet: Quiet) -> str:
    times = _listed([f"from {each.begins_at} to {each.ends_at}" for each in quiet.times])
    whose = "all categories" if quiet.categories is None else _listed(list(quiet.categories))
    parts = [f"{times} on {_days(quiet.days)}, by the clock of {quiet.zone}", f"for {whose}"]
    if quiet.unless:
        parts.append(f"unless {' or '.join(each.in_words for each in quiet.unless)}")
    return f"Quiet hours {quiet.name}: {', '.join(parts)}; {_IN_QUIET[quiet.then]}."


def _days(days: frozenset[int]) -> str:
    """``every day``, ``Monday to Friday``, ``Tuesday to Thursday and Saturday``."""
    if len(days) == len(_DAY_NAMES):
        return "every day"
    runs: list[list[int]] = []
    for day in sorted(days):
        if runs and runs[-1][-1] == day - 1:
            runs[-1].append(day)
        else:
            runs.append([day])
    return _listed([_run(run) for run in runs])


def _run(days: list[int]) -> str:
    first, last = _DAY_NAMES[days[0]], _DAY_NAMES[days[-1]]
    return first if first == last else f"{first} to {last}"


def _dead_letters(bounds: Bounds) -> str:
    size = written_size(bounds.max_bytes)
    kept = f"at most {bounds.max} are kept, at most {size} in all, each for at most {_span(bounds.max_age_us)}"
    return f"Dead letters: {kept}; the oldest go first."


def _decisions(bounds: Bounds) -> str:
    texts = "" if bounds.text else ", without texts"
    kept = f"at most {bounds.decisions} events that were suppressed, dropped or duplicates, and as many others"
    return f"Decision record: {kept}{texts}; the oldest go first."


def _pace(pace: Limit | None) -> str:
    if pace is None:
        return "no pace, messages are posted as they come"
    return f"{_limits((pace,))}; more wait their turn, none is dropped for it"


def _limits(limits: tuple[Limit, ...]) -> str:
    """``at most 5 in any second and 100 in any 30 minutes``; empty for no limit."""
    listed = _listed([f"{limit.max} in {_each(limit)} {_window(limit)}" for limit in limits])
    return f"at most {listed}" if listed else ""


def _listed(parts: list[str]) -> str:
    *firsts, last = parts or [""]
    return f"{', '.join(firsts)} and {last}" if firsts else last


def _each(limit: Limit) -> str:
    return "any" if limit.kind is Kind.ROLLING else "each clock-aligned"


def _window(limit: Limit) -> str:
    return _span(limit.window_us).removeprefix("1 ")


def _span(span_us: int) -> str:
    """``30 minutes``; days from two on, since ``24 hours`` says what a rolling day is."""
    if span_us % _DAY_US == 0 and span_us > _DAY_US:
        return f"{span_us // _DAY_US} days"
    for name, unit_us in _UNITS:
        if span_us % unit_us == 0:
            count = span_us // unit_us
            return f"{count} {name}" if count == 1 else f"{count} {name}s"
    return f"{span_us} microseconds"
