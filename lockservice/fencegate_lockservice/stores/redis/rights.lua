-- Whether the user may do all that the store does: a script that the ACL stops in its middle leaves half of its writes
-- behind. Each command is called so that it changes nothing, with words that it refuses where it would write: the ACL
-- is asked before the words are. ARGV: the kinds of entries. Gives command, name and refusal of each that failed.
local failed = {}
local function told(answer, command, name)
  local refusal = type(answer) == 'table' and answer.err
  if refusal then failed[#failed + 1] = {command, name, refusal} end
  return not refusal
end
local function try(command, name, ...)
  return told(redis.pcall(command, name, ...), command, name)
end

told(redis.pcall('TIME'), 'TIME', '')
local index, keep, log = '{prefix}fencegate-index', '{prefix}fencegate-keep', '{prefix}fencegate-log'
local count, reigns, nothing = '{prefix}fencegate-newest', '{prefix}fencegate-reign', '{prefix}fencegate-nothing'
for _, sorted in ipairs({index, keep}) do
  try('ZADD', sorted, 'NX', 'XX', 0, '')
  try('ZREM', sorted, '')
end
try('ZRANGEBYLEX', index, '-', '+', 'LIMIT', 0, 0)
try('ZRANGEBYSCORE', keep, '-inf', '-inf', 'LIMIT', 0, 0)
try('XADD', log, 'nothing', '', '')
try('XTRIM', log, 'MINID', 'nothing')
try('XRANGE', log, '-', '+', 'COUNT', 1)
try('XREVRANGE', log, '+', '-', 'COUNT', 1)
told(redis.pcall('XREAD', 'STREAMS', log, '$'), 'XREAD', log)
try('HMGET', reigns, 'format')
try('HGET', reigns, 'format')
try('HSET', reigns, 'format', '3', 'server')
try('GET', count)
try('SET', count, '', 'NX', 'XX')
try('INCRBY', count, 'nothing')
try('DEL', nothing)
for _, kind in ipairs(ARGV) do
  local name = name_of(kind)
  try('EXISTS', name)
  try('PTTL', name)
  try('MGET', name)
  try('GET', name)
  try('MSET', name, '', name)
  try('SET', name, '', 'NX', 'XX')
  if redis.pcall('EXISTS', name) == 0 then try('DEL', name) end  -- else it is somebody else's
end
return failed
