-- Take over registers that others hold, where they are newer. Only a node that does not vote yet may do so.
-- KEYS: node, index, then registers. ARGV: identity of this node, then name, promised ballot, ballot, value, hint of each.
local node = redis.call('HMGET', KEYS[1], 'state', 'identity')
if node[1] ~= 'copying' or node[2] ~= ARGV[1] then return {'stranger'} end
for number = 3, #KEYS do
  local first = 2 + (number - 3) * 5
  local had = redis.call('HMGET', KEYS[number], 'promised', 'ballot')
  if ARGV[first + 1] > (had[1] or '') then redis.call('HSET', KEYS[number], 'promised', ARGV[first + 1]) end
  if ARGV[first + 2] > (had[2] or '') then
    redis.call('HSET', KEYS[number], 'ballot', ARGV[first + 2], 'value', ARGV[first + 3], 'hint', ARGV[first + 4])
  end
  redis.call('ZADD', KEYS[2], 0, ARGV[first])
end
return {'copied'}
