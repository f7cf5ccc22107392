-- putback(work; worker, batch, ...) -> how many messages were put back
--
-- Puts batches back into the queue that a living worker requested and never got, because the reply was lost.
--   KEYS[1]  ph:work:<worker>, which has their records   ARGV[1]  the worker   ARGV[2..]  the names of the batches
local batches, count = batches_of(ARGV[1]), 0
for i = 2, #ARGV do
  count = count + requeue(batches[ARGV[i]] or {})
  forget_batch(ARGV[1], ARGV[i])
end
return count
