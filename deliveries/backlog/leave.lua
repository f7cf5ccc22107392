-- leave(; worker) -> 1 when the worker held nothing, 0 when it still has batches
--
-- A worker takes leave. One that still has batches goes on being listed, so that its silence gives them back.
--   ARGV[1]  the worker. Owns ph:workers; reads ph:work:<worker>.
if redis.call('EXISTS', PREFIX .. 'work:' .. ARGV[1]) == 1 then return 0 end
redis.call('ZREM', PREFIX .. 'workers', ARGV[1])
return 1
