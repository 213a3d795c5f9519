-- An event's record in the hash `events`: a line of JSON, the header, then the payload as the producer wrote it.
--
-- Header: seq (order of first sight), seen (instant of first sight), and once they are known category, counted (its name in
-- the books), channel, attempt (tries used up), posts (posts started), unknown (posts whose fate is unknown), state ("sending"
-- while a post may be under way, "waiting" while parked), timer (true: parked on a timer), scheduled (true: it waits for the
-- instant from which on it may ask for room), why (reason and code for which it waits, or waited last, on a timer, for its
-- instant, or where pace.lua parked it; absent once a worker that died or stopped has left it to be reconciled), shadow
-- (limits that would have refused it), solo (its channel has a pace) and pace (the window of that, us), order (its class in
-- its channel's line, include/lines.lua), held (true: it owns held slots), holds and slots (names of the scopes in which it
-- holds slots, and of all in which it has one), takes (how often it was taken up), waits and waited (for what it waits or
-- waited last, and of all that it waited for what tells most, include/accounting.lua), replays (how often it came back from
-- the dead letters), deaths (how many workers died holding it), buffered (instant since which it waits as the only suppressed
-- one), digest (true: a digest message, of include/digest.lua or include/silences.lua), line and rank (where it stands or
-- stood in a category's line, while it is not admitted), deadline (instant at which it expires), sent and first (when its last
-- and its first post were marked as sending), unconfirmed (while the fate of its last post is to be reconciled: how many
-- history scans failed so far), resent (posts made again after one that never arrived), entry (the line it waits in, where
-- that is not its channel's), code (what its last post was answered with, that did not arrive), root (ts of the message that
-- its last post went under, by the key of its thread), gone (of an event that is posted to its category's fallback: the
-- channel that it was meant for, and what Slack said of it); while it is unconfirmed, place (Slack's id of its channel),
-- trouble (whether posts fail there, include/pause.lua) and back (how far the clock was stepped back since its first post,
-- us). Instants are strings of microseconds: cjson writes 14 digits.
--
-- `at` names the keys events, seq and totals; and now.
local record = module(function(record)
  local MOST_SEQ = 562949953421312 -- 2^49: below it a line can hold it beside the class of an event
  local LAST_INSTANT = 4503599627370496 -- 2^52: below it a held slot can hold it

  local function is_count(value)
    return type(value) == 'number' and value >= 0 and value < MOST_EXACT and value == math.floor(value)
  end
  local function is_seq(value)
    return is_count(value) and value < MOST_SEQ
  end
  local function is_instant(value)
    return type(value) == 'string' and #value <= 16 and string.find(value, '^%d+$') ~= nil and tonumber(value) < LAST_INSTANT
  end
  local function is_text(value)
    return type(value) == 'string' and #value <= 4096
  end
  local function is_flag(value)
    return value == true
  end
  local function is_names(value)
    if type(value) ~= 'table' then
      return false
    end
    local length = 0
    for key, name in pairs(value) do
      length = length + 1
      if type(key) ~= 'number' or not is_text(name) then
        return false
      end
    end
    return length == #value
  end
  local function is_why(value)
    return type(value) == 'table' and type(value[1]) == 'string' and (value[2] == cjson.null or type(value[2]) == 'string')
  end
  local function is_pair(value)
    return type(value) == 'table' and is_text(value[1]) and is_text(value[2]) and #value == 2
  end
  local function is_class(value)
    return is_count(value) and value < 12
  end
  local function is_rank(value)
    return is_count(value) and value < 3
  end
  local IS_SOUND = {
    seq = is_seq, seen = is_instant, category = is_text, counted = is_text, channel = is_text, attempt = is_count,
    posts = is_count, unknown = is_count, timer = is_flag, scheduled = is_flag, why = is_why, shadow = is_names, pace = is_count, order = is_class,
    held = is_flag, holds = is_names, slots = is_names, takes = is_count, replays = is_count, deaths = is_count,
    buffered = is_instant, digest = is_flag, line = is_text, rank = is_rank, deadline = is_instant, sent = is_instant,
    first = is_instant, back = is_instant, unconfirmed = is_count, resent = is_count, entry = is_text, place = is_text,
    root = is_text, code = is_text, trouble = is_text, gone = is_pair, waits = is_text, waited = is_text,
    state = function(value) return value == 'sending' or value == 'waiting' end,
    solo = function(value) return type(value) == 'boolean' end,
  }
  local NEEDS = { -- what a state, or a field, cannot do without
    waiting = { 'category', 'counted', 'deadline' },
    sending = { 'channel', 'sent', 'first', 'attempt', 'counted', 'deadline', 'category' },
    unconfirmed = { 'channel', 'sent', 'first', 'deadline', 'counted', 'category' },
    line = { 'rank', 'category', 'counted', 'deadline' },
  }

  local function has_all(header, needed)
    for _, field in ipairs(needed) do
      if header[field] == nil then
        return false
      end
    end
    return true
  end

  local function is_line_of(line, category)
    line = string.gsub(line, '^quiet:', '')
    return line == 'category:' .. category or string.find(line, 'label:' .. category .. ':', 1, true) == 1
      or string.match(line, '^silence:%d+:(.*)$') == category
  end

  -- A digest message has empty names, and nothing else has.
  local function is_named(header)
    for _, name in pairs({ header.category, header.counted }) do
      if (name == '') ~= (header.digest == true) then
        return false
      end
    end
    return true
  end

  local function is_whole(header)
    return header.seq ~= nil and header.seen ~= nil
      and (header.state == nil or has_all(header, NEEDS[header.state]))
      and (header.unconfirmed == nil or has_all(header, NEEDS.unconfirmed))
      and (header.line == nil or (has_all(header, NEEDS.line) and is_line_of(header.line, header.category)))
      and is_named(header)
      and (header.state ~= 'waiting' or header.timer or header.scheduled or header.line or header.channel) ~= nil
  end

  -- Whether an event of this id is the dispatcher's own. No id of a producer's holds a colon (include/intake.lua).
  function record.is_digest_message(id)
    local telling = string.match(id, '^(%a+):')
    return telling == 'digest' or telling == 'notice' or telling == 'quiet' or telling == 'repeat' or telling == 'silence'
  end

  -- Header and payload, and whether the header is what one of us wrote. Of one that is not, the fields are left that can be
  -- trusted, and the third answer is its text. Fields of a newer version are kept.
  function record.split(stored)
    local line = stored and string.find(stored, '\n', 1, true)
    local text = stored and string.sub(stored, 1, (line or #stored + 1) - 1) or ''
    local header = line and json_of(text)
    if not header or header[1] ~= nil then -- a list is no header
      return {}, line and string.sub(stored, line + 1) or '', text
    end
    local malformed, is_newer
    for field, value in pairs(header) do
      local is_sound = IS_SOUND[field]
      if not is_sound then
        is_newer = true
      elseif not is_sound(value) then
        header[field], malformed = nil, text
      end
    end
    if header.counted and not header.category then -- an event gets both at once: without a category, it was not counted
      header.counted, malformed = nil, text
    end
    if is_newer and not pcall(cjson.encode, header) then -- a number that is none
      malformed = text
    end
    if not malformed and not is_whole(header) then
      malformed = text
    end
    return header, string.sub(stored, line + 1), malformed
  end

  function record.read(at, id)
    local stored = plan.hget(at.events, id)
    local header, payload, malformed = record.split(stored)
    if not malformed and (header.digest == true) ~= record.is_digest_message(id) then
      header.digest, malformed = nil, string.match(stored, '^[^\n]*')
    end
    return header, payload, malformed
  end

  function record.write(at, id, header, payload)
    plan.hset(at.events, id, cjson.encode(header) .. '\n' .. payload)
  end

  -- The number of the last first sight. Where it was lost, although the books count events, it goes on from the milliseconds of the
  -- clock, which are beyond all that were given.
  function record.last_seq(at)
    local last = plan.number(at.seq)
    local is_lost = not last or not is_seq(last) or (last == 0 and redis.call('HGET', at.totals, 'received'))
    return is_lost and math.floor(at.now / 1000) or last
  end

  -- The next `number` of them: the one before the first.
  function record.next_seqs(at, number)
    local last = record.last_seq(at)
    plan.set_number(at.seq, last + number)
    return last
  end

  -- The name of the slots of its present attempt: a post with an unknown delivery status keeps its own, the next one takes another.
  function record.slot(header)
    local unknown = header.unknown or 0
    return unknown > 0 and digits(header.seq) .. '#' .. digits(unknown) or digits(header.seq)
  end
end)
