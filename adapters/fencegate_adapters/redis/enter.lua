-- Opens a resource: writes its record when there is none. KEYS: record. ARGV: guard, form, mode, a new birth.
-- Gives the birth of the record, or what is recorded when it is something else.
local record = call('HMGET', KEYS[1], 'guard', 'form', 'mode', 'born')
if not record[1] then
  call('HSET', KEYS[1], 'guard', ARGV[1], 'form', ARGV[2], 'mode', ARGV[3], 'floor', '0', 'born', ARGV[4])
  return {'ok', ARGV[4]}
end
if record[1] ~= ARGV[1] or record[2] ~= ARGV[2] or record[3] ~= ARGV[3] then
  return {'changed', record[1], record[2] or '', record[3] or ''}
end
return record[4] and {'ok', record[4]} or {'lost'}
