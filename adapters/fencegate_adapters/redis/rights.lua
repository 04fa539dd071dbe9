-- Whether the user may do all that the other scripts do: one that the ACL stops in its middle leaves half of its writes
-- behind. Each command is called so that it changes nothing, with words that it refuses where it would write: the ACL
-- is asked before the words are. ARGV: what for ('strings', 'hashes' or 'command'); then for 'command' the names of ours,
-- else record, fence, prefix of values, prefix of what is known of them, index. Gives command, name and refusal of each
-- that failed.
local form, failed = ARGV[1], {}
local function try(command, name, ...)
  local answer = redis.pcall(command, name, ...)
  local refusal = type(answer) == 'table' and answer.err
  if refusal then failed[#failed + 1] = {command, name, refusal} end
  return answer
end
local function try_mark(name)
  try('GET', name)
  try('SET', name, '', 'NX', 'XX')
end
local function try_hash(name)
  try('HMGET', name, 'form')
  try('HSET', name, 'form', '', 'mode')
end

if form == 'command' then
  for number = 2, #ARGV do try_mark(ARGV[number]) end
  return failed
end
local record, fence, values, about, index = unpack(ARGV, 2)
try_hash(record)
try_mark(fence)

-- A delete has no words to refuse, so it needs names under which there is nothing; the user's own may be any.
local function is_free(name)
  local kind = redis.pcall('TYPE', name)
  return kind.err or kind.ok == 'none'
end
local value = values .. 'fencegate-nothing'
while not (is_free(value) and is_free(about .. value)) do value = value .. '-' end
if try('TYPE', value).err then return failed end  -- then it is not known whether it is free
try('DEL', value)
if form == 'strings' then
  try('GET', value)
  try('SET', value, '', 'NX', 'XX')
  try('STRLEN', value)
  try_hash(about .. value)
  try('HGET', about .. value, 'etag')
  try('DEL', about .. value)
  try('ZADD', index, 'NX', 'XX', 0, '')
  try('ZREM', index, '')
  try('ZRANGEBYLEX', index, '-', '+', 'LIMIT', 0, 0)
else
  try('HGETALL', value)
  try('HSET', value, 'form', '', 'mode')
  try('HDEL', value, 'form')
end
return failed
