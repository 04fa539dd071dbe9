-- The names of registers between two bounds, in the order of their bytes.
-- KEYS: node, index. ARGV: digest of the members, identity of this node, lower bound, upper bound, how many.
local node = redis.call('HMGET', KEYS[1], 'state', 'digest', 'identity')
if node[1] ~= 'voting' or node[2] ~= ARGV[1] or node[3] ~= ARGV[2] then return {'stranger'} end
return {'found', redis.call('ZRANGEBYLEX', KEYS[2], ARGV[3], ARGV[4], 'LIMIT', 0, ARGV[5])}
