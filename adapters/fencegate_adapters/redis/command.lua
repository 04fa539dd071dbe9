-- One command of a holder that belongs to no resource, under the fence of its lock key.
-- KEYS: fence, born, floor. ARGV: token, the birth that the holder remembers ('' for none yet), a new birth, then the
-- command; none is a claim. A database with another birth has lost its marks, as in record.lua.
local token, known = ARGV[1], ARGV[2]
local mark, born, floor = call('GET', KEYS[1]) or '0', call('GET', KEYS[2]), call('GET', KEYS[3]) or '0'
if known ~= '' and born ~= known and born ~= 'floor' then return {'lost'} end
if not is_number(mark) or not is_number(floor) then return {'damaged'} end
local highest = lower(mark, floor) and floor or mark
if lower(token, highest) then return {'stale', highest} end
if not born then
  born = ARGV[3]
  call('SET', KEYS[2], born)
end
if token ~= mark then call('SET', KEYS[1], token) end
if not ARGV[4] then return {'ok', born, false} end
local answer = redis.pcall(unpack(ARGV, 4))
if type(answer) == 'table' and answer.err then return {'error', born, answer.err} end
return {'ok', born, answer}
