-- beat(; worker, dead after ms) -> {1 when Redis was wiped since the last rebuild, else 0; messages put back}
--
-- Renews a worker's heartbeat and takes back what dead workers held: their batches go to the queue again, less what
-- was settled meanwhile.
--   ARGV[1]  the worker, or "" for a caller that only looks after the others   ARGV[2]  silence that means death
-- Owns ph:workers (zset: worker -> last heartbeat, ms), every ph:work:<worker> of the dead, and ph:alive (set by rebuild).
local now = now_ms()
if ARGV[1] ~= '' then redis.call('ZADD', PREFIX .. 'workers', now, ARGV[1]) end
local put_back = 0
for _, worker in ipairs(redis.call('ZRANGEBYSCORE', PREFIX .. 'workers', '-inf', now - tonumber(ARGV[2]), 'LIMIT', 0, 8)) do
  local work = PREFIX .. 'work:' .. worker
  for _, packed in ipairs(redis.call('HVALS', work)) do
    for _, message in ipairs(cmsgpack.unpack(packed)) do
      local id, subscription, region = string.match(message, '^{"headers":{"id":"(%d+)%.(%d+)%.([^"]+)"')
      if id and redis.call('HGET', PREFIX .. subscription .. ':' .. region .. ':d', id) == 't' then
        redis.call('RPUSH', 'deliveries.' .. region, message)
        ring(region)
        put_back = put_back + 1
      end
    end
  end
  redis.call('DEL', work)
  redis.call('ZREM', PREFIX .. 'workers', worker)
end
return {redis.call('EXISTS', PREFIX .. 'alive') == 1 and 0 or 1, put_back}
