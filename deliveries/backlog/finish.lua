-- finish(work; batch, ...) -> nothing
--
-- Removes batches from a worker's record, as all of them is settled.
--   KEYS[1]  ph:work:<worker> (record.lua)   ARGV  the names of the batches
for _, batch in ipairs(ARGV) do redis.call('HDEL', KEYS[1], batch, batch .. '-') end
