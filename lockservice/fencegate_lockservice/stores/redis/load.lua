-- Entries by key. ARGV: keys. Gives the time, then each entry as it was written (nil when absent).
only_where_written()
local found = {now_us()}
for number = 1, #ARGV do found[number + 1] = call('GET', name_of(ARGV[number])) end
return found
