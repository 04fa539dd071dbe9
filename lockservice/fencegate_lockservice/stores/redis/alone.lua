-- One commit that goes alone, of the commonest kind: a lock that is there is written anew, and with it maybe what became
-- of a request. What commit.lua does, without what it takes to carry many: that was a fifth of the server's work.
-- KEYS: the lock; the request. ARGV: who writes; not_after in microseconds; the expected version of the lock and a line
-- feed; the log lines; what is written to the lock; what to the request, and until when it is kept (milliseconds).
-- Gives what commit.lua gives.
local call, KEYS, ARGV = redis.call, KEYS, ARGV
local time, found = call('TIME'), call('MGET', unpack(KEYS))
local now, there, expected = time[1] * 1000000 + time[2], found[1], ARGV[3]

if now > tonumber(ARGV[2]) then return {now, {'late'}} end
if not there or found[2] then return {now, {'conflict'}} end
if string.sub(there, 1, #expected) ~= expected then
  return {now, {string.find(there, '\n', 1, true) and 'conflict' or 'other'}}
end

local revision = call('INCRBY', '{prefix}fencegate-newest', 1)
if revision == 1 then return {now} end  -- flushed
call('XADD', '{prefix}fencegate-log', revision, ARGV[1], ARGV[4])
call('SET', KEYS[1], ARGV[5])
if KEYS[2] then call('SET', KEYS[2], ARGV[6], 'PXAT', ARGV[7]) end

local answer = now
if revision % 64 > 0 then return answer end  -- less often than others: it brings nothing to the index
