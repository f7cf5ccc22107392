-- held(; region ...) -> ids of all tasks ("<message>.<subscription>.<region>") that somebody holds a token for
--
-- They are in a queue, in a worker's record, or in kombu's own record of a stock worker. Slow (it reads them all), so it is
-- for the audit only.
--   ARGV  the regions whose queues are read. Changes nothing.
local found = {}
local function note(message)
  local id = string.match(message, '"id":%s*"(%d+%.%d+%.[^"]+)"')
  if id then found[#found + 1] = id end
end
for _, region in ipairs(ARGV) do
  for _, message in ipairs(redis.call('LRANGE', 'deliveries.' .. region, 0, -1)) do note(message) end
end
for _, work in ipairs(redis.call('KEYS', PREFIX .. 'work:*')) do
  for _, packed in ipairs(redis.call('HVALS', work)) do
    for _, message in ipairs(cmsgpack.unpack(packed)) do note(message) end
  end
end
for _, message in ipairs(redis.call('HVALS', 'unacked')) do note(message) end
return found
