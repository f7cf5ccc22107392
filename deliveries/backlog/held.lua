-- held(workers; region ...) -> all deliveries ("<message>.<subscription>.<region>") in a queue or with a worker
--
-- They are in a queue, in a worker's record, or with a stock worker (record.lua). Reading them all is slow, so this
-- is for the audit only.
--   KEYS[1]  ph:workers   ARGV  the regions whose queues are read. Changes nothing.
local held = {}
local function note(message)
  local id = string.match(message, '"id":%s*"(%d+%.%d+%.[^".]+)')
  if id then held[#held + 1] = id end
end
for _, region in ipairs(ARGV) do
  local queue = QUEUES .. region
  for _, list in ipairs({queue, low_of(queue)}) do
    for _, message in ipairs(redis.call('LRANGE', list, 0, -1)) do note(message) end
  end
end
for _, worker in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  for _, messages in pairs(batches_of(worker)) do
    for _, message in ipairs(messages) do note(message) end
  end
  for _, attempt in ipairs(redis.call('SMEMBERS', attempts_of(worker))) do held[#held + 1] = string.match(attempt, '^[^#]+') end
end
return held
