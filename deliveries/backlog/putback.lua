-- putback(; worker, batch, ...) -> how many messages were put back
--
-- Puts batches back into the queue that a living worker requested and never got, because the reply was lost.
--   ARGV[1]  the worker   ARGV[2..]  the names of the batches. Owns their records in ph:work:<worker>.
local work = PREFIX .. 'work:' .. ARGV[1]
local count = 0
for i = 2, #ARGV do
  local packed = redis.call('HGET', work, ARGV[i])
  if packed then
    count = count + requeue(cmsgpack.unpack(packed))
    redis.call('HDEL', work, ARGV[i])
  end
end
return count
