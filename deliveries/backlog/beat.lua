-- beat(workers; worker, dead after ms, oldest job ms, lease, is new, lease ms, others, region, ...)
--   -> {1 when Redis was wiped since the last rebuild, else 0; messages put back; {region, ms since a worker of it lived, ...};
--       1 when the lease holds, else 0; ph:bytes}
--
-- Renews a worker's heartbeat and its lease, and puts back what dead workers held: the messages of their batches go to the
-- queue again, without those that were settled or given back. Messages of ordered lanes are put back when the worker's lease has lapsed,
-- and what that worker still says of them is ignored (settle.lua).
--   KEYS[1]  ph:workers   ARGV[1]  the worker, or "" for a caller that is none
--   ARGV[2]  the silence (ms) after which a worker is dead
--   ARGV[3]  the age of the oldest job of the worker's threads
--   ARGV[4]  the name of the worker's lease, which begins with the worker's, or ""   ARGV[5]  1 for a new lease
--   ARGV[6]  the silence (ms) after which a lease lapses   ARGV[7]  ph:others, or "" if it is not known
--   ARGV[8..]  the regions that the worker serves, without those that it has taken over from others; only the first cell has them
-- The third part of the reply has the regions that no worker serves.
-- Owns ph:workers (zset: worker -> last heartbeat, ms), ph:leases (zset: lease -> last heartbeat, ms), ph:jobs (hash: worker
-- -> age of its oldest job, ms), ph:regions (zset: region -> last heartbeat of a worker of it; an audit adds a region with
-- messages as almost silent), every ph:work:<worker> and ph:stock:<worker> of the dead, and ph:alive (set by rebuild).
--- If no worker has been heard of for this time, Redis or the machine stood still: then none of them is at fault, and the
--- time does not count.
local STILL_MS = 2000
--- What other cells take counts for this long.
local OTHERS_MS = 60000
local leases = PREFIX .. 'leases'
local now = now_ms()
local put_back = 0

-- Puts back the messages of ordered lanes that a worker holds.
local function requeue_ordered(worker)
  for batch, messages in pairs(batches_of(worker)) do
    local ordered, others = {}, {}
    for _, message in ipairs(messages) do
      local _, subscription, region = task_of(message)
      local state = subscription and PREFIX .. subscription .. ':' .. region .. ':s'
      local is_ordered = state and redis.call('HGET', state, STATE_CODES.ordered) == '1'
      table.insert(is_ordered and ordered or others, message)
    end
    if #ordered > 0 then
      put_back = put_back + requeue(ordered)
      forget_batch(worker, batch)
      if #others > 0 then redis.call('HSET', record_of(worker), batch, cmsgpack.pack(others)) end
    end
  end
end

local newest = redis.call('ZRANGE', leases, -1, -1, 'WITHSCORES')
local still_ms = now - (tonumber(newest[2]) or now)
if still_ms > STILL_MS then
  for _, lease in ipairs(redis.call('ZRANGE', leases, 0, -1)) do redis.call('ZINCRBY', leases, still_ms, lease) end
  -- A worker that has just begun doesn't know whether the others are dead, and what they had must not wait for long.
  if ARGV[4] ~= '' and ARGV[5] ~= '1' then
    for _, worker in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do redis.call('ZINCRBY', KEYS[1], still_ms, worker) end
  end
end
local holds = ARGV[4] ~= '' and (ARGV[5] == '1' or redis.call('ZSCORE', leases, ARGV[4]))
if holds then redis.call('ZADD', leases, now, ARGV[4]) end
for _, lease in ipairs(redis.call('ZRANGEBYSCORE', leases, '-inf', now - tonumber(ARGV[6]), 'LIMIT', 0, 8)) do
  requeue_ordered(string.match(lease, '^(.+)/'))
  redis.call('ZREM', leases, lease)
end
if ARGV[1] ~= '' then
  redis.call('ZADD', PREFIX .. 'workers', now, ARGV[1])
  redis.call('HSET', PREFIX .. 'jobs', ARGV[1], ARGV[3])
end
for _, worker in ipairs(redis.call('ZRANGEBYSCORE', PREFIX .. 'workers', '-inf', now - tonumber(ARGV[2]), 'LIMIT', 0, 8)) do
  for _, messages in pairs(batches_of(worker)) do put_back = put_back + requeue(messages) end
  redis.call('DEL', record_of(worker), attempts_of(worker))
  redis.call('ZREM', PREFIX .. 'workers', worker)
  redis.call('HDEL', PREFIX .. 'jobs', worker)
  -- Its lease has not lapsed if everything stood still.
  for _, lease in ipairs(redis.call('ZRANGE', leases, 0, -1)) do
    if string.match(lease, '^(.+)/') == worker then redis.call('ZREM', leases, lease) end
  end
end
if ARGV[7] ~= '' then redis.call('SET', PREFIX .. 'others', ARGV[7], 'PX', OTHERS_MS) end
for i = 8, #ARGV do redis.call('ZADD', PREFIX .. 'regions', now, ARGV[i]) end
local silent = redis.call('ZRANGEBYSCORE', PREFIX .. 'regions', '-inf', now - tonumber(ARGV[2]), 'WITHSCORES')
for i = 2, #silent, 2 do silent[i] = math.floor(now - tonumber(silent[i])) end
local bytes = redis.call('GET', PREFIX .. 'bytes') or '0'
return {redis.call('EXISTS', PREFIX .. 'alive') == 1 and 0 or 1, put_back, silent, holds and 1 or 0, bytes}
