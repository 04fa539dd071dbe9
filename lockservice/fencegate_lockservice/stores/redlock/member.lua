-- Change what a node says of itself, if it still says what we saw.
-- KEYS: node. ARGV: state, identity and digest as seen ('' for none), then fields and their new values.
local node = redis.call('HMGET', KEYS[1], 'state', 'identity', 'digest')
for number = 1, 3 do
  if (node[number] or '') ~= ARGV[number] then return {'changed'} end
end
redis.call('HSET', KEYS[1], unpack(ARGV, 4))
return {'done'}
