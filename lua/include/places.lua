-- Where an event that waits admitted has its slots, and where it stands in its channel's line: noted in its header, since by the
-- time it goes on the limits may have changed.
local places = module(function(places)
  local PRIORITY = { high = 0, normal = 4, low = 8 }
  local PATIENT = 8

  -- Notes in which scopes the event has slots (`slots`) and in which these are held (`holds`).
  function places.note(header, event, prefix)
    for field, positions in pairs({ holds = event.holds or {}, slots = event.scopes or {} }) do
      local names = {}
      for n, scope in ipairs(positions) do
        names[n] = string.sub(KEYS[scope], #prefix + 1)
      end
      header[field] = names[1] and names or nil
    end
  end

  -- The keys of the scopes that are the event's own by the limits of this call.
  function places.own(header, event)
    local own = {}
    for _, scope in ipairs((header.slots or header.holds) and event.scopes or {}) do
      own[KEYS[scope]] = true
    end
    return own
  end

  -- Its class in a line: priority; before others of that priority who has a slot of a guarantee; and behind others of both who was
  -- tried in vain: once where posts fail one after another, PATIENT times where the channel is told to wait. So it holds up nobody.
  function places.class(at, header, event, channel)
    local is_guaranteed = event.guarantee and header.seq and plan.zscore(KEYS[event.guarantee], record.slot(header))
    local has_failed = (header.attempt or 0) > 0 and pause.trouble_of(at, channel)
    local was_tried = has_failed or (header.posts or 0) >= PATIENT
    header.order = (PRIORITY[event.priority] or PRIORITY.normal) + (is_guaranteed and 0 or 2) + (was_tried and 1 or 0)
  end
end)
