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
-- Tables are made with room for one commit, and counted by hand: to let them grow took longer than all else.
local KEYS, find, what, time = KEYS, string.find, ARGV[2], call('TIME')
local now, found = time[1] * 1000000 + time[2], call('MGET', unpack(KEYS))
local fates, commits, all_done, taken = {false}, 0, true, nil
local log, logged = {'{prefix}fencegate-log', false, false, false}, 0
local put, puts = {false, false}, 0
local others, more = {false, false, false, false}, 0
local at, key, value_at = 1, 0, 2

while at <= #what do
  local had_puts, had_more, _, after, not_after, keys = puts, more, find(what, '(%d+) (%d+) ', at)
  local fate, last, lines = now > tonumber(not_after) and 'late' or 'done', key + keys, ARGV[value_at + 1]
  at, value_at = after + 1, value_at + 1
  while key < last do
    key = key + 1
    local name, there, value, _, after, expected, how = KEYS[key], found[key], nil, find(what, '(%S+) (%S+) ', at)
    at = after + 1
    if how ~= '=' and how ~= '-' then
      value_at = value_at + 1
      value = ARGV[value_at]
    end
    if fate == 'done' then
      if taken and taken[name] then
        fate = 'conflict'
      elseif there then
        if find(there, expected, 1, true) ~= 1 or string.byte(there, #expected + 1) ~= 10 then
          fate = find(there, '\n', 1, true) and 'conflict' or 'other'
        end
      elseif expected ~= '-' then
        fate = 'conflict'
      elseif string.byte(how) ~= 126 and call('EXISTS', name) == 1 then
        fate = 'other'  -- no string, which is why it was not found. (Only we have names with ids of requests in them.)
      end
    end
    if how == '+' then
      put[puts + 1], put[puts + 2], puts = name, value, puts + 2
    end
    if how ~= '=' and (how ~= '+' or expected == '-') then
      others[more + 1], others[more + 2], others[more + 3], others[more + 4] = name, how, value, expected
      more = more + 4
    end
  end
  commits = commits + 1
  fates[commits] = fate
  if fate ~= 'done' then
    all_done, puts, more = false, had_puts, had_more
  else
    if lines ~= '' then
      log[2 * logged + 3], log[2 * logged + 4], logged = ARGV[1], lines, logged + 1
    end
    if at <= #what then
      taken = taken or {}
      for number = had_puts + 1, puts, 2 do taken[put[number]] = true end
      for number = had_more + 1, more, 4 do taken[others[number]] = true end
    end
  end
end

local revision = 0
if logged > 0 then
  revision = call('INCRBY', '{prefix}fencegate-newest', logged)
  if revision == logged then return {now} end  -- flushed: a new log has to be begun, for all to notice
  log[2] = revision
  call('XADD', unpack(log, 1, 2 + 2 * logged))
end

if puts > 0 then call('MSET', unpack(put, 1, puts)) end
for number = 1, more, 4 do
  local name, how, value, expected = others[number], others[number + 1], others[number + 2], others[number + 3]
  if string.byte(how) == 126 then
    call('SET', name, value, 'PXAT', string.sub(how, 2))
  elseif how == '-' then
    if expected ~= '-' then
      call('DEL', name)
      call('ZREM', '{prefix}fencegate-index', entry_of(name))
    end
  else
    if expected == '-' then call('ZADD', '{prefix}fencegate-index', 0, entry_of(name)) end
    if how ~= '+' then
      call('ZADD', '{prefix}fencegate-keep', how, entry_of(name))
      call('SET', name, value, 'PXAT', how)
    end
  end
end

local answer = all_done and now or {now, fates}
if logged > 0 and revision % 8 >= logged then return answer end
