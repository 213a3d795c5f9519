-- Shadow limits are counted and not enforced. Who was admitted is charged in each shadow scope that has room; where there is
-- none, it is counted that this limit would have refused it, and noted for the answer.
--
-- In the call: "shadows": [[KEYS position, ...] for each request or row], "shadow_names": {position: [field of the hash for
-- each limit, ...]}. `shadowed` is the hash; `found` collects texts '[request, position, window]'.
local function shadow_caster(call, shadowed, now, found)
  return function(n, id, scopes)
    for _, position in ipairs(call.shadows[call.of and call.of[n] or n]) do
      local scope = scopes[position]
      if not call.fresh and not scope.pending[id] then
        scope.own[id] = tonumber(redis.call('ZSCORE', scope.key, id) or nil)
      end
      local at, window = gate.free_at(scope, id)
      if at <= now then
        slots.charge(scope, id)
      else
        plan.count(shadowed, call.shadow_names[tostring(position)][window], 1)
        found[#found + 1] = string.format('[%d,%d,%d]', n, position, window)
      end
    end
  end
end
