-- KEYS[3]: the string, KEYS[4]: what is known of it. ARGV[6]: 'body', or 'head' for the digest in its place.
local kind = call('TYPE', KEYS[3]).ok
if kind == 'none' then return {'ok', highest, shadow} end
if kind ~= 'string' then return {'kind', highest, kind} end
local body = call('GET', KEYS[3])
local about = call('HMGET', KEYS[4], 'size', 'token', 'type', 'metadata', 'modified')
if ARGV[6] == 'head' then return {'ok', highest, shadow, #body, redis.sha1hex(body), about} end
return {'ok', highest, shadow, #body, body, about}
