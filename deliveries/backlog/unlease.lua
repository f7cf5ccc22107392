-- unlease(lane; id, ...) -> 1
--
-- Takes back leases of messages that were not handed out after all. They are due at once, before the backlog, and their
-- lease does not count.
--   KEYS[1]  the lane   ARGV  deliveries
-- Owns every key of the lane (common.lua).
local key = PREFIX .. KEYS[1]
for _, id in ipairs(ARGV) do
  if redis.call('ZREM', key .. ':l', id) == 1 then
    redis.call('HINCRBY', key .. ':a', id, -1)
    redis.call('ZADD', key .. ':z', 0, id)
    redis.call('HSET', key .. ':d', id, RETRYING)
  end
end
ring_pullers(KEYS[1])
return 1
