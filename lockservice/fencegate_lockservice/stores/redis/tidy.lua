-- The end of a script that commits, from time to time: more is taken out of the index than was brought since, so that
-- what is past its time does not pile up; and the log is cut.
if revision > 0 then call('XTRIM', '{prefix}fencegate-log', 'MINID', '~', revision - 100000) end
local keep, gone, over, most = '{prefix}fencegate-keep', {}, {}, math.min(1000, 64 + 16 * #KEYS)
local past = call('ZRANGEBYSCORE', keep, '-inf', math.floor(now / 1000), 'LIMIT', 0, most)
for _, entry in ipairs(past) do
  -- -2: it is gone. -1: it was written anew since, to stay. Else this is its last millisecond: the next one sees to it.
  local left = call('PTTL', name_of(entry))
  if left == -2 then gone[#gone + 1] = entry end
  if left < 0 then over[#over + 1] = entry end
end
if #over > 0 then call('ZREM', keep, unpack(over)) end
if #gone > 0 then call('ZREM', '{prefix}fencegate-index', unpack(gone)) end
return answer
