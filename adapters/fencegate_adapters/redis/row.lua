-- A row is a hash. It is looked at and changed here, in memory, before anything is written.
local function load_row(name)
  local kind = call('TYPE', name).ok
  if kind ~= 'hash' and kind ~= 'none' then return nil, kind end
  local fields, told = {}, call('HGETALL', name)
  for at = 1, #told, 2 do fields[told[at]] = told[at + 1] end
  return {there = kind == 'hash', fields = fields, changed = {}}
end

-- Sorted by digests: the order of the names themselves would be a matter of the server's locale.
local function etag_of(row)
  if not row.there then return false end
  local digests = {}
  for name, value in pairs(row.fields) do digests[#digests + 1] = redis.sha1hex(#name .. ':' .. name .. value) end
  table.sort(digests)
  return redis.sha1hex(table.concat(digests))
end

local function flat(row)
  if not row.there then return false end
  local told = {}
  for name, value in pairs(row.fields) do
    told[#told + 1] = name
    told[#told + 1] = value
  end
  return told
end

local function bytes_of(row)
  local bytes = 0
  for name, value in pairs(row.fields) do bytes = bytes + #name + #value end
  return bytes
end
