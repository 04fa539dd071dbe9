-- Put before each of the other scripts. Tokens are decimal strings: a Lua number is a double, and lies above 2^53.
local call = redis.call

local function is_number(text)
  return string.find(text, '^%d+$') ~= nil
end

local function lower(one, other)
  if #one ~= #other then return #one < #other end
  return one < other
end
