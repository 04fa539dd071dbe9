-- KEYS[3]: the hash.
local row, kind = load_row(KEYS[3])
if not row then return {'kind', highest, kind} end
return {'ok', highest, shadow, etag_of(row), flat(row)}
