-- Entries by key. ARGV: prefix, keys. Gives the time, then each entry as it was written (nil when absent).
only_where_written(prefix)
local found = {now_us()}
for number = 2, #ARGV do found[number] = call('GET', name_of(prefix, ARGV[number])) end
return found
