-- Promise a ballot, unless as high a one was promised before; tell what was accepted last.
-- KEYS: node, index, register. ARGV: digest of the members, identity of this node, name, ballot.
local node = redis.call('HMGET', KEYS[1], 'state', 'digest', 'identity')
if node[1] ~= 'voting' or node[2] ~= ARGV[1] or node[3] ~= ARGV[2] then return {'stranger'} end
local had = redis.call('HMGET', KEYS[3], 'promised', 'ballot', 'value', 'hint')
if had[1] and had[1] >= ARGV[4] then return {'refused', had[1]} end
-- The register after what belongs to it: one that is not in the index would never be copied to a node that lost it, and
-- a right that is taken away meanwhile stops a script in its middle.
if not had[1] then redis.call('ZADD', KEYS[2], 0, ARGV[3]) end
redis.call('HINCRBY', KEYS[1], 'votes', 1)
redis.call('HSET', KEYS[3], 'promised', ARGV[4])
return {'promised', had[2] or '', had[3] or '', had[4] or ''}
