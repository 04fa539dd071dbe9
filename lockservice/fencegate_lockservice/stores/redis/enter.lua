-- Where the change log stands. ARGV: the server's own id, an id for a new reign.
-- A reign is a time without a break: it ends when the server is another one (restart, failover) or the log is gone
-- (flush). Lines may be missing at a break, so a new reign begins with a line that says so to all who follow. Revisions
-- count up by one; a reign begins with the clock, in sixteenths of a millisecond, so that they rise over a loss too.
-- Gives the time, the reign, the revision of its first line, and the newest revision; {'format', n} when the data is
-- of another version.
local log, reigns, count = '{prefix}fencegate-log', '{prefix}fencegate-reign', '{prefix}fencegate-newest'
local server, fresh, now = ARGV[1], ARGV[2], now_us()
only_where_written()
local known = call('HMGET', reigns, 'format', 'server', 'reign', 'began')
if known[1] and known[1] ~= '4' then return {'format', known[1]} end
local newest = call('XREVRANGE', log, '+', '-', 'COUNT', 1)[1]
local last = newest and tonumber(string.match(newest[1], '^%d+')) or 0
if newest and known[2] == server and tonumber(call('GET', count) or '') == last then
  return {now, known[3], tonumber(known[4]), last}
end
local began = math.max(last + 1, math.floor(now * 2 / 125))
local written = string.format('%.0f', began)
call('XADD', log, written .. '-0', 'reign', fresh)
call('HSET', reigns, 'format', '4', 'server', server, 'reign', fresh, 'began', written)
call('SET', count, written)
return {now, fresh, began, began}
