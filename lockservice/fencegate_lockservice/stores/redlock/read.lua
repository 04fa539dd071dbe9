-- What registers hold: promised ballot, accepted ballot, value and hint of each, one after the other.
-- KEYS: node, then registers. ARGV: digest of the members, identity of this node.
local node = redis.call('HMGET', KEYS[1], 'state', 'digest', 'identity')
if node[1] ~= 'voting' or node[2] ~= ARGV[1] or node[3] ~= ARGV[2] then return {'stranger'} end
local found = {'found'}
for number = 2, #KEYS do
  local had = redis.call('HMGET', KEYS[number], 'promised', 'ballot', 'value', 'hint')
  for field = 1, 4 do found[#found + 1] = had[field] or '' end
end
return found
