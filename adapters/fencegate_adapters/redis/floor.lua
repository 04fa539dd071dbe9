-- Raises the floor, never lowers it, and takes guard, form and mode for the truth from now on.
-- KEYS: record; birth and floor for those who belong to no resource. ARGV: guard, form, mode, value.
local value = ARGV[4]
local function raised(floor)
  return floor and is_number(floor) and lower(value, floor) and floor or value
end
local floor, common = call('HGET', KEYS[1], 'floor'), call('GET', KEYS[3])
call('HSET', KEYS[1], 'guard', ARGV[1], 'form', ARGV[2], 'mode', ARGV[3], 'floor', raised(floor))
call('HSETNX', KEYS[1], 'born', 'floor')
call('SETNX', KEYS[2], 'floor')
call('SET', KEYS[3], raised(common))
return {'ok'}
