-- KEYS[3]: the string, KEYS[4]: what is known of it, KEYS[5]: the names that a listing tells.
-- ARGV from 6: if_match, if_none_match, name; to write also body, etag, type, metadata, modified; else it is a delete.
-- A plain SET: readers see an ordinary string, and a time to live that it had is gone.
local kind = call('TYPE', KEYS[3]).ok
if kind ~= 'none' and kind ~= 'string' then return {'kind', highest, kind} end
local there, body = kind == 'string', ARGV[9]
local function etag_of() return redis.sha1hex(call('GET', KEYS[3])) end
if not hold(ARGV[6], ARGV[7], there, etag_of) then return {'precondition', highest} end
-- The value last: what is ours may have been overwritten by something of another kind, and then nothing is written.
if body then
  call('ZADD', KEYS[5], 0, ARGV[8])
  call('HSET', KEYS[4], 'size', #body, 'token', token, 'etag', ARGV[10], 'type', ARGV[11], 'metadata', ARGV[12],
    'modified', ARGV[13])
  call('SET', KEYS[3], body)
elseif there then
  call('ZREM', KEYS[5], ARGV[8])
  call('DEL', KEYS[3], KEYS[4])
else
  return {'missing', highest}
end
return {'ok', highest, shadow, there and 0 or 1}
