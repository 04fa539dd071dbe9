-- Compare, write and log, all or nothing. No lock rule is in here: it never looks into a value.
-- ARGV: prefix, not_after in microseconds, who writes, log lines ('' for none); then for each change its key, the
-- expected version ('' for absent) and how: '=' compare only, '-' delete, '+' write, or write and keep until then
-- (microseconds); a write goes on with version and value.
-- Gives the time: positive when done, negative when a comparison failed; {'late', time}, {'lost', time} otherwise.
local lines, now = ARGV[4], now_us()
if now > tonumber(ARGV[2]) then return {'late', now} end

local names, count, at = {}, 0, 5
while ARGV[at] do
  count = count + 1
  local there, how = name(ARGV[at]), ARGV[at + 2]
  if (call('HGET', there, 'version') or '') ~= ARGV[at + 1] then return -now end
  names[count] = there
  at = at + ((how == '=' or how == '-') and 3 or 5)
end

local revision
if lines ~= '' then
  revision = call('HINCRBY', reigns, 'newest', 1)
  if revision == 1 then return {'lost', now} end  -- flushed: a new log has to be begun, for all to notice
  call('XADD', log, 'MAXLEN', '~', 100000, string.format('%.0f-0', revision), ARGV[3], lines)
end

at = 5
for number = 1, count do
  local entry, expected, how = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  if how == '=' then
    at = at + 3
  elseif how == '-' then
    if expected ~= '' then
      call('DEL', names[number])
      call('ZREM', index, entry)
    end
    at = at + 3
  else
    if expected == '' then call('ZADD', index, 0, entry) end
    if how == '+' then how = '' else call('ZADD', keep, how, entry) end
    call('HSET', names[number], 'version', ARGV[at + 3], 'value', ARGV[at + 4], 'until', how)
    at = at + 5
  end
end

if revision and revision % 8 > 0 then return now end

-- Every eighth commit forgets more than eight bring, so that what is past its time does not pile up.
local past = call('ZRANGEBYSCORE', keep, '-inf', now, 'LIMIT', 0, math.min(1000, 64 + 16 * count))
local gone, forgotten = {}, {}
for _, entry in ipairs(past) do
  local there = name(entry)
  if (call('HGET', there, 'until') or '') ~= '' then  -- else it was deleted since, or written to stay
    gone[#gone + 1] = there
    forgotten[#forgotten + 1] = entry
  end
end
if #past > 0 then call('ZREM', keep, unpack(past)) end
if #gone > 0 then
  call('DEL', unpack(gone))
  call('ZREM', index, unpack(forgotten))
end
return now
