-- Entries in the order of their keys. ARGV: lowest and highest key as ZRANGEBYLEX wants them, limit.
-- Gives the time, then key and entry of each.
local index = '{prefix}fencegate-index'
local lowest, highest, limit = ARGV[1], ARGV[2], tonumber(ARGV[3])
only_where_written()
local found, count = {now_us()}, 0
while count < limit do
  local entries = call('ZRANGEBYLEX', index, lowest, highest, 'LIMIT', 0, limit - count)
  if #entries == 0 then break end
  for _, entry in ipairs(entries) do
    local written = call('GET', name_of(entry))
    if written then
      found[#found + 1], found[#found + 2] = entry, written
      count = count + 1
    else
      call('ZREM', index, entry)  -- it is past its time, or was deleted by hand
    end
  end
  lowest = '(' .. entries[#entries]
end
return found
