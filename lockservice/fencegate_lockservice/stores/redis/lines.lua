-- Lines of the change log. ARGV: prefix, the revision after which, limit. Gives the entries of the stream; nil when the
-- revision is from before this reign or its lines were trimmed.
local since = tonumber(ARGV[2])
only_where_written()
local oldest = call('XRANGE', log, '-', '+', 'COUNT', 1)[1]
local began = call('HGET', reigns, 'began')
if not oldest or not began or since < tonumber(began) or since < tonumber(string.match(oldest[1], '^%d+')) then
  return false
end
return call('XRANGE', log, string.format('%.0f', since + 1), '+', 'COUNT', ARGV[3])
