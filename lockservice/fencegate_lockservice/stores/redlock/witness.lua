-- Remember how often the other nodes have voted, where that is more than was known.
-- KEYS: node. ARGV: digest of the members, identity of this node, then for each other node: its field, identity, votes.
local node = redis.call('HMGET', KEYS[1], 'state', 'digest', 'identity')
if node[1] ~= 'voting' or node[2] ~= ARGV[1] or node[3] ~= ARGV[2] then return {'stranger'} end
for number = 3, #ARGV, 3 do
  local known = redis.call('HGET', KEYS[1], ARGV[number]) or ''
  local identity, votes = string.match(known, '^(%S+) (%d+)$')
  if identity ~= ARGV[number + 1] or tonumber(votes) < tonumber(ARGV[number + 2]) then
    redis.call('HSET', KEYS[1], ARGV[number], ARGV[number + 1] .. ' ' .. ARGV[number + 2])
  end
end
return {'known'}
