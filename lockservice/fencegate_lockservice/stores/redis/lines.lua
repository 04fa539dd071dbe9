-- Lines of the change log. ARGV: the revision after which, limit. Gives the entries of the stream; nil when the
-- revision is from before this reign or its lines were trimmed. After 0 they all come, if none is missing: the first
-- line of the reign is the first of all.
local log, since = '{prefix}fencegate-log', tonumber(ARGV[1])
only_where_written()
local oldest = call('XRANGE', log, '-', '+', 'COUNT', 1)[1]
local began = tonumber(call('HGET', '{prefix}fencegate-reign', 'began') or '')
if not oldest or not began then return false end
local first = tonumber(string.match(oldest[1], '^%d+'))
if since == 0 and first == began then since = began end
if since < began or since < first then return false end
return call('XRANGE', log, string.format('%.0f', since + 1), '+', 'COUNT', ARGV[2])
