-- An event that waits admitted notes in its header in which scopes it holds slots (`holds`): by the time it goes on, the
-- limits may have changed and it may have others. Keys of those are built from the names in the header.

local function note_holds(header, event, prefix)
  local names = {}
  for n, scope in ipairs(event.holds) do
    names[n] = string.sub(KEYS[scope], #prefix + 1)
  end
  header.holds = names[1] and names
end

-- Gives back what it holds in scopes that are no longer its own.
local function let_go(header, event, prefix)
  local own = {}
  for _, scope in ipairs(header.holds and event.scopes or {}) do
    own[KEYS[scope]] = true
  end
  for _, name in ipairs(header.holds or {}) do
    if not own[prefix .. name] then
      release_slot(prefix .. name, event.slot)
    end
  end
  header.holds = nil
end
