-- Put before the scripts that read; see names.lua.
local function now_us()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

-- There is nothing to delete, ever; but a replica refuses it, and what a replica holds may be old.
local function only_where_written()
  redis.call('DEL', '{prefix}fencegate-nothing')
end
