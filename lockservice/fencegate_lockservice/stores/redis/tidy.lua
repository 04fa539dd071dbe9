-- The end of a script that commits, from time to time: more is taken out of the index than was brought since, so that
-- what is past its time does not pile up; and the log is cut.
if revision > 0 then call('XTRIM', '{prefix}fencegate-log', 'MINID', '~', revision - 100000) end
local keep, done, gone, most = '{prefix}fencegate-keep', {}, {}, math.min(1000, 64 + 16 * #KEYS)
local past = call('ZRANGEBYSCORE', keep, '-inf', math.floor(now / 1000), 'LIMIT', 0, most)
for _, entry in ipairs(past) do
  local left = call('PTTL', name_of(entry))
  if left == -2 then gone[#gone + 1] = entry end
  -- -1: it was written anew since, to stay. Else the server takes it away within this millisecond.
  if left < 0 then done[#done + 1] = entry end
end
if #done > 0 then call('ZREM', keep, unpack(done)) end
if #gone > 0 then call('ZREM', '{prefix}fencegate-index', unpack(gone)) end
return answer
