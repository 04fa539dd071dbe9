-- A part of each of the other scripts. {prefix} stands for what is put before all names: it is written into the
-- scripts, so that names need not be joined anew for each commit.
-- Functions here rest on their arguments and on globals alone: every local that they shared with the script would be
-- boxed anew for each commit.
local call, ARGV = redis.call, ARGV

-- lock/orders:7 is kept as lock:orders:7. What has no such kind comes after a bare colon, so no two keys meet.
local function name_of(entry)
  local named, has_kind = string.gsub(entry, '^([^/:]+)/', '%1:', 1)
  if has_kind == 0 then return '{prefix}:' .. entry end
  return '{prefix}' .. named
end

local function entry_of(name)
  local entry = string.sub(name, #'{prefix}' + 1)
  if string.sub(entry, 1, 1) == ':' then return string.sub(entry, 2) end
  return (string.gsub(entry, ':', '/', 1))
end
