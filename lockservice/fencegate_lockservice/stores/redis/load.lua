-- Entries by key. ARGV: prefix, keys. Gives the time, then version and value of each (nil, nil when absent).
only_where_written()
local found = {now_us()}
for number = 2, #ARGV do
  local pair = call('HMGET', name(ARGV[number]), 'version', 'value')
  found[2 * number - 2], found[2 * number - 1] = pair[1], pair[2]
end
return found
