-- Whether the user may do all that the store does: a script that the ACL stops in its middle leaves half of a vote
-- behind. Each command is called so that it changes nothing, with words that it refuses where it would write: the ACL
-- is asked before the words are. ARGV: node, index, changes, then a register of each kind that is none: as KEYS they
-- would be refused all at once. Gives command, key and refusal of each that failed.
local failed = {}
local function told(answer, command, key)
  if type(answer) == 'table' and answer.err then failed[#failed + 1] = {command, key, answer.err} end
end
local function try(command, key, ...)
  told(redis.pcall(command, key, ...), command, key)
end

local node, index, changes = ARGV[1], ARGV[2], ARGV[3]
told(redis.pcall('TIME'), 'TIME', '')
try('HGETALL', node)
try('HINCRBY', node, 'votes', 'nothing')
try('ZADD', index, 'NX', 'XX', 0, '')
try('ZRANGEBYLEX', index, '-', '+', 'LIMIT', 0, 0)
try('XADD', changes, 'nothing', '', '')
try('XRANGE', changes, '-', '+', 'COUNT', 1)
try('XREVRANGE', changes, '+', '-', 'COUNT', 1)
told(redis.pcall('XREAD', 'STREAMS', changes, '$'), 'XREAD', changes)
for number = 1, #ARGV do
  if number ~= 2 and number ~= 3 then
    try('HGET', ARGV[number], 'promised')
    try('HMGET', ARGV[number], 'promised')
    try('HSET', ARGV[number], 'promised', '', 'ballot')
  end
end
return failed
