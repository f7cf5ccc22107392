-- leave(work; worker, lease) -> 1 when the worker held nothing, 0 when it still has batches
--
-- Signs a worker off. A worker that still has batches stays listed, so that they are put back after its silence.
--   KEYS[1]  ph:work:<worker>   ARGV[1]  the worker   ARGV[2]  its lease
-- Owns ph:workers, ph:leases, ph:jobs and ph:stock:<worker>; reads ph:work:<worker>.
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
redis.call('DEL', attempts_of(ARGV[1]))
redis.call('ZREM', PREFIX .. 'workers', ARGV[1])
redis.call('ZREM', PREFIX .. 'leases', ARGV[2])
redis.call('HDEL', PREFIX .. 'jobs', ARGV[1])
return 1
