-- Promise a ballot, unless as high a one was promised before; tell what was accepted last.
-- KEYS: node, index, register. ARGV: digest of the members, identity of this node, name, ballot.
local node = redis.call('HMGET', KEYS[1], 'state', 'digest', 'identity')
if node[1] ~= 'voting' or node[2] ~= ARGV[1] or node[3] ~= ARGV[2] then return {'stranger'} end
local had = redis.call('HMGET', KEYS[3], 'promised', 'ballot', 'value', 'hint')
if had[1] and had[1] >= ARGV[4] then return {'refused', had[1]} end
redis.call('HSET', KEYS[3], 'promised', ARGV[4])
redis.call('HINCRBY', KEYS[1], 'votes', 1)
if not had[1] then redis.call('ZADD', KEYS[2], 0, ARGV[3]) end
return {'promised', had[2] or '', had[3] or '', had[4] or ''}
