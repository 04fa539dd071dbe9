-- All of the writes, or none: they are tried in memory first. KEYS from 3: the hashes. ARGV[6]: the most bytes of a row;
-- then for each write: op, number of its hash, if_match, if_none_match, how many fields, names and values, how many
-- names to remove, those names. Gives whether the last one created, its ETag, and the row after each write.
local most, at, number = tonumber(ARGV[6]), 7, 0
local rows, told, created = {}, {}, 0
local last

local function take()
  at = at + 1
  return ARGV[at - 1]
end

local function clear(row)
  row.there, row.replaced, row.fields, row.changed = true, true, {}, {}
end

local function change(row, name, value)
  row.fields[name] = value
  row.changed[name] = true
end

while ARGV[at] do
  local op, index, if_match, if_none_match = take(), tonumber(take()), take(), take()
  if not rows[index] then
    local row, kind = load_row(KEYS[2 + index])
    if not row then return {'kind', highest, kind} end
    rows[index] = row
  end
  local row = rows[index]
  number, last, created = number + 1, row, row.there and 0 or 1
  if not hold(if_match, if_none_match, row.there, function() return etag_of(row) end) then
    return {'precondition', highest}
  end
  if op ~= 'put' and not row.there then return {'missing', highest, KEYS[2 + index]} end
  if op ~= 'patch' then clear(row) end
  for _ = 1, tonumber(take()) do
    local name = take()
    change(row, name, take())
  end
  for _ = 1, tonumber(take()) do change(row, take(), nil) end
  if op == 'delete' then
    row.there, created = false, 0
  elseif next(row.fields) == nil then
    return {'empty', highest}
  elseif bytes_of(row) > most then
    return {'large', highest}
  end
  told[number] = flat(row)
end

local function store(name, row)
  if row.replaced then call('DEL', name) end
  local pairs_, gone = {}, {}
  for field in pairs(row.changed) do
    local value = row.fields[field]
    if value then
      pairs_[#pairs_ + 1] = field
      pairs_[#pairs_ + 1] = value
    else
      gone[#gone + 1] = field
    end
  end
  -- In parts, since the stack of Lua is small.
  for from = 1, #pairs_, 1000 do call('HSET', name, unpack(pairs_, from, math.min(from + 999, #pairs_))) end
  for from = 1, #gone, 1000 do call('HDEL', name, unpack(gone, from, math.min(from + 999, #gone))) end
end

for index, row in pairs(rows) do store(KEYS[2 + index], row) end
return {'ok', highest, shadow, created, etag_of(last), told}
