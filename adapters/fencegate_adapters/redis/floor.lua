-- Raises the floor, never lowers it, and takes guard, form and mode for the truth from now on.
-- KEYS: record; birth and floor for those who belong to no resource. ARGV: guard, form, mode, value.
local value = ARGV[4]
local function raised(floor)
  return floor and is_number(floor) and lower(value, floor) and floor or value
end
local record, born = call('HMGET', KEYS[1], 'floor', 'born'), call('GET', KEYS[2])
-- No birth before its floor: it lets those in again whom the floor is there to keep out, and a right that is lacking
-- stops a script in its middle.
call('SET', KEYS[3], raised(call('GET', KEYS[3])))
call('HSET', KEYS[1], 'guard', ARGV[1], 'form', ARGV[2], 'mode', ARGV[3], 'floor', raised(record[1]),
  'born', record[2] or 'floor')
if not born then call('SET', KEYS[2], 'floor') end
return {'ok'}
