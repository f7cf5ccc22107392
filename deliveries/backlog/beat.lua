-- beat(; worker, dead after ms, oldest job ms, region, ...) -> {1 when Redis was wiped since the last rebuild, else 0; messages put back;
--   {region, ms since a worker of it lived, ...}}
--
-- Renews a worker's heartbeat, and puts back what dead workers held: the messages of their batches go to the queue again,
-- without those that were settled.
--   ARGV[1]  the worker, or "" for a caller that is none   ARGV[2]  the silence (ms) after which a worker is dead
--   ARGV[3]  the age of the oldest job of the worker's threads
--   ARGV[4..]  the regions that the worker serves, without those that it has taken over from others
-- The third part of the reply has the regions that no worker serves.
-- Owns ph:workers (zset: worker -> last heartbeat, ms), ph:jobs (hash: worker -> age of its oldest job, ms), ph:regions (zset: region -> last heartbeat of a worker of it, or
-- when an audit first found messages there), every ph:work:<worker> of the dead, and ph:alive (set by rebuild).
local now = now_ms()
if ARGV[1] ~= '' then
  redis.call('ZADD', PREFIX .. 'workers', now, ARGV[1])
  redis.call('HSET', PREFIX .. 'jobs', ARGV[1], ARGV[3])
end
local put_back = 0
for _, worker in ipairs(redis.call('ZRANGEBYSCORE', PREFIX .. 'workers', '-inf', now - tonumber(ARGV[2]), 'LIMIT', 0, 8)) do
  local work = PREFIX .. 'work:' .. worker
  for _, packed in ipairs(redis.call('HVALS', work)) do
    put_back = put_back + requeue(packed)
  end
  redis.call('DEL', work)
  redis.call('ZREM', PREFIX .. 'workers', worker)
  redis.call('HDEL', PREFIX .. 'jobs', worker)
end
for i = 4, #ARGV do redis.call('ZADD', PREFIX .. 'regions', now, ARGV[i]) end
local silent = redis.call('ZRANGEBYSCORE', PREFIX .. 'regions', '-inf', now - tonumber(ARGV[2]), 'WITHSCORES')
for i = 2, #silent, 2 do silent[i] = math.floor(now - tonumber(silent[i])) end
return {redis.call('EXISTS', PREFIX .. 'alive') == 1 and 0 or 1, put_back, silent}
