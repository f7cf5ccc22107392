-- leave(; worker) -> 1 when the worker held nothing, 0 when it still has batches
--
-- Signs a worker off. A worker that still has batches stays listed, so that they are put back after its silence.
--   ARGV[1]  the worker. Owns ph:workers and ph:jobs; reads ph:work:<worker>.
if redis.call('EXISTS', PREFIX .. 'work:' .. ARGV[1]) == 1 then return 0 end
redis.call('ZREM', PREFIX .. 'workers', ARGV[1])
redis.call('HDEL', PREFIX .. 'jobs', ARGV[1])
return 1
