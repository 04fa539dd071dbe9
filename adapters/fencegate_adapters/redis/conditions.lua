-- The caller's own conditions: ETags with commas between, '*' for any, '' for no condition.
local function listed(tags, etag_of)
  if tags == '*' then return true end
  local etag = etag_of()
  for tag in string.gmatch(tags, '[^,]+') do
    if tag == '*' or tag == etag then return true end
  end
  return false
end

local function hold(if_match, if_none_match, there, etag_of)
  if if_match ~= '' and not (there and listed(if_match, etag_of)) then return false end
  return if_none_match == '' or not there or not listed(if_none_match, etag_of)
end
