-- Commits that go together: each compares, writes and logs, all or nothing. No lock rule is in here: it never looks into
-- a value. All are compared before the first one is written, and the log is written before all else: if that fails,
-- nothing was done.
-- KEYS: what each commit is about, one after the other.
-- ARGV: who writes; what, in words; then of each commit its log lines ('' for none), and what it writes (the version, a
-- line feed and the value, in one).
-- The words: of each commit not_after in microseconds, and how many keys it is about; for each of these the expected
-- version ('-' for absent), and how: '=' compare only, '-' delete, '+' write; a time, write and keep until then
-- (milliseconds); '~' and a time, the same for what no scan has to find.
-- Gives the time when all are done. Else the time and the fate of each: done, conflict, late, or other, where there is
-- something that we have not written. The time alone: nothing is done, since the log is gone.
local KEYS, time, words = KEYS, call('TIME'), string.gmatch(ARGV[2], '%S+')
local now, found = time[1] * 1000000 + time[2], call('MGET', unpack(KEYS))
local fates, all_done, taken = {}, true, {}
local log, put, others = {'{prefix}fencegate-log', 'MINID', '~', 0, 0}, {}, {}
local first, at = 1, 2

for not_after in words do
  local last, lines, fate = first + words() - 1, ARGV[at + 1], now > tonumber(not_after) and 'late' or 'done'
  local has_put, has_others = #put, #others
  at = at + 1
  for key = first, last do
    local name, expected, how, there, value = KEYS[key], words(), words(), found[key], nil
    if how ~= '=' and how ~= '-' then
      at = at + 1
      value = ARGV[at]
    end
    if fate ~= 'done' then
      -- nothing more to know
    elseif taken[name] then
      fate = 'conflict'
    elseif there then
      if string.find(there, expected, 1, true) ~= 1 or string.byte(there, #expected + 1) ~= 10 then
        fate = string.find(there, '\n', 1, true) and 'conflict' or 'other'
      end
    elseif expected ~= '-' then
      fate = 'conflict'
    elseif string.byte(how) ~= 126 and call('EXISTS', name) == 1 then
      fate = 'other'  -- no string, which is why it was not found. (Only we have names with ids of requests in them.)
    end
    if how == '+' then
      put[#put + 1], put[#put + 2] = name, value
      if expected == '-' then others[#others + 1] = {name, how} end
    elseif how ~= '=' and (how ~= '-' or expected ~= '-') then
      others[#others + 1] = {name, how, value, expected == '-'}
    end
  end
  fates[#fates + 1] = fate
  if fate == 'done' then
    if lines ~= '' then log[#log + 1], log[#log + 2] = ARGV[1], lines end
    for number = has_put + 1, #put, 2 do taken[put[number]] = true end
    for number = has_others + 1, #others do taken[others[number][1]] = true end
  else
    all_done = false
    for number = #put, has_put + 1, -1 do put[number] = nil end
    for number = #others, has_others + 1, -1 do others[number] = nil end
  end
  first = last + 1
end

local logged, revision = (#log - 5) / 2, 0
if logged > 0 then
  revision = call('INCRBY', '{prefix}fencegate-newest', logged)
  if revision == logged then return {now} end  -- flushed: a new log has to be begun, for all to notice
  log[4], log[5] = revision - 100000, revision
  call('XADD', unpack(log))
end

if #put > 0 then call('MSET', unpack(put)) end
for number = 1, #others do
  local name, how, value, is_new = unpack(others[number], 1, 4)
  if how == '+' then
    call('ZADD', '{prefix}fencegate-index', 0, entry_of(name))
  elseif how == '-' then
    call('DEL', name)
    call('ZREM', '{prefix}fencegate-index', entry_of(name))
  elseif string.byte(how) == 126 then
    call('SET', name, value, 'PXAT', string.sub(how, 2))
  else
    if is_new then call('ZADD', '{prefix}fencegate-index', 0, entry_of(name)) end
    call('ZADD', '{prefix}fencegate-keep', how, entry_of(name))
    call('SET', name, value, 'PXAT', how)
  end
end

-- From time to time more is taken out of the index than was brought since, so that what is past its time does not pile
-- up.
if logged == 0 or revision % 8 < logged then
  local keep, gone, most = '{prefix}fencegate-keep', {}, math.min(1000, 64 + 16 * #KEYS)
  local past = call('ZRANGEBYSCORE', keep, '-inf', math.floor(now / 1000), 'LIMIT', 0, most)
  for _, entry in ipairs(past) do
    -- what is there was written anew since, to stay
    if call('EXISTS', name_of(entry)) == 0 then gone[#gone + 1] = entry end
  end
  if #past > 0 then call('ZREM', keep, unpack(past)) end
  if #gone > 0 then call('ZREM', '{prefix}fencegate-index', unpack(gone)) end
end
return all_done and now or {now, fates}
