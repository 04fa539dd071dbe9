-- The stale check. ARGV[5]: the token, or '' for a plain read. What follows this has passed, and the mark is raised.
local token, mark, floor = ARGV[5], call('GET', KEYS[2]) or '0', record[4] or ''
if not is_number(mark) or not is_number(floor) then return {'damaged'} end
local highest, shadow = lower(mark, floor) and floor or mark, ''
if token ~= '' then
  if not lower(token, highest) then
    if token ~= mark then call('SET', KEYS[2], token) end
    highest = token
  elseif ARGV[3] == 'shadow' then
    shadow = highest
  else
    return {'stale', highest}
  end
end
