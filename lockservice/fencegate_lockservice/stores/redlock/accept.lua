-- Accept a value unless a higher ballot was promised; promise the next ballot of the same proposer; tell who follows.
-- KEYS: node, index, register, changes. ARGV: digest of the members, identity of this node, name, ballot, next ballot,
-- value, hint, how many changes to keep.
local node = redis.call('HMGET', KEYS[1], 'state', 'digest', 'identity')
if node[1] ~= 'voting' or node[2] ~= ARGV[1] or node[3] ~= ARGV[2] then return {'stranger'} end
local promised = redis.call('HGET', KEYS[3], 'promised')
if promised and promised > ARGV[4] then return {'refused', promised} end
if not promised then redis.call('ZADD', KEYS[2], 0, ARGV[3]) end  -- in this order: see prepare.lua
redis.call('HINCRBY', KEYS[1], 'votes', 1)
redis.call('HSET', KEYS[3], 'promised', ARGV[5], 'ballot', ARGV[4], 'value', ARGV[6], 'hint', ARGV[7])
if ARGV[7] ~= '' then redis.call('XADD', KEYS[4], 'MAXLEN', '~', ARGV[8], '*', 'hint', ARGV[7]) end
return {'accepted'}
