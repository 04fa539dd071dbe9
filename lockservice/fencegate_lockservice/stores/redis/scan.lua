-- Entries in the order of their keys. ARGV: prefix, lowest and highest key as ZRANGEBYLEX wants them, limit.
-- Gives the time, then key, version and value of each.
local lowest, highest, limit = ARGV[2], ARGV[3], tonumber(ARGV[4])
only_where_written()
local found, count = {now_us()}, 0
while count < limit do
  local entries = call('ZRANGEBYLEX', index, lowest, highest, 'LIMIT', 0, limit - count)
  if #entries == 0 then break end
  for _, entry in ipairs(entries) do
    local pair = call('HMGET', name(entry), 'version', 'value')
    if pair[1] then
      found[#found + 1], found[#found + 2], found[#found + 3] = entry, pair[1], pair[2]
      count = count + 1
    else
      call('ZREM', index, entry)  -- somebody deleted the entry by hand
    end
  end
  lowest = '(' .. entries[#entries]
end
return found
