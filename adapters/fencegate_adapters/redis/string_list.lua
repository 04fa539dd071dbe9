-- KEYS[3]: the names. ARGV from 5: lower bound, upper bound, how many at most, prefix of the strings, prefix of what is
-- known of them. The ETag is the one that was kept: a digest of every value would keep the server busy for too long.
-- Gives the last name that was looked at, '' at the end, and what is there: some may be gone meanwhile, and where many in a
-- row are (a time to live that is over), a short page must not take a call for each of them.
local wanted = tonumber(ARGV[7])
local count = math.max(wanted, 200)
local names = call('ZRANGEBYLEX', KEYS[3], ARGV[5], ARGV[6], 'LIMIT', 0, count)
local found, fields = {}, {'size', 'token', 'type', 'metadata', 'modified'}
for at, name in ipairs(names) do
  if #found == wanted then return {'ok', names[at - 1], found} end
  local string_key = ARGV[8] .. name
  if call('TYPE', string_key).ok == 'string' then
    local about, size = call('HMGET', ARGV[9] .. string_key, unpack(fields)), call('STRLEN', string_key)
    local etag = call('HGET', ARGV[9] .. string_key, 'etag') or ''
    if tonumber(about[1] or -1) ~= size then
      etag = size <= 1048576 and redis.sha1hex(call('GET', string_key)) or ''
    end
    found[#found + 1] = {name, size, etag, about}
  end
end
return {'ok', #names == count and names[count] or '', found}
