-- Where an event that waits admitted has its slots, and where it stands in its channel's line: noted in its header, since by the
-- time it goes on the limits may have changed.
local places = module(function(places)
  local PRIORITY = { high = 0, normal = 2, low = 4 }

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

  -- Its class in a line: priority, and before others of that priority who has a slot of a guarantee.
  function places.class(header, event)
    local is_guaranteed = event.guarantee and header.seq and plan.zscore(KEYS[event.guarantee], record.slot(header))
    header.order = (PRIORITY[event.priority] or PRIORITY.normal) + (is_guaranteed and 0 or 1)
  end
end)
