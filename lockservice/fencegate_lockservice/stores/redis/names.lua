-- Put before each of the other scripts: what things are called. ARGV[1] is the prefix of all.
local call, find, sub = redis.call, string.find, string.sub
local prefix = ARGV[1]
local index, keep = prefix .. 'fencegate-index', prefix .. 'fencegate-keep'
local log, reigns = prefix .. 'fencegate-log', prefix .. 'fencegate-reign'

-- lock/orders:7 is kept as lock:orders:7. What has no such kind comes after a bare colon, so no two keys meet.
local function name(entry)
  local slash, colon = find(entry, '/', 1, true), find(entry, ':', 1, true)
  if not slash or slash == 1 or (colon and colon < slash) then return prefix .. ':' .. entry end
  return prefix .. sub(entry, 1, slash - 1) .. ':' .. sub(entry, slash + 1)
end

local function now_us()
  local time = call('TIME')
  return time[1] * 1000000 + time[2]
end

-- There is nothing to delete, ever; but a replica refuses it, and what a replica holds may be old.
local function only_where_written()
  call('DEL', prefix .. 'fencegate-nothing')
end
