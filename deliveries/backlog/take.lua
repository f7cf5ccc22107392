-- take(queue, work; region, batch, count, lease) -> {messages, epoch}
--
-- Takes up to `count` messages from the queue after a settle, in the same round trip: in an ordered lane each result lets the
-- next message of its key out, which would otherwise wait until the worker wakes and fetches. Arguments and the batch are
-- those of fetch.lua. Messages that PushHub has not rendered are left to Celery, and so are those behind them.
--   KEYS[1]  deliveries.<region>     KEYS[2]  ph:work:<worker> (record.lua)
--   ARGV[1]  region   ARGV[2]  the batch's name   ARGV[3]  at most this many   ARGV[4]  the worker's lease
-- Reads ph:epoch; owns ph:work:<worker>; lists the worker in ph:workers.
local waiting = redis.call('LRANGE', KEYS[1], -tonumber(ARGV[3]), -1)
local count = 0
while count < #waiting and task_of(waiting[#waiting - count]) do count = count + 1 end
local messages = take_batch(KEYS[1], ARGV[1], KEYS[2], ARGV[2], count, 0, ARGV[4], now_ms())
return {messages, redis.call('GET', PREFIX .. 'epoch') or '0'}
