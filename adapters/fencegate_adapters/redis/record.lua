-- The resource must still be the one that was opened. KEYS: record, fence. ARGV: guard, form, mode, born.
-- A flush takes the record along, and whoever makes a new one gives it another birth: so those who remember the old one
-- stay out, unless the new one was made by raising the floor, which says that nothing from before is alive.
local record = call('HMGET', KEYS[1], 'guard', 'form', 'mode', 'floor', 'born')
local born = record[5]
if not record[1] or not born or (born ~= ARGV[4] and born ~= 'floor') then return {'lost'} end
if record[1] ~= ARGV[1] or record[2] ~= ARGV[2] or record[3] ~= ARGV[3] then
  return {'changed', record[1], record[2] or '', record[3] or ''}
end
