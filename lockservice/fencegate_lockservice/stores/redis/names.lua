-- Put before each of the other scripts: what things are called. ARGV[1] is the prefix of all.
-- Functions here rest on their arguments and on globals alone: every local that they shared with the script would be
-- boxed anew for each commit, which cost as much as a command.
local call, prefix = redis.call, ARGV[1]

-- lock/orders:7 is kept as lock:orders:7. What has no such kind comes after a bare colon, so no two keys meet.
local function name_of(prefix, entry)
  local named, has_kind = string.gsub(entry, '^([^/:]+)/', '%1:', 1)
  if has_kind == 0 then return prefix .. ':' .. entry end
  return prefix .. named
end

local function now_us()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

-- There is nothing to delete, ever; but a replica refuses it, and what a replica holds may be old.
local function only_where_written(prefix)
  redis.call('DEL', prefix .. 'fencegate-nothing')
end
