-- Compare, write and log, all or nothing. No lock rule is in here: it never looks into a value.
-- ARGV: who writes, not_after in microseconds, log lines ('' for none); then for each change its key, the
-- expected version with a line feed ('' for absent) and how:
--   '=' compare only, '-' delete, '+' write; '~' write what no scan has to find, and keep it for a time; or the time
--   until which it is kept (milliseconds).
-- A write goes on with the version, a line feed and the value, in one; and after '~' with the time (milliseconds).
-- Gives the time: positive when done, negative when a comparison failed; {'late', time}, {'lost', time} otherwise.
local time, lines = call('TIME'), ARGV[3]
local now = time[1] * 1000000 + time[2]
if now > tonumber(ARGV[2]) then return {'late', now} end

local names, count, at = {false, false}, 0, 4
while ARGV[at] do
  count = count + 1
  local there, expected, how = name_of(ARGV[at]), ARGV[at + 1], ARGV[at + 2]
  local is_other
  if expected == '' then
    is_other = call('EXISTS', there) == 1
  else
    is_other = call('GETRANGE', there, 0, #expected - 1) ~= expected
  end
  if is_other then
    -- What we write has a line feed after the version. Whatever has none was not written by us.
    local found = call('GET', there)
    if found and not string.find(found, '\n', 1, true) then return {err = 'WRONGTYPE of a value that is not ours'} end
    return -now
  end
  names[count] = there
  at = at + ((how == '=' or how == '-') and 3 or how == '~' and 5 or 4)
end

local revision
if lines ~= '' then
  revision = call('INCR', '{prefix}fencegate-newest')
  if revision == 1 then return {'lost', now} end  -- flushed: a new log has to be begun, for all to notice
  if revision % 8 > 0 then
    call('XADD', '{prefix}fencegate-log', revision, ARGV[1], lines)
  else
    call('XADD', '{prefix}fencegate-log', 'MAXLEN', '~', 100000, revision, ARGV[1], lines)
  end
end

at = 4
for number = 1, count do
  local entry, expected, how = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  if how == '=' then
    at = at + 3
  elseif how == '~' then
    call('SET', names[number], ARGV[at + 3], 'PXAT', ARGV[at + 4])
    at = at + 5
  elseif how == '-' then
    if expected ~= '' then
      call('DEL', names[number])
      call('ZREM', '{prefix}fencegate-index', entry)
    end
    at = at + 3
  else
    if expected == '' then call('ZADD', '{prefix}fencegate-index', 0, entry) end
    if how == '+' then
      call('SET', names[number], ARGV[at + 3])
    else
      call('ZADD', '{prefix}fencegate-keep', how, entry)
      call('SET', names[number], ARGV[at + 3], 'PXAT', how)
    end
    at = at + 4
  end
end

if revision and revision % 8 > 0 then return now end

-- Every eighth commit takes more out of the index than eight bring, so that what is past its time does not pile up.
local keep, gone = '{prefix}fencegate-keep', {}
local past = call('ZRANGEBYSCORE', keep, '-inf', math.floor(now / 1000), 'LIMIT', 0, math.min(1000, 64 + 16 * count))
for _, entry in ipairs(past) do
  -- what is there was written anew since, to stay
  if call('EXISTS', name_of(entry)) == 0 then gone[#gone + 1] = entry end
end
if #past > 0 then call('ZREM', keep, unpack(past)) end
if #gone > 0 then call('ZREM', '{prefix}fencegate-index', unpack(gone)) end
return now
