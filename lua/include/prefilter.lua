-- The pre-check: a new event that a limit refuses anyway is dropped as it is taken, as admit.lua would drop it a moment later: it
-- is never leased, and nobody reads its payload.
--
-- Only what a producer of ours has marked can be refused here (enqueue.lua): it has seen that the event is valid, and that
-- its id is the job's. Only by categories that a worker names, in `prefilter` (JSON): "scopes" and "rows" as in gate.lua, of
-- the KEYS behind `first`, "told" as in admit.lua, "categories": {name: [position of its row, configured]}. They drop, tell
-- nobody, and have no limits by label. Where one has room, its events are handed out: here nobody is admitted.
local prefilter = module(function(prefilter)
  prefilter.refused = {} -- groups for the books, with what the answer says of them
  prefilter.groups = {} -- of each mark that was looked at, or false
  local scopes, verdict_of = {}, {}

  local function verdict(call, position, first, now)
    local known = verdict_of[position]
    if known == nil then
      local row = call.rows[position]
      for _, item in ipairs(row) do
        for _, scope in ipairs(type(item) == 'table' and item or { item }) do
          if scope > 0 and not scopes[scope] then
            scopes[scope] = slots.open(KEYS[first + scope], call.scopes[scope], now)
          end
        end
      end
      -- A scope of another type is for the gate to complain of.
      local is_known, at, denier, window = pcall(gate.decide, scopes, row, now, gate.free_at)
      known = is_known and at > now and { denier, window, digits(at - now) } or false
      verdict_of[position] = known
    end
    return known
  end

  -- The group in which an event ends whose job bears the mark, or false. A mark is the category, and 1 for an id that is to be
  -- remembered, else 0; in the job, the event's text and labels for the record follow.
  function prefilter.refusal(call, mark, first, now, is_muted)
    local group = prefilter.groups[mark]
    if group == nil then
      local category, remembered = string.match(mark, '^(%S+) ([01])$')
      local named = category and call.categories[category]
      local denial = named and not is_muted(category) and verdict(call, named[1], first, now)
      group = denial and {
        category = category, configured = named[2], remember = remembered == '1', outcome = 'dropped', ids = {}, shown = {},
        denial = denial,
        why = '["dropped","' .. category .. '",' .. call.told[denial[1]][denial[2]] .. denial[3] .. '],{}]',
      }
      if group then
        prefilter.refused[#prefilter.refused + 1] = group
      end
      group = group or false
      prefilter.groups[mark] = group
    end
    return group
  end

  -- What the answer says of them: category, position of the scope and of its window, time until there is room, ids.
  function prefilter.told()
    local rows = {}
    for n, group in ipairs(prefilter.refused) do
      local scope, window, wait = unpack(group.denial)
      rows[n] = { group.category, scope, window, wait, table.concat(group.ids, ' ') }
    end
    return rows
  end
end)
