-- unlease(lane; id, times leased, when the lease lapses, ...) -> 1
--
-- Takes back leases that nobody has used: their messages were not handed out after all, or the stream that brought them
-- has ended before its client said anything about them. The messages are due at once, before the backlog, and it does
-- not count that they were leased. A lease that was extended since, or has ended, is left as it is.
--   KEYS[1]  the lane
--   ARGV     delivery, how often it had been leased when it was handed out, when that lease was to lapse (ms)
-- Owns every key of the lane (common.lua).
local key = PREFIX .. KEYS[1]
local is_due = false
for i = 1, #ARGV, 3 do
  local id = ARGV[i]
  local ends = tonumber(redis.call('ZSCORE', key .. ':l', id) or 0)
  if ends == tonumber(ARGV[i + 2]) and redis.call('HGET', key .. ':a', id) == ARGV[i + 1] then
    redis.call('ZREM', key .. ':l', id)
    redis.call('HINCRBY', key .. ':a', id, -1)
    redis.call('ZADD', key .. ':z', 0, id)
    redis.call('HSET', key .. ':d', id, 'r')
    is_due = true
  end
end
if is_due then ring_pullers(KEYS[1]) end
return 1
