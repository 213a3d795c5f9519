-- The limits in force have a version, 'NUMBER-DIGEST'. A call that names another one is told so and changes nothing; one that
-- names none is not asked.
local function stale(key, named)
  local in_force = named and (redis.call('GET', key) or '')
  if in_force and in_force ~= named then
    return '{"stale":' .. cjson.encode(in_force) .. '}'
  end
end
