-- Deferred events: they wait for room in a limit, in the line of their category (with per_label one line for each value), for the
-- end of a silence, in the line 'silence:ID:CATEGORY', or for the end of quiet hours, in the line 'quiet:LINE'.
-- A line is ordered by rank: priority, then first sight. It waits for one scope, the one that refused its head; `awaited` says
-- which. `waits` holds all lines that wait for a scope, by the rank of their heads. `lines` holds the scope as 'scope:NAME' with
-- the instant at which one more event may pass it; 'inf' while a worker decides about heads of that scope.
-- A line whose head was refused by both its guarantee and `shared` waits for both: `awaited` names the guarantee, and `waits` holds the
-- line for `shared` too. So its guarantee serves it in time, and `shared` by rank.
--
-- `deciding` says for each worker what it took and has not decided: the first seq, since when, and the scopes whose heads it
-- holds. Its next take that is no prefetch means that it has decided, and so does a `pace` that says so. No event
-- overtakes another one: an event that was seen later waits until the earlier ones are decided, but no longer than ORDER_US for a
-- slow worker.
--
-- `at` names the keys: events, parked, lines, totals, awaited, deferred, deciding, freed; line_prefix and
-- waits_prefix; the owner; and now.
local deferred = module(function(deferred)
  deferred.RANKS = { high = 0, normal = 1, low = 2 }
  local ORDER_US = 1000000
  local RANK = 2251799813685248 -- 2^51: seq is below it
  local MOST_FREED = 10000 -- scopes in `freed`; with more of them, all scopes count as freed

  -- The seq of a line's head, from the rank of the line.
  function deferred.seq_of(rank)
    return rank % RANK
  end

  local function is_guarantee(scope)
    return scope ~= nil and string.find(scope, '^guarantee:') ~= nil
  end

  local function wait_no_more(at, line, scope)
    plan.zrem(at.waits_prefix .. scope, line)
    if not plan.zfirst(at.waits_prefix .. scope) then
      plan.zrem(at.lines, 'scope:' .. scope)
    end
  end

  -- Whether a line that waits for this scope waits for `shared` too.
  local function waits_for_shared(at, line, scope)
    return is_guarantee(scope) and plan.zscore(at.waits_prefix .. 'shared', line) ~= nil
  end

  -- Notes for which scope the line waits, whether it waits for `shared` too, and the rank of its head; forgets a line that is empty.
  local function rank_line(at, line, scope, with_shared)
    local before = plan.hget(at.awaited, line)
    local head, rank = plan.zfirst(at.line_prefix .. line)
    if waits_for_shared(at, line, before) and not (head and with_shared) then
      wait_no_more(at, line, 'shared')
    end
    if before and (before ~= scope or not head) then
      wait_no_more(at, line, before)
    end
    if head then
      plan.zadd(at.waits_prefix .. scope, rank, line)
      if with_shared then
        plan.zadd(at.waits_prefix .. 'shared', rank, line)
      end
      plan.hset(at.awaited, line, scope)
    elseif before then
      plan.hdel(at.awaited, line)
    end
  end

  -- Ranks the line, which waits for what it waited for before; for itself, if for nothing.
  local function rank_line_again(at, line)
    local scope = plan.hget(at.awaited, line) or line
    rank_line(at, line, scope, waits_for_shared(at, line, scope))
    return scope
  end

  -- One more event may pass the scope from `instant` on, or from an earlier instant that is noted already.
  function deferred.open_at(at, scope, instant)
    if plan.zfirst(at.waits_prefix .. scope) then
      plan.zadd_lower(at.lines, instant, 'scope:' .. scope)
    end
  end

  local is_deciding, freed_size

  local function note_freed(at, scope)
    if is_deciding == nil then
      is_deciding = plan.hlen(at.deciding) > 0
    end
    if not is_deciding then
      return
    end
    local number = count_of(plan.hget(at.freed, '')) + 1
    freed_size = freed_size or redis.call('HLEN', at.freed)
    if freed_size >= MOST_FREED then
      plan.del(at.freed)
      plan.hset(at.freed, '*', number)
      freed_size = 2
    elseif not plan.hget(at.freed, scope) then
      freed_size = freed_size + 1
    end
    plan.hset(at.freed, '', number)
    plan.hset(at.freed, scope, number)
  end

  -- A slot of the scope was given back: events that were refused for it may ask again. While a worker is deciding, the slot
  -- is noted in `freed`, since an older refusal may still be on its way here.
  function deferred.reopen(at, scope)
    note_freed(at, scope)
    local known = plan.zscore(at.lines, 'scope:' .. scope)
    if known and known < math.huge then
      deferred.open_at(at, scope, at.now)
    end
  end

  -- Lets the first of the line ask for room at once, whatever the other lines wait for.
  function deferred.ask_at_once(at, line)
    rank_line(at, line, line, false)
    deferred.open_at(at, line, at.now)
  end

  -- After a change of the limits: each line that waits for `shared` asks by itself, since it may have a guarantee now. It asks once:
  -- a call looks at the next `most` lines behind `rank`. Returns the rank to go on from, or nil if these were the last.
  function deferred.ask_each_for_shared(at, rank, most)
    local rows = redis.call('ZRANGEBYSCORE', at.waits_prefix .. 'shared', '(' .. rank, '+inf', 'WITHSCORES', 'LIMIT', 0, most)
    for n = 1, #rows, 2 do
      deferred.ask_at_once(at, rows[n])
    end
    return #rows == 2 * most and rows[#rows] or nil
  end

  -- Whether a slot of the scope has become free since the deciding worker made its mark.
  local function is_freed(at, scope, mark)
    return math.max(count_of(plan.hget(at.freed, scope)), count_of(plan.hget(at.freed, '*'))) > count_of(mark.freed)
  end

  local function mark_of(text)
    local mark = text and json_of(text)
    if not (mark and type(mark.seq) == 'number' and whole_of(mark.since) and type(mark.scopes) == 'table') then
      return nil
    end
    for _, scope in pairs(mark.scopes) do
      if type(scope) ~= 'string' then
        return nil
      end
    end
    return mark
  end

  -- Notes that a scope which has refused an event has room from `instant` on. Without an instant, a scope that has none is open now.
  local function open_refused(at, scope, instant)
    if instant or not plan.zscore(at.lines, 'scope:' .. scope) then
      local mark = instant and mark_of(plan.hget(at.deciding, at.owner))
      if mark and is_freed(at, scope, mark) then
        instant = at.now
      end
      deferred.open_at(at, scope, instant or at.now)
    end
  end

  -- Puts an event into its line and counts it. `scope` refused the event until `instant`, a guarantee and `shared` until
  -- `instant` and `shared_at`; or no scope did, and the event waits behind others.
  function deferred.line_up(at, id, header, payload, scope, instant, shared_at)
    plan.zadd(at.line_prefix .. header.line, header.rank * RANK + header.seq, id)
    plan.zadd(at.parked, tonumber(header.deadline), id)
    if scope then
      rank_line(at, header.line, scope, shared_at)
    else
      scope = rank_line_again(at, header.line)
    end
    open_refused(at, scope, instant)
    if waits_for_shared(at, header.line, scope) then
      open_refused(at, 'shared', shared_at)
    end
    plan.hset(at.deferred, header.category, digits(count_of(plan.hget(at.deferred, header.category)) + 1))
    local is_quiet = string.find(scope, '^quiet:') -- or the line itself, of what nobody has asked about
    accounting.park(at, header, string.find(scope, '^silence:') and 'silenced' or is_quiet and 'quiet' or 'limit')
    header.state = 'waiting'
    record.write(at, id, header, payload)
  end

  -- Takes an event out of its line. The caller removes it from `parked` and writes it to its next place.
  function deferred.leave(at, id, header)
    plan.zrem(at.line_prefix .. header.line, id)
    rank_line_again(at, header.line)
    local left = count_of(plan.hget(at.deferred, header.category)) - 1
    if left > 0 then
      plan.hset(at.deferred, header.category, digits(left))
    else
      plan.hdel(at.deferred, header.category)
    end
  end

  -- The category of a line. The name may hold colons, and so may the value of a label: the longest category that fits and
  -- has events waiting.
  function deferred.category_of(at, line)
    line = string.gsub(line, '^quiet:', '')
    local found = string.match(line, '^category:(.*)$') or string.match(line, '^silence:%d+:(.*)$')
    for category in pairs(found and {} or plan.hgetall(at.deferred)) do
      if string.sub(line, 1, #category + 7) == 'label:' .. category .. ':' and #category > #(found or '') then
        found = category
      end
    end
    return found or ''
  end

  -- From when on the next of the line may ask; nil if that is not known.
  function deferred.opens_at(at, line)
    local scope = plan.hget(at.awaited, line)
    local instant = plan.zscore(at.lines, 'scope:' .. scope)
    if waits_for_shared(at, line, scope) then
      instant = math.min(instant or math.huge, plan.zscore(at.lines, 'scope:shared') or math.huge)
    end
    return instant, scope
  end

  -- Whether it is a line in which deferred events wait.
  function deferred.is_line(line)
    return string.find(line, '^category:') ~= nil or string.find(line, '^label:') ~= nil or string.find(line, '^silence:') ~= nil
      or string.find(line, '^quiet:') ~= nil
  end

  -- The score of the first event of a line.
  function deferred.head(at, line)
    local _, score = plan.zfirst(at.line_prefix .. line)
    return score
  end

  function deferred.score(priority, seq)
    return deferred.RANKS[priority] * RANK + seq
  end

  -- What the owner was deciding is decided, or never will be: other events may go on. `opened` holds, for each scope that
  -- the owner asked about, the instant at which one more event may pass; a scope of its heads that is not in `opened` may be
  -- tried now. With `goes_on` the owner has not decided all: its mark stays until it makes another one. Returns its mark, if
  -- there was one.
  function deferred.decided(at, owner, opened, goes_on)
    local text = plan.hget(at.deciding, owner)
    if not text then
      return nil
    end
    local mark = mark_of(text)
    if not goes_on or not mark then
      plan.hdel(at.deciding, owner)
    end
    for _, scope in ipairs(mark and mark.scopes or {}) do
      local known = opened and opened[scope] and not is_freed(at, scope, mark)
      deferred.open_at(at, scope, known and number_of(opened[scope][1]) or at.now)
    end
    if redis.call('EXISTS', at.freed) == 1 and plan.hlen(at.deciding) == 0 then
      plan.del(at.freed)
    end
    return mark
  end

  local marks -- those of other owners that are not slow; read at first use

  -- Until when events of this seq and later must wait for what other owners are deciding; nil if they need not.
  function deferred.earlier_undecided(at, seq)
    if not marks then
      marks = {}
      for owner, text in pairs(plan.hgetall(at.deciding)) do
        local mark = mark_of(text)
        if mark then
          mark.ends = number_of(mark.since) + ORDER_US
          if owner ~= at.owner and number_of(mark.since) <= at.now and mark.ends > at.now then
            marks[#marks + 1] = mark
          end
        end
      end
    end
    local wait_until
    for _, mark in ipairs(marks) do
      if mark.seq < seq then
        wait_until = math.max(wait_until or 0, mark.ends)
      end
    end
    return wait_until
  end
end)
